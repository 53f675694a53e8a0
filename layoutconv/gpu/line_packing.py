"""Pack lines of a tensor on its device: with torch on the CPU, with one launch on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..conv.packed_channels import LinePacking
from . import machines

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pack_lines(x: Tensor, packing: LinePacking, out: Tensor | None = None) -> Tensor:
    """Return the packed lines of a contiguous tensor: a vector, in new memory or that of ``out``.

    >>> pack_lines(torch.arange(1.0, 7), LinePacking(6, 3, 2, -1, 3, 4)).view(3, 4)
    tensor([[0., 1., 2., 0.],
            [2., 3., 4., 0.],
            [4., 5., 6., 0.]])
    """
    size = packing.elements(x.numel())
    out = x.new_empty((size,)) if out is None else out.view(size)
    if not out.numel():
        return out
    if not x.is_cuda:
        return out.copy_(_by_torch(x, packing))
    from ..kernels.pointwise.loaders import load_packing, packing_vector

    words, width = _WORDS[x.itemsize], packing.width
    if out.data_ptr() & 15:  # a user's result may be too unaligned for vector stores
        return out.copy_(_by_torch(x, packing))
    device = x.get_device()
    with torch.cuda.device(device):
        arch = machines.machine_of(device).arch
        kernel = load_packing(x.itemsize, packing_vector(width, x.itemsize), arch)
        kernel(x.view(-1).view(words), out.view(words), tuple(packing))
    return out


def _by_torch(x: Tensor, packing: LinePacking) -> Tensor:
    length, positions, step, start, used, width = packing
    near, last = max(0, -start), start + (positions - 1) * step + used
    lines = torch.nn.functional.pad(x.view(-1, length), (near, max(0, last - length)))
    windows = lines[:, start + near :].as_strided(
        (len(lines), positions, used), (lines.shape[1], step, 1), start + near
    )
    return torch.nn.functional.pad(windows, (0, width - used)).reshape(-1)
