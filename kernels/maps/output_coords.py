"""Output coordinates: the cells that a strided or transposed convolution reaches from its inputs.

Unless the grid is too large, an occupancy bitmap finds them; else their keys go into a hash set and
are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.errors import ArgumentError

from ..common.cells import cell_of, coordinates_per_access, key_of, per_axis, read_cell, write_cell
from ..common.dsl import Int32, Int64, Uint32, cute
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from . import per_rank
from .device_tables import Table
from .hash_table import EMPTY, bits_for, insert
from .occupancy_bitmap import cells_of_bits, suits
from .per_rank import PerRank, check_cells, check_grid, check_per_axis, check_table
from .tap_meeting import Meet, MetTaps

NO_KEY = 2**63 - 1  # sorts after every key
ROUND = 32  # taps between two counts: the bits of a mask


def reached(
    indices: Tensor,
    stride: Sequence[int],
    offsets: Sequence[Sequence[int]],
    spatial_shape: Sequence[int],
    batch_size: int,
    capacity: int | None = None,
    *,
    transposed: bool = False,
    as_bits: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the distinct cells of a grid that the cells of a cloud reach, on the cloud's GPU.

    Args:
        indices: int32 (rows, 1 + rank), ``(batch, z, y, x)``, of 1 to 4 spatial axes. Rows whose
            batch is negative, or not below ``batch_size``, reach nothing.
        stride: one positive integer per axis.
        offsets: one int32 per axis for each of the V taps.
        spatial_shape, batch_size: the grid of the reached cells.
        capacity: how many rows to return. By default as many as there are cells, for which the
            host waits once; with a capacity nothing waits.
        transposed: reach the cells ``x * stride + offset`` of the grid; otherwise every y for which
            ``y * stride + offset`` is some x.
        as_bits: whether to mark cells in an occupancy bitmap, which is in order already; by
            default by the size of the grid and the number of cells that may be reached.

    Returns the cells, int32 (cells, 1 + rank), in lexicographic order, and how many there are,
    int64 (). With a capacity, rows past the last cell have batch -1 and zeros, and if there are
    more cells than that, the first ones are returned.

    Raises ``ArgumentError`` for another type or shape of ``indices``, and for a grid of 2^63 cells
    or more.
    """
    grid = check_grid(spatial_shape, batch_size)
    rank = len(grid) - 1
    indices = check_cells("indices", indices, rank)
    if capacity is not None and not 0 <= capacity < 2**31:
        raise ArgumentError("capacity", "None, or from 0 to 2**31 - 1", capacity)
    if type(stride) is not tuple:
        stride = check_per_axis("stride", stride, rank)
    if type(offsets) is not tuple:
        offsets = check_table("offsets", offsets, rank)
    taps = _taps(offsets, stride, rank, transposed, indices.device)

    in_grid = prod(grid)
    most = min(indices.shape[0] * taps.at_once, in_grid)
    if most and (suits(in_grid, most) if as_bits is None else as_bits):
        return cells_of_bits(indices, taps, grid, capacity)
    bits = bits_for(most)
    device = indices.device
    # The set's slots, then its number of keys less one: everything starts at -1.
    memory = torch.full(((1 << bits) + 1,), EMPTY, dtype=torch.int64, device=device)
    if capacity is None:
        keys = torch.empty(most, dtype=torch.int64, device=device)
    else:
        keys = torch.full((max(most, capacity),), NO_KEY, dtype=torch.int64, device=device)
    if most:
        tensors = indices, memory, taps.table, keys
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        integers = indices.shape[0], bits, taps.count, *taps.steps, *grid
        per_rank.launch(_reach(rank), tensors, addresses, integers)
    count = memory[-1] + 1
    if capacity is None:
        keys = keys[: int(count) if most else 0]
    # Sort everything, not the first ``capacity``: only the GPU knows how many keys there are.
    keys = torch.sort(keys)[0][:capacity]
    cells = indices.new_empty((len(keys), 1 + rank))
    if most and len(keys):
        addresses = keys.data_ptr(), cells.data_ptr()
        per_rank.launch(_unpack(rank), (cells, keys), addresses, (len(keys), *grid))
    elif len(keys):  # a grid without cells has no extents to divide by
        cells.zero_()[:, 0] = -1
    return cells, count


@remembered(128)
def _taps(
    offsets: Table, stride: tuple[int, ...], rank: int, transposed: bool, device: Any
) -> MetTaps:
    steps = check_per_axis("stride", stride, rank)
    return MetTaps(check_table("offsets", offsets, rank), steps, transposed, device)


class Reach(Meet):
    """Insert the keys of reached cells into a set, and append new ones to a list, in any order."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return (
            ("int32", 4 * coordinates_per_access(self.rank)),
            ("int64", 8),
            ("int32", 4),
            ("int64", 8),
        )

    def integers(self) -> int:
        return 4 + 3 * self.rank

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        cells, keys, table, found = pointers
        rows, bits, taps, *rest = integers
        rank = self.rank
        times, over, grid = per_axis(rest, rank, 2)
        row, tid = self.row_of_thread()
        # No thread leaves: the lanes of a warp count together.
        present = row < rows
        cell = read_cell(cells, select(present, row, rows - 1), rank)
        starts, rests = self.divided(cell, times, over)

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


class Unpack(PerRank):
    """Write the cells of keys; padding for ``NO_KEY``."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int64", 8), ("int32", 4 * coordinates_per_access(self.rank))

    def integers(self) -> int:
        return 2 + self.rank

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        keys, cells = pointers
        rows, *grid = integers
        row, _ = self.row_of_thread()
        if row < rows:
            key = at(keys, row)
            absent = key == NO_KEY
            batch, *rest = cell_of(select(absent, Int64(0), key), grid)
            write_cell(cells, row, [select(absent, Int64(-1), batch), *rest])


def reserve(counter: Any, count: Any, lane: Any) -> Any:
    """Return the first of ``count`` places for every lane of a warp, with one atomic addition.

    The counter holds the number of places taken, less one.
    """
    upto = Int32(count)
    for bit in range(5):
        below = cute.arch.shuffle_sync_up(upto, 1 << bit)
        upto = select(lane >= (1 << bit), upto + below, upto)
    return taken(counter, upto, count, lane)


@cute.jit
def taken(counter: Any, upto: Any, count: Any, lane: Any) -> Any:
    before: Any = Int64(0)
    if (lane == 31) & (upto > 0):
        before = cute.arch.atomic_add(counter, Int64(upto))
    before = Int64(cute.arch.shuffle_sync(before, 31))
    return before + 1 + upto - count


_reach, _unpack = remembered(128)(Reach), remembered(16)(Unpack)
