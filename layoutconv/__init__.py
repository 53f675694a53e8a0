"""Layout algebra, and the dense and sparse convolutions that it describes.

``import layoutconv`` loads only the pure-Python algebra; modules that need torch or the CuTe DSL
are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import algebra  # what it exports is the top-level vocabulary
from .algebra.display import draw_with
from .gpu import tuning_hook

if TYPE_CHECKING:
    from . import compat as compat
    from . import conv as conv
    from . import distributed as distributed
    from . import drawing as drawing
    from . import nn as nn
    from . import pointwise as pointwise
    from . import sparse as sparse
    from . import testing as testing
    from .algebra import *  # noqa: F403
    from .base.caches import clear_caches as clear_caches
    from .deploy.pack import pack as pack
    from .deploy.packed_network import load_pack as load_pack
    from .drawing.api import draw as draw
    from .errors import ArgumentError as ArgumentError
    from .errors import ArgumentTypeError as ArgumentTypeError
    from .errors import DeviceError as DeviceError
    from .errors import PointFileError as PointFileError
    from .errors import RankError as RankError
    from .gpu.reduction_plan import reduce as reduce
    from .nn.functional import conv1d as conv1d
    from .nn.functional import conv2d as conv2d
    from .nn.functional import conv3d as conv3d
    from .nn.functional import conv_transpose1d as conv_transpose1d
    from .nn.functional import conv_transpose2d as conv_transpose2d
    from .nn.functional import conv_transpose3d as conv_transpose3d
    from .nn.sparse import sparse_conv as sparse_conv
    from .nn.sparse import sparse_conv_transpose as sparse_conv_transpose
    from .nn.sparse import sparse_inverse_conv as sparse_inverse_conv
    from .nn.sparse import subm_conv as subm_conv
    from .ops.execute import execute as execute
    from .sparse import SparseTensor as SparseTensor
    from .sparse import devoxelize as devoxelize
    from .sparse import voxelize as voxelize
    from .tensors.packed_int4 import pack_int4 as pack_int4
    from .tensors.packed_int4 import unpack_int4 as unpack_int4
    from .tuning.precompile import precompile as precompile
    from .tuning.race import tune as tune
    from .view.epilogue import Activation as Activation
    from .view.epilogue import Bias as Bias
    from .view.epilogue import Clamp as Clamp
    from .view.epilogue import Epilogue as Epilogue
    from .view.epilogue import Pointwise as Pointwise
    from .view.epilogue import Residual as Residual
    from .view.epilogue import Scale as Scale
    from .view.gemm_view import GemmView as GemmView
    from .view.reduction_view import ReductionView as ReductionView
    from .view.reduction_view import reduction_view as reduction_view

__version__ = "0.1.0"

_ROOMS = ("compat", "conv", "distributed", "drawing", "nn", "pointwise", "sparse", "testing")
_HOME = {
    "Activation": "view.epilogue",
    "ArgumentError": "errors",
    "ArgumentTypeError": "errors",
    "Bias": "view.epilogue",
    "Clamp": "view.epilogue",
    "DeviceError": "errors",
    "Epilogue": "view.epilogue",
    "GemmView": "view.gemm_view",
    "PointFileError": "errors",
    "Pointwise": "view.epilogue",
    "RankError": "errors",
    "Residual": "view.epilogue",
    "Scale": "view.epilogue",
    "ReductionView": "view.reduction_view",
    "SparseTensor": "sparse.coords.sparse_tensor",
    "clear_caches": "base.caches",
    "draw": "drawing.api",
    "devoxelize": "sparse.coords.interpolation",
    "execute": "ops.execute",
    "load_pack": "deploy.packed_network",
    "pack": "deploy.pack",
    "pack_int4": "tensors.packed_int4",
    "unpack_int4": "tensors.packed_int4",
    "reduce": "gpu.reduction_plan",
    "reduction_view": "view.reduction_view",
    "precompile": "tuning.precompile",
    "tune": "tuning.race",
    "voxelize": "sparse.coords.voxels",
    "conv1d": "nn.functional",
    "conv2d": "nn.functional",
    "conv3d": "nn.functional",
    "conv_transpose1d": "nn.functional",
    "conv_transpose2d": "nn.functional",
    "conv_transpose3d": "nn.functional",
    "sparse_conv": "nn.sparse",
    "sparse_conv_transpose": "nn.sparse",
    "sparse_inverse_conv": "nn.sparse",
    "subm_conv": "nn.sparse",
}

# Without the rooms: `from layoutconv import *` behind `from torch import nn` would replace nn.
__all__ = ["__version__", *_HOME, *algebra.__all__]


def _draw(*args: Any, **options: Any) -> Any:
    return import_module(".drawing", __name__).draw(*args, **options)


draw_with(_draw)


def _tune_at_need(*args: Any, **options: Any) -> Any:
    return import_module(".tuning.race", __name__).tune_at_need(*args, **options)


tuning_hook.tune_at_need = _tune_at_need


def __getattr__(name: str) -> Any:
    if name in algebra.__all__:
        value = getattr(algebra, name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
