"""Rows by cells: sorted keys on a CPU, a hash table on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from ...base.dry_hooks import dry_hooks
from .keys import MAX_KEY, fits_keys, key_strides, pack

if TYPE_CHECKING:
    from torch import Tensor

Offsets = Sequence[Sequence[int]]

# A search costs as much as 15 steps from one key to the next (90k rows, one core).
_WALK = 8


class Table(Protocol):
    """Rows by their cells.

    A row with a negative batch has no cell. If rows share a cell, the first has it.
    """

    @property
    def status(self) -> Tensor:
        """int32 (2,): 1 + the first row whose cell an earlier row has, or 0; and 1 + the first row
        outside the grid, or 0."""

    def verdict(self) -> tuple[int, int, bool]:
        """Return both, and whether a row has a negative batch; waits for the device."""

    def search(self, centres: Tensor, stride: Sequence[int], offsets: Offsets) -> Tensor:
        """Return int32 (len(centres), taps), strides (1, len(centres)): the row of the cell at
        ``centre * stride + offset``, -1 for none. A centre with a negative batch has no
        neighbours."""

    def search_own(self, offsets: Offsets) -> Tensor:
        """Search around the table's own cells; ``offsets`` are their own mirror image."""


def cell_table(cells: Tensor, spatial_shape: Sequence[int], batch_size: int) -> Table:
    """Return the table of cells, int32 (rows, 1 + rank), on their device."""
    if dry_hooks.covers(cells):
        return DryTable(cells, spatial_shape, batch_size)
    if cells.is_cuda:
        return _on_gpu()(cells, spatial_shape, batch_size)
    return SortedTable(cells, spatial_shape, batch_size)


@cache
def _on_gpu() -> Callable[[Tensor, Sequence[int], int], Table]:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps.build_map import HashTable

    return HashTable


