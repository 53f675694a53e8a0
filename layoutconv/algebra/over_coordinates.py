"""Layouts over their own coordinates, and positions lifted to coordinates."""

from __future__ import annotations

from .basis import lifted
from .composed import ComposedLayout
from .int_tuple import compact_stride, map_leaves
from .layout import Layout, make
from .stride import E


def over_coordinates(layout: Layout) -> ComposedLayout:
    """Return a layout as a composed one over its coordinates, with an integer for each mode.

    Tiling then rearranges coordinates, which an index buffer accepts in any order.

    >>> print(over_coordinates(Layout((4, (2, 3)))))
    (4,(2,3)):(1,(4,8)) o 0 o (4,(2,3)):(1@0,(1@1,2@1))
    """
    shape = layout.shape
    if not isinstance(shape, tuple):
        return ComposedLayout(layout, 0, Layout(shape, 1))
    strides = [
        map_leaves(lambda d, i=i: d * E(i), compact_stride(mode)) for i, mode in enumerate(shape)
    ]
    return ComposedLayout(layout, 0, make(shape, tuple(strides)))


def lift(layout: Layout, mode: int) -> Layout | None:
    """Turn positions in mode ``mode`` into coordinates; None if a stride cannot be lifted."""
    strides = [lifted(d, (mode,)) for _, d in layout._leaves]
    if any(d is None for d in strides):
        return None
    left = iter(strides)
    return make(layout.shape, map_leaves(lambda _: next(left), layout.shape))
