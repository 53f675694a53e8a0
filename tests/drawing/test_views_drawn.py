"""Pictures of GEMM views: cells say what the definition of a view says they read."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch

from layoutconv import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.drawing.api import draw
from layoutconv.errors import ArgumentError
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView, locate, stages

from .figures import fact, grids, placed

PROBLEMS = [
    ConvProblem((1, 5, 5, 1), (1, 3, 3), padding=1, stride=2),
    ConvProblem((2, 6, 2), (1, 3), padding=(2,), dilation=2),
    ConvProblem((1, 2, 3, 3, 1), (1, 2, 2, 2), padding=1),
    ConvProblem((1, 3, 4, 2), (3, 1, 1)),
]


def test_a_view_draws_itself(tmp_path) -> None:
    view = fprop_view(PROBLEMS[0])
    drawn = view.draw(tmp_path / "view.txt", row=4, title="row 4")
    assert str(drawn) == str(draw(view, row=4, title="row 4"))
    assert (tmp_path / "view.txt").read_text().strip() == str(drawn).strip()
    assert str(view.draw()) == str(draw(view)) != str(view.draw(row=4))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_matrix_is_the_view(problem: ConvProblem) -> None:
    view = fprop_view(problem)
    *_, matrix = grids(draw(view))
    elements = np.arange(np.prod(problem.activation)).reshape(problem.activation)
    unit = tuple(0 if extent == 1 else slice(None) for extent in problem.activation)
    for m, k, cell in placed(matrix):
        offset, valid = locate(view.a, m, k)
        assert cell.kind == ("value" if valid else "padding")
        if valid:
            (at,) = np.argwhere(elements[unit] == offset)
            assert cell.label == ",".join(map(str, at))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_marked_cells_are_those_that_the_row_reads(problem: ConvProblem) -> None:
    view = fprop_view(problem)
    for row in (0, view.m // 2, view.m - 1):
        *cells, matrix = grids(draw(view, row=row))
        marked = {(m, k) for m, k, cell in placed(matrix) if cell.mark}
        assert marked == {(row, k) for k in range(view.k)}
        read = {fact(c, "reads") for m, _, c in placed(matrix) if m == row}
        in_grids = [fact(c, "reads") for grid in cells for _, _, c in placed(grid) if c.mark]
        # A channel a cell: the grid shows the first.
        assert len(in_grids) == len(set(in_grids)) == np.prod(problem.taps)
        assert set(in_grids) <= read


def test_the_grid_has_its_padding_around_it() -> None:
    problem = ConvProblem((1, 4, 5, 1), (1, 3, 3), padding=((1, 0), (2, 2)))
    cells, _ = grids(draw(fprop_view(problem)))
    names = [[label for _, _, label in axis.bands[0].spans] for axis in (cells.rows, cells.columns)]
    assert names == [[str(h) for h in range(-1, 4)], [str(w) for w in range(-2, 7)]]
    for i, j, cell in placed(cells):
        inside = 0 <= i - 1 < 4 and 0 <= j - 2 < 5
        assert cell.kind == ("value" if inside else "padding")
        assert cell.label == (f"{i - 1},{j - 2}" if inside else "")


def test_a_gathered_grid_names_rows_and_what_is_absent() -> None:
    rows = np.array([-1, 0, 1, 2, -1, 3, -1, 4, 5], dtype=np.int32)
    problem = ConvProblem((1, 3, 3, 1), (1, 3, 3), padding=1)
    cells, matrix = grids(draw(gather_fprop_view(problem, rows, in_rows=6), row=4))
    for i, j, cell in placed(cells):
        if 0 < i < 4 and 0 < j < 4:
            row = rows[3 * (i - 1) + j - 1]
            assert (cell.kind, cell.label) == ("value" if row >= 0 else "absent", str(row))
            assert cell.mark
    for (p, q), (r, s) in product(product(range(3), repeat=2), repeat=2):
        cell = matrix.cells[q + 3 * p][s + 3 * r]
        h, w = p + r - 1, q + s - 1
        if not (0 <= h < 3 and 0 <= w < 3):
            assert cell.kind == "padding"
        else:
            assert cell.label == str(rows[3 * h + w])


def test_a_kernel_map_marks_the_rows_that_a_row_gathers() -> None:
    kernel_map = torch.tensor([[-1, 0, 1], [0, 1, -1], [3, 2, -1], [-1, 3, 2]], dtype=torch.int32)
    stored, matrix = grids(draw(kernel_map_view(kernel_map, 2, 4, kernel_size=(3,)), row=2))
    assert {(r, c) for r, c, cell in placed(stored) if cell.mark} == set(product((2, 3), (0, 1)))
    for m, k, cell in placed(matrix):
        row = int(kernel_map[m, k // 2])
        assert cell.label == (f"{row},{k % 2}" if row >= 0 else "-1")


def test_a_chosen_row_is_not_left_out() -> None:
    view = fprop_view(ConvProblem((1, 40, 40, 1), (1, 3, 3), padding=1))
    cells, matrix = grids(draw(view, row=777, limit=8))
    assert {m for m, _, cell in placed(matrix) if cell.mark} == {777}
    assert sum(cell.mark for _, _, cell in placed(cells)) == 9


def test_a_view_of_plain_matrices_is_drawn_as_such() -> None:
    a, b, d = Layout((4, 3), (3, 1)), Layout((2, 3), (3, 1)), Layout((4, 2), (2, 1))
    view = GemmView(a, b, d)
    assert draw(view).grids == draw(a).grids
    with pytest.raises(ArgumentError, match="`row`: expected None for a view whose A reads no"):
        draw(view, row=1)


def test_a_row_outside_the_view_is_refused() -> None:
    view = fprop_view(PROBLEMS[0])
    with pytest.raises(ArgumentError, match="`row`: expected a GEMM row, 0 <= row < 9, got 9"):
        draw(view, row=9)


def test_of_a_batch_the_first_problem_is_drawn() -> None:
    view = fprop_view(PROBLEMS[0])
    batch = GemmView(
        *(
            ComposedLayout(o.outer, o.offset, Layout((*o.shape, 2), (*o.inner.stride, E(0))))
            for o in (view.a, view.b, view.d)
        )
    )
    figure = draw(batch, row=3)
    assert figure.title.startswith("l = 0 of 2: A = ")
    assert figure.grids == draw(batch.at(0), row=3).grids == draw(view, row=3).grids


# Over what is no grid that taps move along: (N, P, Q, K), a mode of modes, and a vector.
STORED = {
    "wgrad": wgrad_view(ConvProblem((2, 4, 5, 3), (2, 3, 3), padding=1, stride=2)).a,
    "wgrad of a line": wgrad_view(ConvProblem((1, 6, 3), (4, 3))).a,
    "a contraction": ComposedLayout(
        Layout((4, 3, 2), (1, 8, 4)), 0, Layout((4, (2, 3)), (E(0), (E(2), E(1))))
    ),
    "no channels": ComposedLayout(Layout((6,), (2,)), 0, Layout((2, 3), (E(0), 2 * E(0)))),
}


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_in_any_number_of_modes_is_drawn(name: str) -> None:
    a = STORED[name]
    m, k = a.shape
    view = GemmView(a, Layout((1, k)), Layout((m, 1)))
    memory = stages(a)[-1].layout
    row = view.m - 1
    stored, matrix = grids(draw(view, row=row))
    for i, j, cell in placed(matrix):
        offset, valid = locate(a, i, j)
        at = map(int, re.findall(r"\d+", fact(cell, "stored at")))
        assert valid
        assert memory(*at) == offset
    marked = [fact(cell, "stored at") for _, _, cell in placed(stored) if cell.mark]
    read = [fact(cell, "stored at") for i, _, cell in placed(matrix) if i == row]
    assert sorted(marked) == sorted(set(read))
    everywhere = [fact(cell, "stored at") for _, _, cell in placed(stored)]
    assert len(set(everywhere)) == len(everywhere) == memory.size()
