"""Runs over the voxels of a tensor, made on its device: by torch on a CPU, one launch on a GPU."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..conv.k_major_wgrad import VoxelRuns
from ..planning.kernel_spec import VECTOR_BYTES
from . import machines


def voxel_runs(x: Tensor, how: VoxelRuns) -> Tensor:
    """Copy a contiguous tensor (N, D, H, W, C) to runs (runs, C, taps, run).

    >>> x = torch.arange(1.0, 9).view(1, 1, 1, 2, 4)  # two voxels of four channels
    >>> ones = (1, 1, 1)
    >>> taps = VoxelRuns((1, 1, 1, 2, 4), ones, (1, 1, 2), (1, 1, 3), (0, 0, -1), ones, ones, 1, 4)
    >>> voxel_runs(x, taps)[0, 0]
    tensor([[0., 1., 0., 0.],
            [1., 5., 0., 0.],
            [5., 0., 0., 0.]])
    """
    if not x.is_cuda:
        return _by_torch(x, how)
    from ..kernels.pointwise.loaders import load_voxel_runs

    if x.data_ptr() % VECTOR_BYTES:  # a user's tensor may start at any element
        x = x.clone()
    out = x.new_empty(how.shape)
    device = x.get_device()
    with torch.cuda.device(device):
        kernel = load_voxel_runs(machines.machine_of(device).arch)
        kernel(x.view(-1), out.view(-1), how.numbers)
    return out


def _by_torch(x: Tensor, how: VoxelRuns) -> Tensor:
    N, *extents, C = how.source
    images = prod(extents) * torch.arange(N, device=x.device)
    places, inside = images.view(1, N, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    for extent, pitch, cells, taps, start, step, apart in zip(extents, *how[1:7], strict=True):
        at = start + step * torch.arange(cells) + apart * torch.arange(taps)[:, None]
        there = (at >= 0) & (at < extent)
        at = at.clamp(0, extent - 1)[None, :, None, None]
        places = (places[:, None, ..., None] + at * pitch).flatten(0, 1).flatten(2)
        inside = (inside[:, None, ..., None] & there[None, :, None, None]).flatten(0, 1).flatten(2)
    inside = inside.expand(places.shape).flatten(1)[..., None]
    found = x.reshape(-1, C)[places.flatten(1)].where(inside, 0)
    cells = torch.arange(how.runs)[:, None] + how.span * torch.arange(how.run)
    there = cells < N * prod(how.grid)
    taken = found[:, cells.clamp(max=N * prod(how.grid) - 1)].where(there[..., None], 0)
    return taken.permute(1, 3, 0, 2).contiguous()
