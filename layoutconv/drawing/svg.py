"""SVG with presentation attributes alone, without style sheet or script, which opens anywhere."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from numbers import Real

from ..errors import ArgumentError, shown
from .figure import Cell, Figure, checked_figure
from .scene import CELL_TEXT, FAINT, INK, Box, Text, place

_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_HATCH = (
    '<pattern id="layoutconv-padding" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f6f7f9"/>'
    '<rect width="1.5" height="6" fill="#d7dbe2"/></pattern>'
)

_LARGEST = 1_000_000  # scale

# Describes a cell: attributes for its element, and content inside it.
Describe = Callable[[Cell], tuple[str, str]]


def to_svg(figure: Figure, *, scale: float = 1.0) -> str:
    """Return the figure as an SVG document; pointing at a cell shows its facts.

    ``scale`` enlarges it on a page, a number > 0, at most 1,000,000.

    >>> print(to_svg(Figure("4:1", ((),))).splitlines()[0])
    <svg xmlns="http://www.w3.org/2000/svg" width="67" height="71" viewBox="0 0 67 71">
    """
    if not isinstance(scale, Real) or not 0 < scale <= _LARGEST:
        raise ArgumentError("scale", f"a number > 0, at most {_LARGEST:,}", shown(scale))
    return svg(checked_figure(figure), _titled, scale)


def svg(figure: Figure, describe: Describe, scale: float = 1.0) -> str:
    """Return the document, with the description of each cell by ``describe``."""
    scene = place(figure)
    width, height = round(scene.width), round(scene.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width * scale)}" '
        f'height="{_n(height * scale)}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(figure.title, quote=False)}</title>",
        f"<defs>{_HATCH}</defs>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<g font-family="{_FONT}" font-size="{_n(CELL_TEXT)}" text-anchor="middle" fill="{INK}">',
    ]
    lines += [
        _box(item, describe) if isinstance(item, Box) else _text(item) for item in scene.items
    ]
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _titled(cell: Cell) -> tuple[str, str]:
    if not cell.facts:
        return "", ""
    facts = "\n".join(f"{name}: {value}" for name, value in cell.facts)
    return "", f"<title>{escape(facts, quote=False)}</title>"


def _box(box: Box, describe: Describe) -> str:
    drawn = _rectangle(box) + "".join(map(_text, box.texts))
    attributes, inner = describe(box.cell) if box.cell else ("", "")
    return f"<g{attributes}>{inner}{drawn}</g>" if attributes or inner else drawn


def _rectangle(box: Box) -> str:
    kind = box.cell.kind if box.cell else "value"
    if kind == "gap":
        return ""
    fill = "url(#layoutconv-padding)" if kind == "padding" else box.fill or "#ffffff"
    border = ""
    if box.cell and box.cell.mark:
        border = f' stroke="{INK}" stroke-width="2"'
    elif fill == "#ffffff":
        border = f' stroke="{FAINT}" stroke-opacity="0.4"'
    return (
        f'<rect x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" '
        f'height="{_n(box.height)}" rx="3" fill="{fill}"{border}/>'
    )


def _text(text: Text) -> str:
    attributes = f'x="{_n(text.x)}" y="{_n(text.y + 0.35 * text.size)}"'
    if text.size != CELL_TEXT:
        attributes += f' font-size="{_n(text.size)}"'
    if text.colour != INK:
        attributes += f' fill="{text.colour}"'
    if text.anchor != "middle":
        attributes += f' text-anchor="{text.anchor}"'
    if text.bold:
        attributes += ' font-weight="600"'
    return f"<text {attributes}>{escape(text.text, quote=False)}</text>"


def _n(x: float) -> str:
    return f"{x:.1f}".rstrip("0").rstrip(".")
