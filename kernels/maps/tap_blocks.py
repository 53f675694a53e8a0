"""Taps around a centre's cell: which blocks they are in, and at which bits.

The 27 cells around one are in 3.4 blocks of 4 x 4 x 4 on average, 8 at most. A thread looks them
up at once, and keeps their cells in shared memory.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from layoutconv.base.caches import remembered

from ..common.cells import Cell, coordinates_per_access, inside
from ..common.dsl import Int32, Int64, Uint32, Uint64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import select
from .block_slots import OfSlots, another, look_further, look_up, read_home
from .block_table import EDGES, bit_of, block_of, blocks_of, has_wide_keys, key_of_block
from .cooperative import EachRow
from .hash_table import NOWHERE

# In a grid of extents up to SMALL, a coordinate at most NEAREST away that overflows is outside.
SMALL, NEAREST = 2**30, 64
LOWEST = -(2**31)  # the sign bit of an Int32

# Positions of taps, from the first cell.
Known = tuple[tuple[int, ...], ...] | None


def upper(number: Any) -> Any:
    """Return the upper 32 bits of a number, which have its sign."""
    return number if number.width == 32 else Int32(number >> 32)


class TapLookup(OfSlots, EachRow):
    """Base of kernels that look up the cells of taps around centres; one thread per centre.

    If ``near``, all taps of a centre are in two blocks per axis: the kernel first looks these up,
    keeps their cells in shared memory, and then a tap is a shift. Otherwise every tap looks up its
    own block. If they are ``unit``, coordinates of first cells have 32 bits: the grid's extents are
    ``SMALL``, and one that overflows becomes ``LOWEST``, from which no tap reaches the grid.
    """

    at_once = 8  # narrow home slots that a thread reads at once: as many as fit into 64 registers

    def __init__(self, rank: int, near: bool, wide: bool = False, unit: bool = False) -> None:
        super().__init__(rank, wide)
        self.near, self.unit = near, unit

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.near, self.unit

    def coordinate(self, number: Any) -> Any:
        """Convert a number to the type of first-cell coordinates."""
        return Int32(number) if self.unit else number

    def start_of(self, cell: Cell, stride: Any, low: Any) -> Cell:
        """Return the first cell of the taps of a centre."""
        moved = [c * s + o for c, s, o in zip(cell[1:], stride, low, strict=True)]
        if self.unit:
            short = [Int32(c) for c in moved]
            exact = [Int64(n) == c for n, c in zip(short, moved, strict=True)]
            moved = [select(e, n, Int32(LOWEST)) for e, n in zip(exact, short, strict=True)]
        return [self.coordinate(cell[0]), *moved]

    def packed(self, start: Cell, axes: int) -> Any:
        """Pack a cell's position in its block, 8 bits an axis, 0 behind the first ``axes``; the
        packed offset of a tap adds to it."""
        found = Int32(0)
        for c, b in zip(start[1 : 1 + axes], EDGES[self.rank], strict=False):
            found = (found << 8) | (Int32(c) & ((1 << b) - 1))
        return found << 8 * (self.rank - axes)

    def corner_and_bit(self, where: Any, axes: int) -> tuple[Any, Any]:
        """Split a packed cell: return the number of its block, and its bit there; the first such
        block, and the first bit, on later axes."""
        corner, bit, low = Int32(0), Int32(0), sum(EDGES[self.rank][axes:])
        for axis in reversed(range(axes)):
            # One shift and one mask move each field to where its bits belong.
            b, field = EDGES[self.rank][axis], 8 * (self.rank - 1 - axis)
            side = self.rank - 1 - axis
            corner = corner | ((where >> (field + b - side)) & (1 << side))
            bit = bit | ((where >> (field - low)) & (((1 << b) - 1) << low))
            low += b
        return corner, bit

    def places_of(self, taps: Any, start: Cell) -> list[tuple[Any, Any]]:
        """Return the block number and the bit of each tap, whose positions are constants."""
        parts: list[dict[int, tuple[Any, Any]]] = []
        low = sum(EDGES[self.rank])
        for axis, b in enumerate(EDGES[self.rank]):
            low -= b
            first, side = Int32(start[1 + axis]) & ((1 << b) - 1), self.rank - 1 - axis
            there = {}
            for step in sorted({tap[axis] for tap in taps}):
                c = first + step
                there[step] = (c >> b) << side, (c & ((1 << b) - 1)) << low
            parts.append(there)
        found = []
        for tap in taps:
            corner, bit = Int32(0), Int32(0)
            for there, step in zip(parts, tap, strict=True):
                corner, bit = corner | there[step][0], bit | there[step][1]
            found.append((corner, bit))
        return found

    @cute.jit
    def look_around(
        self, slots: Any, start: AnyList, span: AnyList, grid: AnyList, bits: Any, tid: Any,
        arrays: AnyList,
    ) -> None:  # fmt: skip
        """Look up every block that taps reach, and keep their cells, 0 for absent ones.

        The home slots of all blocks are read at once. Few blocks are elsewhere: a loop looks for
        these, one of each thread at a time.
        """
        grid = [self.coordinate(extent) for extent in grid]
        key, strides = key_of_block(start, grid, self.kind), self.strides(grid)
        keys = self.keys_around(key, strides, self.signs(start, span, grid))
        pending = self.look_home(slots, keys, bits, tid, arrays)
        while pending != 0:
            corner = 31 - Int32(cute.arch.clz(pending))
            pending = pending ^ (Int32(1) << corner)
            own = key
            for axis in range_constexpr(self.rank):
                further = (corner >> (self.rank - 1 - axis)) & 1 != 0
                own = select(further, own + strides[axis], own)
            self.keep(arrays, tid, corner, *look_further(slots, own, bits))

    def keys_around(self, key: Any, strides: list[Any], of_signs: AnyTuple) -> list[Any]:
        """Return the keys of all blocks, negative where there is none or where no tap reaches."""
        nears, fars, image = of_signs
        keys, signs = [key], [image]
        for near, far, stride in zip(nears, fars, strides, strict=True):
            keys = [own + step for own in keys for step in (0, stride)]
            signs = [sign | side for sign in signs for side in (near, far)]
        return [own | self.kind(sign & LOWEST) for own, sign in zip(keys, signs, strict=True)]

    def look_home(self, slots: Any, keys: list[Any], bits: Any, tid: Any, arrays: Any) -> Any:
        """Keep the cells of blocks that are in their home slots; return a bit for each other one
        that is to be looked for."""
        pending, at_once = Int32(0), self.at_once * 32 // self.kind.width
        for some in range(0, len(keys), at_once):
            found = [read_home(slots, own, bits) for own in keys[some : some + at_once]]
            for corner, (seen, first, free) in enumerate(found, some):
                own = keys[corner]
                self.keep(arrays, tid, corner, first, select(seen == own, ~free, Int64(0)))
                pending = pending | select(another(own, seen), Int32(1 << corner), Int32(0))
        return pending

    def keep(self, arrays: Any, tid: Any, corner: Any, first: Any, word: Any) -> None:
        """Keep the cells of a block, and its first place if there is an array for it."""
        arrays[0][tid, corner] = word
        if len(arrays) > 1:
            arrays[1][tid, corner] = first

    def strides(self, grid: Any) -> list[Any]:
        """Return the distances of keys of adjacent blocks, by axis."""
        found = [self.kind(1)]
        for extent in reversed(blocks_of(grid)[2:]):
            found.insert(0, found[0] * self.kind(extent))
        return found

    def signs(self, start: Cell, span: Any, grid: Any) -> tuple[list[Any], list[Any], Any]:
        """Return numbers that are negative where there is no block, or where taps do not reach it:
        of the near and of the far block on each axis, and of the image."""
        blocks, first = blocks_of(grid), block_of(start)
        nears, fars = [], []
        for axis, b in enumerate(EDGES[self.rank]):
            here, extent = first[1 + axis], self.coordinate(blocks[1 + axis])
            reach = (Int32(start[1 + axis]) & ((1 << b) - 1)) + (Int32(span[axis]) - (1 << b))
            nears.append(upper(here | (extent - 1 - here)))
            fars.append(upper((here + 1) | (extent - 2 - here)) | reach)
        return nears, fars, upper(start[0] | (self.coordinate(blocks[0]) - 1 - start[0]))

    @cute.jit
    def block(self, slots: Any, cell: AnyList, grid: AnyList, bits: Any) -> Any:
        """Return a cell's block: its first place, its cells (0 if absent); and the cell's bit."""
        key = select(inside(cell, grid), key_of_block(cell, grid, self.kind), self.kind(NOWHERE))
        first, word = look_up(slots, key, bits)
        return first, word, bit_of(cell)


class KeyLookup(TapLookup):
    """Base of lookups that compute sort keys.

    Tensors: cells, slots, the table of taps, and keys. Integers: rows, bits, and the grid.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word, vector = ("int32", 4), ("int32", 16)
        return ("int32", 4 * coordinates_per_access(self.rank)), ("int64", 16), vector, word

    def integers(self) -> int:
        return 3 + self.rank


