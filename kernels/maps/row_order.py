"""Rows in the order of their keys, which ``sort_keys`` computes from the taps they have.

Rows are sorted by the upper 12 bits in one stable counting sort, then windows of at most 4096 rows
by the rest of their keys, in two stages. In the first stage a CTA sorts a chunk of rows by the 12
bits, and records where each bin starts in it; in the second it collects the rows of a window from
all chunks, and sorts them. A radix sort of 32-bit keys has four passes of 8 us or more each, for
any cloud below a million rows (H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.dsl import Constexpr, Int32, Int64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, read, select
from .cooperative import (
    BEFORE,
    WARP,
    WORD,
    Arrays,
    EachRow,
    LaunchThread,
    StagePart,
    add,
    arrays_in,
    bytes_of_arrays,
    least,
    once,
    wait,
)
from .radix_sort import arrays_for, digits_of, sort
from .scan import sums_before

COUNT_BITS = 16  # for the number of a chunk's rows in a bin
FLIGHT = 4  # rows that a thread has in flight


@dataclass(frozen=True)
class Sizes:
    """Binary logarithms: of the number of places (bins), of the range of keys, of the most rows of
    a window, and of a chunk, which a CTA counts at once; and the threads of a CTA, a power of two,
    at most any of these numbers.
    """

    place: int = 12
    key: int = 31
    window: int = 12
    chunk: int = 12
    threads: int = 1024

    @property
    def low(self) -> int:
        """The bits of a key below its place."""
        return self.key - self.place


class RowNumberPart(StagePart):
    """A part that uses row numbers only, so that one kernel serves any rank."""

    def __init__(self, rank: int, sizes: Sizes) -> None:
        super().__init__(rank)
        self.sizes = sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.sizes


class Count(RowNumberPart):
    """Sort the rows of each chunk by place, the upper bits of the key, and count rows per place.

    An entry of ``runs`` has a key in its upper 32 bits and a row in its lower ones. ``counts`` has,
    per chunk and place, where the place starts in the chunk, and in the lower 16 bits its number of
    rows. Totals per place over all chunks lie behind the grid sync's word, and start, like it, at
    ``BEFORE``. ``keys`` computes the keys of a chunk in the CTA that then sorts it; its addresses,
    of which the last is its output, and its integers follow the others.
    """

    def __init__(self, keys: Any, sizes: Sizes) -> None:
        super().__init__(keys.rank, sizes)
        self.keys = keys

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.keys.key

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 8), ("int32", 16), ("int32", 16), *self.keys.tensors()

    def integers(self) -> int:
        of_keys: int = self.keys.integers()
        return 3 + of_keys

    def shared(self, threads: int) -> Arrays:
        own = self._shared(threads)
        keys = self.keys.shared(threads)
        return max(own, keys, key=bytes_of_arrays)

    def _shared(self, threads: int) -> Arrays:
        sizes = self.sizes
        return [*arrays_for(sizes.chunk, sizes.place, threads), (Int32, (1 << sizes.place,))]

    def work(self, worker: LaunchThread, pointers: Any, integers: Any, room: Any) -> None:
        self.chunks(worker, pointers, integers, room)

    @cute.jit
    def chunks(self, worker: Constexpr, pointers: AnyList, integers: AnyTuple, room: Any) -> None:
        rows, chunk, chunks, *of_keys = integers
        for number in range(worker.cta, Int32(chunks), worker.ctas):
            start = Int64(number) * chunk
            end = least(start + chunk, rows)
            self.keys.rows(worker, start, end, pointers[3:], tuple(of_keys), room)
            cute.arch.sync_threads()
            arrays = arrays_in(room, self._shared(worker.threads))
            count = once(end - start)
            self.chunk(worker, number, start, count, pointers, arrays)
            cute.arch.sync_threads()

    @cute.jit
    def chunk(
        self, worker: Constexpr, number: Any, start: Any, count: Any, pointers: AnyList,
        arrays: AnyList,
    ) -> None:  # fmt: skip
        runs, counts, word, *_, keys = pointers
        *for_sort, found = arrays
        tid, threads = worker.tid, worker.threads
        log, bins = self.sizes.chunk, 1 << self.sizes.place
        unsorted = for_sort[0][None, 0]
        for i in range(tid, count, threads):
            unsorted[i] = ((at(keys, start + i) >> self.sizes.low) << log) | i
        for place in range(tid, bins, threads):
            found[place] = Int32(0)
        cute.arch.sync_threads()
        sort(worker, count, log, self.sizes.place, for_sort)
        items = for_sort[0][None, digits_of(self.sizes.place)[0] % 2]
        # Rows of a place: one past its last position, less its first.
        for i in range(tid, count, threads):
            place = items[i] >> log
            following = items[select(i + 1 < count, i + 1, i)] >> log
            if (i + 1 == count) | (following != place):
                found[place] = i + 1
        cute.arch.sync_threads()
        for i in range(tid, count, threads):
            place = items[i] >> log
            previous = items[select(i > 0, i - 1, i)] >> log
            if (i == 0) | (previous != place):
                found[place] = found[place] - i
            row = Int32(start) + (items[i] & ((1 << log) - 1))
            put(runs, start + i, (Int64(at(keys, row)) << 32) | Int64(row))
        cute.arch.sync_threads()
        each = bins // threads
        own = read(found.iterator + cute.assume(tid * each, divby=each), Int32, each)
        total = Int32(0)
        for u in range_constexpr(each):
            total = total + own[u]
        before, _ = sums_before([total], for_sort[-1], tid, threads)
        starts = cute.make_rmem_tensor(each, Int32)
        for u in range_constexpr(each):
            starts[u] = (before << COUNT_BITS) | own[u]
            before = before + own[u]
            if own[u] > 0:
                add(word + (WORD + tid * each + u), own[u])
        to = counts + cute.assume(Int64(number) * bins + tid * each, divby=each)
        cute.autovec_copy(starts, cute.make_tensor(to, cute.make_layout(each)))


class Windows(RowNumberPart):
    """Sort windows of rows, which are in the order of their places, by the rest of their keys; then
    run ``then`` on the rows of each, to search or gather, in the same CTA.

    A window has rows of a first place, of a last one, and all between: one contiguous piece of
    every chunk. The CTA copies these one behind the other. Rows with equal keys have one place, and
    come in the order of their numbers.

    If it ``waits``, only ``then`` needs the results of the stage before.
    """

    def __init__(self, then: Any, sizes: Sizes, waits: bool) -> None:
        super().__init__(then.rank, sizes)
        self.then, self.waits = then, waits

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.waits, self.then.key

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = "int32", 4
        return ("int64", 8), ("int32", 16), ("int32", 16), word, *self.then.tensors()

    def integers(self) -> int:
        more: int = self.then.integers()
        return 4 + more

    def shared(self, threads: int) -> Arrays:
        return max(self._shared(threads), self.then.shared(threads), key=bytes_of_arrays)

    def _shared(self, threads: int) -> Arrays:
        rows = 1 << self.sizes.window
        return [
            *arrays_for(self.sizes.window, self.sizes.low, threads),
            (Int32, (rows,)), (Int32, (threads,)), (Int64, (threads,)),
            (Int32, (3 * threads // WARP,)), (Int32, (4,)),
        ]  # fmt: skip

    def work(self, worker: LaunchThread, pointers: Any, integers: Any, room: Any) -> None:
        self.windows(worker, pointers, integers, room)

    @cute.jit
    def windows(self, worker: Constexpr, pointers: AnyList, integers: AnyTuple, room: Any) -> None:
        rows, chunk, chunks, window, *of_then = integers
        arrays = arrays_in(room, self._shared(worker.threads))
        for number in range(worker.cta, Int32((rows + window - 1) // window), worker.ctas):
            start = Int64(number) * window
            end = least(start + window, rows)
            count = once(end - start)
            places = self.places(worker, Int32(start), Int32(end), pointers[2], arrays)
            self.pieces(worker, places, (chunk, Int32(chunks)), pointers, arrays)
            self.sort(worker, start, count, pointers[3], arrays)
            if cutlass.const_expr(self.waits):
                wait(worker)
            else:
                cute.arch.sync_threads()
            self.then.rows(worker, start, end, pointers[4:], tuple(of_then), room)
            cute.arch.sync_threads()

    @cute.jit
    def places(self, worker: Constexpr, start: Any, end: Any, word: Any, arrays: AnyList) -> Any:
        """Return the first place of a window, with the number of its rows in earlier windows; and
        the last place, with the number of its rows up to the end of this window."""
        *_, sums, found = arrays
        tid, threads = worker.tid, worker.threads
        each = (1 << self.sizes.place) // threads
        own = read(word + cute.assume(WORD + tid * each, divby=min(each, WORD)), Int32, each)
        total = Int32(0)
        for u in range_constexpr(each):
            total = total + (own[u] - BEFORE)
        before, _ = sums_before([total], sums, tid, threads)
        for u in range_constexpr(each):
            after = before + (own[u] - BEFORE)
            if (before <= start) & (start < after):
                found[0] = tid * each + u
                found[1] = start - before
            if (before < end) & (end <= after):
                found[2] = tid * each + u
                found[3] = end - before
            before = after
        cute.arch.sync_threads()
        return found[0], found[1], found[2], found[3]

    @cute.jit
    def pieces(
        self, worker: Constexpr, places: AnyTuple, of_chunks: AnyTuple,
        pointers: AnyList, arrays: AnyList,
    ) -> None:  # fmt: skip
        """Collect the window's rows and the lower bits of their keys, as far as these differ."""
        first, skipped, last, taken = places
        chunk, chunks = of_chunks
        runs, counts, *_ = pointers
        items, *_, rows, firsts, sources, sums, _ = arrays
        tid, threads = worker.tid, worker.threads
        bins, low = 1 << self.sizes.place, self.sizes.low
        shift = 32 - Int32(cute.arch.clz(last - first))  # so that the places of the window fit
        of_first, of_last, between, filled = Int32(0), Int32(0), Int32(0), Int32(0)
        for turn in range((chunks + threads - 1) // threads):
            number = Int64(turn * threads + tid)
            there = number < chunks
            line = select(there, number, Int64(0)) * bins
            one, other = at(counts, line + first), at(counts, line + last)
            one, other = select(there, one, Int32(0)), select(there, other, Int32(0))
            mask = (1 << COUNT_BITS) - 1
            one_start, other_start = one >> COUNT_BITS, other >> COUNT_BITS
            numbers = [one & mask, other & mask, other_start - one_start]
            found = sums_before(numbers, sums, tid, threads)
            before_one, before_other = of_first + found[0], of_last + found[1]
            to = between + found[2] + least(before_other, taken) - least(before_one, skipped)
            inside = least(skipped - before_one, numbers[0])
            skip = select(before_one < skipped, inside, Int32(0))
            firsts[tid] = to
            sources[tid] = number * chunk + (one_start + skip - to)
            of_first, of_last = of_first + found[3], of_last + found[4]
            between = between + found[5]
            cute.arch.sync_threads()
            upto = between + least(of_last, taken) - least(of_first, skipped)
            for some in range(filled + tid, upto, threads * FLIGHT):
                runs_of = cute.make_rmem_tensor(FLIGHT, Int64)
                for u in range_constexpr(FLIGHT):
                    i = some + u * threads
                    if i < upto:
                        runs_of[u] = at(runs, sources[last_upto(firsts, i, threads)] + i)
                for u in range_constexpr(FLIGHT):
                    i = some + u * threads
                    if i < upto:
                        rest = (Int32(runs_of[u] >> 32) - (first << low)) >> shift
                        items[i, 0] = (rest << self.sizes.window) | i
                        rows[i] = Int32(runs_of[u])
            filled = upto
            cute.arch.sync_threads()

    @cute.jit
    def sort(self, worker: Constexpr, start: Any, count: Any, order: Any, arrays: AnyList) -> None:
        *for_sort, rows, _, _, _, _ = arrays
        low, log = self.sizes.low, self.sizes.window
        sort(worker, count, log, low, for_sort)
        items = for_sort[0][None, digits_of(low)[0] % 2]
        for i in range(worker.tid, count, worker.threads):
            put(order, start + i, rows[items[i] & ((1 << log) - 1)])


@cute.jit
def last_upto(firsts: Any, i: Any, count: Constexpr) -> Any:
    """Return the position of the last number that is at most ``i``, among a power of two."""
    found = Int32(0)
    for step in range_constexpr((count - 1).bit_length()):
        further = found + (count >> (step + 1))
        found = select(firsts[further] <= i, further, found)
    return found


class OfIndex(RowNumberPart, EachRow):
    """Base of parts that read an index, int32 (taps, rows), and a tensor, and write a third."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 2


class Gather(OfIndex):
    """Gather the rows of an index, int32 (taps, rows), in an order."""

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        index, order, found = pointers
        rows, taps = integers
        source = Int64(at(order, row))
        for tap in range(taps):
            put(found, tap * rows + row, at(index, tap * rows + source))
