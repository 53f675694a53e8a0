"""Cells of a batch of grids in a kernel: rows of int32 coordinates to 64-bit keys, and back.

A cell is ``(batch, z, y, x)``, with one to four spatial axes. Its key is its row-major number in
the grid ``(batch_size, *spatial_shape)``, in 64 bits. A row with a negative batch is padding, which
lies outside every grid. Coordinates are Int64 here: a cell times a stride plus an offset may
overflow 32 bits if the result is outside.
"""

from __future__ import annotations

from typing import Any

from .dsl import Int32, Int64, cute
from .walk import read

Cell = list[Any]  # of Int64


def read_cell(cells: Any, row: Any, rank: int) -> Cell:
    """Read row ``row`` of int32 (rows, 1 + rank), by one load if 1 + rank is a power of two."""
    columns = 1 + rank
    vector = coordinates_per_access(rank)
    found: Cell = []
    for first in range(0, columns, vector):
        pointer = cells + cute.assume(row * columns + first, divby=vector)
        values = read(pointer, Int32, vector)
        found += [Int64(values[i]) for i in range(vector)]
    return found


def write_cell(cells: Any, row: Any, cell: Cell) -> None:
    """Write row ``row``: the inverse of ``read_cell``."""
    vector = coordinates_per_access(len(cell) - 1)
    for first in range(0, len(cell), vector):
        values = cute.make_rmem_tensor(vector, Int32)
        for i in range(vector):
            values[i] = Int32(cell[first + i])
        pointer = cells + cute.assume(row * len(cell) + first, divby=vector)
        cute.autovec_copy(values, cute.make_tensor(pointer, cute.make_layout(vector)))


def coordinates_per_access(rank: int) -> int:
    """Return how many coordinates one access takes: all if a power of two, else one."""
    return 1 + rank if rank in (1, 3) else 1


def per_axis(integers: Any, rank: int, lists: int) -> tuple[Any, ...]:
    """Split integers into ``lists`` lists of one number per axis, and the rest.

    >>> per_axis([1, 2, 3, 4, 9, 8, 7], 2, 2)
    ([1, 2], [3, 4], [9, 8, 7])
    """
    starts = range(0, lists * rank, rank)
    return (*(integers[i : i + rank] for i in starts), integers[lists * rank :])


def inside(cell: Cell, grid: Cell) -> Any:
    """Return whether a cell is in a grid, by one sign test for all axes."""
    sign = Int64(0)
    for c, extent in zip(cell, grid, strict=True):
        sign = sign | c | (extent - 1 - c)
    return sign >= 0


def key_of(cell: Cell, grid: Cell) -> Any:
    """Return the row-major number of a cell in a grid."""
    key = cell[0]
    for c, extent in zip(cell[1:], grid[1:], strict=True):
        key = key * extent + c
    return key


def cell_of(key: Any, grid: Cell) -> Cell:
    """Return the cell of a key, which must be at least 0."""
    found: Cell = []
    for extent in reversed(grid[1:]):
        rest = key // extent
        found.insert(0, key - rest * extent)
        key = rest
    return [key, *found]
