"""The hash table in which SPVNAS looks up the voxels around points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...sparse import Coordinates, lookup
from .nn.utils import get_kernel_offsets

__all__ = ["GPUHashTable"]


class GPUHashTable:
    """A table of the rows of coordinates ``(x, y, z, batch)``; it leaves the given memory alone."""

    def __init__(self, *memory: Any) -> None:
        self._cells: Coordinates | None = None

    def insert_coords(self, coords: Tensor) -> None:
        self._cells = Coordinates.unbounded(coords[:, [3, 0, 1, 2]].int())

    def lookup_coords(
        self, coords: Tensor, kernel_sizes: Any, strides: Any, kernel_volume: int
    ) -> Tensor:
        """Return 1 + the row of each tap around coordinates, int32 (rows, taps), 0 for none."""
        if self._cells is None:
            raise ArgumentError("coords", "coordinates that were inserted first", None)
        sizes, steps = (tuple(map(int, values)) for values in (kernel_sizes, strides))
        offsets = [tuple(cell) for cell in get_kernel_offsets(sizes).tolist()]
        found = lookup(self._cells, coords[:, [3, 0, 1, 2]].int(), offsets, steps)
        return (found + 1).to(torch.int32)
