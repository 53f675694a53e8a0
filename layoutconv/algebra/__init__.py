"""The layout algebra: pure Python over duck-typed integers.

Nothing here imports anything of the package outside this folder, and nothing here imports torch,
NumPy or the CuTe DSL: a layout is evaluated on whatever integers it is given (``int``, integer
arrays, values of a kernel that is being traced). Every other room of the house may import this one.

Composition and what it needs are imported at once; the other families when first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .coalesce import coalesce, coalesce_x, filter, flatten_layout, group_modes
from .complement import complement
from .composed import ComposedLayout
from .composition import composition
from .construct import make_identity_layout, make_layout_like, make_ordered_layout, with_shape
from .divide import flat_divide, logical_divide, tiled_divide, zipped_divide
from .errors import LayoutBudgetError, LayoutError, LayoutTypeError, LayoutValueError
from .int_tuple import (
    compatible,
    congruent,
    crd2crd,
    crd2idx,
    depth,
    idx2crd,
    product,
    rank,
    unflatten,
)
from .layout import Layout, make_layout
from .products import (
    blocked_product,
    flat_product,
    logical_product,
    raked_product,
    tile_to_shape,
    tiled_product,
    zipped_product,
)
from .relations import Relation, assuming
from .slices import slice_, slice_and_offset
from .stride import (
    F2,
    ArithmeticTuple,
    CustomStride,
    E,
    IndexedGather,
    ScaledBasis,
    Stride,
    StridedGather,
)
from .swizzle import Swizzle
from .symbols import Symbolic, symbols
from .symint import SymInt
from .tensor import Tensor

if TYPE_CHECKING:
    from .access import GlobalAccess, SharedAccess, bank_conflicts, coalescing
    from .account import explain
    from .analysis import contiguity, is_injective, is_surjective, overlaps, vector_width
    from .atoms import CopyAtom, MmaAtom, copy_atom, copy_names, mma_atom, mma_names, wgmma_atom
    from .casts import downcast, recast, upcast
    from .combine import greatest_common_domain, layout_add
    from .common import max_common_layout, max_common_vector
    from .extent import coshape, cosize, size
    from .f2 import f2_layout, from_f2, to_f2
    from .inverse import left_inverse, nullspace, right_inverse
    from .notation import parse
    from .substitution import substitute
    from .tiling import domain_offset, local_partition, local_tile

_HOMES = {
    "access": "GlobalAccess SharedAccess bank_conflicts coalescing",
    "account": "explain",
    "analysis": "contiguity is_injective is_surjective overlaps vector_width",
    "atoms": "CopyAtom MmaAtom copy_atom copy_names mma_atom mma_names wgmma_atom",
    "casts": "downcast recast upcast",
    "combine": "greatest_common_domain layout_add",
    "common": "max_common_layout max_common_vector",
    "extent": "coshape cosize size",
    "f2": "f2_layout from_f2 to_f2",
    "inverse": "left_inverse nullspace right_inverse",
    "notation": "parse",
    "substitution": "substitute",
    "tiling": "domain_offset local_partition local_tile",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "F2",
    "ArithmeticTuple",
    "ComposedLayout",
    "CopyAtom",
    "CustomStride",
    "E",
    "GlobalAccess",
    "IndexedGather",
    "Layout",
    "LayoutBudgetError",
    "LayoutError",
    "LayoutTypeError",
    "LayoutValueError",
    "MmaAtom",
    "Relation",
    "ScaledBasis",
    "SharedAccess",
    "Stride",
    "StridedGather",
    "Swizzle",
    "SymInt",
    "Symbolic",
    "Tensor",
    "assuming",
    "bank_conflicts",
    "blocked_product",
    "coalesce",
    "coalesce_x",
    "coalescing",
    "compatible",
    "complement",
    "composition",
    "congruent",
    "contiguity",
    "copy_atom",
    "copy_names",
    "coshape",
    "cosize",
    "crd2crd",
    "crd2idx",
    "depth",
    "domain_offset",
    "downcast",
    "explain",
    "f2_layout",
    "filter",
    "flat_divide",
    "flat_product",
    "flatten_layout",
    "from_f2",
    "greatest_common_domain",
    "group_modes",
    "idx2crd",
    "is_injective",
    "is_surjective",
    "layout_add",
    "left_inverse",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_identity_layout",
    "make_layout",
    "make_layout_like",
    "make_ordered_layout",
    "max_common_layout",
    "max_common_vector",
    "mma_atom",
    "mma_names",
    "nullspace",
    "overlaps",
    "parse",
    "product",
    "raked_product",
    "rank",
    "recast",
    "right_inverse",
    "size",
    "slice_",
    "slice_and_offset",
    "substitute",
    "symbols",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "to_f2",
    "unflatten",
    "upcast",
    "vector_width",
    "wgmma_atom",
    "with_shape",
    "zipped_divide",
    "zipped_product",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
