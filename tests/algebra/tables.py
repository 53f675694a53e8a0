"""The table of a layout, point by point."""

from __future__ import annotations

from typing import Any


def table(layout: Any) -> list[Any]:
    """The value at every linear coordinate, each by a call of its own."""
    return [layout(i) for i in range(layout.size())]
