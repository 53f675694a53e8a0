"""Pastel colours, light enough to keep dark text readable on each.

Anchors are equally light (OKLab lightness 0.90 on the wheel, 0.95 falling to 0.85 on the ramp), so
no cell looks more important than another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_WHEEL = (
    *("#ffcbca", "#ffd0b2", "#f9d9a6", "#e0e3a9", "#c4ebbc", "#acefd6"),
    *("#a2eef2", "#abe8ff", "#c1e0ff", "#ddd6ff", "#f5cffd", "#ffcae5"),
)
_RAMP = ("#fbefc2", "#d8f4c9", "#b6f4e2", "#aaecfd", "#bbdeff", "#d9cdff", "#f3bee6")


def wheel(i: int, n: int) -> str:
    """Return colour ``i`` of ``n`` distinct ones: evenly spread hues, the last next to the first.

    >>> wheel(0, 4), wheel(1, 4), wheel(2, 4)
    ('#ffcbca', '#e0e3a9', '#a2eef2')
    """
    return _between((*_WHEEL, _WHEEL[0]), i % n / n)


def ramp(t: float) -> str:
    """Return the colour at ``t`` from 0 to 1 along the ramp: yellow, green, blue, violet.

    >>> ramp(0), ramp(0.5), ramp(1)
    ('#fbefc2', '#aaecfd', '#f3bee6')
    """
    return _between(_RAMP, t)


def by_rank(values: Iterable[Any]) -> dict[Any, str]:
    """Return a colour of the ramp for each distinct value, in order.

    >>> by_rank([8, 0, 16, 8])
    {0: '#fbefc2', 8: '#aaecfd', 16: '#f3bee6'}
    """
    distinct = set(values)
    try:
        ordered = sorted(distinct)
    except TypeError:  # values of different kinds are ordered by their text
        ordered = sorted(distinct, key=str)
    last = max(1, len(ordered) - 1)
    return {value: ramp(i / last) for i, value in enumerate(ordered)}


def _between(anchors: tuple[str, ...], t: float) -> str:
    at = min(max(t, 0.0), 1.0) * (len(anchors) - 1)
    low = min(int(at), len(anchors) - 2)
    part = at - low
    mixed = (
        a + part * (b - a) for a, b in zip(*map(channels, anchors[low : low + 2]), strict=True)
    )
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, 0 to 255, of ``#rrggbb``."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
