"""Box filters: filters whose taps fill a box, and the boxes of cells that one cell reaches by them.

Tap t of output y reads input y * stride - before + t, 0 <= t < size, on each axis. So the inputs of
an output are an interval on each axis. An interval [a, b] of inputs overlaps that of y if each
begins no later than the other ends: y * stride - before <= b and a <= y * stride - before + size -
1. The outputs y that satisfy both are an interval, too, for any size and stride:

    ceil((a + before - (size - 1)) / stride) .. floor((b + before) / stride)

The interval may be empty if the filter is smaller than its stride. Cut to the grid it is still an
interval, from which that of the next level follows.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from layoutconv.base.caches import remembered

from .taps_like import Ints, TapsLike


class BoxFilter(NamedTuple):
    """A filter whose taps fill a box.

    Attributes:
        stride, size: one integer per axis.
        before: the padding: how far an output's first tap is before its first input, per axis.
    """

    stride: Ints
    size: Ints
    before: Ints


class AxisCells(NamedTuple):
    """The cells of a level that one cell of the finest level reaches, along an axis.

    Attributes:
        most: the largest number of them.
        always: whether there is at least one, except at the end of the grid.
    """

    most: int
    always: bool


Box = tuple[AxisCells, ...]


@remembered(64)
def box_filter(taps: TapsLike) -> BoxFilter | None:
    """Return taps, in any order, as a box filter; None if they fill no box.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> box_filter(Taps.strided(2, 3, 2, (1, 0)))
    BoxFilter(stride=(2, 2), size=(3, 3), before=(1, 0))
    >>> box_filter(Taps.strided(1, 3, 2, dilation=2)) is None
    True
    """
    low = tuple(map(min, zip(*taps.offsets, strict=True)))
    high = tuple(map(max, zip(*taps.offsets, strict=True)))
    size = tuple(last - first + 1 for first, last in zip(low, high, strict=True))
    if len(set(taps.offsets)) != prod(size):
        return None
    return BoxFilter(taps.stride, size, tuple(-first for first in low))


@remembered(64)
def boxes_of(filters: tuple[BoxFilter, ...]) -> tuple[Box, ...]:
    """Return, for each level in turn, the box of cells that one cell of the finest level reaches.

    The first taps of the outputs of n adjacent cells lie within n + size - 1 cells.

    >>> two, three = BoxFilter((2,), (2,), (0,)), BoxFilter((2,), (3,), (1,))
    >>> [axis.most for (axis,) in boxes_of((two, two))]
    [1, 1]
    >>> [axis.most for (axis,) in boxes_of((three, three, three))]
    [2, 2, 2]
    """
    found: list[Box] = []
    for each in filters:
        before = [axis.most for axis in found[-1]] if found else [1] * len(each.stride)
        axes = zip(before, each.size, each.stride, strict=True)
        found.append(tuple(AxisCells(-(-(n + k - 1) // s), k >= s) for n, k, s in axes))
    return tuple(found)


def cells_in(box: Box) -> int:
    """Return how many cells a box has at most."""
    return prod(axis.most for axis in box)
