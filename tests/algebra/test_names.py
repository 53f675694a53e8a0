"""Names of CuTe's libraries: each has a counterpart, and gives what they give."""

from __future__ import annotations

from pathlib import Path

import pytest
from cute_names import sections, table

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


NAMES = {
    **{name: getattr(lc, name) for name in lc.algebra.__all__},
    "L": lc.Layout,
    "S": lambda b, m, s, shape, stride: lc.make_composed_layout(
        lc.Swizzle(b, m, s), 0, lc.Layout(shape, stride)
    ),
    "mma": lambda: lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1)),
    "tensor": tensor,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_name_gives_what_the_libraries_give(row):
    assert set(row.ours) <= set(lc.algebra.__all__)
    result = eval(row.expression, dict(NAMES))
    assert row.result is None or _alike(shown(result)) == _alike(row.result)


def _alike(text):
    """Libraries differ in the parentheses of a single mode, ``4:(8)`` or ``(4):(8)``."""
    return text.replace("(4):(8)", "4:(8)").replace("(8):(1@1)", "8:(1@1)")


def test_the_page_has_the_table():
    assert table() in PAGE.read_text(encoding="utf-8")
