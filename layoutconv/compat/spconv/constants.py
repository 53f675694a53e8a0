"""Settings of spconv, by their names. Two have an effect, at every use:

``SAVED_WEIGHT_LAYOUT``
    "KRSC", "RSKC" or "RSCK": the layout of filters in state dicts that do not record theirs; "" to
    infer it from the shapes. The environment variable ``SPCONV_SAVED_WEIGHT_LAYOUT`` sets it.
``SPCONV_ALLOW_TF32``
    ``torch.backends.cudnn.allow_tf32`` by another name, for reading and for writing: layoutconv's
    layers multiply float32 as torch's do. It can be read where torch's newer ``fp32_precision`` was
    set, too.

The rest choose among spconv's algorithms; setting them has no effect.
"""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType

from .. import tf32
from .absent import explain

SAVED_WEIGHT_LAYOUT = os.getenv("SPCONV_SAVED_WEIGHT_LAYOUT", "")

ALL_WEIGHT_IS_KRSC = True
FILTER_HWIO = False
SPCONV_USE_DIRECT_TABLE = True
SPCONV_DO_SORT = True
SPCONV_FX_TRACE_MODE = False
SPCONV_DEBUG_WEIGHT = False
SPCONV_CPP_INDICE_PAIRS = True
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_CPP_GEMM = True
SPCONV_DIRECT_TABLE_HASH_SIZE_SCALE = 1.1
SPCONV_INT8_DEBUG = False
SPCONV_BWD_SPLITK = [1, 2, 4, 8, 16, 32, 64]
SPCONV_DEBUG_NVRTC_KERNELS = False
SPCONV_DEBUG_CPP_ONLY = False
NDIM_DONT_CARE = 3
DISABLE_JIT = False
EDITABLE_INSTALLED = False
PACKAGE_NAME = "spconv"
BOOST_ROOT = None
TORCH_HAS_AMP = True

__getattr__ = explain(__name__)


def is_amp_enabled() -> bool:
    """Return whether ``torch.autocast`` is on, for GPUs."""
    import torch

    return torch.is_autocast_enabled()


class _Constants(ModuleType):
    """A module with one attribute that reads and writes a setting of torch."""

    @property
    def PYTORCH_VERSION(self) -> list[int]:
        import torch

        return [int(number) for number in re.findall(r"\d+", torch.__version__)[:3]]

    @property
    def SPCONV_ALLOW_TF32(self) -> bool:
        return tf32.is_allowed()

    @SPCONV_ALLOW_TF32.setter
    def SPCONV_ALLOW_TF32(self, allow: bool) -> None:
        tf32.allow(allow)


sys.modules[__name__].__class__ = _Constants
