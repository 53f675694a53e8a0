"""Pictures for a terminal: boxes in Unicode or plain ASCII; colours only on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from .axis import Axis
from .figure import Cell, Figure, Grid, checked_figure, title_lines
from .palette import channels
from .plain_text import to_ascii

# Lines between groups: level 1 thin, from level 2 on double.
_CROSSING = (("─", "┼", "╫"), ("═", "╪", "╬"))
_BETWEEN = 4


def to_text(figure: Figure, *, ascii: bool = False, colour: bool = False) -> str:
    """Return the figure as lines of text; ``colour`` adds the escape codes of 24-bit terminals.

    Marked cells are in brackets. Padding is a dot.

    >>> from ..algebra import Layout
    >>> from .layouts import layout_figure
    >>> print(to_text(layout_figure(Layout((2, (2, 2)), (1, (4, 2))), limit=8)))
    (2,(2,2)):(1,(4,2))
    <BLANKLINE>
          0      1       2:2
          0  1   0  1    2:4
        ┌──────┬──────┐
      0 │ 0  4 │ 2  6 │
      1 │ 1  5 │ 3  7 │
        └──────┴──────┘
    2:1
    """
    page = _Page()
    title = title_lines(checked_figure(figure).title, 100)
    for row, written in enumerate(title):
        page.put(row, 0, written)
    row = len(title) + bool(title)
    cell_width = _cell_width(figure)
    blocks = [[_Block.of(g, cell_width) if g else None for g in line] for line in figure.grids]
    for line, starts in zip(blocks, _starts(blocks), strict=True):
        heading = max((block.heading for block in line if block), default=0)
        ends = [
            block.draw(page, row + heading - block.heading, left - block.left)
            for block, left in zip(line, starts, strict=True)
            if block
        ]
        row = max(ends, default=row) + 1
    for cell, meaning in figure.legend:
        if cell.mark or cell.kind != "value":  # colours have no meaning here
            page.put(row, 0, f"{_written(cell):<4} {meaning}")
            row += 1
    text = page.text(colour)
    return to_ascii(text) if ascii else text


def _cell_width(figure: Figure) -> int:
    """Return one width for all cells, with the space around them, so that grids line up."""
    grids = [grid for line in figure.grids for grid in line if grid]
    labels = [_written(cell) for grid in grids for line in grid.cells for cell in line]
    headers = [s[2] for grid in grids if grid.columns.bands for s in grid.columns.bands[0].spans]
    return max(map(len, [*labels, *headers]), default=0) + 2


def _starts(blocks: list[list[_Block | None]]) -> list[list[int]]:
    """Return the columns of left borders: aligned if all lines have equally many grids."""
    sizes = [[(b.left, b.width - b.left) if b else (0, 0) for b in line] for line in blocks]
    if len({len(line) for line in sizes}) == 1:
        shared = [tuple(map(max, zip(*column, strict=True))) for column in zip(*sizes, strict=True)]
        sizes = [shared] * len(sizes)
    starts = []
    for line in sizes:
        at, lefts = 0, []
        for left, right in line:
            lefts.append(at + left)
            at += left + right + _BETWEEN
        starts.append(lefts)
    return starts


@dataclass
class _Page:
    """Characters at rows and columns, each with its background colour."""

    characters: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def put(self, row: int, column: int, text: str, fill: str = "") -> None:
        for i, character in enumerate(text):
            self.characters[row, column + i] = (character, fill)

    def text(self, colour: bool) -> str:
        rows: dict[int, dict[int, tuple[str, str]]] = {}
        for (row, column), character in self.characters.items():
            rows.setdefault(row, {})[column] = character
        lines = [_line(rows.get(row, {}), colour) for row in range(max(rows, default=-1) + 1)]
        return "\n".join(lines)


def _line(characters: dict[int, tuple[str, str]], colour: bool) -> str:
    line, behind = "", ""
    for column in range(max(characters, default=-1) + 1):
        character, fill = characters.get(column, (" ", ""))
        if colour and fill != behind:
            r, g, b = channels(fill) if fill else (0, 0, 0)
            line += f"\x1b[30;48;2;{r};{g};{b}m" if fill else "\x1b[0m"
            behind = fill
        line += character
    line += "\x1b[0m" if behind else ""
    return line if colour else line.rstrip()


@dataclass(frozen=True)
class _Block:
    """One grid with its measurements."""

    grid: Grid
    cell_width: int
    bands: tuple[int, ...]  # widths of the bands of row headers, the innermost first

    @classmethod
    def of(cls, grid: Grid, cell_width: int) -> _Block:
        bands = [
            max(map(len, [band.name, *(label for _, _, label in band.spans)])) + 1
            for band in grid.rows.bands
        ]
        return cls(grid, cell_width, tuple(bands))

    @property
    def heading(self) -> int:
        """Return the number of lines before the upper border."""
        return len(self.grid.columns.bands) + bool(self.grid.title)

    @property
    def left(self) -> int:
        """The column of the left border."""
        return sum(self.bands)

    @property
    def columns(self) -> list[int]:
        """The start of each column, and the right border."""
        return _stops(self.grid.columns, self.left + 1, self.cell_width)

    @property
    def width(self) -> int:
        names = max((len(band.name) for band in self.grid.columns.bands), default=0)
        return max(
            self.columns[-1] + 1 + (names + 2 if names else 0), self.left + len(self.grid.title)
        )

    def draw(self, page: _Page, row: int, column: int) -> int:
        """Draw the grid on a page, and return the row after its last."""
        if self.grid.title:
            page.put(row, column + self.left, self.grid.title)
        top = row + self.heading
        xs = [column + x for x in self.columns]
        ys = _stops(self.grid.rows, top + 1, 1)
        self._column_headers(page, top, xs)
        self._row_headers(page, ys, column)
        self._frame(page, xs, ys, column + self.left, top)
        for y, line in zip(ys, self.grid.cells, strict=False):
            for x, cell in zip(xs, line, strict=False):
                written = _written(cell)
                fill = cell.fill if cell.kind == "value" else ""
                page.put(y, x, f"{written:>{self.cell_width - 1}} ", fill)
        named = any(band.name for band in self.grid.rows.bands)
        return ys[-1] + 1 + named

    def _column_headers(self, page: _Page, top: int, xs: list[int]) -> None:
        for level, band in enumerate(self.grid.columns.bands):
            y = top - 1 - level
            for start, _, label in band.spans:
                page.put(y, xs[start], f"{label:>{self.cell_width - 1}}")
            page.put(y, xs[-1] + 3, band.name)

    def _row_headers(self, page: _Page, ys: list[int], column: int) -> None:
        x = column + self.left
        for band, width in zip(self.grid.rows.bands, self.bands, strict=True):
            x -= width
            for start, _, label in band.spans:
                page.put(ys[start], x, f"{label:>{width - 1}}")
            page.put(ys[-1] + 1, x, f"{band.name:>{width - 1}}")

    def _frame(self, page: _Page, xs: list[int], ys: list[int], left: int, top: int) -> None:
        """Draw the border, and lines between groups."""
        verticals = _rules(self.grid.columns, xs)
        horizontals = _rules(self.grid.rows, ys)
        right, bottom = xs[-1], ys[-1]
        for y, ends, crossings in (
            (top, "┌┐", "┬╥"),
            (bottom, "└┘", "┴╨"),
            *((y, ("├┤", "╞╡")[level - 1], _CROSSING[level - 1][1:]) for y, level in horizontals),
        ):
            thin = ends[0] != "╞"
            page.put(y, left, ends[0] + ("─" if thin else "═") * (right - left - 1) + ends[1])
            for x, level in verticals:
                page.put(y, x, crossings[level - 1])
        crossed = {y for y, _ in horizontals}
        for y in range(top + 1, bottom):
            if y not in crossed:
                page.put(y, left, "│")
                page.put(y, right, "│")
                for x, level in verticals:
                    page.put(y, x, "│║"[level - 1])


def _stops(axis: Axis, first: int, size: int) -> list[int]:
    """Return the start of each position, and the end of the last; a line precedes every group."""
    stops, at = [], first
    for i in range(len(axis)):
        at += bool(i and axis.breaks and axis.breaks[i])
        stops.append(at)
        at += size
    return [*stops, at]


def _rules(axis: Axis, stops: list[int]) -> list[tuple[int, int]]:
    """Return the place of each line, and whether it is thin (1) or double (2)."""
    return [(stops[i] - 1, min(level, 2)) for i, level in enumerate(axis.breaks) if level]


def _written(cell: Cell) -> str:
    written = cell.label.replace("\n", "")
    if cell.kind == "padding":
        written = "·"
    return f"[{written or ' '}]" if cell.mark else written
