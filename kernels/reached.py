"""The cells that a convolution with a stride, or a transposed one, reaches from a cloud's.

A cell x and a tap t of offset o meet at y: forwards where x = y * stride + o, transposed at
y = x * stride + o. Both are ``floor(x * m / d) + shift[t]``, with (m, d) = (1, stride) or
(stride, 1), where the remainder of the division is that of the tap: no tap is divided for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, range_constexpr

from layoutconv.errors import ArgumentError

from . import per_rank
from .cells import cell_of, inside, key_of, read_cell, vector_of, write_cell
from .hash_table import EMPTY, bits_for, insert
from .per_rank import (
    PerRank,
    Table,
    check_cells,
    check_grid,
    check_per_axis,
    check_table,
    device_table,
)
from .walk import at, put, select

if TYPE_CHECKING:
    from torch import Tensor

NO_KEY = 2**63 - 1  # sorts behind every key
ROUND = 32  # taps between two counts: bits of a mask


def reached(
    indices: Tensor,
    stride: Sequence[int],
    offsets: Sequence[Sequence[int]],
    spatial_shape: Sequence[int],
    batch_size: int,
    capacity: int | None = None,
    *,
    transposed: bool = False,
) -> tuple[Tensor, Tensor]:
    """The distinct cells of a grid that some cell of a cloud reaches, on the cloud's GPU.

    Args:
        indices: int32 (rows, 1 + rank), ``(batch, z, y, x)``, of 1 to 4 spatial axes. Rows of a
            batch below 0 or not below ``batch_size`` reach nothing.
        stride: one positive integer per axis.
        offsets: of the V taps, one int32 per axis each.
        spatial_shape, batch_size: the grid of the cells that are reached.
        capacity: how many rows to return. Without it as many as there are cells, which waits for
            the GPU once; with it nothing waits.
        transposed: cells ``x * stride + offset`` of the grid; otherwise those y whose
            ``y * stride + offset`` is some x.

    Returns the cells, int32 (cells, 1 + rank), in lexicographic order, and how many there are,
    int64 (). With a capacity, those past the last have the batch -1 and zeros, and of more cells
    than that the first are returned.

    Raises ``ArgumentError`` for another type or shape of ``indices``, and for a grid of 2^63 cells
    or more.
    """
    import torch

    grid = check_grid(spatial_shape, batch_size)
    rank = len(grid) - 1
    indices = check_cells("indices", indices, rank)
    steps = check_per_axis("stride", stride, rank)
    taps = check_table("offsets", offsets, rank)
    if capacity is not None and not 0 <= capacity < 2**31:
        raise ArgumentError("capacity", "None, or from 0 to 2**31 - 1", capacity)
    ones = (1,) * rank
    times, over = (steps, ones) if transposed else (ones, steps)
    table, at_once = _shifts_and_rests(taps, over, transposed)

    most = min(len(indices) * at_once, prod(grid))
    bits = bits_for(most)
    device = indices.device
    # The set's slots, and how many keys it has, less one, as everything is filled with -1.
    memory = torch.full(((1 << bits) + 1,), EMPTY, dtype=torch.int64, device=device)
    if capacity is None:
        keys = torch.empty(most, dtype=torch.int64, device=device)
    else:
        keys = torch.full((max(most, capacity),), NO_KEY, dtype=torch.int64, device=device)
    if most:
        rests = device_table(table, device)
        tensors = indices, memory, rests, keys
        sizes = len(indices), bits, len(table)
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        per_rank.launch(Reach(rank), tensors, addresses, (*sizes, *times, *over, *grid))
    count = memory[-1] + 1
    if capacity is None:
        keys = keys[: int(count) if most else 0]
    # Everything is sorted, not the first ``capacity``: how many there are, the GPU alone knows.
    keys = torch.sort(keys)[0][:capacity]
    cells = indices.new_empty((len(keys), 1 + rank))
    if most and len(keys):
        addresses = keys.data_ptr(), cells.data_ptr()
        per_rank.launch(Unpack(rank), (cells, keys), addresses, (len(keys), *grid))
    elif len(keys):  # a grid without cells has no extents to divide by
        cells.zero_()[:, 0] = -1
    return cells, count


@lru_cache(1024)
def _shifts_and_rests(taps: Table, over: tuple[int, ...], transposed: bool) -> tuple[Table, int]:
    """What taps add to a quotient, and the remainder that they need, per axis; none twice.

    With how many of them one cell meets at most, which is how many have the same remainders.

    >>> _shifts_and_rests(((-1,), (0,), (1,)), (2,), False)  # y is x // 2 + 1, x // 2 and x // 2
    (((1, 1), (0, 0), (0, 1)), 2)
    >>> _shifts_and_rests(((-1,), (0,), (1,)), (1,), True)
    (((-1, 0), (0, 0), (1, 0)), 3)
    """
    rows = []
    for tap in taps:
        parts = [divmod(c, d) for c, d in zip(tap, over, strict=True)]
        shifts = tap if transposed else tuple(-quotient for quotient, _ in parts)
        rows.append((*shifts, *(rest for _, rest in parts)))
    table = tuple(dict.fromkeys(rows))
    return table, max(Counter(row[len(over) :] for row in table).values(), default=0)


class Reach(PerRank):
    """Keys of what a cloud reaches into a set, and those that are new into a list, in any order."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 8), ("int32", 4), ("int64", 8)

    def integers(self) -> int:
        return 4 + 3 * self.rank

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        cells, keys, table, found = pointers
        rows, bits, taps, *rest = integers
        rank = self.rank
        times, over, grid = rest[:rank], rest[rank : 2 * rank], rest[2 * rank :]
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * per_rank.THREADS + tid
        # No thread leaves: warps count together.
        present = row < rows
        cell = read_cell(cells, select(present, row, rows - 1), rank)
        starts, rests = [cell[0]], []
        for axis in range_constexpr(rank):
            product = cell[1 + axis] * times[axis]
            quotient = product // over[axis]
            starts.append(quotient)
            rests.append(product - quotient * over[axis])

        for first in range(Int64(0), taps, ROUND):
            fresh = Uint32(0)
            for tap in range(first, select(first + ROUND < taps, first + ROUND, taps)):
                to, there = self.meet(table, starts, rests, grid, tap)
                if present & there:
                    _, new = insert(keys, key_of(to, grid), bits)
                    if new:
                        fresh = fresh | (Uint32(1) << Uint32(tap - first))
            place = reserve(keys + (Int64(1) << bits), cute.arch.popc(fresh), tid & 31)
            for tap in range(first, select(first + ROUND < taps, first + ROUND, taps)):
                if ((fresh >> Uint32(tap - first)) & Uint32(1)) != Uint32(0):
                    to, _ = self.meet(table, starts, rests, grid, tap)
                    put(found, place, key_of(to, grid))
                    place = place + 1

    def meet(self, table: Any, starts: Any, rests: Any, grid: Any, tap: Any) -> Any:
        """Where a cell meets a tap, and whether it does, in the grid."""
        to = [starts[0]]
        differ = Int64(0)
        for axis in range(self.rank):
            to.append(starts[1 + axis] + at(table, tap * (2 * self.rank) + axis))
            wanted = at(table, tap * (2 * self.rank) + self.rank + axis)
            differ = differ | (rests[axis] ^ wanted)
        return to, inside(to, grid) & (differ == 0)


