"""The pairs of a kernel map, tap by tap: one launch counts them, another writes them.

Neither needs a grid sync: a CTA that writes the pairs of some rows of a tap counts those of the
rows before them itself. There are no more CTAs than a GPU runs at once, so each reads a tap's
column twice at most, mostly from a cache; another launch, or a grid sync, takes longer. Nothing is
atomic, so results are bitwise reproducible.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.memory import maker
from layoutconv.base.torch_internals import in_shape

from ..common.dsl import Constexpr, Int32, Int64, Uint32, Uint64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from . import per_rank
from .cooperative import WARP, least, sm_count
from .per_rank import PerRank
from .scan import sum_upto

FLIGHT = 8  # entries that a thread has in flight
CTAS = 2  # that write pairs, per SM, about
VECTOR = 4  # int32 in 16 bytes: rows of pairs start at vectors


def counts(index: Tensor, found: Tensor | None = None) -> Tensor:
    """Count the pairs of each tap, int64 (taps,), of an index, int32 (rows, taps), on a GPU; into
    ``found``, if it is given.
    """
    rows, taps = index.shape
    if found is None:
        found = maker(index.device)((taps,), (1,), torch.int64)
    if not rows or not taps:
        return found.zero_()
    addresses = index.data_ptr(), found.data_ptr()
    per_rank.launch(COUNT, (index, found), addresses, (rows, taps, *index.stride()))
    return found


def pairs(
    index: Tensor, of_taps: Tensor, chunk: int, run: int, chunks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs of an index, int32 (rows, taps), on a GPU, in chunks of one tap each.

    Args:
        of_taps: the number of pairs of each tap, as :func:`counts` returns it.
        run: how many consecutive pairs stay together: a power of two that divides ``chunk``.
        chunks: how many there are; or more, if the host does not know the counts.

    Returns the rows of the outputs and of the inputs, int32 (chunks, chunk), in the order that
    ``Pairs`` describes, with -1 behind a tap's last pair and behind the last chunk; and the number
    of chunks of each tap, int64 (taps,).
    """
    rows, taps = index.shape
    # One allocation for both: each costs the host 1 us.
    across = -(-chunks * chunk // VECTOR) * VECTOR
    make = maker(index.device)
    both = make((2 * across,), (1,), index.dtype)
    shape = (chunks, chunk), (chunk, 1)
    outputs, inputs = in_shape(both, *shape), in_shape(both, *shape, across)
    if not chunks:
        return outputs, inputs, of_taps.new_zeros(taps)
    lengths = make((taps,), (1,), of_taps.dtype)
    parts = max(1, CTAS * sm_count(index.get_device()) // taps)
    share = -(-rows // (parts * WRITE.threads)) * WRITE.threads
    tensors = index, of_taps, lengths, both
    start = both.data_ptr()
    addresses = (
        index.data_ptr(), of_taps.data_ptr(), lengths.data_ptr(), start, start + 4 * across
    )  # fmt: skip
    of_map = rows, taps, *index.stride()
    integers = *of_map, chunk, chunks * chunk, share, -(-rows // share), run.bit_length() - 1
    per_rank.launch(WRITE, tensors, addresses, integers)
    return outputs, inputs, lengths


class OfColumns(PerRank):
    """Base of kernels whose CTAs each read entries of one tap, for any strides of the index.

    The first integers are rows, taps, and the strides of both.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(0)
        self.threads = threads

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.threads

    def ctas(self, integers: Any) -> Any:
        raise NotImplementedError

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        self.kernel(pointers, integers).launch(
            grid=[Int32(self.ctas(integers)), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    def read(
        self, column: Any, stride: Any, first: Any, end: Any, step: int, there_is: Any
    ) -> list[Any]:
        """Return the entries of rows from ``first`` on, ``step`` apart; -1 for rows past ``end``.

        For those, the row ``there_is``, which exists, is read instead: so no read is conditional,
        and all are in flight before one is used.
        """
        found = []
        for u in range(FLIGHT):
            row = first + u * step
            there = row < end
            entry = at(column, select(there, row, there_is) * stride)
            found.append(select(there, entry, Int32(-1)))
        return found

    @cute.jit
    def entries(self, column: Any, stride: Any, first: Any, end: Any, step: Constexpr) -> Any:
        """Count the rows, ``step`` apart, that have an entry."""
        found = Int32(0)
        for some in range(first, end, step * FLIGHT):
            for entry in self.read(column, stride, some, end, step, some):
                found = found + select(entry >= 0, Int32(1), Int32(0))
        return found

    def sums(self, tid: Any, values: list[Any]) -> list[tuple[Any, Any]]:
        """Scan each thread's numbers: return the total, and the sum of the warps before its own."""
        warps, lane = self.threads // WARP, tid & 31
        smem = cutlass.memory.SmemAllocator()
        shape = cute.make_layout((warps, len(values)))
        room = smem.allocate_tensor(Int64, shape, byte_alignment=16)
        self.keep(tid, [sum_upto(Int64(value), lane) for value in values], room)
        cute.arch.sync_threads()
        found = []
        for i in range(len(values)):
            there = lane < warps
            own = select(there, room[select(there, lane, Int32(0)), i], Int64(0))
            upto = sum_upto(own, lane)
            before = cute.arch.shuffle_sync(upto - own, tid >> 5)
            found.append((Int64(cute.arch.shuffle_sync(upto, 31)), Int64(before)))
        return found

    @cute.jit
    def keep(self, tid: Any, values: AnyList, room: Any) -> None:
        if (tid & 31) == 31:
            for i in range_constexpr(len(values)):
                room[tid >> 5, i] = values[i]


class CountPairs(OfColumns):
    """Count the rows that have each tap, with a CTA per tap."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4), ("int64", 8)

    def integers(self) -> int:
        return 4

    def ctas(self, integers: Any) -> Any:
        return integers[1]

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        index, found = pointers
        rows, _, row_stride, tap_stride = integers
        tid, _, _ = cute.arch.thread_idx()
        tap, _, _ = cute.arch.block_idx()
        column = index + Int64(tap) * tap_stride
        own = self.entries(column, row_stride, Int64(tid), rows, self.threads)
        ((of_all, _),) = self.sums(tid, [own])
        if tid == 0:
            put(found, tap, of_all)


class WritePairs(OfColumns):
    """Write pairs to the chunks of their taps: a CTA has some rows of a tap, a warp some of these.

    The integers that follow are a chunk, the capacity in pairs, the rows of a CTA, the CTAs of a
    tap, and the binary logarithm of a run.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        rows = "int32", 16
        return ("int32", 4), ("int64", 8), ("int64", 8), rows, rows

    def integers(self) -> int:
        return 9

    def ctas(self, integers: Any) -> Any:
        return integers[1] * integers[7]

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        index, of_taps, lengths, outputs, inputs = pointers
        rows, taps, row_stride, tap_stride, chunk, room, share, parts, log_run = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        tap = Int32(cta) // Int32(parts)
        part = Int32(cta) - tap * Int32(parts)
        column = index + Int64(tap) * tap_stride
        start = Int64(part) * share
        end = least(start + share, rows)
        lane, warp, warps = tid & 31, tid >> 5, self.threads // WARP
        of_warp = share // warps
        first = least(start + Int64(warp) * of_warp, end)
        last = least(first + of_warp, end)

        before = self.entries(column, row_stride, Int64(tid), start, self.threads)
        own = self.entries(column, row_stride, first + lane, last, WARP)
        (before, _), (own, of_warps), (chunks_before, _), (chunks, _) = self.sums(
            tid, [before, own, *self.chunks(of_taps, tid, tap, taps, chunk)]
        )
        length = (at(of_taps, tap) - 1) // chunk + 1
        places = Turns(chunks_before, length, chunk, log_run, room // chunk)
        number = Uint32(before + of_warps)
        self.write(column, row_stride, first, last, lane, number, places, (outputs, inputs))

        if part == Int32(parts) - 1:
            self.clear(outputs, inputs, before + own + tid, length * chunk, places)
        if (part == 0) & (tid == 0):
            put(lengths, tap, length)
        # Clear the chunks behind those of the last tap; only the GPU knows how many these are.
        used = chunks * chunk
        of_cta = (room - used) // (taps * parts) + 1
        start = used + of_cta * cta
        self.clear(
            outputs, inputs, start + tid, least(start + of_cta, room), partial(_as_it_is, room)
        )

    @cute.jit
    def chunks(self, of_taps: Any, tid: Any, tap: Any, taps: Any, chunk: Any) -> Any:
        """Scan a thread's share of the taps: count the chunks of taps before ``tap``, and all."""
        before, every = Int64(0), Int64(0)
        for other in range(tid, Int32(taps), self.threads):
            length = (at(of_taps, other) - 1) // chunk + 1
            every = every + length
            before = select(other < tap, before + length, before)
        return before, every

    @cute.jit
    def write(
        self, column: Any, stride: Any, first: Any, last: Any, lane: Any, number: Any, places: Any,
        pairs: AnyTuple,
    ) -> None:  # fmt: skip
        """Write the rows of a warp that have an entry, as the tap's pairs from ``number`` on."""
        outputs, inputs = pairs
        below = (Int32(1) << lane) - 1
        for some in range(first, last, WARP * FLIGHT):
            entries = self.read(column, stride, some + lane, last, WARP, some)
            for u in range_constexpr(FLIGHT):
                there = entries[u] >= 0
                of_warp = cute.arch.vote_ballot_sync(there)
                to, inside = places(number + Uint32(cute.arch.popc(of_warp & below)))
                # If the counts are of another index, stay within the tap's own chunks.
                if there & inside:
                    put(outputs, to, Int32(some) + u * WARP + lane)
                    put(inputs, to, entries[u])
                number = number + Uint32(cute.arch.popc(of_warp))

    @cute.jit
    def clear(self, outputs: Any, inputs: Any, first: Any, end: Any, places: Any) -> None:
        """Write -1 to some places; a thread's are ``threads`` apart."""
        for number in range(first, end, self.threads):
            to, inside = places(number)
            if inside:
                put(outputs, to, Int32(-1))
                put(inputs, to, Int32(-1))


class Turns:
    """Places of a tap's pairs: its runs go to its chunks round-robin.

    Args:
        before: chunks of the taps before; this tap has ``length`` chunks, of ``chunk`` pairs each,
            and there is room for ``most`` in all.
        log_run: the binary logarithm of the pairs of a run.
    """

    def __init__(self, before: Any, length: Any, chunk: Any, log_run: Any, most: Any) -> None:
        self.start, self.chunk, self.log_run = before * chunk, Uint32(chunk), Uint32(log_run)
        self.chunks = Uint32(select(length > 0, length, Int64(1)))
        self.there = Uint32(select(before < most, least(length, most - before), Int64(0)))
        self.end = Uint32(length * chunk)  # behind its last place
        self.inverse = Uint32(0xFFFFFFFF) // self.chunks

    def __call__(self, number: Any) -> tuple[Any, Any]:
        """Return the place of the tap's pair ``number``, and whether there is room for it."""
        number = Uint32(number)
        run = number >> self.log_run
        # run // chunks, or one less: dividing for every pair takes twice the registers.
        turn = Uint32((Uint64(run) * Uint64(self.inverse)) >> Uint64(32))
        of_turn = run - turn * self.chunks
        past = of_turn >= self.chunks
        turn = select(past, turn + Uint32(1), turn)
        of_turn = select(past, of_turn - self.chunks, of_turn)
        of_chunk = number + ((turn - run) << self.log_run)
        to = self.start + Int64(Uint64(of_turn) * Uint64(self.chunk) + Uint64(of_chunk))
        return to, (number < self.end) & (of_turn < self.there)


def _as_it_is(room: Any, number: Any) -> tuple[Any, Any]:
    return number, number < room


COUNT = CountPairs(1024)
WRITE = WritePairs(512)
