"""Conversion between one image and a batch of one: torch's convolutions take both."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ..ops.epilogue_args import EpilogueArgs


def batch(tensor: Tensor, rank: int) -> Tensor:
    """Return a batch (N, C, D, H, W) as it is, and a single image as a batch of one.

    >>> import torch
    >>> batch(torch.zeros(3, 8, 8), 2).shape
    torch.Size([1, 3, 8, 8])
    """
    return tensor if tensor.dim() == rank + 2 else tensor.unsqueeze(0)


def of_batch(ending: EpilogueArgs, rank: int) -> EpilogueArgs:
    """Give the residual, and whatever else is shaped like the result, a batch mode."""
    return ending.like_result(partial(batch, rank=rank))


def like(y: Tensor, input: Tensor, rank: int) -> Tensor:
    """Return a result with a batch mode only if the input has one."""
    return y if input.dim() == rank + 2 else y.squeeze(0)
