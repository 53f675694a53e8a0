"""Which row has a cell: a hash table of blocks of 64 cells.

A block is 4 x 4 x 4 cells in three dimensions. A slot of the table has a block's key, a bit for
each of its cells, and its first place: from there on the rows of its cells lie side by side, in the
order of the bits, in an array of as many places as there are rows. The 27 cells around one are in
3.4 blocks of 4 x 4 x 4, 8 at most, in place of 27 slots of a table of cells; whether a cell is
there is a bit, and the row of a cell that is there is read, no other. Memory: 16 bytes a slot to
fill, for at most one slot in two taken, of which there are 5 to 20 times fewer than rows in a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, Uint64, range_constexpr

from .cells import Cell, inside, key_of, read_cell, vector_of
from .hash_table import EMPTY, NOWHERE, bits_for, claimed, home, inserted
from .per_rank import PerRank
from .slots import MOST_NARROW, WORDS, OfSlots, cells_at, keys_at, put_first, read_slot, settle
from .sums import sums_before
from .together import BEFORE, WARP, Arrays, Crew, EachRow, arrays_in
from .walk import at, put, select

# The binary logarithms of the extents of a block: of 64 cells.
EDGES = {1: (6,), 2: (3, 3), 3: (2, 2, 2), 4: (1, 1, 2, 2)}
MOST_BITS = 31  # of a slot's number
TAIL = 3  # what is behind the rows of cells: the two numbers of the status, places taken less one
# Blocks that a thread looks for at once, by rank: as many as fit into 64 registers.
CORNERS = {1: 2, 2: 4, 3: 4, 4: 2}
FLIGHT = 4  # rows of a thread that are read at once
# What is in place of a row's slot: the row made it if it is below this, there is none if it is -1.
MADE = -1


def table_bits(rows: int) -> int:
    """The binary logarithm of the slots for that many rows, each perhaps in a block of its own."""
    return min(MOST_BITS, bits_for(rows))


@lru_cache(1024)
def has_wide_keys(grid: tuple[int, ...]) -> bool:
    """Whether blocks of a grid are more than keys of 32 bits.

    >>> has_wide_keys((1, 8192, 8192, 2048)), has_wide_keys((1, 8192, 8192, 2049))
    (False, True)
    """
    return prod(blocks_of(list(grid))) > MOST_NARROW


def blocks_of(grid: Cell) -> Cell:
    """The grid of the blocks of a grid of cells."""
    edges = EDGES[len(grid) - 1]
    return [grid[0], *((e + (1 << b) - 1) >> b for e, b in zip(grid[1:], edges, strict=True))]


def block_of(cell: Cell) -> Cell:
    """The block of a cell, which may be outside the grid."""
    return [cell[0], *(c >> b for c, b in zip(cell[1:], EDGES[len(cell) - 1], strict=True))]


def bit_of(cell: Cell) -> Any:
    """The number of a cell in its block, row-major."""
    bit = Int32(0)
    for c, b in zip(cell[1:], EDGES[len(cell) - 1], strict=True):
        bit = (bit << b) | (Int32(c) & ((1 << b) - 1))
    return bit


def upto(word: Any, bit: Any) -> Any:
    """The cells of a block up to one, whose bit becomes the sign."""
    return word << Int64(63 - bit)


def count_of(word: Any) -> Any:
    return Int32(cute.arch.popc(Uint64(word)))


def key_of_block(cell: Cell, grid: Cell, kind: Any) -> Any:
    """The key of the block of a cell, of a type; any number if the cell is outside the grid."""
    cell, blocks = block_of(cell), blocks_of(grid)
    return key_of([kind(c) for c in cell], [kind(extent) for extent in blocks])


def put_vector(pointer: Any, number: Any, values: list[Any]) -> None:
    """Write the vector of a number, at once."""
    count = len(values)
    vector = cute.make_rmem_tensor(count, type(values[0]))
    for u, value in enumerate(values):
        vector[u] = value
    to = pointer + cute.assume(number * count, divby=count)
    cute.autovec_copy(vector, cute.make_tensor(to, cute.make_layout(count)))


class Fill(PerRank):
    """-1 into vectors of four Int32: a table with nothing in it, and the word of a barrier.

    The integers are how many vectors there are, and how many are slots. The last are the word's,
    ``behind`` of them, with what is behind it.
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
    def kernel(self, pointers: list, integers: tuple):
        slots, values, word = (cute.recast_ptr(pointer, dtype=Int32) for pointer in pointers)
        vectors, of_slots = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        vector = Int64(cta) * self.per_cta + tid
        if vector < of_slots:
            put_vector(slots, vector, [Int32(EMPTY)] * 4)
        elif vector < vectors - self.behind:
            put_vector(values, vector - of_slots, [Int32(EMPTY)] * 4)
        elif vector < vectors:
            put_vector(word, vector - (vectors - self.behind), [Int32(BEFORE)] * 4)


