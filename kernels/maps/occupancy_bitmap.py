"""Occupancy bitmap: a bit per cell of the grid, which yields reached cells in order, each once.

Kernels mark cells, count them per block, and write each block from its offset on: four kernels in
one call, or in two calls if the host needs the number of cells. Sorting keys with torch takes more
than ten launches, and more work on the GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.memory import maker
from layoutconv.base.torch_internals import in_shape

from ..common.cells import cell_of, coordinates_per_access, key_of, per_axis, read_cell, write_cell
from ..common.dsl import Int32, Int64, Uint64, cute, cutlass
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from . import per_rank
from .block_table import Fill
from .cooperative import WARP, least
from .per_rank import Chain, PerRank
from .scan import sum_upto
from .tap_meeting import Meet, MetTaps

BLOCK = 256  # words of 64 cells per CTA, one per thread
# Measured on an H200: 2^26 cells take 26 us, 2^28 98 us, however many are reached, as every block
# reads the counts of all blocks before it; keys take 48 to 150 us, by their number.
MOST_CELLS = 1 << 28  # a bitmap of 32 MB
FEW_CELLS = 1 << 26  # below this, any cloud uses a bitmap, of 8 MB at most
CELLS_OF_ONE = 2048  # cells of a grid per cell that may be reached, which costs a key and a sort
# What a thread has in flight: neighbouring rows meet different taps, so a warp reads words for
# almost every tap; and the divisions of cell coordinates have as much latency.
TAPS_AT_ONCE, CELLS_AT_ONCE = 8, 4


def suits(cells: int, reached: int) -> bool:
    """Return whether to use a bitmap for a grid of ``cells``, of which at most ``reached``
    may be reached.
    """
    return cells <= min(MOST_CELLS, max(FEW_CELLS, CELLS_OF_ONE * reached))


def cells_of_bits(
    indices: Tensor, taps: MetTaps, grid: tuple[int, ...], capacity: int | None
) -> tuple[Tensor, Tensor]:
    """Return the result of ``reached``; there is at least one row, one tap and one cell."""
    rank, blocks = len(grid) - 1, -(-prod(grid) // (64 * BLOCK))
    words, make = blocks * BLOCK, maker(indices.device)
    room = make((2 * words + blocks,), (1,), torch.int32)
    counter = make((2,), (1,), torch.int64)  # separate, since it outlives the room
    bits = room.data_ptr()
    of_bits = bits, bits + 8 * words, counter.data_ptr()
    tensors = indices, room, counter, taps.table
    addresses = *of_bits, indices.data_ptr(), taps.address
    integers = words, words // 2 + 1, 0, indices.shape[0], taps.count, *taps.steps, *grid
    count, write, both = kernels_of(rank)
    total = in_shape(counter, (), ())
    if not capacity:  # a capacity of 0 leaves no address to write to
        per_rank.launch(count, tensors, addresses, integers)
    rows = int(total) if capacity is None else capacity
    found = make((rows, 1 + rank), (1 + rank, 1), torch.int32)
    if capacity:
        per_rank.launch(
            both, (*tensors, found), (*addresses, found.data_ptr()), (*integers, capacity)
        )
    elif rows:
        per_rank.launch(
            write, (found, room, counter), (*of_bits, found.data_ptr()), (words, rows, *grid)
        )
    return found, total


@remembered(8)
def kernels_of(rank: int) -> tuple[Chain, WriteCells, Chain]:
    """Return the kernels that count cells, that write them, and that do both.

    Addresses: bits, the cell counts of blocks, of all, indices, the table, and the output.
    Integers: words, those of ``Fill``, rows, taps, factors, divisors, the grid, and a capacity.
    """
    last = 5 + 3 * rank
    count = (
        (Fill(1), (0, 0, 2), (1, 2)),
        (Mark(rank), (3, 0, 4), tuple(range(3, last + 1))),
        (CountBits(0), (0, 1, 2), (0,)),
    )
    write = WriteCells(rank)
    grid = tuple(range(last - rank, last + 1))
    return Chain(count), write, Chain((*count, (write, (0, 1, 2, 5), (0, last + 1, *grid))))


class Mark(Meet):
    """Mark the cells that a cloud reaches, by clearing their bits: a set bit is an absent cell."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * coordinates_per_access(self.rank)), ("int64", 16), ("int32", 4)

    def integers(self) -> int:
        return 3 + 3 * self.rank

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        cells, bits, table = pointers
        rows, taps, *rest = integers
        rank = self.rank
        times, over, grid = per_axis(rest, rank, 2)
        row, _ = self.row_of_thread()
        if row < rows:
            starts, rests = self.divided(read_cell(cells, row, rank), times, over)
            for first in range(Int64(0), taps, TAPS_AT_ONCE):
                self.mark(bits, self.met(table, (starts, rests, grid), first, taps))

    def met(self, table: Any, cell: Any, first: Any, taps: Any) -> list[tuple[Any, Any, Any]]:
        """Return where a cell meets some taps: words, bits, and whether it does."""
        starts, rests, grid = cell
        found = []
        for number in range(TAPS_AT_ONCE):
            tap = first + number
            is_tap = tap < taps
            to, there = self.meet(table, starts, rests, grid, select(is_tap, tap, first))
            key = key_of(to, grid)
            there = there & is_tap
            found.append((select(there, key >> 6, Int64(0)), Int64(1) << (key & 63), there))
        return found

    def mark(self, bits: Any, some: list[tuple[Any, Any, Any]]) -> None:
        """Mark bits. All words are read before any is waited for, and bits that a neighbour has
        marked already, which most are, take no atomic.
        """
        words = [at(bits, word) for word, *_ in some]
        for (word, bit, there), held in zip(some, words, strict=True):
            self.clear(bits + word, bit, there & ((held & bit) != 0))

    @cute.jit
    def clear(self, word: Any, bit: Any, is_set: Any) -> None:
        if is_set:
            cute.arch.atomic_and(word, ~bit)


