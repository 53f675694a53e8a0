"""The inverse of a strided map of a box filter: which outputs each input feeds, and at which taps.

Tap t of output y reads input x = y * stride - before + t. So what remains of x + before, divided by
the stride, is what remains of t: of 3 x 3 x 3 taps at stride 2 an input is at 1, 2, 4 or 8. The
outputs that it feeds are a box of neighbours, whose first cell is that of the last such tap. They
are in two blocks per axis of the table of outputs, most often in one. So an inverse needs no map to
begin with, as little as that of ``parents`` does, where the filter is as large as its stride.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from ..common.cells import Cell
from ..common.dsl import Boolean, Int32, Int64
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import select
from .box_filter import BoxFilter, Ints
from .cooperative import Arrays
from .inverse_rows import InverseRows, KeysOfInverse, RowsOfInverse
from .probe import answer
from .row_order import Sizes
from .tap_blocks import cells_from


def places_of(filter: BoxFilter, tap: Ints) -> Ints:
    """Where the output is that an input feeds at a tap, seen from the first one that it feeds.

    >>> three = BoxFilter((2,), (3,), (1,))
    >>> [places_of(three, (tap,)) for tap in range(3)]
    [(1,), (0,), (0,)]
    """
    axes = zip(tap, filter.stride, filter.size, strict=True)
    return tuple((k - 1 - t) // s for t, s, k in axes)


class BoxInverse(InverseRows):
    """The common part of kernels that look for the outputs that an input feeds, a thread an input.

    Args:
        filter: whose stride, size and padding the kernel knows.
        taps: in the order in which their outputs are found, each from the first one of the box.
    """

    def __init__(
        self, rank: int, filter: BoxFilter, taps: tuple[Ints, ...], wide: bool = False,
        unit: bool = False,
    ) -> None:  # fmt: skip
        most = [range(-(-k // s)) for k, s in zip(filter.size, filter.stride, strict=True)]
        self.box = tuple(product(*most))
        super().__init__(rank, True, self.box, wide, unit)
        self.filter, self.taps = filter, taps

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, tuple(self.filter), self.taps

    def outputs(self, cell: Cell) -> tuple[Cell, list[Any], list[Any]]:
        """The first of the outputs that an input feeds, how many more there are on each axis, -1 of
        none, and what remains of the input's coordinates."""
        start, more, rests = [self.coordinate(cell[0])], [], []
        for c, s, k, p in zip(cell[1:], *self.filter, strict=True):
            shifted = self.coordinate(c) + p
            last = shifted // s
            rest = shifted - last * s
            further, short = divmod(k - 1, s)
            count = select(rest > short, Int32(further - 1), Int32(further))
            start.append(last - self.coordinate(count))
            more.append(count)
            rests.append(rest)
        return start, more, rests

    def met(self, rests: list[Any]) -> list[tuple[Any, Ints]]:
        """Return of each tap whether an input is at it, and the place in the box of what it feeds
        there."""
        equal = [
            {t: rest == t for t in range(min(s, k))}
            for rest, s, k in zip(rests, self.filter.stride, self.filter.size, strict=True)
        ]
        found = []
        for tap in self.taps:
            is_met = Boolean(True)
            for t, s, of_axis in zip(tap, self.filter.stride, equal, strict=True):
                is_met = is_met if s == 1 else is_met & of_axis[t % s]
            found.append((is_met, places_of(self.filter, tap)))
        return found


class KeysOfBoxInverse(KeysOfInverse, BoxInverse):
    """The sort key of every input, of the taps at which it feeds an output that is there.

    Args:
        taps: the most significant first, of ``weights``, as of ``TapOrder``.
    """

    def __init__(
        self, rank: int, filter: BoxFilter, taps: tuple[Ints, ...], sizes: Sizes,
        weights: tuple[int, ...], wide: bool = False, unit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, filter, taps, wide, unit)
        self.sizes, self.weights = sizes, weights

    def present(self, cell: Cell, slots: Any, grid: AnyList, bits: Any) -> list[Any]:
        start, more, rests = self.outputs(cell)
        found = [own for _, own in self.corners(slots, start, more, grid, bits)]
        around = cells_from(start, found)
        bit_at = dict(zip(self.box, self.bits_of_known(), strict=True))
        return [
            is_met & (Int32(around >> bit_at[place]) & 1 != 0) for is_met, place in self.met(rests)
        ]


class RowsOfBoxInverse(RowsOfInverse, BoxInverse):
    """The index of the inverse."""

    def shared(self, threads: int) -> Arrays:
        """The cells of each block of every thread, and its first place."""
        shape = threads, 1 << self.rank
        return [(Int64, shape), (Int32, shape)]

    def answers(
        self, cell: Cell, table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterator[tuple[Any, Any]]:
        """All of the box of outputs are asked for before one is waited for."""
        (slots, values, grid, bits), (words, places) = table, arrays
        start, more, rests = self.outputs(cell)
        for corner, (first, word) in enumerate(self.corners(slots, start, more, grid, bits)):
            words[tid, corner] = word
            places[tid, corner] = first
        found = {}
        for place, (corner, bit) in zip(self.box, self.places_of(self.box, start), strict=True):
            found[place] = answer(values, words[tid, corner], bit, places[tid, corner])
        for is_met, place in self.met(rests):
            yield is_met, found[place]
