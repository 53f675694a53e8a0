"""The ranks of a ``torch.distributed`` group, and the messages that they exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor


class Ranks(NamedTuple):
    """The ranks of a group, by default of all processes, and their number."""

    group: dist.ProcessGroup | None
    size: int

    def gathered(self, told: Tensor) -> Tensor:
        """Return the messages (n,) of all ranks as (ranks, n)."""
        if self.size == 1:
            return told[None]
        every = told.new_empty(self.size * len(told))
        # torch 2.13 and newer have it, and warn about the older name.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(every, told, group=self.group)
        return every.view(self.size, -1)

    def summed(self, told: Tensor) -> Tensor:
        """Sum the messages of all ranks, in the memory of this rank's."""
        if self.size > 1:
            dist.all_reduce(told, group=self.group)
        return told


def ranks_of(module: Any) -> Ranks | None:
    """Return the ranks that share a module's statistics, from its ``process_group``; None for a
    module without one, and for a process that is alone.

    >>> import torch
    >>> ranks_of(torch.nn.SyncBatchNorm(4)), ranks_of(torch.nn.BatchNorm1d(4))
    (None, None)
    """
    own = module.__dict__
    if "process_group" not in own or not (dist.is_available() and dist.is_initialized()):
        return None
    group = own["process_group"]
    size = dist.get_world_size(group)
    return Ranks(group, size) if size > 1 else None
