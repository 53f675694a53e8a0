"""Steps through an expression, operation by operation."""

from __future__ import annotations

import inspect
import re

from ..algebra import ComposedLayout, Layout, LayoutError, Swizzle
from ..algebra.errors import text
from .api import draw
from .expression import Applied, evaluate, operations
from .followed import DIVIDES, composition_steps, divide_steps
from .step import DrawnStep, StepPanel


def steps(expression: str, *, limit: int = 32) -> list[DrawnStep]:
    """Return the steps of every operation in an expression, innermost first; none for a notation.

    If an operation has no result, its last step shows the failure. ``limit`` is how many rows and
    columns to show.

    >>> for step in steps("(4,8):(8,1) @ (2,4):(2,8)"):
    ...     print(step.title, [panel.name for panel in step.panels])
    A @ B: first B ['B']
    A @ B: then A ['B', 'A']
    A @ B: the result ['B', 'A', 'R']
    """
    applied: list[Applied] = []
    try:
        evaluate(expression, applied)
    except LayoutError:
        if not applied or applied[-1].error is None:
            raise
    return steps_of(applied, limit)


def steps_of(applied: list[Applied], limit: int) -> list[DrawnStep]:
    """Return the steps of applied operations, one after the other."""
    return [step for operation in applied for step in _steps(operation, limit)]


def _steps(applied: Applied, limit: int) -> list[DrawnStep]:
    found: list[DrawnStep] | None = None
    if applied.name == "composition":
        found = composition_steps(applied, limit)
    elif applied.name in DIVIDES:
        found = divide_steps(applied, limit)
    return _other(applied, limit) if found is None else found


def _other(applied: Applied, limit: int) -> list[DrawnStep]:
    """Return the step of any other operation: its operands, its result, and its summary."""
    shown = [o for o in applied.operands if isinstance(o, Layout | ComposedLayout | Swizzle)]
    names = ["A", "B"] if len(shown) <= 2 else [f"A{i}" for i in range(len(shown))]
    panels = [
        StepPanel(name, draw(o, limit=limit, title=f"{name} = {o}"))
        for name, o in zip(names, shown, strict=False)
    ]
    if isinstance(applied.result, Layout | ComposedLayout | Swizzle):
        panels.append(
            StepPanel("R", draw(applied.result, limit=limit, title=f"R = {applied.result}"))
        )
    if not shown:  # Layout(shape, stride) and the like show nothing beyond their result
        return []
    links: tuple[tuple[int, str, int, str], ...] = ()
    if len(panels) == 2 and applied.name in (
        "coalesce",
        "flatten",
        "flatten_layout",
        "group_modes",
    ):
        links = ((0, "index", 1, "index"),)
    if len(panels) == 2 and applied.name in ("right_inverse", "left_inverse"):
        links = ((0, "offset", 1, "index"),)
    sentence = summary(applied.name) if applied.error is None else ""
    title = f"{applied.name}({', '.join(map(text, applied.operands))})"
    if applied.error is not None:
        title, sentence = f"{applied.name}: where it goes wrong", str(applied.error)
    return [DrawnStep(title, sentence, tuple(panels), links)]


def summary(operation: str) -> str:
    """Return the purpose of an operation: the first paragraph of its docstring.

    >>> summary("group_modes")
    'Modes `begin` to `end` (exclusive) as one mode; of a tuple as one entry.'
    """
    first = (inspect.getdoc(operations()[operation]) or "").split("\n\n")[0].replace("\n", " ")
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", first).replace("``", "`")
