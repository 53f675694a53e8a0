"""Kernel maps of sparse convolution: which row has the cell that a tap of a row points to.

A cloud's rows go into a hash table once, ``HashTable``; then a filter's taps are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, range_constexpr

from layoutconv.errors import ArgumentError

from . import per_rank
from .cells import inside, key_of, read_cell, vector_of
from .hash_table import EMPTY, NOWHERE, bits_for, find, held, home, insert
from .per_rank import (
    PerRank,
    Table,
    check_cells,
    check_grid,
    check_per_axis,
    check_table,
    device_table,
)
from .walk import select

if TYPE_CHECKING:
    from torch import Tensor

# Look-ups of a thread that are under way at once: four slots are read, then four values.
FLIGHT = 4


class HashTable:
    """Which row of a cloud has a cell, on the GPU where the cloud is.

    Args:
        indices: int32 (rows, 1 + rank), ``(batch, z, y, x)``, of 1 to 4 spatial axes, in any order.
            A row of a negative batch is padding: it is in no cell.
        spatial_shape: extents ``(D, H, W)`` of the grid.
        batch_size: number of grids. All of them together have fewer than 2^63 cells.

    Rows outside the grid are left out; of rows of one cell the lowest has it. ``status`` tells.
    Launches go to torch's current stream, and nothing waits for them. Results do not depend on the
    order in which threads run.

    Raises ``ArgumentError`` for another type or shape of ``indices`` and for such a grid.
    """

    def __init__(self, indices: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
        import torch

        self.grid = check_grid(spatial_shape, batch_size)
        self.indices = check_cells("indices", indices, self.rank)
        rows = len(indices)
        self._bits = bits_for(rows)
        slots = 1 << self._bits
        # Keys, values and status in one piece that is filled at once: with EMPTY, and with -1,
        # which is the greatest unsigned number, to take minima from.
        memory = torch.full(
            (slots + slots // 2 + 1,), EMPTY, dtype=torch.int64, device=indices.device
        )
        self._keys, self._values = memory[:slots], memory[slots:].view(torch.int32)
        self._launch(Insert, rows, (self.indices, self._keys, self._values), (rows, self._bits))

    @property
    def rank(self) -> int:
        return len(self.grid) - 1

    @property
    def status(self) -> Tensor:
        """int32 (2,), where the cloud is: what is wrong with it.

        First the lowest row whose cell an earlier row has, plus 1; then the lowest row that is
        outside the grid and no padding, plus 1. Each is 0 if there is none.
        """
        return self._values[-2:] + 1

    def search(
        self, centres: Tensor, stride: Sequence[int], offsets: Sequence[Sequence[int]]
    ) -> Tensor:
        """The rows of the cells ``(batch, centre * stride + offset)``.

        Args:
            centres: int32 (centres, 1 + rank), on the same device. A row of a negative batch finds
                nothing.
            stride: one integer per axis.
            offsets: of the V taps, one int32 per axis each.

        Returns int32 (centres, V) of strides ``(1, centres)``: -1 where no row has the cell.
        """
        centres = check_cells("centres", centres, self.rank, self.indices.device)
        step = check_per_axis("stride", stride, self.rank)
        taps = check_table("offsets", offsets, self.rank)
        index = self._new_index(len(centres), len(taps))
        self._look_up(centres, step, taps, index, mirrored=False)
        return index.T

    def search_own(self, offsets: Sequence[Sequence[int]]) -> Tensor:
        """``search(indices, (1, ...), offsets)``, bit for bit, of a filter that is its own mirror.

        Where ``offsets[V - 1 - t] == -offsets[t]`` for every tap, row i reads row j at tap t if,
        and only if, j reads i at the tap across: half of the taps are looked up.

        Raises ``ArgumentError`` for other offsets.
        """
        taps = check_table("offsets", offsets, self.rank)
        _check_mirrored(taps)
        index = self._new_index(len(self.indices), len(taps))
        index[len(taps) - len(taps) // 2 :].fill_(-1)
        self._look_up(self.indices, (1,) * self.rank, taps, index, mirrored=True)
        return index.T

    def _new_index(self, rows: int, taps: int) -> Tensor:
        return self.indices.new_empty((taps, rows))

    def _look_up(
        self, centres: Tensor, stride: tuple[int, ...], taps: tuple[tuple[int, ...], ...],
        index: Tensor, mirrored: bool,
    ) -> None:  # fmt: skip
        if not index.numel():
            return
        if not len(self.indices) or not prod(self.grid):
            index.fill_(-1)
            return
        table = device_table(taps, index.device)
        tensors = centres, self._keys, self._values, table, index
        sizes = index.shape[1], self._bits, index.shape[0], int(mirrored)
        self._launch(Search, index.shape[1], tensors, (*sizes, *stride))

    def _launch(self, kind: Any, rows: int, tensors: Any, integers: Any) -> None:
        if rows:
            flat = tuple(t.view(-1) for t in tensors)
            per_rank.launch(kind(self.rank), flat, (*integers, *self.grid))


@lru_cache(1024)
def _check_mirrored(taps: Table) -> None:
    for tap, across in zip(taps, reversed(taps), strict=True):
        if tap != tuple(-c for c in across):
            expected = "the negative of every tap across the middle"
            raise ArgumentError("offsets", expected, f"{tap} across from {across}")


class Insert(PerRank):
    """Rows into a table of keys (EMPTY before) and values (-1 before, the status after them)."""

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(rank)), ("int64", 8), ("int32", 8)

    @staticmethod
    def integers(rank: int) -> int:
        return 3 + rank

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        cells, keys, values = pointers
        rows, bits, *grid = integers
        status = values + (Int64(1) << bits)
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * per_rank.THREADS + tid
        if row < rows:
            cell = read_cell(cells, row, self.rank)
            if inside(cell, grid):
                slot, _ = insert(keys, key_of(cell, grid), bits)
                # Of two rows of a cell, whichever comes second sees the first one's number here,
                # or that of a lower one: so the second lowest row of a cell is always told of.
                other = cute.arch.atomic_min(values + slot, Uint32(row))
                if other != Uint32(0xFFFFFFFF):
                    later = select(Uint32(row) > other, Uint32(row), other)
                    cute.arch.atomic_min(status, later)
            elif cell[0] >= 0:
                cute.arch.atomic_min(status + 1, Uint32(row))


class Search(PerRank):
    """The rows of the taps of centres, a thread a centre, rows of the index side by side.

    A warp writes 128 bytes in a row at every tap. All taps of a centre are in one CTA: its rows'
    neighbourhoods overlap, and are read again from the L1 cache. What a thread waits for is the
    table, so four look-ups are under way at once, and branch only where a slot has another's key.
    """

    @staticmethod
    def tensors(rank: int) -> tuple[tuple[str, int], ...]:
        cells, word = ("int32", 4 * vector_of(rank)), ("int32", 4)
        return cells, ("int64", 8), ("int32", 8), word, word

    @staticmethod
    def integers(rank: int) -> int:
        return 5 + 2 * rank

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        cells, _, values, _, index = pointers
        rows, bits, taps, mirrored, *rest = integers
        stride, grid = rest[: self.rank], rest[self.rank :]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * per_rank.THREADS + tid
        if row < rows:
            cell = read_cell(cells, row, self.rank)
            start = [cell[0]] + [c * s for c, s in zip(cell[1:], stride, strict=True)]
            # A row that has its cell fills both halves of a filter that is its own mirror. Where
            # two rows share a cell, or a row is outside, every tap is looked up.
            duplicate = at(values, Int64(1) << bits)
            half = (mirrored != 0) & (duplicate == -1) & inside(cell, grid)
            count = select(half, taps >> 1, taps)
            for i in range((count + FLIGHT - 1) // FLIGHT):
                self.step(pointers, integers, start, grid, row, i * FLIGHT, count, half)
            if half & ((taps & 1) != 0):
                put(index, (taps >> 1) * rows + row, Int32(row))

    @cute.jit
    def step(
        self, pointers: list, integers: tuple, start: list, grid: list, row: Any, first: Any,
        count: Any, half: Any,
    ):  # fmt: skip
        """``FLIGHT`` taps from ``first`` on; past the last, the last is read again."""
        _, keys, values, offsets, index = pointers
        rows, bits, taps = integers[:3]
        wanted = []
        for u in range_constexpr(FLIGHT):
            tap = select(first + u < count, first + u, count - 1)
            cell = [start[0]]
            for axis in range_constexpr(self.rank):
                cell.append(start[1 + axis] + at(offsets, tap * self.rank + axis))
            there = inside(cell, grid)
            key = key_of(cell, grid)
            slot = select(there, home(key, bits), Int64(0))
            seen = held(keys, slot)
            key = select(there, key, Int64(NOWHERE))
            wanted.append((key, slot, select(there, seen, Int64(EMPTY))))
        slots = []
        for u in range_constexpr(FLIGHT):
            key, slot, seen = wanted[u]
            slots.append(find(keys, slot, seen, key, bits))
        found = []
        for u in range_constexpr(FLIGHT):
            value = at(values, select(slots[u] >= 0, slots[u], Int64(0)))
            found.append(select(slots[u] >= 0, value, Int32(-1)))
        for u in range_constexpr(FLIGHT):
            if first + u < count:
                put(index, (first + u) * rows + row, found[u])
                if half & (found[u] >= 0):
                    put(index, (taps - 1 - first - u) * rows + found[u], Int32(row))


def at(pointer: Any, offset: Any) -> Any:
    return cute.make_tensor(pointer + offset, cute.make_layout(1))[0]


def put(pointer: Any, offset: Any, value: Any) -> None:
    cute.make_tensor(pointer + offset, cute.make_layout(1))[0] = value
