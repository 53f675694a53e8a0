"""The layout algebra: pure Python over duck-typed integers.

Nothing here imports anything of the package outside this folder, and nothing here imports torch,
NumPy or the CuTe DSL: a layout is evaluated on whatever integers it is given (``int``, integer
arrays, values of a kernel that is being traced). Every other room of the house may import this one.
"""

from .coalesce import coalesce, coalesce_x, filter, flatten_layout, group_modes
from .complement import complement
from .composed import ComposedLayout
from .composition import composition
from .construct import make_identity_layout, make_layout_like, make_ordered_layout, with_shape
from .divide import flat_divide, logical_divide, tiled_divide, zipped_divide
from .errors import LayoutError, LayoutTypeError, LayoutValueError
from .int_tuple import crd2crd, crd2idx, idx2crd
from .layout import Layout, make_layout, slice_, slice_and_offset
from .stride import F2, ArithmeticTuple, CustomStride, E, IndexedGather, ScaledBasis, StridedGather
from .swizzle import Swizzle
from .symint import SymInt
from .tensor import Tensor

__all__ = [
    "F2",
    "ArithmeticTuple",
    "ComposedLayout",
    "CustomStride",
    "E",
    "IndexedGather",
    "Layout",
    "LayoutError",
    "LayoutTypeError",
    "LayoutValueError",
    "ScaledBasis",
    "StridedGather",
    "Swizzle",
    "SymInt",
    "Tensor",
    "coalesce",
    "coalesce_x",
    "complement",
    "composition",
    "crd2crd",
    "crd2idx",
    "filter",
    "flat_divide",
    "flatten_layout",
    "group_modes",
    "idx2crd",
    "logical_divide",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_ordered_layout",
    "slice_",
    "slice_and_offset",
    "tiled_divide",
    "with_shape",
    "zipped_divide",
]
