"""Hash table of blocks of 64 cells, which maps a cell to its row.

A block is 4 x 4 x 4 cells in three dimensions. A slot holds a block's key, a bit for each of its
cells, and its first place: the rows of the block's cells start there, in the order of the bits, in
an array with as many places as the cloud has rows. The 27 cells around a cell lie in 3.4 blocks of
4 x 4 x 4 on average, 8 at most, so a search probes those in place of 27 slots of a table of cells.
A bit says whether a cell is present, and only rows of present cells are read. Memory: 16 bytes to
fill per slot, with at most one slot in two taken; a scan has 5 to 20 times fewer blocks than rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

from layoutconv.base.caches import remembered

from ..common.cells import Cell, coordinates_per_access, inside, key_of, read_cell
from ..common.dsl import Constexpr, Int32, Int64, Uint32, Uint64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .block_slots import MOST_NARROW, WORDS, OfSlots, cells_at, keys_at, put_first, read_slot
from .cooperative import BEFORE, WARP, Arrays, LaunchThread, arrays_in
from .hash_table import EMPTY, NOWHERE, bits_for, claimed, home, inserted
from .per_rank import PerRank
from .scan import sums_before

# Binary logarithms of a block's extents, by rank: every block has 64 cells.
EDGES = {1: (6,), 2: (3, 3), 3: (2, 2, 2), 4: (1, 1, 2, 2)}
MOST_BITS = 31  # of a slot's number
# Int32 behind the rows of cells: the two of the status, the number of places taken less one, and
# one that ``HashTable.verdict`` uses.
TAIL = 4
FLIGHT = 4  # rows that a thread has in flight at once
# ``slot_of`` of a row: below ``MADE``, the row created its slot (``MADE - 1 - slot``); -1, none.
MADE = -1


def table_size(rows: int, wide: bool) -> tuple[int, int, int]:
    """Return the size of a table for so many rows, even if each has a block of its own: the binary
    logarithm of the number of slots, and how many 16-byte vectors the slots and the whole take.
    """
    bits = min(MOST_BITS, bits_for(rows))
    of_slots = 2 << bits if wide else 1 << bits
    return bits, of_slots, of_slots + (rows + TAIL + 3) // 4


@remembered(1024)
def has_wide_keys(grid: tuple[int, ...]) -> bool:
    """Return whether a grid has more blocks than 32-bit keys can number.

    >>> has_wide_keys((1, 8192, 8192, 2048)), has_wide_keys((1, 8192, 8192, 2049))
    (False, True)
    """
    return prod(blocks_of(list(grid))) > MOST_NARROW


def blocks_of(grid: Cell) -> Cell:
    """Return the grid of blocks that covers a grid of cells."""
    edges = EDGES[len(grid) - 1]
    return [grid[0], *((e + (1 << b) - 1) >> b for e, b in zip(grid[1:], edges, strict=True))]


def block_of(cell: Cell) -> Cell:
    """Return the block of a cell, which may lie outside the grid."""
    return [cell[0], *(c >> b for c, b in zip(cell[1:], EDGES[len(cell) - 1], strict=True))]


def bit_of(cell: Cell) -> Any:
    """Return the number of a cell in its block, row-major."""
    bit = Int32(0)
    for c, b in zip(cell[1:], EDGES[len(cell) - 1], strict=True):
        bit = (bit << b) | (Int32(c) & ((1 << b) - 1))
    return bit


def upto(word: Any, bit: Any) -> Any:
    """Shift a block's cells so that those up to ``bit`` remain, and ``bit`` becomes the sign."""
    return word << Int64(63 - bit)


def count_of(word: Any) -> Any:
    return Int32(cute.arch.popc(word if word.width == 32 else Uint64(word)))


def key_of_block(cell: Cell, grid: Cell, kind: Any) -> Any:
    """Return the key of a cell's block, as a ``kind``; any number outside the grid."""
    cell, blocks = block_of(cell), blocks_of(grid)
    return key_of([kind(c) for c in cell], [kind(extent) for extent in blocks])


def put_vector(pointer: Any, number: Any, values: list[Any]) -> None:
    """Write one vector, the ``number``-th from ``pointer`` on, with one store."""
    count = len(values)
    vector = cute.make_rmem_tensor(count, type(values[0]))
    for u, value in enumerate(values):
        vector[u] = value
    to = pointer + cute.assume(number * count, divby=count)
    cute.autovec_copy(vector, cute.make_tensor(to, cute.make_layout(count)))


class Fill(PerRank):
    """Fill vectors of four Int32 with -1: an empty table, and the word of a grid sync.

    The integers are the number of vectors, and how many of these are slots. The last ``behind``
    vectors are the word and the memory behind it.
    """

    def __init__(self, rank: int, behind: int = 1) -> None:
        super().__init__(rank)
        self.behind = behind

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.behind

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 16), ("int32", 16), ("int32", 16)

    def integers(self) -> int:
        return 2

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        slots, values, word = (cute.recast_ptr(pointer, dtype=Int32) for pointer in pointers)
        vectors, of_slots = integers
        vector, _ = self.row_of_thread()
        if vector < of_slots:
            put_vector(slots, vector, [Int32(EMPTY)] * 4)
        elif vector < vectors - self.behind:
            put_vector(values, vector - of_slots, [Int32(EMPTY)] * 4)
        elif vector < vectors:
            put_vector(word, vector - (vectors - self.behind), [Int32(BEFORE)] * 4)


