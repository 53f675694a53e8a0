"""The tasks of a worker: pictures of typed text, in any format.

Arguments and results are JSON values. Each task limits its own time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ..algebra import LayoutError
from .api import draw
from .budget import EVALUATION, drawing_seconds, seconds
from .expression import Applied, evaluate
from .fragment import fragment_of
from .html import page
from .named import atom, view
from .step import steps_text
from .steps import steps_of
from .text import to_text


def picture(
    kind: str,
    typed: str,
    *,
    limits: Sequence[int],
    format: str = "",
    width: int = 0,
    colour: bool = False,
    **options: Any,
) -> str:
    """Return the picture of a layout, an atom or a view (``kind``), at the first limit that fits.

    Args:
        kind: ``"layout"``, ``"atom"`` or ``"view"``.
        typed: its notation or expression, its name, or its specification.
        limits: rows and columns to show; several to find the first that fits.
        format: as for :meth:`~layoutconv.drawing.Figure.render`; by default text for a terminal.
        width: columns of that terminal.
        colour: whether the terminal shows colours.
        options: for :func:`~layoutconv.drawing.draw`.
    """
    read: dict[str, Callable[[str], Any]] = {"layout": evaluate, "atom": atom, "view": view}
    with seconds(EVALUATION):
        obj = read[kind](typed)
        if isinstance(options.get("tv"), str):
            options["tv"] = evaluate(options["tv"])
    if isinstance(options.get("tv"), list):
        options["tv"] = tuple(options["tv"])
    drawn = ""
    for limit in limits:
        with seconds(drawing_seconds(limit)):
            figure = draw(obj, limit=limit, **options)
            drawn = figure.render(format) if format else to_text(figure, colour=colour)
        if format or _columns(drawn) <= width:
            break
    return drawn


def walk_through(expression: str, limit: int, html: bool) -> tuple[str, str]:
    """Return every operation of an expression, as a page or text, and its error or "".

    Text is never empty: an error without any step is raised.
    """
    applied: list[Applied] = []
    value, error = None, None
    with seconds(EVALUATION):
        try:
            value = evaluate(expression, applied)
        except LayoutError as found_out:
            if not html and (not applied or applied[-1].error is None):
                raise
            error = found_out
    why = "" if error is None else str(error)
    if html:
        head = f"<h1><code>{escape(expression)}</code></h1>\n"
        return page(expression, fragment_of(expression, limit)[1], head), why
    with seconds(drawing_seconds(limit)):
        found = steps_of(applied, limit)
        if found:
            return steps_text(found), why
        if error is not None:  # an operation on numbers alone failed
            raise error
        drawn = to_text(draw(value, limit=limit))
        return f"No layout comes before {value}, so no step leads to it.\n\n{drawn}", why


TASKS: dict[str, Callable[..., Any]] = {
    "page": fragment_of,
    "picture": picture,
    "steps": walk_through,
}


def _columns(text: str) -> int:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return max(map(len, plain.split("\n")))
