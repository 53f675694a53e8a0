"""The order of rows by the taps they have, as ``layoutconv.sparse.order`` defines it, in kernels.

Rows are sorted by 12 bits in one stable counting sort, of three launches: count, add up, place. A
radix sort of keys of 32 bits has four passes of 8 us or more each, for any cloud below a million
rows (H200). Then a CTA sorts 4096 rows by the rest of their keys in its shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, range_constexpr

from .blocks import Neighbours, sum_upto
from .cells import read_cell, vector_of
from .per_rank import PerRank
from .walk import at, put, select


@dataclass(frozen=True)
class Sizes:
    """Binary logarithms: of the values of a place, of a Gray number, of the rows of a window and of
    those that a CTA counts, and of what is one in the arithmetic of places. And threads of a CTA.
    """

    place: int = 12
    gray: int = 50
    window: int = 12
    chunk: int = 11
    one: int = 32
    threads: int = 1024


class OfRows(PerRank):
    """A kernel that knows rows by number alone, so that it is the same for any rank."""

    def __init__(self, rank: int, sizes: Sizes) -> None:
        super().__init__(rank)
        self.sizes = sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.sizes


# -- keys -----------------------------------------------------------------------------------------


def taken(there: Any, state: tuple[Any, ...], weight: Any) -> tuple[Any, ...]:
    """The state of a key after another bit, from the most significant one on.

    ``weight / 2^16`` times one more than the taps so far is how likely the tap is.
    """
    place, width, gray, parity, count = state
    share = (width * (Int64(count + 1) * Int64(weight))) >> 16
    first = select(parity != 0, share, width - share)
    digit = there ^ parity
    place = select(digit != 0, place + first, place)
    width = select(digit != 0, width - first, first)
    return place, width, (gray << 1) | Int64(digit), digit, count + there


class Keys(Neighbours):
    """The key of every centre: its place, then its Gray number.

    The table has a row for a tap, the most significant first: packed, its weight, its offset. The
    weight of taps but the last of those that share a bit is 0.
    """

    def __init__(self, rank: int, near: bool, sizes: Sizes) -> None:
        super().__init__(rank, near)
        self.sizes = sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(rank)), ("int64", 16), ("int32", 4), ("int64", 8)

    @staticmethod
    def integers(rank: int) -> int:
        return 4 + 4 * rank

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        centres, slots, table, keys = pointers
        rows, bits, taps, *rest = integers
        rank = self.rank
        stride, low, span = rest[:rank], rest[rank : 2 * rank], rest[2 * rank : 3 * rank]
        grid = rest[3 * rank :]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * self.per_cta + tid
        (words,) = self.shared(Int32, each=2)
        if row < rows:
            cell = read_cell(centres, row, rank)
            start = self.start_of(cell, stride, low)
            where = self.packed(start)
            if cutlass.const_expr(self.near):
                found = self.corners(slots, start, span, grid, bits)
                for corner in range_constexpr(1 << rank):
                    cells = found[corner][1]
                    words[tid, 2 * corner] = Int32(cells)
                    words[tid, 2 * corner + 1] = Int32(cells >> 32)
            place, width, gray = Int64(0), Int64(1 << self.sizes.one), Int64(0)
            parity, count, there = Int32(0), Int32(0), Int32(0)
            for tap in range(Int32(taps)):
                entry = tap * (2 + rank)
                if cutlass.const_expr(self.near):
                    corner, bit = self.corner_and_bit(where + at(table, entry))
                    word = words[tid, 2 * corner + (bit >> 5)]
                    there = there | ((word >> (bit & 31)) & 1)
                else:
                    own = [start[0]]
                    for axis in range_constexpr(rank):
                        own.append(start[1 + axis] - low[axis] + at(table, entry + 2 + axis))
                    there = there | self.has(slots, own, grid, bits)
                weight = at(table, entry + 1)
                if weight != 0:
                    state = taken(there, (place, width, gray, parity, count), weight)
                    place, width, gray, parity, count = state
                    there = Int32(0)
            put(keys, row, key_of_row(self.sizes, place, gray))

    @cute.jit
    def has(self, slots: Any, cell: list, grid: list, bits: Any):
        """1 if a cell is there, 0 if not."""
        _, cells, bit = self.block(slots, cell, grid, bits)
        return Int32(cells >> Int64(bit)) & 1


def key_of_row(sizes: Sizes, place: Any, gray: Any) -> Any:
    return ((place >> (sizes.one - sizes.place)) << sizes.gray) | gray


class KeysOfIndex(OfRows):
    """The same of an index, int32 (taps, rows); the table has a tap and its weight in a row."""

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int64", 8)

    @staticmethod
    def integers(rank: int) -> int:
        return 2

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        index, table, keys = pointers
        rows, taps = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * self.per_cta + tid
        if row < rows:
            place, width, gray = Int64(0), Int64(1 << self.sizes.one), Int64(0)
            parity, count, there = Int32(0), Int32(0), Int32(0)
            for tap in range(Int32(taps)):
                value = at(index, Int64(at(table, tap * 2)) * rows + row)
                there = there | select(value >= 0, Int32(1), Int32(0))
                weight = at(table, tap * 2 + 1)
                if weight != 0:
                    state = taken(there, (place, width, gray, parity, count), weight)
                    place, width, gray, parity, count = state
                    there = Int32(0)
            put(keys, row, key_of_row(self.sizes, place, gray))


# -- sorting --------------------------------------------------------------------------------------


class Wide(OfRows):
    """A kernel of large CTAs."""

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.sizes.threads

    @cute.jit
    def sort(self, items: Any, log: cutlass.Constexpr, tid: Any):
        """``2^log`` numbers in shared memory, by a bitonic network.

        In all but the widest steps a warp compares what it alone has, and waits for none other.
        """
        for stage in range(1, log + 1):
            for step in range(stage):
                far = stage - 1 - step
                for u in range_constexpr(max(1, (1 << log) // 2 // self.threads)):
                    pair = tid + u * self.threads
                    if pair < (1 << log) // 2:
                        i = ((pair >> far) << (far + 1)) | (pair & ((1 << far) - 1))
                        j = i | (1 << far)
                        a, b = items[i], items[j]
                        swap = (a > b) == (((i >> stage) & 1) == 0)
                        items[i] = select(swap, b, a)
                        items[j] = select(swap, a, b)
                # The next step is the next nearer one, or the widest of the next stage.
                if (far > 5) | ((far == 0) & (stage > 5)):
                    cute.arch.sync_threads()
                else:
                    cute.arch.sync_warp()


class Count(Wide):
    """How many rows of each chunk have each place, and the rows of a chunk in that order."""

    @property
    def per_cta(self) -> int:  # type: ignore[override]
        return 1 << self.sizes.chunk

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int64", 8), ("int32", 4), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        keys, runs, counts = pointers
        rows = integers[0]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        log, bins = self.sizes.chunk, 1 << self.sizes.place
        smem = cutlass.memory.SmemAllocator()
        items = smem.allocate_tensor(Int32, cute.make_layout(1 << log), byte_alignment=16)
        found = smem.allocate_tensor(Int32, cute.make_layout(bins), byte_alignment=16)
        start = Int64(cta) << log
        for i in range(tid, 1 << log, self.threads):
            row = start + i
            key = at(keys, select(row < rows, row, rows - 1))
            place = select(row < rows, Int32(key >> self.sizes.gray), Int32(bins))
            items[i] = (place << log) | i
        for i in range(tid, bins, self.threads):
            found[i] = Int32(0)
        cute.arch.sync_threads()
        self.sort(items, log, tid)
        # Of a run of one place: past its last row less its first.
        for i in range(tid, 1 << log, self.threads):
            place = items[i] >> log
            following = select(i + 1 < (1 << log), i + 1, i)
            last = (following == i) | ((items[following] >> log) != place)
            if last & (place < bins):
                found[place] = Int32(i + 1)
        cute.arch.sync_threads()
        for i in range(tid, 1 << log, self.threads):
            place = items[i] >> log
            before = select(i > 0, i - 1, i)
            if ((i == 0) | ((items[before] >> log) != place)) & (place < bins):
                found[place] = found[place] - i
            if start + i < rows:
                put(runs, start + i, items[i])
        cute.arch.sync_threads()
        for i in range(tid, bins, self.threads):
            put(counts, Int64(cta) * bins + i, found[i])


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


class Refine(Wide):
    """Windows of an order sorted by the Gray numbers of their rows."""

    @property
    def per_cta(self) -> int:  # type: ignore[override]
        return 1 << self.sizes.window

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int64", 8), ("int32", 4)

    @staticmethod
    def integers(rank: int) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        keys, order = pointers
        rows = integers[0]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        log = self.sizes.window
        smem = cutlass.memory.SmemAllocator()
        items = smem.allocate_tensor(Int64, cute.make_layout(1 << log), byte_alignment=16)
        mine = smem.allocate_tensor(Int32, cute.make_layout(1 << log), byte_alignment=16)
        start = Int64(cta) << log
        for i in range(tid, 1 << log, self.threads):
            there = start + i < rows
            row = at(order, select(there, start + i, start))
            gray = at(keys, row) & ((1 << self.sizes.gray) - 1)
            gray = select(there, gray, Int64(1 << self.sizes.gray))
            items[i] = (gray << log) | Int64(i)
            mine[i] = row
        cute.arch.sync_threads()
        self.sort(items, log, tid)
        for i in range(tid, 1 << log, self.threads):
            if start + i < rows:
                put(order, start + i, mine[Int32(items[i]) & ((1 << log) - 1)])


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
