"""Tuples, grids, batches and caches, as ``torchsparse.utils``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

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
    """The grid ``(batch, X, Y, Z, C)`` of features at ``(batch, x, y, z)``; differentiable."""
    grid = feats.new_zeros(prod(spatial_range), feats.shape[1])
    keys = coords[:, 0].long()
    for axis, extent in enumerate(spatial_range[1:], 1):
        keys = keys * extent + coords[:, axis].long()
    return grid.index_copy(0, keys, feats).view(*spatial_range, -1)