class OfWords(PerRank):
    """Base of kernels with one thread per word of 64 cells, and one CTA per block of words."""

    threads = per_cta = BLOCK

    def sums(self, tid: Any, value: Any) -> tuple[Any, Any]:
        """Scan a number per thread: return the inclusive sum up to this thread, and the total.

        Each call uses shared memory of its own.
        """
        warps, warp = self.threads // WARP, tid >> 5
        smem = cutlass.memory.SmemAllocator()
        room = smem.allocate_tensor(Int32, cute.make_layout(warps), byte_alignment=16)
        upto = sum_upto(value, tid & 31)
        self.keep(tid, upto, room)
        cute.arch.sync_threads()
        total = Int32(0)
        for w in range(warps):
            upto = select(w < warp, upto + room[w], upto)
            total = total + room[w]
        return upto, total

    @cute.jit
    def keep(self, tid: Any, upto: Any, room: Any) -> None:
        if (tid & 31) == 31:
            room[tid >> 5] = upto


class CountBits(OfWords):
    """Count the cells of every block, and all of them, in a counter that starts at -1."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 16), ("int32", 4), ("int64", 16)

    def integers(self) -> int:
        return 1

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        bits, sums, count = pointers
        cta, _, _ = cute.arch.block_idx()
        self.block(bits, sums, count, cta)

    @cute.jit
    def block(self, bits: Any, sums: Any, count: Any, cta: Any) -> None:
        """Count the cells of block ``cta`` of its grid."""
        tid, _, _ = cute.arch.thread_idx()
        word = ~at(bits, Int64(cta) * BLOCK + tid)
        _, total = self.sums(tid, Int32(cute.arch.popc(Uint64(word))))
        if tid == 0:
            put(sums, cta, total)
            more = total + select(cta == 0, Int32(1), Int32(0))
            if more != 0:
                cute.arch.atomic_add(count, Int64(more))


class WriteCells(OfWords):
    """Write the cells of a bitmap, in order, up to ``room``, and padding behind them.

    The integers are words, the room and the grid, which has fewer than 2^31 cells.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        of_cells = "int32", 4 * coordinates_per_access(self.rank)
        return ("int64", 16), ("int32", 4), ("int64", 16), of_cells

    def integers(self) -> int:
        return 3 + self.rank

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        words, room, *grid = integers
        cta, _, _ = cute.arch.block_idx()
        self.block(pointers, cta, words // BLOCK, room, grid)

    @cute.jit
    def block(self, pointers: AnyList, cta: Any, blocks: Any, room: Any, grid: AnyList) -> None:
        """Write the cells of block ``cta`` of its grid, and its share of the padding."""
        bits, sums, count, cells = pointers
        grid = [Int32(extent) for extent in grid]
        tid, _, _ = cute.arch.thread_idx()
        number = Int64(cta) * BLOCK + tid
        word = ~at(bits, number)
        own = Int32(cute.arch.popc(Uint64(word)))
        _, before = self.sums(tid, self.before(sums, cta, tid))
        upto, _ = self.sums(tid, own)
        self.write(cells, before + upto - own, Int32(room), word, Int32(number << 6), own, grid)

        total = least(at(count, 0), room)
        of_cta = (room - total) // blocks + 1
        start = total + of_cta * cta
        self.pad(cells, start + tid, least(start + of_cta, room))

    @cute.jit
    def before(self, sums: Any, cta: Any, tid: Any) -> Any:
        """Count the cells of a thread's share of the earlier blocks."""
        found = Int32(0)
        for block in range(tid, cta, self.threads):
            found = found + at(sums, block)
        return found

    @cute.jit
    def write(
        self, cells: Any, place: Any, room: Any, word: Any, first: Any, own: Any, grid: Any
    ) -> None:
        """Write the cells of a word, whose first cell has the key ``first``, from ``place`` on."""
        last = cutlass.min(place + own, room)
        for start in range(place, last, CELLS_AT_ONCE):
            keys, word = self.lowest(word, first)
            some = [cell_of(key, grid) for key in keys]
            for number in cutlass.range_constexpr(CELLS_AT_ONCE):
                if start + number < last:
                    write_cell(cells, Int64(start + number), some[number])

    def lowest(self, word: Any, first: Any) -> tuple[list[Any], Any]:
        """Return the keys of a word's lowest bits, and the word without them."""
        keys = []
        for _ in range(CELLS_AT_ONCE):
            lowest = word & -word
            keys.append(first + Int32(cute.arch.popc(Uint64(lowest - 1))))
            word = word ^ lowest
        return keys, word

    @cute.jit
    def pad(self, cells: Any, first: Any, end: Any) -> None:
        """Write padding rows, whose batch is -1."""
        for row in range(first, end, self.threads):
            write_cell(cells, row, [Int32(-1), *[Int32(0)] * self.rank])