class SomeRows(OfSlots):
    """A thread does ``FLIGHT`` rows at once: what it waits for, it waits for of all of them."""

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        first, end = crew.share(integers[0])
        self.rows(crew, first, end, pointers, integers)

    @cute.jit
    def rows(
        self, crew: cutlass.Constexpr, first: Any, end: Any, pointers: list, integers: tuple
    ):  # fmt: skip
        for some in range(first + crew.tid, end, crew.threads * FLIGHT):
            self.some(crew, some, end, pointers, integers)

    def some(self, crew: Any, some: Any, end: Any, pointers: Any, integers: Any) -> None:
        """What a thread does: rows from ``some`` on, as many apart as there are threads."""
        raise NotImplementedError


class Insert(SomeRows):
    """Rows into slots (EMPTY before, every cell free): the slot of each, and who is outside.

    Of some rows of a thread all are read, then the slots of all, then all are claimed that are
    free: it waits three times for all of them, not for each.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 3 + self.rank

    @cute.jit
    def some(
        self, crew: cutlass.Constexpr, some: Any, end: Any, pointers: list, integers: tuple
    ):  # fmt: skip
        cells, slots, slot_of, values = pointers
        rows, bits, *grid = integers
        # Of no cell the key is NOWHERE, and the bit tells whether it is padding.
        kind, keys_of_slots = self.kind, keys_at(slots, self.kind)
        keys, seen, found = (cute.make_rmem_tensor(FLIGHT, kind) for _ in range(3))
        cell_bits = cute.make_rmem_tensor(FLIGHT, Int32)
        for u in range_constexpr(FLIGHT):
            row = some + u * crew.threads
            keys[u] = kind(NOWHERE)
            if row < end:
                cell = read_cell(cells, row, self.rank)
                there = inside(cell, grid)
                keys[u] = select(there, key_of_block(cell, grid, kind), kind(NOWHERE))
                cell_bits[u] = select(there, bit_of(cell), Int32(cell[0]))
        for u in range_constexpr(FLIGHT):
            if keys[u] != NOWHERE:
                seen[u] = at(keys_of_slots, Int64(home(keys[u], bits)) * WORDS)
        for u in range_constexpr(FLIGHT):
            if keys[u] != NOWHERE:
                slot = home(keys[u], bits)
                found[u] = claimed(keys_of_slots, keys[u], slot, seen[u], WORDS)
        for u in range_constexpr(FLIGHT):
            row = some + u * crew.threads
            if row < end:
                of_row = Int32(-1)
                if keys[u] != NOWHERE:
                    slot, fresh = inserted(
                        keys_of_slots, keys[u], home(keys[u], bits), seen[u], found[u], bits, WORDS
                    )
                    others = ~(Int64(1) << Int64(cell_bits[u]))
                    cute.arch.red(
                        cells_at(slots, slot, kind), others, op="and", dtype="b64",
                        sem="relaxed", scope="gpu",
                    )  # fmt: skip
                    of_row = select(fresh, Int32(MADE - 1) - slot, slot)
                elif cell_bits[u] >= 0:
                    cute.arch.atomic_min(values + (rows + 1), Uint32(row))
                put(slot_of, row, of_row)


class Reserve(OfSlots):
    """Places for the rows of blocks, by who made each: a CTA asks for those of its own at once."""

    def shared(self, threads: int) -> Arrays:
        return [(Int32, (threads // WARP + 1,))]

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 16), ("int32", 4), ("int32", 4)

    def integers(self) -> int:
        return 1

    def work(self, crew: Crew, pointers: Any, integers: Any, room: Any) -> None:
        start, end = crew.share(integers[0])
        self.rows(
            crew, start, end, pointers, integers[0], arrays_in(room, self.shared(crew.threads))
        )

    @cute.jit
    def rows(
        self, crew: cutlass.Constexpr, start: Any, end: Any, pointers: list, rows: Any,
        arrays: list,
    ):  # fmt: skip
        for some in range(start, end, crew.threads * FLIGHT):
            self.some(crew, some + crew.tid, end, pointers, rows, arrays)
            cute.arch.sync_threads()

    @cute.jit
    def some(
        self, crew: cutlass.Constexpr, some: Any, end: Any, pointers: list, rows: Any, arrays: list
    ):  # fmt: skip
        """Some rows of a thread, which are read at once; no thread leaves."""
        slots, slot_of, values = pointers
        (smem,) = arrays
        tid = crew.tid
        seen, counts = (cute.make_rmem_tensor(FLIGHT, Int32) for _ in range(2))
        for u in range_constexpr(FLIGHT):
            row = some + u * crew.threads
            of_row = at(slot_of, select(row < end, row, rows - 1))
            seen[u] = select(row < end, of_row, Int32(MADE))
        own = Int32(0)
        for u in range_constexpr(FLIGHT):
            slot = select(seen[u] < MADE, Int32(MADE - 1) - seen[u], Int32(0))
            word = ~at(cells_at(slots, slot, self.kind), 0)
            counts[u] = count_of(select(seen[u] < MADE, word, Int64(0)))
            own = own + counts[u]
        before, total = sums_before([own], smem, tid, crew.threads)
        last = crew.threads // WARP
        if (tid == 0) & (total > 0):
            smem[last] = Int32(cute.arch.atomic_add(values + (rows + 2), total)) + 1
        cute.arch.sync_threads()
        for u in range_constexpr(FLIGHT):
            if seen[u] < MADE:
                put_first(slots, Int32(MADE - 1) - seen[u], smem[last] + before, self.kind)
            before = before + counts[u]


class Settle(SomeRows):
    """Rows into the places of their cells: the lowest of each, and the status."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = ("int32", 4)
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16), word, word

    def integers(self) -> int:
        return 1

    @cute.jit
    def some(
        self, crew: cutlass.Constexpr, some: Any, end: Any, pointers: list, integers: tuple
    ):  # fmt: skip
        cells, slots, slot_of, values = pointers
        rows = integers[0]
        seen, places = (cute.make_rmem_tensor(FLIGHT, Int32) for _ in range(2))
        others = cute.make_rmem_tensor(FLIGHT, Uint32)
        for u in range_constexpr(FLIGHT):
            row = some + u * crew.threads
            there = row < end
            row = select(there, row, rows - 1)
            seen[u] = select(there, at(slot_of, row), Int32(-1))
            places[u] = bit_of(read_cell(cells, row, self.rank))
        for u in range_constexpr(FLIGHT):
            slot = select(seen[u] < MADE, Int32(MADE - 1) - seen[u], seen[u])
            slot = select(seen[u] == -1, Int32(0), slot)
            _, first, free = read_slot(slots, slot, self.kind)
            places[u] = first + count_of(upto(~free, places[u])) - 1
        # Of two rows of a cell, whichever comes second sees the first one's number here, or that of
        # a lower one: so the second lowest row of a cell is always told of.
        for u in range_constexpr(FLIGHT):
            own = Uint32(some + u * crew.threads)
            others[u] = Uint32(0xFFFFFFFF)
            if seen[u] != -1:
                others[u] = Uint32(cute.arch.atomic_min(values + Int64(places[u]), own))
        for u in range_constexpr(FLIGHT):
            own = Uint32(some + u * crew.threads)
            if others[u] != Uint32(0xFFFFFFFF):
                later = select(own > others[u], own, others[u])
                cute.arch.atomic_min(values + rows, later)


