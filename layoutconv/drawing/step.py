"""``DrawnStep``: one view on the way through an expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figure import Figure
from .text import to_text


@dataclass(frozen=True)
class StepPanel:
    """A figure of a step, and the letter that names it."""

    name: str
    figure: Figure


@dataclass(frozen=True)
class DrawnStep:
    """One view: figures side by side, and a sentence about them.

    ``links`` connect cells: ``(i, fact, j, other)`` links cells of panels i and j if ``fact`` of
    one equals ``other`` of the other. ``account`` explains in lines how a result comes about.
    """

    title: str
    sentence: str
    panels: tuple[StepPanel, ...]
    links: tuple[tuple[int, str, int, str], ...] = ()
    account: str = ""


def steps_text(steps: Sequence[DrawnStep]) -> str:
    """Return the steps one below the other, for a terminal."""
    parts = []
    for number, step in enumerate(steps, 1):
        parts.append(f"{number}. {step.title}\n{step.sentence.replace('`', '')}")
        parts += [to_text(panel.figure) for panel in step.panels]
        parts += [step.account] if step.account else []
    return "\n\n".join(parts)
