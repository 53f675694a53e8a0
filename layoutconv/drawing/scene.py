"""The positions of all parts of a figure on a page, shared by the SVG and TikZ renderers.

Units are CSS pixels. Text is in a monospaced font, whose characters are 0.6 of its size wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from .axis import Axis
from .figure import Cell, Figure, Grid, title_lines

# Text contrasts by 4.5 to 1 (WCAG 2): ink with every fill, quiet text with bars of headers, faint
# text with white.
INK, QUIET, FAINT, BAND = "#1f2937", "#545f70", "#667085", "#eef0f4"
CELL_TEXT, HEADER_TEXT, TITLE_TEXT = 13.0, 11.0, 15.0
_MARGIN, _BETWEEN = 20.0, 34.0
_GROUP_GAP = 5.0  # white space before a group, for each level of the hierarchy
_BAND_HEIGHT, _LINE = 19.0, 15.0


@dataclass(frozen=True)
class Text:
    """A line of text, centred at or anchored to a point at half its height."""

    x: float
    y: float
    text: str
    size: float
    colour: str = INK
    anchor: Literal["start", "middle", "end"] = "middle"
    bold: bool = False


@dataclass(frozen=True)
class Box:
    """A rectangle with its text: a cell of a grid, a bar of a header, a swatch of the legend."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    cell: Cell | None = None
    texts: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Everything on the page, in drawing order."""

    width: float
    height: float
    items: tuple[Box | Text, ...]


def text_width(text: str, size: float) -> float:
    """Return the width of a line."""
    return 0.602 * size * len(text)


@dataclass(frozen=True)
class _CellSize:
    """One cell size for a whole figure, so that related parts line up."""

    width: float
    height: float

    @classmethod
    def of(cls, figure: Figure) -> _CellSize:
        labels = [c.label for g in _grids(figure) for line in g.cells for c in line]
        lines = [line for label in labels for line in label.split("\n")]
        headers = [label for g in _grids(figure) for label in _innermost(g.columns)]
        tall = max((label.count("\n") for label in labels), default=0)
        wide = max([text_width(line, CELL_TEXT) + 12 for line in lines], default=0)
        wide = max([wide, 30.0, *(text_width(label, HEADER_TEXT) + 4 for label in headers)])
        return cls(wide, 28.0 + _LINE * tall)

    def stops(self, axis: Axis, *, across: bool) -> list[float]:
        """Return the start of each position, and the end of the last, with gaps between groups."""
        extent = self.width if across else self.height
        sizes = [20.0 if p is None else extent for p in axis.positions]
        shifts = [0.0, *(_GROUP_GAP * level for level in axis.breaks[1:])]
        starts = list(accumulate(sizes, initial=0.0))
        gaps = list(accumulate(shifts))
        return [s + g for s, g in zip(starts, [*gaps, gaps[-1]], strict=False)]


@dataclass(frozen=True)
class _Extent:
    """The room that a grid needs around the corner where its cells begin."""

    left: float
    top: float
    right: float
    bottom: float

    def join(self, other: _Extent) -> _Extent:
        return _Extent(
            max(self.left, other.left),
            max(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )


_NOTHING = _Extent(0, 0, 0, 0)


def place(figure: Figure) -> Scene:
    """Place a figure on a page as large as it needs."""
    size = _CellSize.of(figure)
    extents = [[_extent(g, size) if g else _NOTHING for g in line] for line in figure.grids]
    columns = _columns(extents)
    content = max(sum(e.left + e.right + _BETWEEN for e in line) for line in columns) - _BETWEEN
    title = title_lines(figure.title, int(max(content, 520.0) / text_width("m", TITLE_TEXT)))
    legend_width = min(sum(_taken(*entry) for entry in figure.legend), 520.0)
    width = max([content, legend_width, *(text_width(line, TITLE_TEXT) for line in title)])

    items: list[Box | Text] = []
    y = _MARGIN
    for written in title:
        items.append(Text(_MARGIN, y + 10, written, TITLE_TEXT, anchor="start", bold=True))
        y += 21
    y += 10 if title else 0
    for grids, line, across in zip(figure.grids, extents, columns, strict=True):
        row, x = _joined(line), _MARGIN
        for grid, column in zip(grids, across, strict=True):
            if grid:
                items += _placed(grid, x + column.left, y + row.top, size)
            x += column.left + column.right + _BETWEEN
        y += row.top + row.bottom + _BETWEEN
    legend, bottom = _legend(figure, y - _BETWEEN / 2 + 4, width)
    items += legend
    height = bottom if legend else y - _BETWEEN
    return Scene(width + 2 * _MARGIN, height + _MARGIN, tuple(items))


def _grids(figure: Figure) -> Iterator[Grid]:
    return (grid for line in figure.grids for grid in line if grid)


def _joined(extents: list[_Extent] | tuple[_Extent, ...]) -> _Extent:
    result = _NOTHING
    for extent in extents:
        result = result.join(extent)
    return result


def _columns(extents: list[list[_Extent]]) -> list[list[_Extent]]:
    """Return the extents that space the grids: shared by column if all lines are equally long."""
    if len({len(line) for line in extents}) > 1:
        return extents
    return [[_joined(column) for column in zip(*extents, strict=True)]] * len(extents)


def _innermost(axis: Axis) -> list[str]:
    return [label for _, _, label in axis.bands[0].spans] if axis.bands else []


def _row_bands(axis: Axis) -> list[float]:
    """Return the width of each band of row headers, the innermost first."""
    return [
        max(text_width(t, HEADER_TEXT) + 10 for t in (band.name, *(s[2] for s in band.spans)))
        for band in axis.bands
    ]


def _extent(grid: Grid, size: _CellSize) -> _Extent:
    across = size.stops(grid.columns, across=True)[-1]
    names = [text_width(band.name, HEADER_TEXT) + 8 for band in grid.columns.bands]
    heading = _BAND_HEIGHT * len(grid.columns.bands) + 3
    if any(band.name for band in grid.rows.bands) and not grid.columns.bands:
        heading += _BAND_HEIGHT
    return _Extent(
        left=sum(_row_bands(grid.rows)) + 3,
        top=heading + (24 if grid.title else 0),
        right=max(across + max(names, default=0), text_width(grid.title, CELL_TEXT)),
        bottom=size.stops(grid.rows, across=False)[-1],
    )


def _placed(grid: Grid, x: float, y: float, size: _CellSize) -> Iterator[Box | Text]:
    """Place a grid whose first cell begins at (x, y)."""
    xs = [x + stop for stop in size.stops(grid.columns, across=True)]
    ys = [y + stop for stop in size.stops(grid.rows, across=False)]
    yield from _column_headers(grid.columns, xs, y)
    yield from _row_headers(grid.rows, ys, x, y)
    if grid.title:
        top = y - 3 - _BAND_HEIGHT * len(grid.columns.bands)
        yield Text(x, top - 12, grid.title, CELL_TEXT, INK, "start", bold=True)
    for i, line in enumerate(grid.cells):
        for j, cell in enumerate(line):
            width = (20.0 if grid.columns.positions[j] is None else size.width) - 2
            height = (20.0 if grid.rows.positions[i] is None else size.height) - 2
            texts = _cell_text(cell, xs[j] + 1 + width / 2, ys[i] + 1 + height / 2)
            yield Box(xs[j] + 1, ys[i] + 1, width, height, cell.fill, cell, tuple(texts))


def _cell_text(cell: Cell, x: float, y: float) -> Iterator[Text]:
    lines = cell.label.split("\n") if cell.label else []
    for n, line in enumerate(lines):
        middle = y + _LINE * (n - (len(lines) - 1) / 2)
        yield Text(x, middle, line, CELL_TEXT, _ink(cell))


def _ink(cell: Cell) -> str:
    return INK if cell.kind == "value" else FAINT


def _column_headers(axis: Axis, xs: list[float], y: float) -> Iterator[Box | Text]:
    for level, band in enumerate(axis.bands):
        top = y - 3 - _BAND_HEIGHT * (level + 1)
        for start, stop, label in band.spans:
            # Up to the end of the last cell, not to the next group after a gap.
            left, right = xs[start] + 1, _end(axis, xs, stop) - 1
            if level:
                yield Box(left, top + 1, right - left, _BAND_HEIGHT - 3, BAND)
            yield Text((left + right) / 2, top + _BAND_HEIGHT / 2, label, HEADER_TEXT, QUIET)
        if band.name:
            at = (xs[-1] + 8, top + _BAND_HEIGHT / 2)
            yield Text(*at, band.name, HEADER_TEXT, FAINT, "start")


def _row_headers(axis: Axis, ys: list[float], x: float, y: float) -> Iterator[Box | Text]:
    right = x - 3
    for level, (band, width) in enumerate(zip(axis.bands, _row_bands(axis), strict=True)):
        for start, stop, label in band.spans:
            top, bottom = ys[start] + 1, _end(axis, ys, stop) - 1
            if level:
                yield Box(right - width + 1, top, width - 3, bottom - top, BAND)
            yield Text(right - width / 2, (top + bottom) / 2, label, HEADER_TEXT, QUIET)
        if band.name:
            at = (right - width / 2, y - 3 - _BAND_HEIGHT / 2)
            yield Text(*at, band.name, HEADER_TEXT, FAINT)
        right -= width


def _end(axis: Axis, stops: list[float], stop: int) -> float:
    shift = axis.breaks[stop] if stop < len(axis.breaks) else 0
    return stops[stop] - _GROUP_GAP * shift


def _legend(figure: Figure, y: float, width: float) -> tuple[list[Box | Text], float]:
    """Return swatches with their meanings, in as many lines as needed, and the end of the last."""
    items: list[Box | Text] = []
    x = _MARGIN
    for cell, meaning in figure.legend:
        taken = _taken(cell, meaning)
        if x + taken > _MARGIN + width + 26 and x > _MARGIN:
            x, y = _MARGIN, y + 26
        swatch = _swatch(cell)
        inside = Text(x + swatch / 2, y + 10, cell.label, HEADER_TEXT, _ink(cell))
        items.append(Box(x, y, swatch, 20, cell.fill, cell, (inside,) if cell.label else ()))
        if meaning:
            items.append(Text(x + swatch + 8, y + 10, meaning, HEADER_TEXT, QUIET, "start"))
        x += taken
    return items, y + 20


def _swatch(cell: Cell) -> float:
    return max(22.0, text_width(cell.label, HEADER_TEXT) + 8)


def _taken(cell: Cell, meaning: str) -> float:
    """Return the width of a legend entry; swatches without a text stand close together."""
    return _swatch(cell) + (text_width(meaning, HEADER_TEXT) + 26 if meaning else 3)
