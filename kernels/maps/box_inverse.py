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
from .box_filter import BoxFilter
from .cooperative import Arrays
from .inverse_rows import InverseRows, KeysOfInverse, RowsOfInverse
from .probe import answer
from .row_order import Sizes
from .tap_blocks import cells_from
from .tap_tables import bits_in_block
from .taps_like import Ints


def places_of(filter: BoxFilter, tap: Ints) -> Ints:
    """Return the position of the output that an input feeds at a tap, from the first one it feeds.

    >>> three = BoxFilter((2,), (3,), (1,))
    >>> [places_of(three, (tap,)) for tap in range(3)]
    [(1,), (0,), (0,)]
    """
    axes = zip(tap, filter.stride, filter.size, strict=True)
    return tuple((k - 1 - t) // s for t, s, k in axes)


def number_of(filter: BoxFilter, tap: Any) -> Any:
    """Return the row-major number of a tap in a box, from its position there.

    >>> number_of(BoxFilter((2, 2), (3, 4), (1, 1)), (2, 1))
    9
    """
    found = 0
    for t, k in zip(tap, filter.size, strict=True):
        found = found * k + t
    return found


class BoxInverse(InverseRows):
    """Base of kernels that look up the outputs that an input feeds; one thread per input.

    Args:
        filter: its stride and size are compile-time constants. Its padding is in a table.
    """

    def __init__(
        self, rank: int, filter: BoxFilter, wide: bool = False, unit: bool = False
    ) -> None:
        super().__init__(rank, True, wide, unit)
        most = [range(-(-k // s)) for k, s in zip(filter.size, filter.stride, strict=True)]
        self.box, self.filter = tuple(product(*most)), filter

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.filter.stride, self.filter.size

    def shared(self, threads: int) -> Arrays:
        """Return an array for the cells of each thread's blocks."""
        return [(Int64, (threads, 1 << self.rank))]

    def outputs(self, at_cell: tuple[Cell, Cell]) -> tuple[Cell, list[Any], list[Any]]:
        """Return the first output that an input feeds; how many more there are on each axis, -1 if
        none; and the remainders of the input's coordinates."""
        cell, low = at_cell
        start, more, rests = [self.coordinate(cell[0])], [], []
        for c, s, k, o in zip(cell[1:], *self.filter[:2], low, strict=True):
            shifted = self.coordinate(c) - self.coordinate(o)
            last = shifted // s
            rest = shifted - last * s
            further, short = divmod(k - 1, s)
            count = select(rest > short, Int32(further - 1), Int32(further))
            start.append(last - self.coordinate(count))
            more.append(count)
            rests.append(rest)
        return start, more, rests


class KeysOfBoxInverse(KeysOfInverse, BoxInverse):
    """The sort key of every input, from the taps at which it feeds an output that exists. Taps have
    their row-major numbers in the box."""

    def __init__(
        self, rank: int, filter: BoxFilter, sizes: Sizes, wide: bool = False, unit: bool = False
    ) -> None:
        super().__init__(rank, filter, wide, unit)
        self.sizes = sizes

    def word(self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList) -> Any:
        """Move the bits of at most a few outputs to those of their taps.

        An input with the remainder r feeds the n-th further output at tap r + n * stride. The first
        of all has the last tap.
        """
        (slots, grid, bits), stride = table, self.filter.stride
        start, more, rests = self.outputs(at_cell)
        self.look_around(slots, start, more, grid, bits, tid, arrays)
        around = cells_from(start, [arrays[0][tid, n] for n in range(1 << self.rank)])
        last = [Int32(r) + n * s for r, n, s in zip(rests, more, stride, strict=True)]
        found, of_first = Int64(0), number_of(self.filter, last)
        for place, bit in zip(self.box, bits_in_block(self.box, self.rank) or (), strict=True):
            there = Int32(around >> bit) & 1 != 0
            for p, n in zip(place, more, strict=True):
                there = there & (n >= p)
            before = number_of(self.filter, [p * s for p, s in zip(place, stride, strict=True)])
            tap = Int64(1) << Int64((of_first - before) & 63)
            found = found | select(there, tap, Int64(0))
        return found


class RowsOfBoxInverse(RowsOfInverse, BoxInverse):
    """The index buffer of the inverse.

    Args:
        taps: in the order in which their outputs are yielded, counted from the box's first tap.
    """

    at_once = 4

    def __init__(
        self, rank: int, filter: BoxFilter, taps: tuple[Ints, ...], wide: bool = False,
        unit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, filter, wide, unit)
        self.taps = taps

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.taps

    def met(self, rests: list[Any]) -> list[tuple[Any, Ints]]:
        """Return for each tap whether an input is at it, and the position in the box of the output
        that it feeds there."""
        equal = [
            {t: rest == t for t in range(min(s, k))}
            for rest, s, k in zip(rests, *self.filter[:2], strict=True)
        ]
        found = []
        for tap in self.taps:
            is_met = Boolean(True)
            for t, s, of_axis in zip(tap, self.filter.stride, equal, strict=True):
                is_met = is_met if s == 1 else is_met & of_axis[t % s]
            found.append((is_met, places_of(self.filter, tap)))
        return found

    def shared(self, threads: int) -> Arrays:
        """Return arrays for the cells and the first place of each thread's blocks."""
        shape = threads, 1 << self.rank
        return [(Int64, shape), (Int32, shape)]

    def answers(
        self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterator[tuple[Any, Any]]:
        """Look up all outputs of the box before waiting for one."""
        (slots, values, grid, bits), (words, places) = table, arrays
        start, more, rests = self.outputs(at_cell)
        self.look_around(slots, start, more, grid, bits, tid, arrays)
        found = {}
        for place, (corner, bit) in zip(self.box, self.places_of(self.box, start), strict=True):
            found[place] = answer(values, words[tid, corner], bit, places[tid, corner])
        for is_met, place in self.met(rests):
            yield is_met, found[place]
