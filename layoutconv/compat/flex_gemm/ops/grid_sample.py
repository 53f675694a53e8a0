"""FlexGEMM's sampling of a sparse grid at points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from ....errors import ArgumentError
from ....sparse import SparseTensor, devoxelize

__all__ = ["grid_sample_3d", "grid_sample_3d_torch", "set_hashmap_ratio"]


def set_hashmap_ratio(ratio: float) -> None:
    """Kept for those who call it; it has no effect."""


def grid_sample_3d(
    feats: Tensor,
    coords: Tensor,
    shape: Sequence[int],
    grid: Tensor,
    mode: Literal["nearest", "trilinear"] = "trilinear",
) -> Tensor:
    """The features at points of a sparse grid, (B, L, C); differentiable in the features.

    Args:
        feats: (rows, C).
        coords: int32 (rows, 4), ``(batch, x, y, z)``.
        shape: ends in (C, W, H, D).
        grid: (B, L, 3), points ``(x, y, z)`` in cells: that of cell 0 is from 0 to 1, its centre
            at 0.5.
        mode: ``nearest``, the cell that a point lies in, zeros where there is none; ``trilinear``,
            of the eight cells around it, those that there are, whose weights sum to one.

    >>> import torch
    >>> coords = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]]).int()
    >>> points = torch.tensor([[[1.0, 0.5, 0.5], [0.2, 0.9, 0.1]]])
    >>> grid_sample_3d(torch.tensor([[1.0], [3.0]]), coords, (1, 1, 2, 2, 2), points)[0].T
    tensor([[2., 1.]])
    """
    if mode not in ("nearest", "trilinear"):
        raise ArgumentError("mode", "nearest or trilinear", mode)
    if grid.dim() != 3 or grid.shape[2] != 3:
        raise ArgumentError("grid", "(B, L, 3)", tuple(grid.shape))
    x = SparseTensor(feats, coords, tuple(shape)[-3:], len(grid))
    points = grid.detach().flip(2)  # of z, y, x the last is first
    if mode == "nearest":
        points = points.trunc() + 0.5  # as FlexGEMM rounds, towards zero
    found = devoxelize(x, list(points), mode, voxel_size=1.0, origin=(0.0, 0.0, 0.0))
    return found.view(*grid.shape[:2], -1)


grid_sample_3d_torch = grid_sample_3d
