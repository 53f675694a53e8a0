"""Right calls of every public name of the algebra, and operands that make no sense anywhere.

What of these is right to accept in a place is listed with the reason: all else is refused.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import layoutconv.algebra as lc
from layoutconv.algebra import E, Layout, Swizzle, SymInt

L = Layout((4, 8), (8, 1))
MMA = lc.make_tiled_mma(lc.mma_atom(lc.mma_names()[0]), (2, 2, 1))
UNIT = lc.universal_copy(2)
THREADS, VALUES = Layout((16, 8), (8, 1)), Layout((1, 8))
COPY = lc.make_tiled_copy_tv(UNIT, THREADS, VALUES)

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls() -> dict[str, Call]:
    found: dict[str, Call] = {}

    def add(names: str, /, *args: Any, **named: Any) -> None:
        found.update(dict.fromkeys(names.split(), (args, named)))

    add("coalesce coalesce_x filter", layout=L, profile=(1, 1))
    add(
        "contiguity coprofile cycles f2_layout filter_zeros fixed_points flatten flatten_layout "
        "footprint get_nonswizzle_portion get_swizzle_portion image is_bijective is_contiguous "
        "is_injective make_fragment_like make_layout_like mode_contiguity offset_table "
        "permutation_order permutation_parity sort to_f2",
        layout=L,
    )
    add("left_inverse nullspace right_inverse", a=L)
    add("product_each unwrap wrap", x=(4, 8))
    add("rank depth", t=(4, (2, 3)), mode=[1])
    add("product", t=(4, 8))
    add("tiler_to_layout", tiler=(4, 8))
    add("append prepend", x=(4, 8), entry=2, rank=4)
    add("ceil_div round_up", a=(9, 10), b=(4, 4))
    add("shape_div evenly_divides elem_scale elem_less", a=(12, 8), b=(4, 8))
    add("lex_less colex_less weakly_congruent inner_product", a=(12, 8), b=(4, 8))
    add("common_coarsening common_refinement congruent compatible", a=(4, 8), b=(4, 8))
    add("complement", a=Layout(4, 2), bound=16)
    add("composition", a=L, b=Layout(4, 2))
    add("logical_divide zipped_divide tiled_divide flat_divide", a=L, tiler=(2, 4))
    add("logical_product zipped_product tiled_product flat_product", a=L, tiler=(2, 4))
    add("blocked_product raked_product", block=L, tiler=Layout((2, 4)))
    add("tile_to_shape", block=L, shape=(8, 16), order=(1, 0))
    add("hier_unzip", splitter=lc.logical_divide, a=L, tiler=(2, 4))
    add("tile_unzip", a=lc.logical_divide(L, (2, 4)), tiler=(2, 4))
    add("functionally_equal greatest_common_domain layout_add", a=L, b=L)
    add("max_common_layout max_common_vector", a=L, b=L)
    add("overlaps", a=L, b=L, shift=2)
    add("coalescing", layout=Layout(32), element_bits=32, vector=1)
    add("bank_conflicts", Layout(32), element_bits=32, vector=1, banks=32, bank_bytes=4)
    add("basis_get", basis=E(1), x=(4, 8))
    add("basis_value", basis=3 * E(1))
    add("compact_col_major compact_row_major prefix_product suffix_product", a=(4, 8), init=1)
    add("concat", (4, 8), (2,))
    add("coordinates", shape=(2, 3))
    add("copy_names mfma_names mma_names")
    add("copy_unit", atom=lc.copy_atom(lc.copy_names()[0]), element_bits=16)
    add("coshape cosize size", layout=L, mode=[1])
    add("shape stride get", x=L, mode=[1])
    add("crd2crd", crd=(1, 2), dst_shape=(4, 8), src_shape=(4, 8))
    add("crd2idx", crd=(1, 2), shape=(4, 8), stride=(8, 1))
    add("dice", crd=(None, 1), x=L)
    add("domain_distribute", x=(15, 14), count=6)
    add("domain_offset", crd=(1, 2), x=L)
    add("upcast downcast", layout=L, n=2)
    add("emit", layout=L, language="numpy", names=("a", "b"), index="index")
    add("explain", operation="composition", a=L, b=Layout(4, 2))
    add("from_f2", columns=[1, 2, 4], shape=(2, 4))
    add("group_modes", layout=L, begin=0, end=2)
    add("idx2crd", idx=5, shape=(4, 8))
    add("increment", crd=(3, 0), shape=(4, 2))
    add("is_major", mode=0, layout=L)
    add("is_surjective", layout=L, bound=32)
    add("leading_dim", shape=(4, 8), stride=(8, 1))
    add("local_partition", x=L, threads=(2, 2), index=1, proj=(1, 1))
    add("local_tile", x=L, tiler=(2, 4), crd=(0, 0), proj=(1, 1))
    add("make_basis_like", profile=(4, 8))
    add("make_composed_layout", last=Swizzle(2, 0, 3), offset=0, first=L)
    add("make_coord make_shape make_stride make_tile", 4, 8)
    add("make_identity_layout make_identity_tensor", shape=(4, 8))
    add("make_layout", (4, 8), stride=(8, 1))
    add("make_layout_image_mask", layout=L, crd=(1, None), mode=1)
    add("make_ordered_layout", shape=(4, 8), order=(1, 0))
    add("make_swizzle", bits=2, base=0, shift=3)
    add("make_tensor", engine=list(range(32)), layout=L)
    add("parse", notation="(4,8):(8,1)")
    add("product_like", x=((2, 3), 4), profile=(1, 1))
    add("recast", layout=L, old_bits=16, new_bits=32)
    add("recast_layout", new_bits=32, old_bits=16, layout=Layout((8, 4)))
    add("repeat_like", x=7, profile=(1, 2))
    add("replace", x=L, mode=0, entry=Layout(5, 7))
    add("select", x=L, mode=[1, 0])
    add("size_in_bytes", element_bits=16, layout=L)
    add("slice_", crd=(None, 1), target=L)
    add("slice_and_offset", crd=(None, 1), layout=L)
    add("slice_contiguity", layout=L, crd=(None, 1))
    add("substitute", x=Layout((SymInt(8, "W"), 4)), W=3)
    add("symbols", names="H W", minimum=1)
    add("take", x=L, begin=0, end=1)
    add("transform_leaf", abs, (1, 2))
    add("unflatten", x=(2, 2, 3), profile=((1, 1), 1))
    add("vector_width", layout=L, limit=4)
    add("with_shape", layout=L, shape=(8, 4))
    add("assuming", lc.symbols("Q") % 8 == 0)
    _add_threads_and_values(add)
    return found


def _add_threads_and_values(add: Any) -> None:
    add("copy_atom", name=lc.copy_names()[0])
    add("mfma_atom", name=lc.mfma_names()[0])
    add("mma_atom", name=lc.mma_names()[0])
    add("smem_atom", name="K_SW128", element_bits=16)
    add("tcgen05_atom", m=128, n=64, a_bits=16, cta_group=1)
    add("tma_atom", box=(64, 8), element_bits=16, swizzle="SW128")
    add("tmem_accumulator", m=128, n=64, cta_group=1, weight_stationary=False)
    add("universal_copy", values=2)
    add("wgmma_atom", n=64, a_bits=16, a_in_registers=False, sparse=False)
    add("make_layout_tv", threads=THREADS, values=VALUES)
    data = Layout((16, 16), (16, 1))
    add("make_cotiled_copy", unit=UNIT, layout_tv=Layout((32, 8), (8, 1)), data=data)
    add("make_tiled_copy", unit=UNIT, layout_tv=Layout((128, 8), (8, 1)), tiler=(16, 64))
    add("make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C", unit=UNIT, mma=MMA)
    add("make_tiled_copy_C_atom", unit=UNIT, mma=MMA)
    add("make_tiled_copy_D make_tiled_copy_S", unit=UNIT, copy=COPY)
    add("make_tiled_copy_tv", unit=UNIT, threads=THREADS, values=VALUES)
    add("make_tiled_mma", atom=MMA.atom, atom_layout=(2, 2, 1), permutation=(None, None, None))


def _text_of_many_brackets() -> str:
    return "(" * 50000


CALLS = _calls()
# The same names with operands of another kind, which take another way: tuples where those above
# have layouts, and the other way round.
OTHER_CALLS: list[tuple[str, Call]] = [
    ("append", ((L,), {"entry": Layout(2, 64), "rank": 4})),
    ("prepend", ((L,), {"entry": Layout(2, 64), "rank": 4})),
    ("concat", ((L, Layout(2, 64)), {})),
    ("replace", (((4, 8),), {"mode": 0, "entry": 5})),
    ("select", (((4, 8),), {"mode": [1, 0]})),
    ("take", ((L,), {"begin": 0, "end": 1})),
    ("wrap", ((L,), {})),
    ("slice_", (((None, 1), (4, 8)), {})),
    ("dice", (((None, 1), (4, 8)), {})),
    ("dice", ((1, (4, 8)), {})),
    ("coalesce", ((L,), {"profile": (1, None)})),
    ("substitute", (((lc.symbols("W"), 4),), {"W": 3})),
    ("make_tile", ((Layout(4, 2), (None, 8)), {})),
    ("is_surjective", ((Layout((4, 2), (lc.F2(1), lc.F2(4))),), {"bound": 8})),
]
MAKERS: dict[str, dict[str, Any]] = {
    "F2": {"value": 5},
    "ArithmeticTuple": {"components": (1, (2, 3))},
    "ScaledBasis": {"value": 3, "path": (0, 1)},
    "CustomStride": {"func": abs, "stride": 2},
    "StridedGather": {"stride": 3},
    "IndexedGather": {"index": [3, 1]},
    "Layout": {"shape": (4, 8), "stride": (8, 1)},
    "Swizzle": {"bits": 2, "base": 0, "shift": 3},
    "SymInt": {"value": 4, "expr": "H", "runtime": False},
    "ComposedLayout": {"outer": Swizzle(2, 0, 3), "offset": 0, "inner": L},
    "Tensor": {"engine": list(range(32)), "layout": L, "offset": 0},
    **{
        type(value).__name__: {f.name: getattr(value, f.name) for f in fields(value)}
        for value in (
            lc.copy_atom(lc.copy_names()[0]),
            MMA.atom,
            UNIT,
            COPY,
            COPY.get_slice(0),
            MMA,
            MMA.get_slice(0),
        )
    },
}
SENSELESS: dict[str, Any] = {
    "none": lambda: None,
    "text": lambda: "no layout",
    "float": lambda: 2.5,
    "nan": lambda: float("nan"),
    "complex": lambda: 2j,
    "bool": lambda: True,
    "set": lambda: {1, 2},
    "dict": lambda: {1: 2},
    "bytes": lambda: b"4",
    "object": object,
    "class": lambda: Layout,
    "int": lambda: int,
    "nested list": lambda: [1, [None]],
    "nested tuple": lambda: (4, (None, "x")),
    "nested bool": lambda: (4, (True, 8)),
    "tuple with a bool": lambda: (True, 8),
    "tuple with a float": lambda: (4, 8.0),
    "generator": lambda: (i for i in (4,)),
    "function": lambda: len,
    "module": lambda: lc,
    "brackets": _text_of_many_brackets,
}

ANYTHING = frozenset(SENSELESS)
NONE, FLAG = frozenset({"none"}), frozenset({"bool"})
TEXTS = frozenset({"text", "brackets"})
TUPLES = frozenset({"nested tuple", "nested bool", "tuple with a bool", "tuple with a float"})
FUNCTIONS = frozenset({"class", "int", "function"})

# What is right to accept, and why: the kinds, then the names with their operands. None where it
# is the default needs no line.
RIGHT: dict[str, list[tuple[frozenset[str], str]]] = {
    "None is a mode that is open, or the leaf of a profile": [
        (NONE, "congruent.a congruent.b weakly_congruent.a weakly_congruent.b make_tile.1"),
        (NONE, "product_like.profile repeat_like.profile substitute.0"),
        (NONE, "make_coord.0 make_coord.1 make_shape.0 make_shape.1"),
        (NONE, "make_stride.0 make_stride.1 make_tile.0 substitute.x unwrap.x append.entry"),
        (NONE, "prepend.entry replace.entry"),
    ],
    "None leaves a mode, or all of them, as it is": [
        (NONE, "composition.b flat_divide.tiler flat_product.tiler hier_unzip.tiler"),
        (NONE, "logical_divide.tiler logical_product.tiler make_tiled_copy.tiler tile_unzip.tiler"),
        (NONE, "tiled_divide.tiler tiled_product.tiler zipped_divide.tiler zipped_product.tiler"),
    ],
    "None opens all modes": [
        (NONE, "dice.crd dice.0 slice_.crd slice_.0 slice_and_offset.crd slice_contiguity.crd"),
    ],
    "None is all modes, or no bound": [
        (NONE, "get.mode is_major.mode select.mode complement.bound symbols.minimum"),
    ],
    "its profile differs, so its leaves are not read": [
        (NONE, "compatible.b evenly_divides.a"),
    ],
    "a text is a name": [
        (TEXTS, "emit.names emit.index CopyAtom.name MmaAtom.name SymInt.expr"),
        (frozenset({"text"}), "symbols.names"),
    ],
    "a relation that is decided is a bool": [(FLAG, "assuming.0")],
    "a flag is a bool": [
        (FLAG, "tmem_accumulator.weight_stationary wgmma_atom.a_in_registers wgmma_atom.sparse"),
        (FLAG, "MmaAtom.sparse SymInt.runtime"),
    ],
    "components come from any iterable, in its order": [
        (frozenset({"generator"}), "ArithmeticTuple.components"),
    ],
    "any value is repeated": [(ANYTHING, "repeat_like.x")],
    "any function maps offsets": [
        (FUNCTIONS, "make_composed_layout.last ComposedLayout.outer CustomStride.func"),
    ],
    "an engine is whatever can be indexed": [
        (TEXTS | TUPLES | {"dict", "bytes", "nested list"}, "make_tensor.engine Tensor.engine"),
    ],
}
ACCEPTED = {
    (place, kind)
    for lines in RIGHT.values()
    for kinds, places in lines
    for place in places.split()
    for kind in kinds
}
