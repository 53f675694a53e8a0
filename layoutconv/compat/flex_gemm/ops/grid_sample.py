"""FlexGEMM's sampling of a sparse grid at points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from ....errors import ArgumentError, check_choice
from ....sparse import SparseTensor, devoxelize
from ...tensor_arguments import check_tensors
from ...whole_numbers import whole_numbers

__all__ = ["grid_sample_3d", "grid_sample_3d_torch", "set_hashmap_ratio"]


def set_hashmap_ratio(ratio: float) -> None:
    """Accepted for compatibility; it has no effect."""


def grid_sample_3d(
    feats: Tensor,
    coords: Tensor,
    shape: Sequence[int],
    grid: Tensor,
    mode: Literal["nearest", "trilinear"] = "trilinear",
) -> Tensor:
    """Sample the features of a sparse grid at points, (B, L, C); differentiable in the features.

    Args:
        feats: (rows, C).
        coords: int32 (rows, 4), ``(batch, x, y, z)``.
        shape: ends in (C, W, H, D).
        grid: (B, L, 3), points ``(x, y, z)`` in units of cells: cell 0 spans 0 to 1, with its
            centre at 0.5.
        mode: ``nearest``, the cell that contains a point, zeros if it does not exist; or
            ``trilinear``, the existing ones of the eight cells around it, with weights that sum to
            one.

    >>> import torch
    >>> coords = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]]).int()
    >>> points = torch.tensor([[[1.0, 0.5, 0.5], [0.2, 0.9, 0.1]]])
    >>> grid_sample_3d(torch.tensor([[1.0], [3.0]]), coords, (1, 1, 2, 2, 2), points)[0].T
    tensor([[2., 1.]])
    """
    check_choice("mode", mode, ("nearest", "trilinear"))
    check_tensors(feats=feats, grid=grid)
    if grid.dim() != 3 or grid.shape[2] != 3:
        raise ArgumentError("grid", "(B, L, 3)", tuple(grid.shape))
    sizes = whole_numbers("shape", shape, 0, "sizes that end in (C, W, H, D)")
    x = SparseTensor(feats, coords, sizes[-3:], len(grid))
    points = grid.detach().flip(2)  # of z, y, x the last is first
    if mode == "nearest":
        points = points.trunc() + 0.5  # as FlexGEMM rounds, towards zero
    found = devoxelize(x, list(points), mode, voxel_size=1.0, origin=(0.0, 0.0, 0.0))
    return found.view(*grid.shape[:2], feats.shape[1])


grid_sample_3d_torch = grid_sample_3d