class RowLookup(TapLookup):
    """Base of lookups that write rows of an index.

    Tensors: slots, values, cells, the table of taps, the order of rows, and the index. Integers:
    rows, bits, whether there is an order, and the grid.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word, vector = ("int32", 4), ("int32", 16)
        cell = "int32", 4 * coordinates_per_access(self.rank)
        return ("int64", 16), word, cell, vector, word, word

    def integers(self) -> int:
        return 4 + self.rank


@remembered(1024)
def key_kind(grid: tuple[int, ...]) -> tuple[bool, bool]:
    """Return whether a grid's keys are wide, and whether its extents are ``SMALL``.

    >>> key_kind((2, 41, 1600, 1408)), key_kind((1, 2**31 - 1)), key_kind((9, 8192, 8192, 2048))
    ((False, True), (False, False), (True, True))
    """
    return has_wide_keys(grid), max(grid) <= SMALL


def cells_from(start: Cell, words: list[Any]) -> Any:
    """Return the cells of a block that would begin at any cell, from the blocks that it overlaps.

    For each axis, pairs of adjacent blocks merge: in every field, the cells that differ on this
    axis and later ones, the lower cells come from the first block, the rest from the second.
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
        back = (width - by) & 31  # 32 only for ``by`` 0, which takes nothing
        halves = [
            (((a >> by) & ours) | ((d << back) & ~ours), ((z >> by) & ours) | ((e << back) & ~ours))
            for (a, z), (d, e) in pairs
        ]
        low += b
    raise AssertionError


