"""Tuples, grids, batches and caches, as ``torchsparse.utils``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError
from ...whole_numbers import whole_per_mode

__all__ = ["make_divisible", "make_ntuple", "make_tensor", "to_dense"]


def make_ntuple(x: Any, ndim: int) -> tuple[int, ...]:
    """A number for each mode.

    >>> make_ntuple(2, 3), make_ntuple([1, 2, 3], 3)
    ((2, 2, 2), (1, 2, 3))
    """
    return tuple(whole_per_mode("x", x, ndim))


def triple(name: str, value: Any, least: int) -> tuple[int, ...]:
    """An argument that is a number for each of three modes.

    Raises :class:`~layoutconv.errors.ArgumentError` that names it, for less than ``least`` too.

    >>> triple("stride", 2, 1)
    (2, 2, 2)
    """
    return tuple(whole_per_mode(name, value, 3, least))


def make_tensor(x: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
    return torch.tensor(x, dtype=dtype, device=device)


def make_divisible(x: int, divisor: int) -> int:
    """``x``, or the next multiple of ``divisor``."""
    return -(-x // divisor) * divisor


def to_dense(feats: Tensor, coords: Tensor, spatial_range: Sequence[int]) -> Tensor:
    """The grid ``(batch, X, Y, Z, C)`` of features at ``(batch, x, y, z)``; differentiable.

    Raises :class:`~layoutconv.errors.ArgumentError` where a cell is outside of it, which waits for
    the device, and for features of other rows.
    """
    if feats.ndim != 2 or len(feats) != len(coords):
        raise ArgumentError("feats", f"({len(coords)}, C)", tuple(feats.shape))
    cells, extents = coords.long(), list(spatial_range)
    outside = ((cells < 0) | (cells >= cells.new_tensor(extents))).any(1)
    if bool(outside.any()):
        expected = f"extents that have every cell, {cells[outside][0].tolist()} too"
        raise ArgumentError("spatial_range", expected, tuple(extents))
    grid = feats.new_zeros(prod(extents), feats.shape[1])
    keys = cells[:, 0]
    for axis, extent in enumerate(extents[1:], 1):
        keys = keys * extent + cells[:, axis]
    return grid.index_copy(0, keys, feats).view(*spatial_range, -1)
