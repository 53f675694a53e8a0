"""The register-direct store: lanes exchange their parts of a row, and store vectors of 16 bytes.

In wgmma's accumulators four lanes hold a row of 8 columns, a pair each. With 16-bit results, four
shuffles per row exchange the pairs of 32 columns among all four, so that each lane holds and stores
8 consecutive columns. With 32-bit results, neighbouring lanes exchange theirs by four shuffles, and
each stores two vectors of 4 columns. Either way four lanes store 64 bytes that adjoin: L2 looks up
a tag for each run of a line that an instruction stores, and runs of 32 bytes, the pairs as they
are, would take its tags to their limit before memory is at its own.

It uses no shared memory. So a ping-pong consumer stores without a barrier, and column statistics
stay in its registers from tile to tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr, range_constexpr

from layoutconv.planning.schedule import WARP

from ..operand import Column, Operand, Row
from .column_statistics import COLUMNS_OF_LANES, LANES_OF_ROW, PartialSums, SumsOfFragments
from .convert import converted
from .ops import Places
from .smem_store import EpilogueIO, SmemStore

WORD = 32  # bits


class RegisterStore(SmemStore):
    """Register-direct store of a persistent kernel's tiles, of 16 or 32 bits, through D's layout.

    Constraints: steps depend on nothing but the column.
    """

    def start(self, cta: Any, tid: Any) -> None:
        """Set the thread's place and clear its column sums, before the first tile."""
        self.warp, self.tid = (
            (cta * self.tile.consumer_threads + tid) // WARP,
            tid % self.tile.mma_threads,
        )
        self.multiplies = tid < self.tile.consumer_threads
        self.sums: Any = SumsOfFragments(self.tile) if self.steps.statistics else None

    @cute.jit
    def end(self, d: Operand, extras: EpilogueIO) -> None:
        """Write a warp's row of partial sums after the last tile; the producer has none."""
        here = extras.statistics + Int64(self.warp) * (2 * extras.all_columns)
        columns = PartialSums(here, extras.first_column, d.col_count, extras.all_columns)
        write, tid = self.sums.write, self.tid
        if self.multiplies:
            write(tid, columns)

    @cute.jit
    def __call__(
        self, acc: Any, mma: Any, d: Operand, m0: Any, n0: Any, extras: EpilogueIO
    ) -> None:
        coordinates = cute.make_identity_tensor((self.tile.m, self.tile.n))
        where = mma.get_slice(self.tid).partition_C(coordinates)
        (_, halves, groups), down, across = where.shape
        lane, sums = self.tid % LANES_OF_ROW, self.sums
        numbers = [[where[(0, h, 0), i, 0][0] for h in range(halves)] for i in range(down)]
        rows = [[d.row(m0 + number) for number in some] for some in numbers]
        stored = [[self._is_stored(d, row) for row in some] for some in rows]
        for j in range_constexpr(across):
            for block in range_constexpr(0, groups, LANES_OF_ROW):
                first = n0 + where[(0, 0, block), 0, j][1]  # column of the lane's first pair
                columns = self._first_columns(d, first, lane)
                places = self._places_of((j, block), first, halves, d.col_count, extras)
                for i in range_constexpr(down):
                    pairs = self._pairs(acc, i, j, block, halves, places, extras)
                    if const_expr(sums is not None):
                        for h in range_constexpr(halves):
                            for g in range_constexpr(LANES_OF_ROW):
                                pair = pairs[0, h, g], pairs[1, h, g]
                                sums.add(j * groups + block + g, pair, stored[i][h])
                    for h in range_constexpr(halves):
                        vectors = self._vectors(pairs, h, lane)
                        for column, vector in zip(columns, vectors, strict=True):
                            self._store_vector(vector, d, rows[i][h], column)

    @property
    def lanes(self) -> int:
        """Return how many lanes exchange pairs: those whose pairs of a row fill a vector."""
        return int(self.vector) // 2

    def _first_columns(self, d: Operand, first: Any, lane: Any) -> list[Column]:
        """Return the first column of each vector that a lane stores of a block; ``first`` is that
        of its first pair.
        """
        here = first + (COLUMNS_OF_LANES - 2) * (lane % self.lanes)
        groups = range(0, LANES_OF_ROW, self.lanes)
        return [d.column(here + COLUMNS_OF_LANES * group) for group in groups]

    def _vectors(self, pairs: Any, half: int, lane: Any) -> list[Any]:
        """Return the vectors that a lane stores of a row, one for each of ``_first_columns``."""
        words = cute.recast_tensor(pairs, Int32)
        of_pair = 2 * self.dtype.width // WORD
        turned = [
            _turned([words[w, half, g] for g in range(LANES_OF_ROW)], lane, self.lanes)
            for w in range(of_pair)
        ]
        vectors = []
        for group in range(0, LANES_OF_ROW, self.lanes):
            out = cute.make_rmem_tensor((self.lanes * of_pair,), Int32)
            for number in range(self.lanes * of_pair):
                out[number] = turned[number % of_pair][group + number // of_pair]
            vectors.append(cute.recast_tensor(out, self.dtype))
        return vectors

    @cute.jit
    def _store_vector(self, vector: Any, d: Operand, row: Row, column: Column) -> None:
        entry = d.load_index(row, column, written=True) if d.gather else None
        offset, there = d.offset(row, column, entry)
        count = const_expr(cute.size(vector))
        bits = const_expr(count * self.dtype.width)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        pointer = d.pointer + cute.assume(Int64(offset), divby=count)
        pred, layout = cute.make_rmem_tensor(1, Boolean), cute.make_layout(((count, 1),))
        pred[0] = there
        source = cute.make_tensor(vector.iterator, layout)
        cute.copy_atom_call(atom, source, cute.make_tensor(pointer, layout), pred=pred)

    def _is_stored(self, d: Operand, row: Any) -> Any:
        """Return whether a row is stored, by its predicate at column 0; None without statistics."""
        return d.offset(row, d.column(Int32(0)))[1] if self.steps.statistics else None

    def _pairs(
        self,
        acc: Any,
        i: int,
        j: int,
        block: int,
        halves: int,
        places: Places,
        extras: EpilogueIO,
    ) -> Any:
        """Apply the steps to a block of accumulators, and convert them: (2, halves, lanes)."""
        values = cute.make_rmem_tensor((2, halves, LANES_OF_ROW), acc.element_type)
        for g in range(LANES_OF_ROW):
            for h in range(halves):
                for pair in range(2):
                    values[pair, h, g] = acc[(pair, h, block + g), i, j]
        x = values.load()
        if self.by_fragment:
            x = self.steps(x.to(self.work), extras.numbers, places, self.dtype)
        else:
            x = converted(x, self.dtype)
        out = cute.make_rmem_tensor((2, halves, LANES_OF_ROW), self.dtype)
        out.store(x)
        return out

    def _places_of(
        self, at: tuple[int, int], first: Any, halves: int, count: int, extras: EpilogueIO
    ) -> Places:
        """Return the values that steps read at block ``at``."""
        (j, block), held = at, extras.held

        def filled(kind: Any, value: Callable[[int, int], Any]) -> Any:
            values = cute.make_rmem_tensor((2, halves, LANES_OF_ROW), kind)
            for g in range(LANES_OF_ROW):
                for pair in range(2):
                    found = value(pair, g)
                    for h in range(halves):
                        values[pair, h, g] = found
            return values

        def column(pair: int, g: int) -> Any:
            return first + (COLUMNS_OF_LANES * g + pair)

        def entry(number: int, pair: int, g: int) -> Any:
            if held is not None:
                return held.read(number, held.layout(((pair, 0, block + g), 0, j)))
            return self._column(extras.columns[number], column(pair, g), count, extras)

        vectors = [
            filled(self.work, partial(entry, number))
            for number in range(len(extras.columns) if self.by_fragment else 0)
        ]
        return Places(
            lambda number: vectors[number].load(),
            lambda: filled(Int32, lambda pair, g: Int32(extras.entries(column(pair, g)))).load(),
        )


def _turned(words: list[Any], lane: Any, lanes: int) -> list[Any]:
    """Transpose four words over ``lanes`` lanes, as many words at a time: lane i gets word i of
    each lane, in lane order.
    """
    for bit in (b for b in (1, 2) if b < lanes):
        upper = (lane & bit) != 0
        for low in (g for g in range(LANES_OF_ROW) if not g & bit):
            high = low | bit
            sent = cutlass.select_(upper, words[low], words[high])
            got = cute.arch.shuffle_sync_bfly(sent, bit)
            words[low], words[high] = (
                cutlass.select_(upper, got, words[low]),
                cutlass.select_(upper, words[high], got),
            )
    return words
