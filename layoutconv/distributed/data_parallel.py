"""Data-parallel training beside torch's: a mean over batches of different sizes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentTypeError
from .agreement import Agreement


def mean_over_ranks(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The mean over the values of all ranks, with a gradient for ``DistributedDataParallel``.

    Args:
        values: any shape, a loss per point, say; a different number on each rank, on some none.
        group: the process group that gradients are averaged over, by default all processes.

    Returns ``values.sum() * ranks / count``, where ``count`` is that of all ranks: a scalar, in
    fp32 at least, whose average over ranks is the mean, and whose gradients, averaged over ranks as
    ``DistributedDataParallel`` does, are those of the mean. A mean per rank would let a point of a
    small batch count for more. In a process without ``init_process_group`` it is the mean.

    It is a collective: every rank of the group calls it. Errors are those of :func:`conv3d`.

    >>> mean_over_ranks(torch.tensor([1.0, 2.0, 6.0]))
    tensor(3.)
    """
    with Agreement("mean_over_ranks", group) as same:
        if not isinstance(values, torch.Tensor):
            raise ArgumentTypeError("values", "a torch tensor", type(values).__name__)
        same.terms["values"] = str(values.dtype)
        exact = torch.promote_types(values.dtype, torch.float32)
        count, ranks = values.new_tensor(values.numel(), dtype=torch.float64), same.size
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(count, group=group)
    return values.sum(dtype=exact) * (ranks / count.clamp(min=1)).to(exact)