# -- neighbours -----------------------------------------------------------------------------------


# Where taps are that a kernel is compiled for, seen from the first cell.
Known = tuple[tuple[int, ...], ...] | None


class Neighbours(OfSlots, EachRow):
    """What kernels have in common that look for the cells of taps around centres, a thread each.

    If ``near``, all taps of a centre are in two blocks per axis: these are found first, their cells
    kept in shared memory, and then a tap is a shift. Otherwise every tap finds its own block. Near
    taps may be ``known``: what an axis adds to a shift is then found once for all of them.
    """

    def __init__(self, rank: int, near: bool, known: Known = None, wide: bool = False) -> None:
        super().__init__(rank, wide)
        self.near, self.known = near, known

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.near, self.known

    def start_of(self, cell: Cell, stride: Any, low: Any) -> Cell:
        """The first cell of the taps of a centre."""
        moved = [c * s + o for c, s, o in zip(cell[1:], stride, low, strict=True)]
        return [cell[0], *moved]

    def packed(self, start: Cell) -> Any:
        """Where a cell is in its block: 8 bits an axis, to which a tap's offset is added."""
        found = Int32(0)
        for c, b in zip(start[1:], EDGES[self.rank], strict=True):
            found = (found << 8) | (Int32(c) & ((1 << b) - 1))
        return found

    def corner_and_bit(self, where: Any) -> tuple[Any, Any]:
        """Of a packed cell: which of the blocks, and the number in it."""
        corner, bit, low = Int32(0), Int32(0), 0
        for axis in reversed(range(self.rank)):
            # A shift and a mask for each, to where the bits belong.
            b, field = EDGES[self.rank][axis], 8 * (self.rank - 1 - axis)
            side = self.rank - 1 - axis
            corner = corner | ((where >> (field + b - side)) & (1 << side))
            bit = bit | ((where >> (field - low)) & (((1 << b) - 1) << low))
            low += b
        return corner, bit

    def known_places(self, start: Cell) -> list[tuple[Any, Any]]:
        """Of the known taps: which of the blocks, and the number in it."""
        parts: list[dict[int, tuple[Any, Any]]] = []
        low = sum(EDGES[self.rank])
        for axis, b in enumerate(EDGES[self.rank]):
            low -= b
            first, side = Int32(start[1 + axis]) & ((1 << b) - 1), self.rank - 1 - axis
            there = {}
            for step in sorted({tap[axis] for tap in self.known or ()}):
                c = first + step
                there[step] = (c >> b) << side, (c & ((1 << b) - 1)) << low
            parts.append(there)
        found = []
        for tap in self.known or ():
            corner, bit = Int32(0), Int32(0)
            for there, step in zip(parts, tap, strict=True):
                corner, bit = corner | there[step][0], bit | there[step][1]
            found.append((corner, bit))
        return found

    @property
    def fits(self) -> bool:
        """Whether the known taps are all in a block that would begin at the first cell."""
        edges = EDGES[self.rank]
        return bool(self.known) and all(
            c < 1 << b for tap in self.known or () for c, b in zip(tap, edges, strict=True)
        )

    def bits_of_known(self) -> list[int]:
        """The numbers of the known taps in such a block."""
        found = []
        for tap in self.known or ():
            bit = 0
            for c, b in zip(tap, EDGES[self.rank], strict=True):
                bit = bit << b | c
            found.append(bit)
        return found

    def corners(
        self, slots: Any, start: Cell, span: Any, grid: Any, bits: Any
    ) -> Iterator[tuple[Any, Any]]:
        """The first place and the cells of every block that taps reach, 0 of those that are not
        there."""
        edges, blocks = EDGES[self.rank], blocks_of(grid)
        first = block_of(start)
        key, strides = key_of_block(start, grid, self.kind), [self.kind(1)]
        for extent in reversed(blocks[2:]):
            strides.insert(0, strides[0] * self.kind(extent))
        there = []
        for axis, b in enumerate(edges):
            at_axis, extent = first[1 + axis], blocks[1 + axis]
            reaches = (Int32(start[1 + axis]) & ((1 << b) - 1)) + Int32(span[axis]) >= (1 << b)
            here = Uint64(at_axis) < Uint64(extent)
            further = (Uint64(at_axis + 1) < Uint64(extent)) & reaches
            there.append((here, further))
        image = Uint64(start[0]) < Uint64(blocks[0])
        at_once = CORNERS[self.rank]
        for some in range(0, 1 << self.rank, at_once):
            wanted = []
            for corner in range(some, some + at_once):
                asked, own = image, key
                for axis in range(self.rank):
                    side = corner >> (self.rank - 1 - axis) & 1
                    asked = asked & there[axis][side]
                    own = own + strides[axis] if side else own
                slot = select(asked, home(own, bits), Int32(0))
                wanted.append((asked, slot, own, read_slot(slots, slot, self.kind)))
            for one in wanted:
                yield settle(slots, *one, bits)

    @cute.jit
    def block(self, slots: Any, cell: list, grid: list, bits: Any):
        """The first place of a cell's block, its cells, 0 if it is not there, and the cell's
        number."""
        there = inside(cell, grid)
        key = key_of_block(cell, grid, self.kind)
        slot = select(there, home(key, bits), Int32(0))
        found = read_slot(slots, slot, self.kind)
        first, word = settle(slots, there, slot, key, found, bits)
        return first, word, bit_of(cell)