def geometry(
    taps: tuple[tuple[int, ...], ...], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return the least offset of taps per axis, the span from it, and whether all taps are near.

    >>> geometry(((-1,), (0,), (1,)), 1), geometry(((-1, 0), (8, 0)), 2)
    (((-1,), (2,), True), ((-1, 0), (9, 0), False))
    """
    axes = list(zip(*taps, strict=True)) if taps else [(0,)] * rank
    low = tuple(map(min, axes))
    span = tuple(max(axis) - least for axis, least in zip(axes, low, strict=True))
    near = all(reach <= 1 << b for reach, b in zip(span, EDGES[rank], strict=True))
    return low, span, near


def grid_of_taps(taps: tuple[tuple[int, ...], ...]) -> Known:
    """Return taps relative to the least one, if they fill a grid, the last axis fastest; else None.

    >>> grid_of_taps(((-1, 2), (-1, 4), (1, 2), (1, 4))), grid_of_taps(((0, 0), (1, 1)))
    (((0, 0), (0, 2), (2, 0), (2, 2)), None)
    """
    axes = [sorted(set(axis)) for axis in zip(*taps, strict=True)]
    if not taps or taps != tuple(product(*axes)):
        return None
    return tuple(product(*([c - axis[0] for c in axis] for axis in axes)))
