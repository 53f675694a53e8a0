"""Sort keys of rows, from the taps they have; ``layoutconv.sparse.maps.row_orders`` defines them.

A key is the number of all rows that would come before this one if taps were as likely as the
weights say: an arithmetic code of the row's tap mask, in Gray-code order, in integers alone.
"""

from __future__ import annotations

from typing import Any

from ..common.cells import read_cell
from ..common.dsl import (
    Boolean,
    Constexpr,
    Int32,
    Int64,
    Uint32,
    Uint64,
    cute,
    cutlass,
    range_constexpr,
)
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, read, select
from .cooperative import Arrays
from .row_order import OfIndex, Sizes
from .tap_blocks import KeyLookup, cells_from
from .tap_tables import CODES, VECTOR, head_size, read_geometry

WHOLE = 1 << 16  # the weight of certainty; the state of a key counts taps in it


def nothing_taken(sizes: Sizes) -> tuple[Any, ...]:
    """Return the state of a key before its first bit."""
    return Int32(0), Int32((1 << sizes.key) - 1), Boolean(False), Int32(WHOLE)


def taken(there: Any, state: tuple[Any, ...], weight: Any) -> tuple[Any, ...]:
    """Return the state of a key after its next bit, from the most significant one on.

    The probability of a tap is ``weight / 2^16`` times one more than the row's taps so far: below
    1, so that the upper half of a 64-bit product has its share.
    """
    before, width, parity, count = state
    likely = Uint32(count) * Uint32(weight)
    share = Int32((Uint64(Uint32(width)) * Uint64(likely)) >> 32)
    digit = there ^ parity
    kept = select(there, share, width - share)
    before = select(digit, before + (width - kept), before)
    return before, kept, digit, select(there, count + WHOLE, count)


@cute.jit
def key_of_word(word: Any, codes: Any, count: Any, sizes: Constexpr) -> Any:
    """Return the key of a row from a word that has its taps, by codes of a table."""
    low, high = Int32(word), Int32(word >> 32)
    before, width, parity, taps = nothing_taken(sizes)
    some = [read(codes + u * VECTOR, Int32, VECTOR) for u in range(CODES)]
    for turn in cutlass.range(Int32(count) // CODES, unroll=1):
        to = cute.assume((turn + 1) * (CODES * VECTOR), divby=VECTOR)
        for u in range_constexpr(CODES):
            there = ((low & some[u][0]) | (high & some[u][1])) != 0
            state = taken(there, (before, width, parity, taps), some[u][2])
            before, width, parity, taps = state
            following = read(codes + (to + u * VECTOR), Int32, VECTOR)
            for i in range_constexpr(VECTOR):
                some[u][i] = following[i]
    return before


class Keys(KeyLookup):
    """The sort key of every centre.

    If the taps fit in a block that begins at the first cell, one word has all of them, and the
    table has codes. Otherwise it has a row per tap, the most significant first: packed offset,
    weight, offset. Of taps that share a bit, all but the last have weight 0.
    """

    def __init__(
        self, rank: int, near: bool, sizes: Sizes, fits: bool = False, wide: bool = False,
        unit: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, near, wide, unit)
        self.sizes, self.fits = sizes, fits

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes, self.fits

    def shared(self, threads: int) -> Arrays:
        """Return an array for the cells of each thread's blocks; in halves, if bits are read."""
        if self.fits:
            return [(Int64, (threads, 1 << self.rank))]
        return [(Int32, (threads, 2 << self.rank))] if self.near else []

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        centres, slots, table, keys = pointers
        _, bits, *grid = integers
        rank, head = self.rank, head_size(self.rank)
        words: Any = arrays[0] if self.near else None
        cell = read_cell(centres, row, rank)
        (_, taps, _), stride, low, span = read_geometry(table, rank)
        start = self.start_of(cell, stride, low)
        before, width, parity, count = nothing_taken(self.sizes)
        if cutlass.const_expr(self.near):
            self.look_around(slots, start, span, grid, bits, tid, arrays)
        if cutlass.const_expr(self.fits):
            around = cells_from(start, [words[tid, corner] for corner in range(1 << rank)])
            before = key_of_word(around, table + head, taps, self.sizes)
        else:
            where = self.packed(start, rank)
            there = Boolean(False)
            for tap in range(Int32(taps)):
                entry = tap * (2 + rank) + head
                if cutlass.const_expr(self.near):
                    corner, bit = self.corner_and_bit(where + at(table, entry), rank)
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

    def keep(self, arrays: Any, tid: Any, corner: Any, first: Any, word: Any) -> None:
        if self.fits:
            arrays[0][tid, corner] = word
        else:
            arrays[0][tid, 2 * corner] = Int32(word)
            arrays[0][tid, 2 * corner + 1] = Int32(word >> 32)

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
