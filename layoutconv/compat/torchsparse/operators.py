"""Channels of several tensors, and sums over the union of coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .tensor import SparseTensor, check_input

__all__ = ["cat", "generative_add"]


def cat(inputs: Sequence[SparseTensor]) -> SparseTensor:
    """Concatenate the channels of tensors at the same coordinates."""
    if not isinstance(inputs, Sequence) or not inputs:
        raise ArgumentTypeError("inputs", "a list of SparseTensors", type(inputs).__name__)
    for x in inputs:
        check_input(x, "inputs")
        if len(x.feats) != len(inputs[0].feats):
            expected = f"tensors at the same coordinates, {len(inputs[0].feats)} rows"
            raise ArgumentError("inputs", expected, f"{len(x.feats)} rows")
    return inputs[0].on(torch.cat([x.feats for x in inputs], 1))


def generative_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Add tensors over the union of their coordinates, in lexicographic order."""
    check_input(a, "a")
    check_input(b, "b")
    total = a.to_layoutconv() + b.to_layoutconv()
    larger = a if len(a) >= len(b) else b
    if total.coordinates is larger.cells:
        return larger.on(total.features)
    return larger.at(total.features, total.coordinates, larger.stride)