class SortedTable:
    """Sorted keys of cells, with binary search, in torch on any device.

    Neighbours along the last axis are also neighbours among the sorted keys: of a filter's taps
    that follow each other there, one is searched, and the others are reached by walking.

    >>> import torch
    >>> cells = torch.tensor([[0, 5], [0, 3], [0, 4]], dtype=torch.int32)
    >>> SortedTable(cells, (6,), 1).search(cells, (1,), [(-1,), (0,), (1,)])
    tensor([[ 2,  0, -1],
            [-1,  1,  2],
            [ 1,  2,  0]], dtype=torch.int32)
    """

    def __init__(self, cells: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
        self.cells, self.shape, self.batch_size = cells, tuple(spatial_shape), batch_size
        strides = key_strides(self.shape, batch_size)
        limits = cells.new_tensor((batch_size, *self.shape))
        inside = ((cells >= 0) & (cells < limits)).all(1)
        outside = (~inside & (cells[:, 0] >= 0)).nonzero()
        rows = inside.nonzero()[:, 0]
        keys, order = _in_order(pack(cells.index_select(0, rows), strides))
        rows = rows.index_select(0, order)
        again = torch.zeros_like(keys, dtype=torch.bool)
        again[1:] = keys[1:] == keys[:-1]
        self.status = torch.stack([_first(rows[again]), _first(outside)])
        self.rows = rows[~again]  # of existing cells, in the order of their keys

    def verdict(self) -> tuple[int, int, bool]:
        return *self.status.tolist(), bool((self.cells[:, 0] < 0).any())

    def search(self, centres: Tensor, stride: Sequence[int], offsets: Offsets) -> Tensor:
        index = _nothing(centres, offsets)
        asking = ((centres[:, 0] >= 0) & (centres[:, 0] < self.batch_size)).nonzero()[:, 0]
        steps = centres.new_tensor((1, *stride), dtype=torch.int64)
        at = centres.index_select(0, asking).long() * steps
        # Search in sorted order, which walks through the keys front to back, as caches like it.
        order = _in_order(pack(at, key_strides(self.shape, self.batch_size)))[1]
        asking, at = asking.index_select(0, order), at.index_select(0, order)
        own = torch.cat([self.rows.int(), index.new_full((1,), -1)])  # a place may be past the end
        for tap, place, there in self._neighbours(at, offsets):
            found = own.index_select(0, place).masked_fill_(~there, -1)
            index[:, tap].scatter_(0, asking, found)
        return index

    def search_own(self, offsets: Offsets) -> Tensor:
        index = _nothing(self.cells, offsets)
        count = len(offsets)
        rows, own = self.rows, self.rows.int()
        at = self.cells.index_select(0, rows)
        for tap, place, there in self._neighbours(at, offsets[: count // 2]):
            one = there.nonzero()[:, 0]
            other = place.index_select(0, one)
            for t, row, neighbour in ((tap, one, other), (count - 1 - tap, other, one)):
                index[:, t].scatter_(0, rows.index_select(0, row), own.index_select(0, neighbour))
        if count % 2:
            index[:, count // 2].scatter_(0, rows, own)
        return index

    def _neighbours(self, at: Tensor, offsets: Offsets) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield for each tap, in any order: the places among ``rows`` that the neighbours of
        ``at``, integers (cells, 1 + rank), would have, and whether they exist."""
        if not len(at) or not len(self.rows) or not offsets:
            return
        halo = self._halo(at, offsets)
        if fits_keys(self.shape, self.batch_size, halo):
            yield from self._walked(at, offsets, key_strides(self.shape, self.batch_size, halo))
        else:
            yield from self._one_by_one(at, offsets)

    def _walked(
        self, at: Tensor, offsets: Offsets, strides: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Search in a grid with a halo, where a tap adds a constant to a key."""
        keys, centres = self._keys(strides), pack(at, strides)
        steps = [sum(c * d for c, d in zip(o, strides[1:], strict=True)) for o in offsets]
        for run in _runs(steps):
            step = steps[run[0]]
            wanted = centres + step
            place = torch.searchsorted(keys, wanted, out_int32=True)
            there = keys.index_select(0, place) == wanted
            for tap in run:
                for _ in range(steps[tap] - step):
                    place += there  # past the wanted key, if it exists
                    wanted += 1
                    there = keys.index_select(0, place) == wanted
                step = steps[tap]
                yield tap, place, there

    def _one_by_one(self, at: Tensor, offsets: Offsets) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Search where a halo would not fit into 64 bits: check the position of every neighbour."""
        strides = key_strides(self.shape, self.batch_size)
        keys = self._keys(strides)
        limits = at.new_tensor((self.batch_size, *self.shape))
        for tap, offset in enumerate(offsets):
            cells = at.long() + at.new_tensor((0, *offset), dtype=torch.int64)
            inside = ((cells >= 0) & (cells < limits)).all(1)
            wanted = pack(cells.masked_fill_(~inside[:, None], 0), strides)
            place = torch.searchsorted(keys, wanted, out_int32=True)
            yield tap, place, inside & (keys.index_select(0, place) == wanted)

    def _halo(self, at: Tensor, offsets: Offsets) -> list[int]:
        """Return how far neighbours lie beyond the grid, on the side where it is farther."""
        first, last = (bound.tolist()[1:] for bound in (at.amin(0), at.amax(0)))
        steps = list(zip(*offsets, strict=True))
        modes = zip(self.shape, first, last, steps, strict=True)
        return [max(0, -(a + min(s)), b + max(s) - (e - 1)) for e, a, b, s in modes]

    def _keys(self, strides: Sequence[int]) -> Tensor:
        """Return the keys of existing cells, whose order a halo does not change, and one that no
        cell has."""
        keys = pack(self.cells.index_select(0, self.rows), strides)
        return torch.cat([keys, keys.new_full((1,), MAX_KEY)])


def _in_order(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted keys and their stable order; cells of another map are mostly sorted already."""
    if (keys[1:] >= keys[:-1]).all():
        return keys, torch.arange(len(keys), device=keys.device)
    found = torch.sort(keys, stable=True)
    return found.values, found.indices


def _runs(steps: Sequence[int]) -> list[list[int]]:
    """Return taps, sorted by their steps of a key, in runs that are walked front to back."""
    taps = sorted(range(len(steps)), key=steps.__getitem__)
    runs = [taps[:1]]
    for before, tap in pairwise(taps):
        if steps[tap] - steps[before] > _WALK:
            runs.append([])
        runs[-1].append(tap)
    return runs


class DryTable(SortedTable):
    """Sorted keys, on any device, which also request a GPU table's kernels in a dry run.

    It may outlive the dry run, with the cells: then it is just sorted keys.
    """

    def __init__(self, cells: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
        super().__init__(cells, spatial_shape, batch_size)
        self._beside = dry_hooks.note(_on_gpu(), cells, spatial_shape, batch_size)

    def verdict(self) -> tuple[int, int, bool]:
        dry_hooks.note(getattr, self._beside, "memory")
        return super().verdict()

    def search(self, centres: Tensor, stride: Sequence[int], offsets: Offsets) -> Tensor:
        dry_hooks.note(self._beside.search, centres, stride, offsets)
        return super().search(centres, stride, offsets)

    def search_own(self, offsets: Offsets) -> Tensor:
        dry_hooks.note(self._beside.search_own, offsets)
        return super().search_own(offsets)

    def search_to_sort(
        self, centres: Tensor, stride: Sequence[int], offsets: Offsets, taps: object
    ) -> Tensor:
        """Do as ``search`` does, where a GPU would search and sort at once."""
        dry_hooks.note(self._beside.search_sorted, centres, taps)
        return super().search(centres, stride, offsets)


def _nothing(centres: Tensor, offsets: Offsets) -> Tensor:
    shape = len(offsets), len(centres)
    return torch.full(shape, -1, dtype=torch.int32, device=centres.device).T


def _first(rows: Tensor) -> Tensor:
    """Return 1 + the least of some rows, 0 if there are none."""
    return (rows.min() + 1 if rows.numel() else rows.new_zeros(())).int()
