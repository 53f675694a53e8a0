"""Helpers for tests of pictures: every cell of a figure, with the coordinate it stands for."""

from __future__ import annotations

from collections.abc import Iterator

from layoutconv.drawing import Cell, Figure, Grid


def cells(figure: Figure) -> Iterator[Cell]:
    """Every cell of a figure that stands for something."""
    for grid in grids(figure):
        yield from (cell for line in grid.cells for cell in line if cell.kind != "gap")


def grids(figure: Figure) -> list[Grid]:
    """The grids of a figure, in reading order."""
    return [grid for line in figure.grids for grid in line if grid is not None]


def placed(grid: Grid) -> Iterator[tuple[int, int, Cell]]:
    """The cells of a grid with their row and column."""
    for i, line in zip(grid.rows.positions, grid.cells, strict=True):
        for j, cell in zip(grid.columns.positions, line, strict=True):
            if i is not None and j is not None:
                yield i, j, cell


def fact(cell: Cell, name: str) -> str:
    """Return what a reader is told under ``name``."""
    return dict(cell.facts)[name]