class SomeRows(OfSlots):
    """Base of parts whose threads work on ``FLIGHT`` rows at once, to overlap their latencies."""

    def work(self, worker: LaunchThread, pointers: Any, integers: Any, room: Any) -> None:
        first, end = worker.share(integers[0])
        self.rows(worker, first, end, pointers, integers)

    @cute.jit
    def rows(
        self, worker: Constexpr, first: Any, end: Any, pointers: AnyList, integers: AnyTuple
    ) -> None:
        for some in range(first, end, worker.threads * FLIGHT):
            self.some(worker, some + worker.tid, end, pointers, integers)

    def some(self, worker: Any, some: Any, end: Any, pointers: Any, integers: Any) -> None:
        """Do a thread's rows from ``some`` on, ``threads`` apart. No thread leaves while others of
        its CTA have rows.
        """
        raise NotImplementedError


class Insert(SomeRows):
    """Insert the blocks of rows into slots that ``Fill`` emptied: writes the slot of each row, and
    the lowest row outside the grid.

    A thread reads all its rows, then the home slots of all, then claims all free ones: it waits
    three times for all rows, not for each. If adjacent lanes have rows of one block, the first lane
    inserts for all: clouds have runs of 1.3 to 2.2 such rows, whose atomics would serialize.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (
            ("int32", 4 * coordinates_per_access(self.rank)),
            ("int64", 16),
            ("int32", 4),
            ("int32", 4),
        )

    def integers(self) -> int:
        return 3 + self.rank

    @cute.jit
    def some(
        self, worker: Constexpr, some: Any, end: Any, pointers: AnyList, integers: AnyTuple
    ) -> None:
        cells, slots, slot_of, values = pointers
        rows, bits, *grid = integers
        # Rows without a cell have the key NOWHERE.
        kind, keys_of_slots = self.kind, keys_at(slots, self.kind)
        keys, asked, seen, found = (cute.make_rmem_tensor(FLIGHT, kind) for _ in range(4))
        words, firsts = cute.make_rmem_tensor(FLIGHT, Int64), cute.make_rmem_tensor(FLIGHT, Int32)
        lane = worker.tid % WARP
        for u in range_constexpr(FLIGHT):
            row = some + u * worker.threads
            keys[u], words[u] = kind(NOWHERE), Int64(0)
            if row < end:
                cell = read_cell(cells, row, self.rank)
                there = inside(cell, grid)
                keys[u] = select(there, key_of_block(cell, grid, kind), kind(NOWHERE))
                words[u] = Int64(1) << Int64(bit_of(cell))
                if (keys[u] == NOWHERE) & (cell[0] >= 0):
                    cute.arch.atomic_min(values + (rows + 1), Uint32(row))
        for u in range_constexpr(FLIGHT):
            firsts[u], asked[u] = lane, kind(NOWHERE)
            if some + u * worker.threads - lane < end:  # true for all lanes of a warp, or for none
                firsts[u] = first_of_run(keys[u], lane)
                words[u] = of_run(words[u], firsts[u], lane)
                asked[u] = select(firsts[u] == lane, keys[u], kind(NOWHERE))
        for u in range_constexpr(FLIGHT):
            if asked[u] != NOWHERE:
                seen[u] = at(keys_of_slots, Int64(home(asked[u], bits)) * WORDS)
        for u in range_constexpr(FLIGHT):
            if asked[u] != NOWHERE:
                slot = home(asked[u], bits)
                found[u] = claimed(keys_of_slots, asked[u], slot, seen[u], WORDS)
        for u in range_constexpr(FLIGHT):
            row = some + u * worker.threads
            slot, of_row = Int32(-1), Int32(-1)
            if asked[u] != NOWHERE:
                slot, fresh = inserted(
                    keys_of_slots, asked[u], home(asked[u], bits), seen[u], found[u], bits, WORDS
                )
                cute.arch.red(
                    cells_at(slots, slot, kind), ~words[u], op="and", dtype="b64",
                    sem="relaxed", scope="gpu",
                )  # fmt: skip
                of_row = select(fresh, Int32(MADE - 1) - slot, slot)
            if row - lane < end:
                slot = cute.arch.shuffle_sync(slot, firsts[u])
            if row < end:
                put(slot_of, row, select(firsts[u] == lane, of_row, slot))


def first_of_run(key: Any, lane: Any) -> Any:
    """Return the first lane of this lane's run: adjacent lanes that have the same key."""
    halves = [key] if key.width == 32 else [Int32(key), Int32(key >> 32)]
    differs = lane == 0
    for half in halves:
        differs = differs | (cute.arch.shuffle_sync_up(half, 1) != half)
    starts = Uint32(cute.arch.vote_ballot_sync(differs)) & Uint32(cute.arch.lanemask_le())
    return Int32(31) - Int32(cute.arch.clz(starts))


