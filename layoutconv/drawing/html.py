"""HTML: one self-contained page; pointing at a cell shows its facts and highlights its like."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..algebra import F2, ComposedLayout
from ..algebra.errors import text
from ..algebra.int_tuple import paired_leaves
from ..base.caches import remembered
from .figure import Cell, Figure, checked_figure
from .layouts import maps_coordinates
from .svg import svg

if TYPE_CHECKING:
    from .step import DrawnStep

_COUNTED = 1 << 14  # most coordinates for a figure that evaluates each
_POINT = "Point at a cell, touch it, or move through the cells with the arrow keys."
_READOUT = f'<p class="readout" aria-live="polite" data-empty="{_POINT}">{_POINT}</p>\n'
_BAR = (
    '<nav class="steps" aria-label="Steps" hidden><button type="button">Previous</button>'
    '<output aria-live="polite"></output><button type="button">Next</button></nav>\n'
)


@remembered(8)
def asset(name: str) -> str:
    """Return ``page.css`` or ``page.js``, which every page contains."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def to_html(figure: Figure) -> str:
    """Return the figure as a page, with coordinate, index and offset of the cell under the pointer.

    Cells that belong together light up: equal offsets, the elements of one thread, all places of
    the matrix that read one activation.
    """
    return page(checked_figure(figure).title, f"<section>{_panels([('', figure)])}</section>")


def page(title: str, main: str, head: str = "") -> str:
    """Return a whole page, with its style and script; ``head`` stands above ``main``."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{asset('page.css')}</style>\n</head>\n<body>\n"
        f'{head}<main>\n{main}</main>\n<div id="tip" role="tooltip"></div>\n'
        f"<script>{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def drawing(value: Any, figure: Figure) -> str:
    """Return a page's section for a value: its notation, its properties, its drawing."""
    return (
        f'<section>\n<p class="notation"><code>{escape(str(value))}</code></p>\n{_said(value)}'
        f"{_panels([('', figure)], title=False)}"
        f"{_READOUT}</section>\n"
    )


def no_drawing(heading: str, sentence: str, line: str) -> str:
    """Return a page's section for an expression without a value, which says why.

    If the last step marks a witness, a button leads there; the script then shows it.
    """
    told = f"<p>{escape(sentence)}</p>\n" if sentence else ""
    return (
        f'<section class="wrong" role="alert">\n<h2>{escape(heading)}</h2>\n{told}'
        f"<pre>{escape(line)}</pre>\n"
        '<button type="button" class="witness" hidden>Show the witness</button>\n</section>\n'
    )


def walk(first: str, steps: Sequence[DrawnStep]) -> str:
    """Return a section of a page, the steps after it, and the buttons to go through them."""
    return _BAR + first + "".join(map(_step, steps))


def _said(value: Any) -> str:
    """Return the shape, stride, size and cosize that a value has."""
    said: list[tuple[str, str]] = []
    if hasattr(value, "shape"):
        said.append(("shape", text(value.shape)))
    if hasattr(value, "stride"):
        said.append(("stride", text(value.stride)))
    if hasattr(value, "size"):
        said.append(("size", str(value.size())))
        strided = hasattr(value, "stride")
        composed = isinstance(value, ComposedLayout) and not maps_coordinates(value)
        # A cosize that is not a sum over modes is counted, coordinate by coordinate.
        summed = strided and not any(
            isinstance(d, F2) for _, d in paired_leaves(value.shape, value.stride)
        )
        if (strided or composed) and (summed or value.size() <= _COUNTED):
            with suppress(TypeError, ValueError):  # coordinates span no memory
                said.append(("cosize", text(value.cosize())))
    rows = "".join(f"<div><dt>{name}</dt><dd>{escape(what)}</dd></div>" for name, what in said)
    return f'<dl class="said">{rows}</dl>\n' if said else ""


def _step(step: DrawnStep) -> str:
    links = escape(json.dumps(step.links))
    panels = _panels([(panel.name, panel.figure) for panel in step.panels])
    account = f"<pre>{escape(step.account)}</pre>\n" if step.account else ""
    return (
        f'<section data-links="{links}">\n<h2>{escape(step.title)}</h2>\n'
        f"<p>{code(step.sentence)}</p>\n{panels}{_READOUT}{account}</section>\n"
    )


def code(sentence: str) -> str:
    """Return a sentence as HTML, with `code` set as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))


def _panels(panels: Sequence[tuple[str, Figure]], title: bool = True) -> str:
    drawn = []
    for name, figure in panels:
        shown = figure if title else Figure("", figure.grids, figure.legend)
        drawn.append(f'<figure data-name="{escape(name)}">{svg(shown, _described)}</figure>\n')
    return f'<div class="panels">{"".join(drawn)}</div>\n'


def _described(cell: Cell) -> tuple[str, str]:
    if not cell.facts:
        return ' class="swatch"', ""
    facts = json.dumps(cell.facts, ensure_ascii=False)
    return f' data-key="{escape(cell.key)}" data-facts="{escape(facts)}"', ""
