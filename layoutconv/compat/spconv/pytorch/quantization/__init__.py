"""``spconv.pytorch.quantization``: what it has that is no step of quantisation by ``torch.fx``.

Networks of spconv's names are quantised by :func:`layoutconv.nn.quantize`, which the names that are
not here say.
"""

from __future__ import annotations

from ...absent import explain
from . import core, utils
from .core import quantize_per_tensor

__all__ = ["core", "quantize_per_tensor", "utils"]

__getattr__ = explain(__name__)
