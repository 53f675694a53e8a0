"""Small clouds and filters of any rank, and what a dictionary says about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import torch
from hypothesis import strategies as st

from layoutconv.sparse import Coordinates

Cell = tuple[int, ...]


@st.composite
def clouds(draw, rank=3, padded=None, least=0):
    """Coordinates of distinct cells in any order, on small and odd grids, some with padding."""
    shape = tuple(draw(st.integers(1, (9, 7, 5, 4)[rank - 1])) for _ in range(rank))
    batch_size = draw(st.integers(1, 3))
    cell = st.tuples(st.integers(0, batch_size - 1), *(st.integers(0, e - 1) for e in shape))
    rows = draw(st.lists(cell, min_size=least, max_size=30, unique=True))
    padded = draw(st.booleans()) if padded is None else padded
    if padded:
        anything = st.integers(-(2**31), 2**31 - 1)
        for _ in range(draw(st.integers(0, 3))):
            absent = (draw(st.integers(-(2**31), -1)), *(draw(anything) for _ in shape))
            rows.insert(draw(st.integers(0, len(rows))), absent)
    return of_cells(rows, shape, batch_size, padded=padded)


def of_cells(rows: Sequence[Cell], shape: Cell, batch_size: int, **flags: bool) -> Coordinates:
    cells = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), 1 + len(shape))
    return Coordinates(cells, shape, batch_size, **flags)


def offset_sets(rank: int) -> st.SearchStrategy[list[Cell]]:
    """Offsets in any order: with and without a centre, mirrored or not."""
    cell = st.tuples(*[st.integers(-4, 4)] * rank)
    some = st.lists(cell, min_size=1, max_size=6, unique=True)
    half = st.lists(cell.filter(lambda c: c > (0,) * rank), max_size=4, unique=True)
    mirrored = st.tuples(half, st.booleans()).map(_mirrored).filter(bool)
    return st.one_of(some, mirrored)


def _mirrored(drawn: tuple[list[Cell], bool]) -> list[Cell]:
    half, centre = drawn
    opposite = [tuple(-c for c in cell) for cell in reversed(half)]
    middle = [(0,) * len(cell) for cell in half[:1] if centre]
    return half + middle + opposite


def rows_of(coordinates: Coordinates) -> dict[Cell, int]:
    """The row of each cell."""
    cells = map(tuple, coordinates.cells.tolist())
    return {cell: row for row, cell in enumerate(cells) if cell[0] >= 0}


def reads(cell: Cell, stride: Cell, offset: Cell) -> Cell:
    """The cell that ``cell`` reads through a tap."""
    batch, *at = cell
    return (batch, *(c * s + o for c, s, o in zip(at, stride, offset, strict=True)))


def expected_index(
    inputs: Coordinates, outputs: Coordinates, stride: Cell, offsets: Iterable[Cell]
) -> list[list[int]]:
    """The index of a convolution from ``inputs`` to ``outputs``, entry by entry."""
    row_of, offsets = rows_of(inputs), list(offsets)
    return [
        [row_of.get(reads(cell, stride, o), -1) if cell[0] >= 0 else -1 for o in offsets]
        for cell in map(tuple, outputs.cells.tolist())
    ]


def transposed(index: Sequence[Sequence[int]], rows: int, taps: int) -> list[list[int]]:
    """The index with the roles of inputs and outputs exchanged, entry by entry."""
    found = [[-1] * taps for _ in range(rows)]
    for output, entries in enumerate(index):
        for tap, row in enumerate(entries):
            if row >= 0:
                found[row][tap] = output
    return found


def grid_cells(shape: Cell, batch_size: int) -> Iterable[Cell]:
    """All cells, in lexicographic order."""
    return product(range(batch_size), *map(range, shape))
