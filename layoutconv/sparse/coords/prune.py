"""Pruning: a sparse tensor without some of its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from torch import Tensor


def prune(x: SparseTensor, mask: Tensor) -> SparseTensor:
    """Return the rows of ``x`` where ``mask`` is True, in their order.

    Args:
        x: features (rows, C).
        mask: bool (rows,), on the device of ``x``.

    Returns a tensor with its own coordinates, in the same grid; gradients flow to the features of
    the rows that stay. Their number is read from the device.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> import torch
    >>> cells = torch.tensor([[0, 1], [0, 4], [1, 2]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[3.0], [-1.0], [2.0]]), cells, (6,), batch_size=2)
    >>> y = prune(x, x.features[:, 0] > 0)
    >>> y.coords.tolist(), y.features.tolist()
    ([[0, 1], [1, 2]], [[3.0], [2.0]])
    """
    if not isinstance(x, SparseTensor):
        raise ArgumentTypeError("x", "a SparseTensor", type(x).__name__)
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        got = str(getattr(mask, "dtype", type(mask).__name__))
        raise ArgumentTypeError("mask", "a torch tensor of bool", got)
    if tuple(mask.shape) != (len(x),):
        raise ArgumentError("mask", f"shape ({len(x)},), a bool for each row", tuple(mask.shape))
    if mask.device != x.features.device:
        raise ArgumentError("mask", f"{x.features.device}, where `x` is", str(mask.device))
    rows = mask.nonzero()[:, 0]
    left = x.coordinates.at(x.coordinates.cells.index_select(0, rows))
    return SparseTensor(x.features.index_select(0, rows), left)
