"""Poolings over images, and activations."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from .....nn import sparse_global_pool
from ...tensor import SparseTensor, check_input
from ..utils import fapply


def global_avg_pool(inputs: SparseTensor) -> Tensor:
    """The mean of the rows of each image, (N, C)."""
    check_input(inputs, "inputs")
    return sparse_global_pool(inputs.to_layoutconv(), "mean")


def global_max_pool(inputs: SparseTensor) -> Tensor:
    """The maximum of the rows of each image, (N, C)."""
    check_input(inputs, "inputs")
    return sparse_global_pool(inputs.to_layoutconv(), "max")


def relu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    return fapply(input, functional.relu, inplace=inplace)


def silu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    return fapply(input, functional.silu, inplace=inplace)


def leaky_relu(
    input: SparseTensor, negative_slope: float = 0.1, inplace: bool = True
) -> SparseTensor:
    options: dict[str, Any] = {"negative_slope": negative_slope, "inplace": inplace}
    return fapply(input, functional.leaky_relu, **options)
