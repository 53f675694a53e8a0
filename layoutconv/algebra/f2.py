"""Layouts that are linear over F2, the field of two elements: swizzles, and their compositions."""

from __future__ import annotations

from typing import Any

from .errors import LayoutValueError
from .layout import Layout
from .stride import F2


def has_f2(layout: Layout) -> bool:
    """Whether a stride of the layout adds without carry."""
    return any(isinstance(d, F2) for _, d in layout._leaves)


def compose_f2(a: Layout, b: Layout) -> Any:
    """Composition where a side has F2 strides."""
    raise LayoutValueError(f"composition({a}, {b}): F2 strides")


def complement_f2(a: Layout, bound: int) -> Layout:
    """Complement of a layout with F2 strides."""
    raise LayoutValueError(f"complement({a}, {bound}): F2 strides")
