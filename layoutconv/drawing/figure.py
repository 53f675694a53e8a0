"""``Figure``: the common form of every picture before it becomes text, SVG, TikZ or HTML.

A figure is grids arranged in rows and columns. A grid is labelled, coloured cells between two axes.
An axis knows which positions are shown, how they are grouped and the label of each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..algebra.errors import text
from ..base.paths import file_name_of
from ..errors import ArgumentError, ArgumentTypeError, check_choice
from .axis import Axis
from .files import write
from .plain_text import printable

Kind = Literal["value", "padding", "absent", "gap"]
MOST_CELLS = 1 << 18  # of a picture: 75 MB of HTML, drawn in 10 s


@dataclass(frozen=True)
class Cell:
    """One cell: its label, its colour, and the facts that a reader sees by pointing at it.

    ``kind`` is "value"; "padding" if it reads zero outside a shape; "absent" if it is an index that
    names nothing; "gap" if cells were left out. Cells with the same ``key`` belong together: all
    elements of a thread, all copies of an activation. ``mark`` puts a border around the cell.
    """

    label: str = ""
    fill: str = ""
    kind: Kind = "value"
    facts: tuple[tuple[str, str], ...] = ()
    key: str = ""
    mark: bool = False


@dataclass(frozen=True)
class Grid:
    """Cells between two axes, ``cells[i][j]`` at position i of ``rows`` and j of ``columns``."""

    title: str
    rows: Axis
    columns: Axis
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Figure:
    """Grids in rows and columns (None leaves a place empty) under a title, above a legend.

    When printed, it is a picture for a terminal, in ASCII if standard output has no box-drawing
    characters; a notebook shows it as SVG.
    """

    title: str
    grids: tuple[tuple[Grid | None, ...], ...]
    legend: tuple[tuple[Cell, str], ...] = ()

    def render(self, format: str) -> str:
        """Return the picture as ``"text"``, ``"svg"``, ``"tikz"`` or ``"html"``."""
        check_choice("format", format, RENDERERS)
        return RENDERERS[format](self)

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Write the picture to ``path``, by default in the format of its suffix.

        ``.svg``, ``.html``, ``.tex`` (TikZ, a standalone document) and ``.txt``.
        """
        write(path, self.render(format_of(path) if format is None else format))

    def _repr_svg_(self) -> str:
        return self.render("svg")

    def __repr__(self) -> str:
        return printable(self.render("text"))


def checked_figure(figure: Any) -> Figure:
    """Return the figure; raise ``ArgumentTypeError`` for any other object, such as a layout."""
    if not isinstance(figure, Figure):
        raise ArgumentTypeError("figure", "a Figure, as draw makes one", type(figure).__name__)
    return figure


# Renderers by format; ``renderers.py``, which knows them all, fills this in.
RENDERERS: dict[str, Callable[[Figure], str]] = {}


def make_grid(title: str, rows: Axis, columns: Axis, cell: Callable[[int, int], Cell]) -> Grid:
    """Make the grid of ``cell(i, j)`` at the positions that the axes show."""
    check_cell_count(rows, columns)
    return Grid(
        title,
        rows,
        columns,
        tuple(
            tuple(_gap(i, j) if i is None or j is None else cell(i, j) for j in columns.positions)
            for i in rows.positions
        ),
    )


def check_cell_count(rows: Axis, columns: Axis, panels: int = 1) -> None:
    """Refuse a picture of too many cells before any is evaluated."""
    cells = len(rows) * len(columns) * panels
    if cells > MOST_CELLS:
        expected = f"one that shows at most {MOST_CELLS} cells"
        raise ArgumentError("limit", expected, f"one that shows {cells}")


def _gap(i: int | None, j: int | None) -> Cell:
    return Cell("⋱" if i is j else "⋮" if i is None else "⋯", kind="gap")


def plain(value: Any) -> Any:
    """Convert a value to Python's own numbers, from named integers, NumPy and torch scalars."""
    if isinstance(value, tuple):
        return tuple([plain(part) for part in value])
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if hasattr(value, "item"):
        return value.item()
    return int(value) if hasattr(value, "__index__") else value


def label(value: Any) -> str:
    """Return the label of a value's cell; floats have three digits.

    >>> label((1, (2, 3))), label(0.123456), label(7)
    ('(1,(2,3))', '0.123', '7')
    """
    return f"{value:.3g}" if isinstance(value, float) else text(value)


def title_lines(title: str, width: int) -> list[str]:
    """Break a title into lines of at most ``width`` characters, before an ``o`` between maps.

    >>> title_lines("(6):(10) o (-1) o (4,3):(1@0,1@0)", 20)
    ['(6):(10) o (-1)', 'o (4,3):(1@0,1@0)']
    """
    lines: list[str] = []
    for part in title.replace(" o ", "\no ").split("\n") if title else []:
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


_SUFFIXES = {".svg": "svg", ".html": "html", ".htm": "html", ".tex": "tikz", ".txt": "text"}


def format_of(path: str | Path) -> str:
    """Return the format for the suffix of a file's name.

    >>> format_of("layout.tex")
    'tikz'
    """
    suffix = Path(file_name_of(path)).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise ArgumentError("path", f"a name that ends in {known}, or a format", repr(str(path)))
    return _SUFFIXES[suffix]
