"""The memory that a tensor spans, from its first element to its last."""

from __future__ import annotations

from torch import Tensor


def span(tensor: Tensor) -> int:
    """Return the number of elements from a tensor's first to its last, both included.

    >>> import torch
    >>> span(torch.zeros(3, 4)[:, :2]), span(torch.zeros(0, 4))
    (10, 0)
    """
    if not tensor.numel():
        return 0
    return 1 + sum((s - 1) * d for s, d in zip(tensor.shape, tensor.stride(), strict=True))


def flat_memory(tensor: Tensor) -> Tensor:
    """Return the memory that a tensor spans, as one mode.

    >>> import torch
    >>> flat_memory(torch.arange(6).view(2, 3)[:, :2])
    tensor([0, 1, 2, 3, 4])
    """
    return tensor.as_strided((span(tensor),), (1,))
