"""``spconv.pytorch.quantization``: its functions other than the steps of ``torch.fx`` quantisation.

:func:`layoutconv.nn.quantize` quantises networks of spconv's layers; the errors of missing names
say so.
"""

from __future__ import annotations

from ...absent import explain
from . import core, utils
from .core import quantize_per_tensor

__all__ = ["core", "quantize_per_tensor", "utils"]

__getattr__ = explain(__name__)
