"""``Step``: one thing to look at on the way through an expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figure import Figure
from .text import to_text


@dataclass(frozen=True)
class Panel:
    """A figure of a step, and the letter that it goes by."""

    name: str
    figure: Figure


@dataclass(frozen=True)
class Step:
    """One thing to look at: figures beside each other, and what there is to see.

    ``links`` say which cells belong together: ``(i, fact, j, other)`` those of panels i and j where
    ``fact`` of the one is ``other`` of the other. ``account`` tells in lines how a result came
    about.
    """

    title: str
    sentence: str
    panels: tuple[Panel, ...]
    links: tuple[tuple[int, str, int, str], ...] = ()
    account: str = ""


def steps_text(steps: Sequence[Step]) -> str:
    """The steps one below the other, for a terminal."""
    parts = []
    for number, step in enumerate(steps, 1):
        parts.append(f"{number}. {step.title}\n{step.sentence.replace('`', '')}")
        parts += [to_text(panel.figure) for panel in step.panels]
        parts += [step.account] if step.account else []
    return "\n\n".join(parts)
