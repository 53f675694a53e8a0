"""Sort keys of rows, from the taps they have; ``layoutconv.sparse.maps.row_orders`` defines them.

A key is the number of all rows that would come before this one if taps were as likely as the
weights say: an arithmetic code of the row's tap mask, in Gray-code order, in integers alone.
"""

from __future__ import annotations

from typing import Any

from ..common.cells import per_axis, read_cell, vector_of
from ..common.dsl import Boolean, Int32, Int64, Uint32, Uint64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .cooperative import Arrays
from .row_order import OfIndex, Sizes
from .tap_blocks import Known, Neighbours, cells_from


def nothing_taken(sizes: Sizes) -> tuple[Any, ...]:
    """Return the state of a key before its first bit."""
    return Int32(0), Int32((1 << sizes.key) - 1), Boolean(False), Int32(1)


def taken(there: Any, state: tuple[Any, ...], weight: Any) -> tuple[Any, ...]:
    """Return the state of a key after its next bit, from the most significant one on.

    The probability of a tap is ``weight / 2^16`` times one more than the row's taps so far: below
    1, so that the upper half of a 64-bit product has its share.
    """
    before, width, parity, count = state
    likely = Uint32(count) * (Uint32(weight) << 16)
    share = Int32((Uint64(Uint32(width)) * Uint64(likely)) >> 32)
    digit = there ^ parity
    kept = select(there, share, width - share)
    before = select(digit, before + (width - kept), before)
    return before, kept, digit, select(there, count + 1, count)


def key_of_taps(taps: list[Any], weights: Any, sizes: Sizes) -> Any:
    """Return the key of a row from whether it has each tap, the most significant first."""
    state, there = nothing_taken(sizes), Boolean(False)
    for tap, weight in zip(taps, weights, strict=True):
        there = there | tap
        if weight:
            state, there = taken(there, state, weight), Boolean(False)
    return state[0]


class Keys(Neighbours):
    """The sort key of every centre.

    The table has a row per tap, the most significant first: packed offset, weight, offset. Of taps
    that share a bit, all but the last have weight 0. If weights and positions of the taps are
    ``known``, the kernel needs no table.
    """

    def __init__(
        self, rank: int, near: bool, sizes: Sizes, known: Known = None, weights: Any = None,
        wide: bool = False, unit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, near, known, wide, unit)
        self.sizes, self.weights = sizes, weights

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes, self.weights

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 4 + 4 * self.rank

    def shared(self, threads: int) -> Arrays:
        """Return an array for the cells of each thread's blocks, in halves, if they are kept."""
        return [(Int32, (threads, 2 << self.rank))] if self.near and not self.fits else []

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        centres, slots, table, keys = pointers
        _, bits, taps, *rest = integers
        rank = self.rank
        stride, low, span, grid = per_axis(rest, rank, 3)
        words: Any = arrays[0] if self.near and not self.fits else None
        cell = read_cell(centres, row, rank)
        start = self.start_of(cell, stride, low)
        before, width, parity, count = nothing_taken(self.sizes)
        if cutlass.const_expr(self.fits):
            found = [cells for _, cells in self.corners(slots, start, span, grid, bits)]
            around = cells_from(start, found)
            present = [Int32(around >> bit) & 1 != 0 for bit in self.bits_of_known()]
            before = key_of_taps(present, self.weights, self.sizes)
        elif cutlass.const_expr(self.near):
            self.keep(words, tid, self.corners(slots, start, span, grid, bits))
        if cutlass.const_expr(self.fits):
            pass
        elif cutlass.const_expr(self.known is not None):
            before = key_of_taps(self.known_taps(words, tid, start), self.weights, self.sizes)
        else:
            where = self.packed(start)
            there = Boolean(False)
            for tap in range(Int32(taps)):
                entry = tap * (2 + rank)
                if cutlass.const_expr(self.near):
                    corner, bit = self.corner_and_bit(where + at(table, entry))
                    word = words[tid, 2 * corner + (bit >> 5)]
                    there = there | ((word >> (bit & 31)) & 1 != 0)
                else:
                    own = [start[0]]
                    for axis in range_constexpr(rank):
                        own.append(start[1 + axis] - low[axis] + at(table, entry + 2 + axis))
                    there = there | self.has(slots, own, grid, bits)
                weight = at(table, entry + 1)
                if weight != 0:
                    state = taken(there, (before, width, parity, count), weight)
                    before, width, parity, count = state
                    there = Boolean(False)
        put(keys, row, before)

    def keep(self, words: Any, tid: Any, found: Any) -> None:
        for corner, (_, cells) in enumerate(found):
            words[tid, 2 * corner] = Int32(cells)
            words[tid, 2 * corner + 1] = Int32(cells >> 32)

    def known_taps(self, words: Any, tid: Any, start: Any) -> list[Any]:
        """Return whether the centre has each of the known taps."""
        found = []
        for corner, bit in self.places_of(self.known, start):
            word = words[tid, 2 * corner + (bit >> 5)]
            found.append((word >> (bit & 31)) & 1 != 0)
        return found

    @cute.jit
    def has(self, slots: Any, cell: AnyList, grid: AnyList, bits: Any) -> Any:
        """Return whether a cell exists."""
        _, cells, bit = self.block(slots, cell, grid, bits)
        return Int32(cells >> Int64(bit)) & 1 != 0


class KeysOfIndex(OfIndex):
    """The sort keys of an index, int32 (taps, rows); a row of the table is a tap and its weight."""

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        index, table, keys = pointers
        rows, taps = integers
        before, width, parity, count = nothing_taken(self.sizes)
        there = Boolean(False)
        for tap in range(Int32(taps)):
            value = at(index, Int64(at(table, tap * 2)) * rows + row)
            there = there | (value >= 0)
            weight = at(table, tap * 2 + 1)
            if weight != 0:
                state = taken(there, (before, width, parity, count), weight)
                before, width, parity, count = state
                there = Boolean(False)
        put(keys, row, before)
