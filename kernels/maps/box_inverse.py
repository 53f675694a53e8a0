"""The inverse of a strided map of a box filter: which outputs each input feeds, and at which taps.

Tap t of output y reads input x = y * stride - before + t. So x + before and t have the same
remainder modulo the stride: with 3 x 3 x 3 taps at stride 2 an input is at 1, 2, 4 or 8 taps. The
outputs that it feeds are a box of neighbours, and the last such tap gives the first cell of the
box. These outputs lie in at most two blocks per axis of the table of outputs, most often in one. So
the inverse is found without the forward map, as ``parents`` does for filters as large as their
stride.
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
    """Return the position of the output that an input feeds at a tap, from the first one it feeds.

    >>> three = BoxFilter((2,), (3,), (1,))
    >>> [places_of(three, (tap,)) for tap in range(3)]
    [(1,), (0,), (0,)]
    """
    axes = zip(tap, filter.stride, filter.size, strict=True)
    return tuple((k - 1 - t) // s for t, s, k in axes)


class BoxInverse(InverseRows):
    """Base of kernels that look up the outputs that an input feeds; one thread per input.

    Args:
        filter: its stride, size and padding are compile-time constants.
        taps: in the order in which their outputs are yielded, counted from the box's first tap.
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
        """Return the first output that an input feeds; how many more there are on each axis, -1 if
        none; and the remainders of the input's coordinates."""
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
        """Return for each tap whether an input is at it, and the position in the box of the output
        that it feeds there."""
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
    """The sort key of every input, from the taps at which it feeds an output that exists.

    Args:
        taps: the most significant first, with ``weights``, as in ``TapOrder``.
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
    """The index buffer of the inverse."""

    def shared(self, threads: int) -> Arrays:
        """Return arrays for the cells and the first place of each thread's blocks."""
        shape = threads, 1 << self.rank
        return [(Int64, shape), (Int32, shape)]

    def answers(
        self, cell: Cell, table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterator[tuple[Any, Any]]:
        """Look up all outputs of the box before waiting for one."""
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
