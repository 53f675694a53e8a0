"""Views with a third mode: problem ``l`` alone is the view at ``l``."""

from __future__ import annotations

import numpy as np
import pytest

from layoutconv.algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout, SymInt
from layoutconv.view.gemm_view import GemmView, locate

G = SymInt(3, "G")
INDEX = np.array([2, -1, 0], dtype=np.int32)
CELLS = ComposedLayout(
    Layout((6, 5, 4), (20, 4, 1)),
    (-1, 0, 0),
    Layout(((3, 2), (2, 3), (2, G)), ((E(0), 2 * E(1)), (E(2), E(0)), (2 * E(2), E(1)))),
)
GATHERED = ComposedLayout(
    ComposedLayout(
        Layout((3, 5), (5, 1)),
        0,
        Layout((3, 5), (CustomStride(IndexedGather(INDEX), E(0)), E(1))),
    ),
    (0, 1),
    Layout((2, 3, G), (0 * E(0), E(1), E(0))),
)
PICKED = ComposedLayout(
    Layout((3, 8), (8, 1)),
    0,
    Layout((2, 4, G), (4 * E(1), E(1), CustomStride(IndexedGather(INDEX), E(0)))),
)
LAYOUTS = [
    Layout((4, 5, 6), (30, 1, 5)),
    Layout(((2, 2), 5, (3, 2)), ((10, 5), 1, (20, 60))),
    CELLS,
    ComposedLayout(Layout(500), 7, Layout((2, 3, 4), (12, 4, 1))),
    GATHERED,
    PICKED,
]


def view_of(a):
    """A view whose other operands are packed."""
    rows, columns, problems = (Layout(mode).size() for mode in a.shape)
    return GemmView(a, Layout((7, columns, problems)), Layout((rows, 7, problems)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_problem_is_what_the_third_mode_says(layout):
    rows, columns, problems = (Layout(mode).size() for mode in layout.shape)
    view = view_of(layout)
    assert view.l == problems
    for l in range(problems):
        alone = view.at(l).a
        assert alone.shape == layout.shape[:2]
        for m in range(rows):
            for k in range(columns):
                assert locate(alone, m, k) == locate(layout, m, k, l)


def test_two_modes_are_one_problem():
    view = GemmView(Layout((2, 3)), Layout((4, 3)), Layout((2, 4)))
    assert (view.l, view.at(0)) == (1, view)


@pytest.mark.parametrize("l", [-1, 3])
def test_a_problem_that_is_not_there(l):
    with pytest.raises(ValueError, match=rf"`l`: expected .* 0 <= l < 3, got {l}"):
        view_of(PICKED).at(l)
