"""The part of a page for an expression: its drawing and steps, or the reason why it has none."""

from __future__ import annotations

from ..algebra import LayoutBudgetError, LayoutError
from .api import draw
from .budget import EVALUATION, Exhausted, drawing_seconds, seconds
from .expression import Applied, evaluate
from .followed import proof
from .html import drawing, no_drawing, walk
from .steps import steps_of


def fragment_of(expression: str, limit: int = 32) -> tuple[bool, str]:
    """Return whether an expression is a layout, and what a page shows: the layout, or why not.

    Raises :class:`~layoutconv.algebra.LayoutBudgetError` if it takes too long.
    """
    if not expression.strip():
        return True, ""
    applied: list[Applied] = []
    try:
        with seconds(EVALUATION):
            value = evaluate(expression, applied)
    except LayoutBudgetError:
        raise
    except LayoutError as error:
        if error.operation:
            first = no_drawing("There is no such layout", proof(error), str(error))
            return False, _with_steps(first, applied, limit)
        sentence, _, line = str(error).partition("\n")
        return False, walk(no_drawing("This is not a layout", sentence, line or expression), [])
    try:
        with seconds(drawing_seconds(limit)):
            first = drawing(value, draw(value, limit=limit))
    except (LayoutError, ValueError, TypeError, OverflowError) as error:
        return False, walk(no_drawing("This cannot be drawn", "", str(error)), [])
    return True, _with_steps(first, applied, limit)


def _with_steps(first: str, applied: list[Applied], limit: int) -> str:
    """Return a section and the steps after it.

    There are no steps if a map on the way has no picture, such as a swizzle of coordinates, or if
    drawing them takes too long.
    """
    try:
        with seconds(drawing_seconds(limit)):
            return walk(first, steps_of(applied, limit))
    except Exhausted as spent:
        why = f"Drawing them takes {spent}. The operations are fewer in a part of the expression."
        return walk(first + no_drawing("The steps are left out", "", why), [])
    except (LayoutError, ValueError, TypeError):
        return walk(first, [])
