"""Batches of several clouds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from ....errors import ArgumentError
from ...tensor_arguments import tensor_of
from ..tensor import SparseTensor, check_input
from ..version import batch_last

__all__ = ["sparse_collate", "sparse_collate_fn"]


def sparse_collate(inputs: Sequence[SparseTensor]) -> SparseTensor:
    """Join tensors whose coordinates are (rows, 3), of NumPy or torch, as the images of a batch.

    >>> import torch
    >>> one = SparseTensor(torch.ones(1, 2), torch.tensor([[4, 5, 6]]).int())
    >>> sparse_collate([one, one]).C.tolist()
    [[0, 4, 5, 6], [1, 4, 5, 6]]
    """
    for x in inputs:
        check_input(x, "inputs")
    if len({x.stride for x in inputs}) != 1:
        raise ArgumentError("inputs", "tensors of the same stride", [x.stride for x in inputs])
    coords = []
    for image, x in enumerate(inputs):
        space = tensor_of(x.coords)
        batch = torch.full((len(space), 1), image, dtype=torch.int, device=space.device)
        coords.append(torch.cat([space, batch] if batch_last() else [batch, space], 1))
    feats = torch.cat([tensor_of(x.feats) for x in inputs])
    return SparseTensor(feats, torch.cat(coords), inputs[0].stride)


def sparse_collate_fn(inputs: Sequence[Any]) -> Any:
    """A ``collate_fn`` for dicts: sparse tensors become batches, arrays and tensors are stacked,
    and anything else becomes a list."""
    if not isinstance(inputs[0], dict):
        return inputs
    found: dict[str, Any] = {}
    for name, first in inputs[0].items():
        several = [one[name] for one in inputs]
        if isinstance(first, dict):
            found[name] = sparse_collate_fn(several)
        elif isinstance(first, SparseTensor):
            found[name] = sparse_collate(several)
        elif isinstance(first, (numpy.ndarray, torch.Tensor)):
            found[name] = torch.stack([tensor_of(one) for one in several])
        else:
            found[name] = several
    return found
