"""Rows over the voxels of a tensor, made on its device: by torch on a CPU, one launch on a GPU."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..conv.k_major_wgrad import VoxelRows
from ..planning.kernel_spec import VECTOR_BYTES
from . import machines


def voxel_rows(x: Tensor, rows: VoxelRows) -> Tensor:
    """Copy a contiguous tensor (N, D, H, W, C) to rows (C, taps, positions).

    >>> x = torch.arange(1.0, 9).view(1, 1, 1, 2, 4)  # two voxels of four channels
    >>> taps = VoxelRows((1, 1, 1, 2, 4), (1, 1, 2), (1, 1, 3), (0, 0, -1), (1,) * 3, (1,) * 3, 4)
    >>> voxel_rows(x, taps)[0]
    tensor([[0., 1., 0., 0.],
            [1., 5., 0., 0.],
            [5., 0., 0., 0.]])
    """
    if not x.is_cuda:
        return _by_torch(x, rows)
    from ..kernels.pointwise.loaders import load_voxel_rows

    if x.data_ptr() % VECTOR_BYTES:  # a user's tensor may start at any element
        x = x.clone()
    out = x.new_empty(rows.shape)
    device = x.get_device()
    with torch.cuda.device(device):
        kernel = load_voxel_rows(machines.machine_of(device).arch)
        kernel(x.view(-1), out.view(-1), rows.numbers)
    return out


def _by_torch(x: Tensor, rows: VoxelRows) -> Tensor:
    N, *extents, C = rows.source
    out = x.new_zeros(rows.shape)
    places, inside = torch.arange(N, device=x.device).view(N, 1), torch.ones(1, 1, dtype=torch.bool)
    modes = zip(extents, rows.grid, rows.taps, rows.start, rows.step, rows.apart, strict=True)
    places = places[None]  # (taps, N, positions)
    inside = inside[None]
    for extent, cells, taps, start, step, apart in modes:
        at = start + step * torch.arange(cells) + apart * torch.arange(taps)[:, None]
        there = (at >= 0) & (at < extent)
        at = at.clamp(0, extent - 1)[None, :, None, None]
        places = (places[:, None, ..., None] * extent + at).flatten(0, 1).flatten(2)
        inside = (inside[:, None, ..., None] & there[None, :, None, None]).flatten(0, 1).flatten(2)
    found = x.reshape(-1, C)[places.flatten(1)] * inside.expand(places.shape).flatten(1)[..., None]
    count = min(rows.length, N * prod(rows.grid))
    out[..., :count] = found.permute(2, 0, 1)[..., :count]
    return out
