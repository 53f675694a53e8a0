"""K-major copies of filters where these are: by torch on a CPU, a transposing launch on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..base.caches import remembered
from ..conv.k_major_filter import k_major_filter, k_major_strides
from ..conv.k_major_wgrad import VECTOR, VoxelRuns
from ..view.operands import row_major
from .voxel_runs import voxel_runs


def k_major_copy(w: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """A copy of a filter as ``k_major_filter`` makes it, of the same arguments.

    torch copies a number at a time, across memory: 4.9 * 10^6 took 36 us on an H200. float32 of
    whole vectors, which lie as ``shape`` does, are transposed in shared memory here.

    >>> w = torch.arange(24.0).view(4, 3, 2)
    >>> k_major_copy(w).stride(), torch.equal(k_major_copy(w), w)
    ((1, 4, 12), True)
    """
    modes = tuple(w.shape if shape is None else shape)
    rows = runs_of(modes) if w.is_cuda and w.dtype is torch.float32 else None
    if rows is None or (shape is None and not w.is_contiguous()):
        return k_major_filter(w, shape)
    if shape is not None:
        w = w.as_strided(modes, row_major(modes).stride)
    return voxel_runs(w, rows).as_strided(modes, k_major_strides(modes))


@remembered(256)
def runs_of(shape: tuple[int, ...]) -> VoxelRuns | None:
    """A filter (K, T, R, S, C) as images of taps, whose one run (C, T * R * S, K) the copy is.

    None of fewer than two modes, of channels that are no whole vectors, and of a filter that is
    empty or large.

    >>> runs_of((8, 3, 3, 4)).shape, runs_of((8, 3, 3, 5))
    ((1, 4, 9, 8), None)
    """
    if len(shape) < 2 or shape[0] % VECTOR or shape[-1] % VECTOR:
        return None
    K, *taps, C = shape
    along_w, one, zero = (1, 1, prod(taps)), (1, 1, 1), (0, 0, 0)
    found = VoxelRuns((K, *along_w, C), one, one, along_w, zero, one, one, 1, K)
    return found if found.fits else None
