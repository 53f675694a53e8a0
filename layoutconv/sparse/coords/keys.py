"""Cells as 64-bit keys whose order is the lexicographic order of their coordinates.

A key is the offset of ``(batch, z, y, x)`` in a row-major grid: a layout with integer strides. A
grid with a *halo* is wider than the cells that can be occupied: a neighbour's key is then the
cell's own key plus a constant, and a neighbour outside the grid has a key that no cell has.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import index, mul
from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from torch import Tensor

MAX_KEY = 2**63 - 1


def check_spatial_shape(spatial_shape: Sequence[int], batch_size: int) -> tuple[int, ...]:
    """Return ``spatial_shape`` as a tuple; it and ``batch_size`` must suit int32 coordinates."""
    try:
        shape = tuple(map(index, spatial_shape))
    except TypeError:
        raise ArgumentTypeError("spatial_shape", "1 to 4 integers", spatial_shape) from None
    try:
        batch_size = index(batch_size)
    except TypeError:
        raise ArgumentTypeError("batch_size", "an integer", batch_size) from None
    if not 1 <= len(shape) <= 4:
        raise ArgumentError("spatial_shape", "1 to 4 extents", shape)
    if not 0 <= batch_size < 2**31:
        raise ArgumentError("batch_size", "a number of images from 0 to 2**31 - 1", batch_size)
    if min(shape) < 0 or max(shape) >= 2**31:
        wrong = next(extent for extent in shape if not 0 <= extent < 2**31)
        raise ArgumentError("spatial_shape", "extents from 0 to 2**31 - 1", wrong)
    return shape


def check_coords_type(coords: Tensor, spatial_shape: Sequence[int]) -> int:
    """Return the number of rows; ``ArgumentError`` unless ``coords`` is int32 (rows, 1 + rank)."""
    columns = 1 + len(spatial_shape)
    if not isinstance(coords, torch.Tensor) or coords.dtype is not torch.int32:
        got = coords.dtype if isinstance(coords, torch.Tensor) else type(coords).__name__
        raise ArgumentTypeError("coords", "a torch tensor of int32", got)
    shape = coords.shape
    if len(shape) != 2 or shape[1] != columns:
        expected = f"(rows, {columns}) for spatial_shape {tuple(spatial_shape)}"
        raise ArgumentError("coords", expected, tuple(shape))
    return shape[0]


def key_strides(
    spatial_shape: Sequence[int], batch_size: int, halo: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the strides of the key of ``(batch, z, y, x)``, row-major over a grid widened by
    ``halo`` cells per spatial axis.

    One halo serves both sides: the cells past the end of a row are the cells before the start of
    the next.

    Raises ``ArgumentError`` if the largest key does not fit in 63 bits.

    >>> key_strides((4, 3, 5), batch_size=2)
    (60, 15, 5, 1)
    >>> key_strides((4, 3, 5), batch_size=2, halo=(1, 1, 1))
    (120, 24, 6, 1)
    """
    if not fits_keys(spatial_shape, batch_size, halo):
        raise ArgumentError(
            "spatial_shape",
            "fewer than 2**63 cells in all, for 64-bit keys (use larger voxels, or crop)",
            f"{tuple(spatial_shape)} with batch_size {batch_size}",
        )
    *inner, per_batch = accumulate(reversed(_widened(spatial_shape, halo)), mul, initial=1)
    return (per_batch, *reversed(inner))


def fits_keys(
    spatial_shape: Sequence[int], batch_size: int, halo: Sequence[int] | None = None
) -> bool:
    """Return whether the largest key of such a grid, and the stride of images, fit in 63 bits."""
    return max(batch_size, 1) * prod(_widened(spatial_shape, halo)) <= MAX_KEY


def _widened(spatial_shape: Sequence[int], halo: Sequence[int] | None) -> list[int]:
    halo = halo or (0,) * len(spatial_shape)
    return [extent + width for extent, width in zip(spatial_shape, halo, strict=True)]


def pack(coords: Tensor, strides: Sequence[int]) -> Tensor:
    """Return keys, int64 (rows,), of ``coords`` (rows, 1 + rank): products with strides."""
    keys = coords[:, -1].long() * strides[-1]
    for axis, stride in enumerate(strides[:-1]):
        keys += coords[:, axis].long() * stride
    return keys


def unpack(keys: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the cells, int32 (rows, 1 + rank), of keys in a grid of ``shape`` without a halo.

    >>> import torch
    >>> unpack(torch.tensor([0, 61, 119]), (4, 3, 5)).tolist()
    [[0, 0, 0, 0], [1, 0, 0, 1], [1, 3, 2, 4]]
    """
    columns = []
    for extent in reversed(shape):
        columns.append(keys % extent)
        keys = keys // extent
    return torch.stack([keys, *reversed(columns)], dim=1).int()
