"""An addition to torch's data-parallel training: a mean over batches of different sizes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentTypeError
from .agreement import Agreement


def mean_over_ranks(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return the mean over all ranks' values, with a gradient for ``DistributedDataParallel``.

    Args:
        values: any shape, such as a loss per point; each rank may have another number, or none.
        group: the process group that averages gradients, by default all processes.

    Returns ``values.sum() * ranks / count``, where ``count`` is the number of values on all ranks:
    a scalar, in fp32 or higher. Its average over ranks is the mean; its gradients, averaged over
    ranks by ``DistributedDataParallel``, are those of the mean. With a mean per rank, a point of a
    small batch would weigh more. Without ``init_process_group`` it is the plain mean.

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
