"""Kernel maps by sorted keys, and sums over them tap by tap, in float64.

Nothing here is the library's: a cell is an integer, its place in the grid, and rows are found by
``searchsorted``. A map is (rows of the result, taps): the row that a tap reads, -1 for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

Cell = tuple[int, ...]


def offsets_of(
    taps: Sequence[int], dilation: Sequence[int], near: Sequence[int]
) -> tuple[Cell, ...]:
    """The cell that each tap reads, seen from its output's; the last mode runs fastest."""
    steps = zip(taps, dilation, near, strict=True)
    return tuple(product(*([t * d - n for t in range(count)] for count, d, n in steps)))


def keys_of(cells: Tensor, shape: Sequence[int]) -> Tensor:
    """The place of cells (batch, z, y, x) in their grids, int64."""
    key = cells[:, 0].long()
    for mode, extent in enumerate(shape, start=1):
        key = key * extent + cells[:, mode].long()
    return key


def cells_of(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the cells that ``keys_of`` turned into ``keys``."""
    modes = []
    for extent in reversed(shape):
        modes.append(keys % extent)
        keys = keys.div(extent, rounding_mode="floor")
    return torch.stack([keys, *reversed(modes)], 1)


def inside(cells: Tensor, shape: Sequence[int]) -> Tensor:
    """Which cells lie in a grid; those of batch -1 do not."""
    extents = torch.tensor(shape, device=cells.device)
    place = cells[:, 1:]
    return ((place >= 0) & (place < extents)).all(1) & (cells[:, 0] >= 0)


@dataclass(frozen=True)
class Rows:
    """Rows of cells, found by their keys."""

    shape: tuple[int, ...]
    keys: Tensor
    order: Tensor

    @classmethod
    def of(cls, cells: Tensor, shape: Sequence[int]) -> Rows:
        there = (cells[:, 0] >= 0).nonzero()[:, 0]
        keys, order = keys_of(cells[there], shape).sort()
        return cls(tuple(shape), keys, there[order])

    def find(self, cells: Tensor) -> Tensor:
        """The row of each cell, -1 where there is none."""
        found = torch.full((len(cells),), -1, device=cells.device)
        there = inside(cells, self.shape).nonzero()[:, 0]
        if not len(self.keys) or not len(there):
            return found
        keys = keys_of(cells[there], self.shape)
        at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        found[there] = torch.where(self.keys[at] == keys, self.order[at], -1)
        return found


@dataclass(frozen=True)
class Window:
    """Taps of a filter and their steps: output ``y`` reads input ``y * stride + offset``.

    Of a transposed one input ``x`` feeds output ``x * stride + offset``.
    """

    stride: tuple[int, ...]
    offsets: tuple[Cell, ...]
    transposed: bool = False

    def read(self, outputs: Tensor, tap: int) -> Tensor:
        """The cell that each output reads through a tap; batch -1 where there is none."""
        step = torch.tensor((1, *self.stride), device=outputs.device)
        offset = torch.tensor((0, *self.offsets[tap]), device=outputs.device)
        if not self.transposed:
            return outputs * step + offset
        moved = outputs - offset
        cells = moved.div(step, rounding_mode="floor")
        cells[:, 0] = torch.where((moved == cells * step).all(1), cells[:, 0], -1)
        return cells

    def reached(self, inputs: Tensor, shape: Sequence[int]) -> Tensor:
        """All cells of a grid of ``shape`` that read some input, in lexicographic order."""
        other = Window(self.stride, self.offsets, not self.transposed)
        there = inputs[inputs[:, 0] >= 0]
        keys = [torch.empty(0, dtype=torch.int64, device=inputs.device)]
        for tap in range(len(self.offsets)):
            cells = other.read(there, tap)
            keys.append(keys_of(cells[inside(cells, shape)], shape).unique())
        return cells_of(torch.cat(keys).unique(), shape)

    def index(self, inputs: Tensor, in_shape: Sequence[int], outputs: Tensor) -> Tensor:
        """The map from rows of ``inputs`` to rows of ``outputs``."""
        rows = Rows.of(inputs, in_shape)
        taps = [rows.find(self.read(outputs, tap)) for tap in range(len(self.offsets))]
        return torch.where((outputs[:, :1] >= 0).expand(-1, len(taps)), torch.stack(taps, 1), -1)


def inverse(index: Tensor, rows: int) -> Tensor:
    """The map the other way round: which row read each of ``rows``, by tap."""
    found = index.new_full((rows, index.shape[1]), -1)
    for tap in range(index.shape[1]):
        there = (index[:, tap] >= 0).nonzero()[:, 0]
        found[index[there, tap], tap] = there
    return found


@dataclass(frozen=True)
class TapSums:
    """The passes of a sparse convolution; filters are (K, taps, C / groups)."""

    index: Tensor
    inputs: int
    groups: int = 1

    def _pairs(self, tap: int) -> tuple[Tensor, Tensor]:
        outputs = (self.index[:, tap] >= 0).nonzero()[:, 0]
        return outputs, self.index[outputs, tap]

    def _grouped(self, rows: Tensor) -> Tensor:
        return rows.view(len(rows), self.groups, rows.shape[1] // self.groups).transpose(0, 1)

    def _tap(self, w: Tensor, tap: int) -> Tensor:
        one = w.flatten(1, -2)[:, tap]
        return one.reshape(self.groups, one.shape[0] // self.groups, one.shape[1])

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        y = x.new_zeros(len(self.index), w.shape[0])
        for tap in range(self.index.shape[1]):
            outputs, rows = self._pairs(tap)
            sums = self._grouped(x[rows]) @ self._tap(w, tap).transpose(1, 2)
            y[outputs] += sums.transpose(0, 1).reshape(len(rows), w.shape[0])
        return y

    def back_x(self, g: Tensor, w: Tensor) -> Tensor:
        x = g.new_zeros(self.inputs, w.shape[-1] * self.groups)
        for tap in range(self.index.shape[1]):
            outputs, rows = self._pairs(tap)
            sums = self._grouped(g[outputs]) @ self._tap(w, tap)
            x[rows] += sums.transpose(0, 1).reshape(len(rows), x.shape[1])  # no row twice
        return x

    def back_w(self, g: Tensor, x: Tensor, taps: Sequence[int]) -> Tensor:
        K, C = g.shape[1], x.shape[1] // self.groups
        w = g.new_zeros(K, self.index.shape[1], C)
        for tap in range(self.index.shape[1]):
            outputs, rows = self._pairs(tap)
            left, right = self._grouped(g[outputs]), self._grouped(x[rows])
            w[:, tap] = (left.transpose(1, 2) @ right).reshape(K, C)
        return w.view(K, *taps, C)