class Unpack(PerRank):
    """The cells of keys; padding for ``NO_KEY``."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 8), ("int32", 4 * vector_of(self.rank))

    def integers(self) -> int:
        return 2 + self.rank

    @cute.kernel
    def kernel(self, pointers: list, integers: tuple):
        keys, cells = pointers
        rows, *grid = integers
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        row = Int64(cta) * per_rank.THREADS + tid
        if row < rows:
            key = at(keys, row)
            absent = key == NO_KEY
            batch, *rest = cell_of(select(absent, Int64(0), key), grid)
            write_cell(cells, row, [select(absent, Int64(-1), batch), *rest])


def reserve(counter: Any, count: Any, lane: Any) -> Any:
    """The first of ``count`` places of every lane of a warp, by one atomic addition.

    The counter holds how many places are taken, less one.
    """
    upto = Int32(count)
    for bit in range(5):
        below = cute.arch.shuffle_sync_up(upto, 1 << bit)
        upto = select(lane >= (1 << bit), upto + below, upto)
    return taken(counter, upto, count, lane)


@cute.jit
def taken(counter: Any, upto: Any, count: Any, lane: Any):
    before: Any = Int64(0)
    if (lane == 31) & (upto > 0):
        before = cute.arch.atomic_add(counter, Int64(upto))
    before = Int64(cute.arch.shuffle_sync(before, 31))
    return before + 1 + upto - count
