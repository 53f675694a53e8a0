"""Names of CuTe's libraries: each has a counterpart, and gives what they give."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import re
import types
from pathlib import Path

import pytest
from cute_names import counts, differences, differing, library_names, omitted, sections, table, who

import layoutconv as lc

PAGE = Path(__file__).parents[2] / "docs" / "algebra" / "names.md"
ROWS = [row for rows in sections().values() for row in rows]


def shown(x):
    """A result in the notation of the literature, without blanks; ``(8):(1)`` of a slice kept."""
    if isinstance(x, tuple | list):
        ends = "()" if isinstance(x, tuple) else "[]"
        comma = "," if isinstance(x, tuple) and len(x) == 1 else ""
        return ends[0] + ",".join(map(shown, x)) + comma + ends[1]
    return str(x).replace(" ", "")


def tensor(x):
    """A tensor of coordinates as the DSL prints it."""
    offset = tuple(x.offset) if isinstance(x.offset, tuple) else (0, 0)
    return f"tensor<{shown((*offset, 0)[:2])}o{x.layout}>"


def matrix(layout):
    """The matrix over bits of a layout, rows from the lowest bit of an offset."""
    columns = lc.to_f2(layout)
    return [[column >> bit & 1 for column in columns] for bit in range(max(columns).bit_length())]


def divisible():
    """Return whether a symbolic extent, assumed divisible by 8, is known to be divisible by 4."""
    width = lc.symbols("W")
    with lc.assuming(width % 8 == 0):
        return bool(width % 4 == 0)


NAMES = {
    **{name: getattr(lc, name) for name in lc.algebra.__all__},
    "L": lc.Layout,
    "S": lambda b, m, s, shape, stride: lc.make_composed_layout(
        lc.Swizzle(b, m, s), 0, lc.Layout(shape, stride)
    ),
    "mma": lambda: lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1)),
    "tensor": tensor,
    "matrix": matrix,
    "divisible": divisible,
    "math": math,
    "functools": functools,
    "itertools": itertools,
}
# What stands for one of our names in an expression.
SHORT = {
    "Layout": r"\bL\(",
    "symbols": "divisible",
    "assuming": "divisible",
    "TiledMma": r"mma\(\)",
    "TiledCopy": "make_tiled_copy",
    "ThrMma": "get_slice",
    "ThrCopy": "get_slice",
    "MmaAtom": "mma_atom",
    "Tensor": "Tensor",
    "to_f2": "to_f2|matrix",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.names[0]} {row.expression[:40]}")
def test_a_name_gives_what_the_libraries_give(row):
    assert set(row.ours) <= set(lc.algebra.__all__)
    for name in row.ours:
        assert re.search(SHORT.get(name, rf"\b{name}\b"), row.expression), name
    result = shown(eval(row.expression, dict(NAMES)))
    for _, theirs in row.results:
        assert _alike(result) == _alike(theirs)
    assert result not in ("", "None", "()")


def _alike(text):
    """Libraries differ in the parentheses of a single mode, ``4:(8)`` or ``(4):(8)``."""
    return text.replace("(4):(8)", "4:(8)").replace("(8):(1@1)", "8:(1@1)")


@pytest.mark.parametrize("row", differences(), ids=lambda row: row.what)
def test_where_libraries_differ_this_is_ours(row):
    assert shown(eval(row.expression, dict(NAMES))) == row.result


def test_every_name_has_a_row():
    kept, left_out = library_names()
    rows = {name for row in ROWS for name in row.names}
    assert set().union(*kept.values()) == rows
    for letter, names in kept.items():
        assert not names & set().union(*left_out[letter].values())
    assert all(who(row) for row in ROWS)


def test_the_dsl_has_no_other_names():
    cute = pytest.importorskip("cutlass.cute")
    kept, left_out = library_names()
    known = kept["D"].union(*left_out["D"].values())
    here = {name for name in dir(cute) if not name.startswith("_")}
    if importlib.import_module("cutlass").__version__ != "4.8.1":
        pytest.skip("the names are those of version 4.8.1")
    assert here <= known


def test_tensor_layouts_has_no_other_names():
    library = pytest.importorskip("tensor_layouts")
    kept, left_out = library_names()
    known = kept["T"].union(*left_out["T"].values())
    for name in ("analysis", "layout_utils", "viz", "atoms", "atoms_amd", "atoms_nv", "atoms_xe"):
        module = importlib.import_module(f"tensor_layouts.{name}")
        own = {
            n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__
        }
        assert {n for n in own if not n.startswith("_")} <= known
    loaded = {n for n, x in vars(library).items() if isinstance(x, types.ModuleType)}
    assert {n for n in dir(library) if not n.startswith("_")} - loaded <= known


@pytest.mark.parametrize("part", [counts, table, differing, omitted])
def test_the_page_has_the_tables(part):
    assert part() in PAGE.read_text(encoding="utf-8")
