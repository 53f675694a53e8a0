"""One colour scale for all grids of a figure, with a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .figure import Cell, Figure, Grid
from .palette import by_rank

_ENTRIES = 6  # values in the legend; of more, the first and the last


def on_one_scale(figure: Figure, meaning: str) -> Figure:
    """Colour equal numbers equally in all grids, and explain the numbers in the legend.

    >>> from layoutconv import Layout
    >>> from layoutconv.drawing import draw
    >>> (left, *_), (right, *_) = (draw(Layout(n)).grids[0] for n in (4, 2))
    >>> figure = on_one_scale(Figure("4 and 2", ((left, right),)), "offset")
    >>> len({grid.cells[0][1].fill for grid in figure.grids[0]})
    1
    >>> [(cell.label, text) for cell, text in figure.legend]
    [('0', ''), ('1', ''), ('2', ''), ('3', 'offset')]
    """
    grids = [grid for line in figure.grids for grid in line if grid is not None]
    cells = [cell for grid in grids for line in grid.cells for cell in line]
    values = sorted({float(cell.label) for cell in cells if cell.kind == "value"})
    fills = by_rank(values)
    listed = values if len(values) <= _ENTRIES else [values[0], values[-1]]
    texts = [""] * (len(listed) - 1) + [meaning]
    legend = [(Cell(f"{v:g}", fills[v]), text) for v, text in zip(listed, texts, strict=True)]
    return recoloured(figure, lambda cell, *_: fills[float(cell.label)], legend)


def recoloured(
    figure: Figure,
    fill: Callable[[Cell, int, int], str],
    legend: Sequence[tuple[Cell, str]],
) -> Figure:
    """Give each cell with a value the colour ``fill(cell, row, column)``, and add a legend."""

    def grid_of(grid: Grid) -> Grid:
        cells = tuple(
            tuple(
                replace(cell, fill=fill(cell, i, j)) if cell.kind == "value" else cell
                for j, cell in enumerate(line)
            )
            for i, line in enumerate(grid.cells)
        )
        return replace(grid, cells=cells)

    grids = tuple(tuple(grid and grid_of(grid) for grid in line) for line in figure.grids)
    return Figure(figure.title, grids, (*legend, *figure.legend))
