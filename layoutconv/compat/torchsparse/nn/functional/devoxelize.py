"""Linear interpolation between voxels, with weights that are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from .....sparse.coords.rows import take
from ....tensor_arguments import check_tensors
from ...version import batch_last


def calc_ti_weights(coords: Tensor, idx_query: Tensor, scale: float = 1) -> Tensor:
    """Return the weights of the eight voxels around points, in the shape of ``idx_query``.

    Args:
        coords: floating (points, 3 or more), ``x, y, z`` first.
        idx_query: the rows of those voxels, -1 for none, z fastest: (points, 8), or (8, points) in
            1.4.
        scale: the edge of a voxel.

    The weights of existing voxels sum to one.
    """
    check_tensors(coords=coords, idx_query=idx_query)
    with torch.no_grad():
        places = coords[:, :3] / scale
        above = (places - places.floor()).T[:, None]
        both = torch.cat([1 - above, above], 1)  # (3, 2, points)
        x, y, z = both
        weights = (x[:, None, None] * y[None, :, None] * z[None, None]).reshape(8, -1)
        across = batch_last() and idx_query.shape[0] == 8
        found = weights if across else weights.T
        found = found.masked_fill(idx_query == -1, 0)
        return (found / (found.sum(0 if across else 1, keepdim=True) + 1e-8)).contiguous()


def spdevoxelize(feats: Tensor, coords: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums, (points, C), of voxels' rows ``coords`` (points, 8)."""
    check_tensors(feats=feats, coords=coords, weights=weights)
    total = feats.new_zeros(len(coords), feats.shape[1])
    for rows, weight in zip(coords.long().unbind(1), weights.unbind(1), strict=True):
        total = total + weight[:, None].to(feats.dtype) * take(feats, rows)
    return total
