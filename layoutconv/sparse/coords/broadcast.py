"""Broadcast: one row per image to all voxels of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .rows import take
from .sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from torch import Tensor


def broadcast(values: Tensor, x: SparseTensor) -> SparseTensor:
    """Copy one row of values per image to each cell of that image in ``x``.

    Args:
        values: (N, C), a row for each image, as :func:`layoutconv.nn.sparse_global_pool` returns.
        x: its cells are used, not its features.

    Returns a tensor that shares the coordinates of ``x``, for ``x + broadcast(v, x)`` and ``x *
    broadcast(v, x)``. Rows without a cell get zeros. Differentiable: the gradient of a value is a
    sum in the order of the rows, the same bits every time.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of images.

    >>> import torch
    >>> cells = torch.tensor([[1, 0], [0, 3], [1, 2]], dtype=torch.int32)
    >>> x = SparseTensor(torch.zeros(3, 1), cells, (4,), batch_size=2)
    >>> broadcast(torch.tensor([[1.0], [5.0]]), x).features.T
    tensor([[5., 1., 5.]])
    """
    if not isinstance(x, SparseTensor):
        raise ArgumentTypeError("x", "a SparseTensor", type(x).__name__)
    if not isinstance(values, torch.Tensor):
        raise ArgumentTypeError("values", "a torch tensor", type(values).__name__)
    if values.ndim != 2 or values.shape[0] != x.batch_size:
        expected = f"({x.batch_size}, C), a row for each image"
        raise ArgumentError("values", expected, f"shape {tuple(values.shape)}")
    if values.device != x.device:
        raise ArgumentError("values", f"{x.device}, where `x` is", str(values.device))
    return x.replace(take(values, x.check().coordinates.cells[:, 0].long()))
