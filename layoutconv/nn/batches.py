"""One image as a batch of one, and back: torch's convolutions take both."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..ops.epilogue_args import EpilogueArgs


def batch(tensor: Tensor, rank: int) -> Tensor:
    """(N, C, D, H, W) of a batch, or of the one image that there is.

    >>> import torch
    >>> batch(torch.zeros(3, 8, 8), 2).shape
    torch.Size([1, 3, 8, 8])
    """
    return tensor if tensor.dim() == rank + 2 else tensor.unsqueeze(0)


def of_batch(ending: EpilogueArgs, rank: int) -> EpilogueArgs:
    """With the residual of a batch, and what else is like the result."""
    return ending.like_result(partial(batch, rank=rank))


def like(y: Tensor, input: Tensor, rank: int) -> Tensor:
    """A batch, or its one image, as the input is."""
    return y if input.dim() == rank + 2 else y.squeeze(0)