def cells_from(start: Cell, words: list[Any]) -> Any:
    """The cells of a block that would begin at any cell, from those of the blocks that it is in.

    Of two that are side by side on an axis every field, the cells that differ on this axis and on
    later ones, takes its lower cells from the first block, and the rest from the second one.
    """
    axes, low = zip(start[1:], EDGES[len(start) - 1], strict=True), 0
    halves = [(Uint32(word), Uint32(Uint64(word) >> 32)) for word in words]
    for c, b in reversed(list(axes)):
        by, width = (Uint32(c) & ((1 << b) - 1)) << low, 1 << (low + b)
        pairs = zip(halves[::2], halves[1::2], strict=True)
        if width == 64:
            ((here, further),) = pairs
            first, second = (Uint64(a) | (Uint64(z) << 32) for a, z in (here, further))
            return (first >> Uint64(by)) | ((second << 1) << Uint64(63 - by))
        field = (1 << width) - 1
        ours = (Uint32(field) >> by) * Uint32((2**32 - 1) // field)
        back = (width - by) & 31  # by 0 or by 32, nothing is taken
        halves = [
            (((a >> by) & ours) | ((d << back) & ~ours), ((z >> by) & ours) | ((e << back) & ~ours))
            for (a, z), (d, e) in pairs
        ]
        low += b
    raise AssertionError


def geometry(
    taps: tuple[tuple[int, ...], ...], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """The least offset of taps per axis, how far the others are from it, and whether all are near.

    >>> geometry(((-1,), (0,), (1,)), 1), geometry(((-1, 0), (8, 0)), 2)
    (((-1,), (2,), True), ((-1, 0), (9, 0), False))
    """
    axes = list(zip(*taps, strict=True)) if taps else [(0,)] * rank
    low = tuple(map(min, axes))
    span = tuple(max(axis) - least for axis, least in zip(axes, low, strict=True))
    near = all(reach <= 1 << b for reach, b in zip(span, EDGES[rank], strict=True))
    return low, span, near


def box_of(taps: tuple[tuple[int, ...], ...]) -> Known:
    """Taps seen from the least of them, if they are all of a grid, the last axis fastest.

    >>> box_of(((-1, 2), (-1, 4), (1, 2), (1, 4))), box_of(((0, 0), (1, 1)))
    (((0, 0), (0, 2), (2, 0), (2, 2)), None)
    """
    axes = [sorted(set(axis)) for axis in zip(*taps, strict=True)]
    if not taps or taps != tuple(product(*axes)):
        return None
    return tuple(product(*([c - axis[0] for c in axis] for axis in axes)))


def packed_offset(tap: tuple[int, ...], low: tuple[int, ...]) -> int:
    """A tap as :meth:`Neighbours.packed`, seen from the first cell."""
    found = 0
    for c, least in zip(tap, low, strict=True):
        found = found << 8 | c - least
    return found
