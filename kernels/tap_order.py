"""Rows in the order of their keys, which ``tap_keys`` makes of the taps they have, in kernels.

Rows are sorted by 12 bits in one stable counting sort, of three launches: count, add up, place. A
radix sort of keys of 32 bits has four passes of 8 us or more each, for any cloud below a million
rows (H200). Then a CTA sorts 4096 rows by the rest of their keys: with a row's number behind it, it
fits into 31 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

from .bitonic import room_for, sort
from .blocks import sum_upto
from .per_rank import PerRank
from .walk import at, put, select


@dataclass(frozen=True)
class Sizes:
    """Binary logarithms: of the values of a place, of a whole key, of the rows of a window, of
    those that a CTA counts, and of the numbers that a thread sorts. And threads of other CTAs.

    A place has as many bits as a window, or more.
    """

    place: int = 12
    key: int = 31
    window: int = 12
    chunk: int = 11
    each: int = 2
    threads: int = 1024

    @property
    def low(self) -> int:
        """The bits of a key behind its place."""
        return self.key - self.place


class OfRows(PerRank):
    """A kernel that knows rows by number alone, so that it is the same for any rank."""

    def __init__(self, rank: int, sizes: Sizes) -> None:
        super().__init__(rank)
        self.sizes = sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.sizes


class Wide(OfRows):
    """A kernel of large CTAs."""

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.sizes.threads


class Sorting(OfRows):
    """A kernel whose CTA sorts ``2^log`` numbers, a few to a thread."""

    @property
    def log(self) -> int:
        raise NotImplementedError

    @property
    def per_cta(self) -> int:  # type: ignore[override]
        return 1 << self.log

    @property
    def threads(self) -> int:  # type: ignore[override]
        return 1 << self.log - self.sizes.each


class Count(Sorting):
    """How many rows of each chunk have each place, and the rows of a chunk in that order."""

    @property
    def log(self) -> int:
        return self.sizes.chunk

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 16)

    @staticmethod
    def integers(rank: int) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        keys, runs, counts = pointers
        rows = integers[0]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        log, each, bins = self.log, 1 << self.sizes.each, 1 << self.sizes.place
        smem = cutlass.memory.SmemAllocator()
        items = smem.allocate_tensor(Int32, cute.make_layout(room_for(log)), byte_alignment=16)
        found = smem.allocate_tensor(Int32, cute.make_layout(bins), byte_alignment=16)
        start = Int64(cta) << log
        values = cute.make_rmem_tensor(each, Int32)
        for u in range_constexpr(each):
            i = tid + u * self.threads
            there = start + i < rows
            key = at(keys, select(there, start + i, start))
            values[u] = (select(there, key >> self.sizes.low, Int32(bins)) << log) | i
        for i in range(tid, bins, self.threads):
            found[i] = Int32(0)
        sort(values, items, tid, log, self.sizes.each)
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            items[tid * each + u] = values[u]
        cute.arch.sync_threads()
        # Of a run of one place: past its last row less its first.
        for u in range_constexpr(each):
            i = tid * each + u
            place = values[u] >> log
            following = items[select(i + 1 < (1 << log), i + 1, i)] >> log
            if ((i + 1 == (1 << log)) | (following != place)) & (place < bins):
                found[place] = i + 1
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            i = tid * each + u
            place = values[u] >> log
            previous = items[select(i > 0, i - 1, i)] >> log
            if ((i == 0) | (previous != place)) & (place < bins):
                found[place] = found[place] - i
            row = tid + u * self.threads
            if start + row < rows:
                put(runs, start + row, items[row])
        cute.arch.sync_threads()
        four = cute.make_layout(4)
        for i in range(tid, bins // 4, self.threads):
            of = found.iterator + cute.assume(i * 4, divby=4)
            to = counts + cute.assume(Int64(cta) * bins + i * 4, divby=4)
            cute.autovec_copy(cute.make_tensor(of, four), cute.make_tensor(to, four))


class AddUp(Wide):
    """Counts of a place into how many rows of earlier chunks have it; and of all chunks."""

    per_cta = 32

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 2

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        counts, totals = pointers
        bins, chunks = Int32(integers[0]), Int32(integers[1])
        flight = 4  # chunks of a warp, one after the other
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        warp, place = tid >> 5, cta * 32 + (tid & 31)
        warps = self.threads // 32
        sums = cutlass.memory.SmemAllocator().allocate_tensor(
            Int32, cute.make_layout((32, warps)), byte_alignment=16
        )
        before = Int32(0)
        for turn in range((chunks + warps * flight - 1) // (warps * flight)):
            first = (turn * warps + warp) * flight
            values, total = [], Int32(0)
            for u in range_constexpr(flight):
                there = first + u < chunks
                where = Int64(select(there, first + u, Int32(0))) * bins + place
                values.append(select(there, at(counts, where), Int32(0)))
                total = total + values[u]
            sums[tid & 31, warp] = total
            cute.arch.sync_threads()
            upto = before
            for w in range_constexpr(warps):
                upto = select(w < warp, upto + sums[tid & 31, w], upto)
                before = before + sums[tid & 31, w]
            for u in range_constexpr(flight):
                if first + u < chunks:
                    put(counts, Int64(first + u) * bins + place, upto)
                upto = upto + values[u]
            cute.arch.sync_threads()
        if warp == 0:
            put(totals, place, before)


class Place(Wide):
    """Rows into the order of their places."""

    @property
    def per_cta(self) -> int:  # type: ignore[override]
        return 1 << self.sizes.chunk

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 4), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        runs, counts, totals, order = pointers
        rows = integers[0]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        log, bins = self.sizes.chunk, 1 << self.sizes.place
        each = max(1, bins // self.threads)
        smem = cutlass.memory.SmemAllocator()
        starts = smem.allocate_tensor(Int32, cute.make_layout(bins), byte_alignment=16)
        sums = smem.allocate_tensor(Int32, cute.make_layout(32), byte_alignment=16)
        # Where the rows of a place start: what all the others before it have.
        mine = tid * each < bins
        own = []
        for u in range_constexpr(each):
            value = at(totals, select(mine, tid * each + u, Int32(0)))
            own.append(select(mine, value, Int32(0)))
        total = sum(own, start=Int32(0))
        upto = sum_upto(total, tid & 31)
        if (tid & 31) == 31:
            sums[tid >> 5] = upto
        cute.arch.sync_threads()
        before = upto - total
        for w in range_constexpr(self.threads // 32):
            before = select(w < (tid >> 5), before + sums[w], before)
        for u in range_constexpr(each):
            if mine:
                starts[tid * each + u] = before
            before = before + own[u]
        cute.arch.sync_threads()
        # Those of this chunk start behind those of earlier ones: less the place in the chunk.
        start = Int64(cta) << log
        for i in range(tid, 1 << log, self.threads):
            if start + i < rows:
                place = at(runs, start + i) >> log
                previous = at(runs, select(i > 0, start + i - 1, start)) >> log
                if (i == 0) | (previous != place):
                    earlier = at(counts, Int64(cta) * bins + place)
                    starts[place] = starts[place] + earlier - i
        cute.arch.sync_threads()
        for i in range(tid, 1 << log, self.threads):
            if start + i < rows:
                item = at(runs, start + i)
                to = starts[item >> log] + i
                put(order, to, Int32(start) + (item & ((1 << log) - 1)))


class Refine(Sorting):
    """Windows of an order sorted by what follows the places of their rows."""

    @property
    def log(self) -> int:
        return self.sizes.window

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        keys, order = pointers
        rows = integers[0]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        log, low, each = self.log, self.sizes.low, 1 << self.sizes.each
        smem = cutlass.memory.SmemAllocator()
        room = smem.allocate_tensor(Int32, cute.make_layout(room_for(log)), byte_alignment=16)
        start = Int64(cta) << log
        end = start + (1 << log)
        last = select(end < rows, end, rows) - 1
        first = at(keys, at(order, start)) >> low
        span = (at(keys, at(order, last)) >> low) - first
        shift = 32 - Int32(cute.arch.clz(span))  # so that the places of the window fit in
        places = [start + (tid + u * self.threads) for u in range(each)]
        mine = [at(order, select(place < rows, place, start)) for place in places]
        values = cute.make_rmem_tensor(each, Int32)
        for u in range_constexpr(each):
            i = tid + u * self.threads
            rest = (at(keys, mine[u]) - (first << low)) >> shift
            rest = select(start + i < rows, rest, Int32((1 << low) - 1))
            values[u] = (rest << log) | i
        sort(values, room, tid, log, self.sizes.each)
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            room[tid + u * self.threads] = mine[u]
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            to = start + (tid * each + u)
            if to < rows:
                put(order, to, room[values[u] & ((1 << log) - 1)])


class Gather(OfRows):
    """The rows of an index, int32 (taps, rows), in an order."""

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 2

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        index, order, found = pointers
        rows, taps = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        i = Int64(cta) * self.per_cta + tid
        if i < rows:
            row = Int64(at(order, i))
            for tap in range(taps):
                put(found, tap * rows + i, at(index, tap * rows + row))