def of_run(word: Any, first: Any, lane: Any) -> Any:
    """Return the OR of the words of a run's lanes, from this lane to the run's last."""
    halves = [Int32(word), Int32(word >> 32)]
    last = 31 - lane
    for bit in range(WARP.bit_length() - 1):
        step = 1 << bit
        same = (cute.arch.shuffle_sync_down(first, step) == first) & (last >= step)
        halves = [
            half | select(same, cute.arch.shuffle_sync_down(half, step), Int32(0))
            for half in halves
        ]
    return Int64(Uint64(Uint32(halves[0])) | (Uint64(Uint32(halves[1])) << 32))


class Reserve(OfSlots):
    """Reserve places for the rows of blocks. The thread whose row created a block's slot asks for
    them, and a CTA makes one atomic addition for all of its threads.
    """

    def shared(self, threads: int) -> Arrays:
        return [(Int32, (threads // WARP + 1,))]

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 16), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 1

    def work(self, worker: LaunchThread, pointers: Any, integers: Any, room: Any) -> None:
        start, end = worker.share(integers[0])
        self.rows(
            worker, start, end, pointers, integers[0], arrays_in(room, self.shared(worker.threads))
        )

    @cute.jit
    def rows(
        self,
        worker: Constexpr,
        start: Any,
        end: Any,
        pointers: AnyList,
        rows: Any,
        arrays: AnyList,
    ) -> None:
        for some in range(start, end, worker.threads * FLIGHT):
            self.some(worker, some + worker.tid, end, pointers, rows, arrays)
            cute.arch.sync_threads()

    @cute.jit
    def some(
        self,
        worker: Constexpr,
        some: Any,
        end: Any,
        pointers: AnyList,
        rows: Any,
        arrays: AnyList,
    ) -> None:
        """Do a thread's next ``FLIGHT`` rows, which are read at once; no thread leaves."""
        slots, slot_of, values = pointers
        (smem,) = arrays
        tid = worker.tid
        seen, counts = (cute.make_rmem_tensor(FLIGHT, Int32) for _ in range(2))
        for u in range_constexpr(FLIGHT):
            row = some + u * worker.threads
            of_row = at(slot_of, select(row < end, row, rows - 1))
            seen[u] = select(row < end, of_row, Int32(MADE))
        own = Int32(0)
        for u in range_constexpr(FLIGHT):
            slot = select(seen[u] < MADE, Int32(MADE - 1) - seen[u], Int32(0))
            word = ~at(cells_at(slots, slot, self.kind), 0)
            counts[u] = count_of(select(seen[u] < MADE, word, Int64(0)))
            own = own + counts[u]
        before, total = sums_before([own], smem, tid, worker.threads)
        last = worker.threads // WARP
        if (tid == 0) & (total > 0):
            smem[last] = Int32(cute.arch.atomic_add(values + (rows + 2), total)) + 1
        cute.arch.sync_threads()
        for u in range_constexpr(FLIGHT):
            if seen[u] < MADE:
                put_first(slots, Int32(MADE - 1) - seen[u], smem[last] + before, self.kind)
            before = before + counts[u]


class Settle(SomeRows):
    """Write rows to the places of their cells, the lowest row of each cell, and the status."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = ("int32", 4)
        return ("int32", 4 * coordinates_per_access(self.rank)), ("int64", 16), word, word

    def integers(self) -> int:
        return 1

    @cute.jit
    def some(
        self, worker: Constexpr, some: Any, end: Any, pointers: AnyList, integers: AnyTuple
    ) -> None:
        cells, slots, slot_of, values = pointers
        rows = integers[0]
        seen, places = (cute.make_rmem_tensor(FLIGHT, Int32) for _ in range(2))
        others = cute.make_rmem_tensor(FLIGHT, Uint32)
        for u in range_constexpr(FLIGHT):
            row = some + u * worker.threads
            there = row < end
            row = select(there, row, rows - 1)
            seen[u] = select(there, at(slot_of, row), Int32(-1))
            places[u] = bit_of(read_cell(cells, row, self.rank))
        for u in range_constexpr(FLIGHT):
            slot = select(seen[u] < MADE, Int32(MADE - 1) - seen[u], seen[u])
            slot = select(seen[u] == -1, Int32(0), slot)
            _, first, free = read_slot(slots, slot, self.kind)
            places[u] = first + count_of(upto(~free, places[u])) - 1
        # When two rows have one cell, the second to arrive gets the first's number back, or a lower
        # one: so the second lowest row of a cell always reaches the status.
        for u in range_constexpr(FLIGHT):
            own = Uint32(some + u * worker.threads)
            others[u] = Uint32(0xFFFFFFFF)
            if seen[u] != -1:
                others[u] = Uint32(cute.arch.atomic_min(values + Int64(places[u]), own))
        for u in range_constexpr(FLIGHT):
            own = Uint32(some + u * worker.threads)
            if others[u] != Uint32(0xFFFFFFFF):
                later = select(own > others[u], own, others[u])
                cute.arch.atomic_min(values + rows, later)
