"""Tuples, grids, batches and caches, as ``torchsparse.utils``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError
from ...tensor_arguments import check_tensors
from ...whole_numbers import whole_numbers, whole_per_mode

__all__ = ["make_divisible", "make_ntuple", "make_tensor", "to_dense"]


def make_ntuple(x: Any, ndim: int) -> tuple[int, ...]:
    """Return a number per mode.

    >>> make_ntuple(2, 3), make_ntuple([1, 2, 3], 3)
    ((2, 2, 2), (1, 2, 3))
    """
    return tuple(whole_per_mode("x", x, ndim))


def make_tensor(x: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
    return torch.tensor(x, dtype=dtype, device=device)


def make_divisible(x: int, divisor: int) -> int:
    """Return ``x``, or the next multiple of ``divisor``."""
    return -(-x // divisor) * divisor


def to_dense(feats: Tensor, coords: Tensor, spatial_range: Sequence[int]) -> Tensor:
    """Return the grid ``(batch, X, Y, Z, C)`` of features at ``(batch, x, y, z)``; differentiable.

    Raises :class:`~layoutconv.errors.ArgumentError` for a cell outside the grid (this check waits
    for the device), and for features with another number of rows.
    """
    check_tensors(feats=feats, coords=coords)
    extents = whole_numbers("spatial_range", spatial_range, 0, "extents, one per column of coords")
    if coords.ndim != 2 or coords.shape[1] != len(extents):
        raise ArgumentError("coords", f"(rows, {len(extents)})", tuple(coords.shape))
    if feats.ndim != 2 or len(feats) != len(coords):
        raise ArgumentError("feats", f"({len(coords)}, C)", tuple(feats.shape))
    keys = keys_in("spatial_range", coords.long(), extents)
    grid = feats.new_zeros(prod(extents), feats.shape[1])
    return grid.index_copy(0, keys, feats).view(*extents, feats.shape[1])


def keys_in(name: str, cells: Tensor, extents: Sequence[int]) -> Tensor:
    """Return places int64 (rows,) of cells int64 (rows, modes) in a grid, last mode fastest.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the extents for a cell outside them
    (waits for the device).

    >>> keys_in("shape", torch.tensor([[1, 2]]), (2, 3))
    tensor([5])
    """
    outside = ((cells < 0) | (cells >= cells.new_tensor(extents))).any(1)
    if bool(outside.any()):
        expected = f"extents that have every cell, {cells[outside][0].tolist()} too"
        raise ArgumentError(name, expected, tuple(extents))
    strides = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return (cells * cells.new_tensor(strides)).sum(1)
