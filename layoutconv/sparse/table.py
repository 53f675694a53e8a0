"""Which row has a cell: sorted keys on a CPU, a hash table on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from .keys import key_strides, pack

if TYPE_CHECKING:
    from torch import Tensor

Offsets = Sequence[Sequence[int]]

# Neighbours looked up at once: 8 taps of 500k rows. Bounds the int64 temporaries to about 100 MB.
_CHUNK = 1 << 22


class Table(Protocol):
    """Rows by the cells they have.

    ``status`` is int32 (2,): 1 + the first row whose cell an earlier row has, or 0; and 1 + the
    first row outside the grid, or 0. A row whose batch is negative has no cell.
    """

    status: Tensor

    def search(self, centres: Tensor, stride: Sequence[int], offsets: Offsets) -> Tensor:
        """int32 (len(centres), taps), strides (1, len(centres)): the row of the cell at
        ``centre * stride + offset``, -1 where no row has it."""

    def search_own(self, offsets: Offsets) -> Tensor:
        """``search`` around the table's own cells; ``offsets`` are their own mirror image."""


def table_of(cells: Tensor, spatial_shape: Sequence[int], batch_size: int) -> Table:
    """The table of cells, int32 (rows, 1 + rank), where they are."""
    return SortedTable(cells, spatial_shape, batch_size)


class SortedTable:
    """Keys of cells in order, searched by halving, with torch on any device.

    >>> import torch
    >>> cells = torch.tensor([[0, 5], [0, 3], [0, 4]], dtype=torch.int32)
    >>> SortedTable(cells, (6,), 1).search(cells, (1,), [(-1,), (0,), (1,)])
    tensor([[ 2,  0, -1],
            [-1,  1,  2],
            [ 1,  2,  0]], dtype=torch.int32)
    """

    def __init__(self, cells: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
        import torch

        self.cells, self.shape, self.batch_size = cells, tuple(spatial_shape), batch_size
        limits = cells.new_tensor((batch_size, *self.shape))
        outside = ((cells < 0) | (cells >= limits)).any(1) & (cells[:, 0] >= 0)
        rows = (~outside & (cells[:, 0] >= 0)).nonzero()[:, 0]
        keys, order = torch.sort(pack(cells[rows], self._strides(0)), stable=True)
        self.rows = rows[order]  # of the cells that there are, in the order of their keys
        again = self.rows[1:][keys[1:] == keys[:-1]]
        self.status = torch.stack([_first(again), _first(outside.nonzero())])

    def _strides(self, halo: int | Sequence[int]) -> tuple[int, ...]:
        halo = (halo,) * len(self.shape) if isinstance(halo, int) else halo
        return key_strides(self.shape, self.batch_size, halo)

    def search(self, centres: Tensor, stride: Sequence[int], offsets: Offsets) -> Tensor:
        index = self._empty(centres, offsets)
        last = centres.amax(0).tolist()[1:] if len(centres) else self.shape
        reach = [e * s for e, s in zip(last, stride, strict=True)]
        strides = self._strides(self._halo(offsets, reach))
        at = centres * centres.new_tensor((1, *stride))  # images are not apart
        absent = centres[:, 0] < 0
        for taps, found in self._found(pack(at, strides), strides, offsets):
            index.T[taps] = found.masked_fill_(absent, -1)
        return index

    def search_own(self, offsets: Offsets) -> Tensor:
        import torch

        index = self._empty(self.cells, offsets)
        count = len(offsets)
        half = list(offsets)[: count // 2]
        halo = [max((abs(offset[axis]) for offset in half), default=0) for axis in self._axes]
        strides = self._strides(halo)
        # Asking in sorted order walks through the keys front to back, which caches like.
        for taps, found in self._found(self._keys(strides), strides, half):
            for tap, neighbours in enumerate(found, taps.start):
                there = neighbours >= 0
                rows, neighbours = self.rows[there], neighbours[there]
                index[rows, tap] = neighbours
                index[neighbours.long(), count - 1 - tap] = rows.int()
        if count % 2:
            index[self.rows, count // 2] = self.rows.to(torch.int32)
        return index

    @property
    def _axes(self) -> range:
        return range(len(self.shape))

    def _empty(self, centres: Tensor, offsets: Offsets) -> Tensor:
        import torch

        shape = len(offsets), len(centres)
        return torch.full(shape, -1, dtype=torch.int32, device=centres.device).T

    def _halo(self, offsets: Offsets, reach: Sequence[int]) -> list[int]:
        """Cells beyond the grid that are asked for, on the side where there are more of them."""
        steps = [[offset[axis] for offset in offsets] or [0] for axis in self._axes]
        modes = zip(self.shape, steps, reach, strict=True)
        return [max(0, -min(step), end + max(step) - (e - 1)) for e, step, end in modes]

    def _keys(self, strides: Sequence[int]) -> Tensor:
        """Of the cells that there are, sorted: their order does not depend on the halo."""
        return pack(self.cells[self.rows], strides)

    def _found(
        self, centres: Tensor, strides: Sequence[int], offsets: Offsets
    ) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the neighbours of ``centres``, keys, for some taps at a time: (taps, centres)."""
        import torch

        keys = self._keys(strides)
        if not len(keys) or not len(centres):
            return
        steps = [sum(c * d for c, d in zip(o, strides[1:], strict=True)) for o in offsets]
        deltas = keys.new_tensor(steps)
        taps_at_once = max(1, _CHUNK // len(centres))
        for start in range(0, len(offsets), taps_at_once):
            taps = slice(start, start + taps_at_once)
            wanted = centres + deltas[taps, None]
            place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
            yield taps, torch.where(keys[place] == wanted, self.rows[place], -1).int()


def _first(rows: Tensor) -> Tensor:
    """1 + the least of some rows, 0 if there are none."""
    return (rows.min() + 1 if rows.numel() else rows.new_zeros(())).int()
