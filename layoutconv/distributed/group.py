"""The place of a process in a group of ``torch.distributed``."""

from __future__ import annotations

import torch.distributed as dist

from ..errors import ArgumentError


def place_in(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return this process's rank in a group, and the group's size.

    A process without ``init_process_group`` is a group of one.

    Raises :class:`~layoutconv.errors.ArgumentError` for a group that the process is not in.

    >>> place_in(None)
    (0, 1)
    """
    rank, size = 0, 1
    if dist.is_available() and dist.is_initialized():
        rank, size = dist.get_rank(group), dist.get_world_size(group)
    elif group is not None:
        expected = "None before torch.distributed.init_process_group"
        raise ArgumentError("group", expected, group)
    if rank < 0:
        raise ArgumentError("group", "a group that this process belongs to", group)
    return rank, size


def is_alone() -> bool:
    """Return whether the group of all processes is the only one, on all of them.

    torch counts the groups that all processes made together, but the counter is not public API.

    >>> is_alone()
    True
    """
    if not (dist.is_available() and dist.is_initialized()):
        return True
    world = getattr(dist.distributed_c10d, "_world", None)
    groups: int = getattr(world, "group_count", 2)
    return groups < 2
