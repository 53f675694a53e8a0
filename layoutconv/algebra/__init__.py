"""The layout algebra: pure Python over duck-typed integers.

It imports nothing else of the package, nor torch, NumPy or the CuTe DSL. A layout is evaluated on
any integers: ``int``, integer arrays, values of a kernel that is being traced. Every other folder
may import this one.

Composition and its dependencies are imported at once, the other families on first use.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .coalesce import coalesce, coalesce_x, filter, flatten_layout, group_modes
from .coalesce import flatten_layout as flatten
from .complement import complement
from .composed import ComposedLayout
from .composition import composition
from .construct import make_identity_layout, make_layout_like, make_ordered_layout, with_shape
from .divide import flat_divide, logical_divide, tiled_divide, zipped_divide
from .entries import (
    append,
    concat,
    get,
    prepend,
    product_each,
    product_like,
    repeat_like,
    replace,
    select,
    shape,
    stride,
    take,
    transform_leaf,
    unflatten,
    unwrap,
    wrap,
)
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
)
from .layout import Layout, make_layout
from .operands import naming_operands
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
    from .aligned_blocks import vector_width
    from .analysis import is_injective, is_surjective
    from .atoms import (
        CopyAtom,
        MmaAtom,
        copy_atom,
        copy_names,
        mfma_atom,
        mfma_names,
        mma_atom,
        mma_names,
        smem_atom,
        tcgen05_atom,
        tma_atom,
        tmem_accumulator,
        wgmma_atom,
    )
    from .casts import downcast, recast, recast_layout, upcast
    from .combine import greatest_common_domain, layout_add
    from .common import max_common_layout, max_common_vector
    from .divide import hier_unzip, tile_unzip
    from .emission import emit
    from .extent import coprofile, coshape, cosize, size
    from .f2 import f2_layout, from_f2, to_f2
    from .first_run import contiguity
    from .inverse import left_inverse, right_inverse
    from .makers import (
        basis_get,
        basis_value,
        filter_zeros,
        get_nonswizzle_portion,
        get_swizzle_portion,
        is_major,
        leading_dim,
        make_basis_like,
        make_composed_layout,
        make_fragment_like,
        make_identity_tensor,
        make_swizzle,
        make_tensor,
        size_in_bytes,
        sort,
        tiler_to_layout,
    )
    from .notation import parse
    from .null_modes import nullspace
    from .orders import (
        LayoutLeft,
        LayoutRight,
        StrideOrder,
        make_coord,
        make_shape,
        make_stride,
        make_tile,
    )
    from .overlap import overlaps
    from .permutations import (
        Footprint,
        cycles,
        fixed_points,
        footprint,
        functionally_equal,
        image,
        is_bijective,
        is_contiguous,
        make_layout_image_mask,
        mode_contiguity,
        offset_table,
        permutation_order,
        permutation_parity,
        slice_contiguity,
    )
    from .shapes import (
        ceil_div,
        colex_less,
        common_coarsening,
        common_refinement,
        compact_col_major,
        compact_row_major,
        coordinates,
        dice,
        domain_distribute,
        elem_less,
        elem_scale,
        evenly_divides,
        increment,
        inner_product,
        lex_less,
        prefix_product,
        round_up,
        shape_div,
        suffix_product,
        weakly_congruent,
    )
    from .substitution import substitute
    from .tiled_copy import (
        CopyUnit,
        ThrCopy,
        TiledCopy,
        copy_unit,
        make_cotiled_copy,
        make_layout_tv,
        make_tiled_copy,
        make_tiled_copy_A,
        make_tiled_copy_B,
        make_tiled_copy_C,
        make_tiled_copy_C_atom,
        make_tiled_copy_D,
        make_tiled_copy_S,
        make_tiled_copy_tv,
        universal_copy,
    )
    from .tiled_mma import ThrMma, TiledMma, make_tiled_mma
    from .tiling import domain_offset, local_partition, local_tile

_HOMES = {
    "emission": "emit",
    "tiled_copy": (
        "CopyUnit ThrCopy TiledCopy copy_unit make_cotiled_copy make_layout_tv "
        "make_tiled_copy make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C "
        "make_tiled_copy_C_atom make_tiled_copy_D make_tiled_copy_S make_tiled_copy_tv "
        "universal_copy"
    ),
    "tiled_mma": "ThrMma TiledMma make_tiled_mma",
    "access": "GlobalAccess SharedAccess bank_conflicts coalescing",
    "account": "explain",
    "aligned_blocks": "vector_width",
    "analysis": "is_injective is_surjective",
    "atoms": (
        "CopyAtom MmaAtom copy_atom copy_names mfma_atom mfma_names mma_atom mma_names smem_atom "
        "tcgen05_atom tma_atom tmem_accumulator wgmma_atom"
    ),
    "casts": "downcast recast recast_layout upcast",
    "combine": "greatest_common_domain layout_add",
    "common": "max_common_layout max_common_vector",
    "divide": "hier_unzip tile_unzip",
    "extent": "coprofile coshape cosize size",
    "f2": "f2_layout from_f2 to_f2",
    "first_run": "contiguity",
    "inverse": "left_inverse right_inverse",
    "makers": (
        "basis_get basis_value filter_zeros get_nonswizzle_portion get_swizzle_portion "
        "is_major leading_dim make_basis_like make_composed_layout make_fragment_like "
        "make_identity_tensor make_swizzle make_tensor size_in_bytes sort tiler_to_layout"
    ),
    "notation": "parse",
    "null_modes": "nullspace",
    "orders": "LayoutLeft LayoutRight StrideOrder make_coord make_shape make_stride make_tile",
    "overlap": "overlaps",
    "permutations": (
        "Footprint cycles fixed_points footprint functionally_equal image is_bijective "
        "is_contiguous make_layout_image_mask mode_contiguity offset_table permutation_order "
        "permutation_parity slice_contiguity"
    ),
    "shapes": (
        "ceil_div colex_less common_coarsening common_refinement compact_col_major "
        "compact_row_major coordinates dice domain_distribute elem_less elem_scale evenly_divides "
        "increment inner_product lex_less prefix_product round_up shape_div suffix_product "
        "weakly_congruent"
    ),
    "substitution": "substitute",
    "tiling": "domain_offset local_partition local_tile",
}
# These check all operands themselves, and 0.1 us more would show in a call of 2 us.
_CHECKING = {
    "blocked_product",
    "coalesce",
    "complement",
    "composition",
    "concat",
    "flat_divide",
    "flat_product",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "make_coord",
    "make_shape",
    "make_stride",
    "make_tile",
    "nullspace",
    "raked_product",
    "replace",
    "right_inverse",
    "slice_and_offset",
    "tiled_divide",
    "tiled_product",
    "wrap",
    "zipped_divide",
    "zipped_product",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "F2",
    "ArithmeticTuple",
    "ComposedLayout",
    "CopyAtom",
    "CopyUnit",
    "CustomStride",
    "E",
    "Footprint",
    "GlobalAccess",
    "IndexedGather",
    "Layout",
    "LayoutBudgetError",
    "LayoutError",
    "LayoutLeft",
    "LayoutRight",
    "LayoutTypeError",
    "LayoutValueError",
    "MmaAtom",
    "Relation",
    "ScaledBasis",
    "SharedAccess",
    "Stride",
    "StrideOrder",
    "StridedGather",
    "Swizzle",
    "SymInt",
    "Symbolic",
    "Tensor",
    "ThrCopy",
    "ThrMma",
    "TiledCopy",
    "TiledMma",
    "append",
    "assuming",
    "bank_conflicts",
    "basis_get",
    "basis_value",
    "blocked_product",
    "ceil_div",
    "coalesce",
    "coalesce_x",
    "coalescing",
    "colex_less",
    "common_coarsening",
    "common_refinement",
    "compact_col_major",
    "compact_row_major",
    "compatible",
    "complement",
    "composition",
    "concat",
    "congruent",
    "contiguity",
    "coordinates",
    "coprofile",
    "copy_atom",
    "copy_names",
    "copy_unit",
    "coshape",
    "cosize",
    "crd2crd",
    "crd2idx",
    "cycles",
    "depth",
    "dice",
    "domain_distribute",
    "domain_offset",
    "downcast",
    "elem_less",
    "elem_scale",
    "emit",
    "evenly_divides",
    "explain",
    "f2_layout",
    "filter",
    "filter_zeros",
    "fixed_points",
    "flat_divide",
    "flat_product",
    "flatten",
    "flatten_layout",
    "footprint",
    "from_f2",
    "functionally_equal",
    "get",
    "get_nonswizzle_portion",
    "get_swizzle_portion",
    "greatest_common_domain",
    "group_modes",
    "hier_unzip",
    "idx2crd",
    "image",
    "increment",
    "inner_product",
    "is_bijective",
    "is_contiguous",
    "is_injective",
    "is_major",
    "is_surjective",
    "layout_add",
    "leading_dim",
    "left_inverse",
    "lex_less",
    "local_partition",
    "local_tile",
    "logical_divide",
    "logical_product",
    "make_basis_like",
    "make_composed_layout",
    "make_coord",
    "make_cotiled_copy",
    "make_fragment_like",
    "make_identity_layout",
    "make_identity_tensor",
    "make_layout",
    "make_layout_image_mask",
    "make_layout_like",
    "make_layout_tv",
    "make_ordered_layout",
    "make_shape",
    "make_stride",
    "make_swizzle",
    "make_tensor",
    "make_tile",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
    "make_tiled_mma",
    "max_common_layout",
    "max_common_vector",
    "mfma_atom",
    "mfma_names",
    "mma_atom",
    "mma_names",
    "mode_contiguity",
    "nullspace",
    "offset_table",
    "overlaps",
    "parse",
    "permutation_order",
    "permutation_parity",
    "prefix_product",
    "prepend",
    "product",
    "product_each",
    "product_like",
    "raked_product",
    "rank",
    "recast",
    "recast_layout",
    "repeat_like",
    "replace",
    "right_inverse",
    "round_up",
    "select",
    "shape",
    "shape_div",
    "size",
    "size_in_bytes",
    "slice_",
    "slice_and_offset",
    "slice_contiguity",
    "smem_atom",
    "sort",
    "stride",
    "substitute",
    "suffix_product",
    "symbols",
    "take",
    "tcgen05_atom",
    "tile_to_shape",
    "tile_unzip",
    "tiled_divide",
    "tiled_product",
    "tiler_to_layout",
    "tma_atom",
    "tmem_accumulator",
    "to_f2",
    "transform_leaf",
    "unflatten",
    "universal_copy",
    "unwrap",
    "upcast",
    "vector_width",
    "weakly_congruent",
    "wgmma_atom",
    "with_shape",
    "wrap",
    "zipped_divide",
    "zipped_product",
]


def _exported(name: str, value: Any) -> Any:
    """Export a public name; wrap a function so that errors name the senseless operand."""
    is_function = type(value) is FunctionType or hasattr(value, "cache_info")
    if is_function and name not in _CHECKING:
        value = naming_operands(value)
    globals()[name] = value
    return value


for _name in __all__:
    if _name in globals():
        _exported(_name, globals()[_name])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _exported(name, getattr(import_module(f".{_HOME[name]}", __name__), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
