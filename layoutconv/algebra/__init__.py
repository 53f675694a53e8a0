"""The layout algebra: pure Python over duck-typed integers.

Nothing here imports anything of the package outside this folder, and nothing here imports torch, NumPy or the
CuTe DSL: a layout is evaluated on whatever integers it is given (``int``, integer arrays, values of a kernel that
is being traced). Every other room of the house may import this one.
"""

from .composed import ComposedLayout
from .errors import LayoutError, LayoutTypeError, LayoutValueError
from .layout import Layout
from .stride import ArithmeticTuple, CustomStride, E, IndexedGather, ScaledBasis
from .symint import SymInt

__all__ = [
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
    "SymInt",
]
