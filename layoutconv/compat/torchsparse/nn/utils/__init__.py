"""Functions over features, and the taps of a filter, as ``torchsparse.nn.utils``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ....whole_numbers import triple
from ...tensor import SparseTensor, check_input

__all__ = ["fapply", "get_kernel_offsets"]


def fapply(
    input: SparseTensor, fn: Callable[..., Tensor], *args: Any, **kwargs: Any
) -> SparseTensor:
    """Return ``fn(feats, *args, **kwargs)`` at the same coordinates."""
    check_input(input)
    return input.on(fn(input.feats, *args, **kwargs))


def get_kernel_offsets(
    size: Any, stride: Any = 1, dilation: Any = 1, device: Any = "cpu"
) -> Tensor:
    """Return the taps of a filter, int32 (taps, 3), from ``-((size - 1) // 2)`` on; with an odd
    number of taps the first axis is fastest, with an even one the last.

    >>> get_kernel_offsets(2)[:3].tolist(), get_kernel_offsets(3)[:3].tolist()
    ([[0, 0, 0], [0, 0, 1], [0, 1, 0]], [[-1, -1, -1], [0, -1, -1], [1, -1, -1]])
    """
    sizes, steps = triple("size", size, 1), triple("stride", stride, 1)
    apart = triple("dilation", dilation, 1)
    axes = [
        [(tap - (count - 1) // 2) * step * far for tap in range(count)]
        for count, step, far in zip(sizes, steps, apart, strict=True)
    ]
    odd = sizes[0] * sizes[1] * sizes[2] % 2
    cells = [cell[::-1] for cell in product(*axes[::-1])] if odd else list(product(*axes))
    return torch.tensor(cells, dtype=torch.int, device=device)
