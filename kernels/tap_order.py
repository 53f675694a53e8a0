"""Rows in the order of their keys, which ``tap_keys`` makes of the taps they have, in kernels.

Rows are sorted by 12 bits in one stable counting sort, in three phases: count, add up, place. A
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
from .together import WARP, Arrays, Crew, EachRow, Part, arrays_in, least, size_of
from .walk import at, put, select


@dataclass(frozen=True)
class Sizes:
    """Binary logarithms: of the values of a place, of a whole key, of the rows of a window, of the
    most rows of a chunk, which a CTA counts at once. And the threads of a CTA.

    A place has as many bits as a window, or more; a CTA as many threads as rows of a window or a
    chunk, or fewer.
    """

    place: int = 12
    key: int = 31
    window: int = 12
    chunk: int = 11
    threads: int = 1024

    @property
    def low(self) -> int:
        """The bits of a key behind its place."""
        return self.key - self.place


class OfRows(Part):
    """A part that knows rows by number alone, so that it is the same for any rank."""

    def __init__(self, rank: int, sizes: Sizes) -> None:
        super().__init__(rank)
        self.sizes = sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.sizes


def numbers_of(log: int, threads: int) -> int:
    """The binary logarithm of the numbers of a thread, of ``2^log`` in a CTA."""
    return log - (threads - 1).bit_length()


class Count(OfRows):
    """How many rows of each chunk have each place, and the rows of a chunk in that order.

    Keys come from ``keys``, whose addresses, the last where it writes them, and integers follow
    those of the rest: a CTA finds those of a chunk, and has them.
    """

    def __init__(self, keys: Any, sizes: Sizes) -> None:
        super().__init__(keys.rank, sizes)
        self.keys = keys

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.keys.key

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 16), *self.keys.tensors()

    def integers(self) -> int:
        return 3 + self.keys.integers()

    def shared(self, threads: int) -> Arrays:
        own = self._shared()
        keys = self.keys.shared(threads)
        return max(own, keys, key=size_of)

    def _shared(self) -> Arrays:
        return [(Int32, (room_for(self.sizes.chunk),)), (Int32, (1 << self.sizes.place,))]

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        self.chunks(crew, pointers, integers, room)

    @cute.jit
    def chunks(self, crew: cutlass.Constexpr, pointers: list, integers: tuple, room: Any):
        rows, chunk, chunks, *of_keys = integers
        for number in range(crew.cta, Int32(chunks), crew.ctas):
            start = Int64(number) * chunk
            end = least(start + chunk, rows)
            self.keys.rows(crew, start, end, pointers[2:], tuple(of_keys), room)
            cute.arch.sync_threads()
            self.chunk(crew, number, start, end, pointers, arrays_in(room, self._shared()))
            cute.arch.sync_threads()

    @cute.jit
    def chunk(
        self, crew: cutlass.Constexpr, number: Any, start: Any, end: Any, pointers: list,
        arrays: list,
    ):  # fmt: skip
        runs, counts, keys = pointers[0], pointers[1], pointers[-1]
        items, found = arrays
        tid, threads = crew.tid, crew.threads
        log, bins = self.sizes.chunk, 1 << self.sizes.place
        of_each = numbers_of(log, threads)
        each = 1 << of_each
        values = cute.make_rmem_tensor(each, Int32)
        for u in range_constexpr(each):
            i = tid + u * threads
            there = start + i < end
            key = at(keys, select(there, start + i, start))
            values[u] = (select(there, key >> self.sizes.low, Int32(bins)) << log) | i
        for i in range(tid, bins, threads):
            found[i] = Int32(0)
        sort(values, items, tid, log, of_each)
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
            row = tid + u * threads
            if start + row < end:
                put(runs, start + row, items[row])
        cute.arch.sync_threads()
        four = cute.make_layout(4)
        for i in range(tid, bins // 4, threads):
            of = found.iterator + cute.assume(i * 4, divby=4)
            to = counts + cute.assume(Int64(number) * bins + i * 4, divby=4)
            cute.autovec_copy(cute.make_tensor(of, four), cute.make_tensor(to, four))


class AddUp(OfRows):
    """Counts of a place into how many rows of earlier chunks have it; and of all chunks."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 2

    def shared(self, threads: int) -> Arrays:
        return [
            (Int32, (WARP + 1, threads // WARP))
        ]  # so that a warp reads a place's from 32 banks

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        self.places(crew, pointers, integers, arrays_in(room, self.shared(crew.threads)))

    @cute.jit
    def places(self, crew: cutlass.Constexpr, pointers: list, integers: tuple, arrays: list):
        for number in range(crew.cta, Int32(integers[0]) // WARP, crew.ctas):
            self.some(crew, number, pointers, integers, arrays)

    @cute.jit
    def some(
        self, crew: cutlass.Constexpr, number: Any, pointers: list, integers: tuple, arrays: list
    ):  # fmt: skip
        counts, totals = pointers
        bins, chunks = Int32(integers[0]), Int32(integers[1])
        (sums,) = arrays
        flight = 4  # chunks of a warp, one after the other
        tid = crew.tid
        warp, lane = tid >> 5, tid & 31
        place = number * WARP + lane
        warps = crew.threads // WARP
        before = Int32(0)
        for turn in range((chunks + warps * flight - 1) // (warps * flight)):
            first = (turn * warps + warp) * flight
            values, total = [], Int32(0)
            for u in range_constexpr(flight):
                there = first + u < chunks
                where = Int64(select(there, first + u, Int32(0))) * bins + place
                values.append(select(there, at(counts, where), Int32(0)))
                total = total + values[u]
            sums[lane, warp] = total
            cute.arch.sync_threads()
            for one in range(warp, WARP, warps):
                own = Int32(0)
                if lane < warps:
                    own = sums[one, lane]
                through = sum_upto(own, lane)
                if lane < warps:
                    sums[one, lane] = through
            cute.arch.sync_threads()
            upto = before + sums[lane, warp] - total
            before = before + sums[lane, warps - 1]
            for u in range_constexpr(flight):
                if first + u < chunks:
                    put(counts, Int64(first + u) * bins + place, upto)
                upto = upto + values[u]
            cute.arch.sync_threads()
        if warp == 0:
            put(totals, place, before)


class Place(OfRows):
    """Rows into the order of their places."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 3

    def shared(self, threads: int) -> Arrays:
        return [(Int32, (1 << self.sizes.place,)), (Int32, (WARP,))]

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        self.chunks(crew, pointers, integers, arrays_in(room, self.shared(crew.threads)))

    @cute.jit
    def chunks(self, crew: cutlass.Constexpr, pointers: list, integers: tuple, arrays: list):
        rows, chunk, chunks = integers
        for number in range(crew.cta, Int32(chunks), crew.ctas):
            start = Int64(number) * chunk
            self.chunk(crew, number, start, least(start + chunk, rows), pointers, arrays)
            cute.arch.sync_threads()

    @cute.jit
    def chunk(
        self, crew: cutlass.Constexpr, number: Any, start: Any, end: Any, pointers: list,
        arrays: list,
    ):  # fmt: skip
        runs, counts, totals, order = pointers
        starts, sums = arrays
        tid, threads = crew.tid, crew.threads
        log, bins = self.sizes.chunk, 1 << self.sizes.place
        each = max(1, bins // threads)
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
        for w in range_constexpr(threads // WARP):
            before = select(w < (tid >> 5), before + sums[w], before)
        for u in range_constexpr(each):
            if mine:
                starts[tid * each + u] = before
            before = before + own[u]
        cute.arch.sync_threads()
        # Those of this chunk start behind those of earlier ones: less the place in the chunk.
        for i in range(tid, 1 << log, threads):
            if start + i < end:
                place = at(runs, start + i) >> log
                previous = at(runs, select(i > 0, start + i - 1, start)) >> log
                if (i == 0) | (previous != place):
                    earlier = at(counts, Int64(number) * bins + place)
                    starts[place] = starts[place] + earlier - i
        cute.arch.sync_threads()
        for i in range(tid, 1 << log, threads):
            if start + i < end:
                item = at(runs, start + i)
                to = starts[item >> log] + i
                put(order, to, Int32(start) + (item & ((1 << log) - 1)))


class Refine(OfRows):
    """Windows of an order sorted by what follows the places of their rows."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 1

    def shared(self, threads: int) -> Arrays:
        return [(Int32, (room_for(self.sizes.window),))]

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        self.windows(crew, pointers, integers[0], arrays_in(room, self.shared(crew.threads)))

    @cute.jit
    def windows(self, crew: cutlass.Constexpr, pointers: list, rows: Any, arrays: list):
        log = self.sizes.window
        for number in range(crew.cta, Int32((rows + (1 << log) - 1) >> log), crew.ctas):
            self.window(crew, Int64(number) << log, pointers, rows, arrays)
            cute.arch.sync_threads()

    @cute.jit
    def window(
        self, crew: cutlass.Constexpr, start: Any, pointers: list, rows: Any, arrays: list
    ):  # fmt: skip
        keys, order = pointers
        (room,) = arrays
        tid, threads = crew.tid, crew.threads
        log, low = self.sizes.window, self.sizes.low
        of_each = numbers_of(log, threads)
        each = 1 << of_each
        last = least(start + (1 << log), rows) - 1
        first = at(keys, at(order, start)) >> low
        span = (at(keys, at(order, last)) >> low) - first
        shift = 32 - Int32(cute.arch.clz(span))  # so that the places of the window fit in
        places = [start + (tid + u * threads) for u in range(each)]
        mine = [at(order, select(place < rows, place, start)) for place in places]
        values = cute.make_rmem_tensor(each, Int32)
        for u in range_constexpr(each):
            i = tid + u * threads
            rest = (at(keys, mine[u]) - (first << low)) >> shift
            rest = select(start + i < rows, rest, Int32((1 << low) - 1))
            values[u] = (rest << log) | i
        sort(values, room, tid, log, of_each)
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            room[tid + u * threads] = mine[u]
        cute.arch.sync_threads()
        for u in range_constexpr(each):
            to = start + (tid * each + u)
            if to < rows:
                put(order, to, room[values[u] & ((1 << log) - 1)])


class Gather(OfRows, EachRow):
    """The rows of an index, int32 (taps, rows), in an order."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 2

    @cute.jit
    def row(self, row: Any, tid: Any, pointers: list, integers: tuple, arrays: list):
        index, order, found = pointers
        rows, taps = integers
        source = Int64(at(order, row))
        for tap in range(taps):
            put(found, tap * rows + row, at(index, tap * rows + source))
