"""Hashes of coordinates, and means of the points of a voxel."""

from __future__ import annotations

import torch
from torch import Tensor

from .....errors import ArgumentError
from .....sparse.coords.rows import add_rows
from ....tensor_arguments import check_tensors
from ...version import batch_last

_BASIS, _PRIME = -3750763034362895579, 1099511628211  # of FNV-1a in 64 bits


def sphash(coords: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Return a hash, int64 (rows,), of coordinates int32 (rows, 4); with ``offsets``, int32 (taps,
    3), of the moved coordinates, (taps, rows).

    Offsets move ``(x, y, z)``, in either column order of the interface.
    """
    check_tensors(coords=coords, **({} if offsets is None else {"offsets": offsets}))
    if coords.dtype != torch.int or coords.ndim != 2 or coords.shape[1] != 4:
        got = f"{coords.dtype} {tuple(coords.shape)}"
        raise ArgumentError("coords", "int32 (rows, 4)", got)
    if offsets is not None:
        batch = offsets.new_zeros(len(offsets), 1)
        moves = torch.cat([offsets, batch] if batch_last() else [batch, offsets], 1)
        return sphash((coords + moves[:, None]).view(-1, 4)).view(len(offsets), -1)
    found = torch.full_like(coords[:, 0], _BASIS, dtype=torch.int64)
    for column in coords.long().unbind(1):
        found = (found ^ column) * _PRIME
        found = found ^ (found >> 29)
    return found


def sphashquery(queries: Tensor, references: Tensor) -> Tensor:
    """Return the place of each query among references, int64 of the queries' shape; -1 for none."""
    check_tensors(queries=queries, references=references)
    keys, order = torch.sort(references.flatten(), stable=True)
    flat = queries.flatten()
    if not len(keys):
        return torch.full_like(queries, -1)
    place = torch.searchsorted(keys, flat).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == flat, order[place], -1).view(queries.shape)


def spcount(coords: Tensor, num: int | Tensor) -> Tensor:
    """Count each of ``num`` numbers in ``coords``, int32 (num,); -1 is none."""
    check_tensors(coords=coords)
    there = coords[coords >= 0].long()
    return torch.bincount(there, minlength=int(num)).int()


def spvoxelize(feats: Tensor, coords: Tensor, counts: Tensor) -> Tensor:
    """Return the mean, (voxels, C), of the rows of each voxel: ``coords`` (rows,) are the rows'
    voxels, -1 for none, and ``counts`` the voxels' numbers of rows. Differentiable, with the same
    bits in every run."""
    check_tensors(feats=feats, coords=coords, counts=counts)
    sums = add_rows(feats, coords.long().flatten(), len(counts))
    return sums / counts.clamp(min=1)[:, None].to(sums.dtype)
