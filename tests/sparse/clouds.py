"""Small clouds and filters of any rank, and what a dictionary says about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import torch

from layoutconv.sparse import Coordinates
from layoutconv.testing.problems import clouds, offset_sets

Cell = tuple[int, ...]


def of_cells(rows: Sequence[Cell], shape: Cell, batch_size: int, **flags: bool) -> Coordinates:
    cells = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), 1 + len(shape))
    return Coordinates(cells, shape, batch_size, **flags)


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


__all__ = [
    "clouds",
    "expected_index",
    "grid_cells",
    "of_cells",
    "offset_sets",
    "reads",
    "rows_of",
    "transposed",
]
