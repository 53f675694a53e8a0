"""Complex convolutions as real ones: a channel becomes a real and an imaginary channel.

A tensor of C complex channels *is* a tensor of 2C real channels, read with another layout. In the
real filter each number becomes a 2x2 block, ``[[re, -im], [im, re]]``, so that one real convolution
with twice the channels computes the four products of a complex one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..ops.autocast import AUTOCAST


def real_channels(tensor: Tensor) -> Tensor:
    """View (..., C) complex as (..., 2C) real, without a copy where possible.

    >>> real_channels(torch.tensor([1 + 2j, 3 + 4j]))
    tensor([1., 2., 3., 4.])
    """
    return torch.view_as_real(tensor.resolve_conj()).flatten(-2)


def complex_channels(tensor: Tensor) -> Tensor:
    """View (..., 2C) real as (..., C) complex: the inverse of :func:`real_channels`.

    >>> complex_channels(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([1.+2.j, 3.+4.j])
    """
    return torch.view_as_complex(tensor.unflatten(-1, (-1, 2)))


def real_filter(weight: Tensor, *, transposed: bool = False) -> Tensor:
    """Turn (K, *taps, C) complex into the real filter (2K, *taps, 2C).

    A transposed convolution sums over K: its blocks are transposed.

    >>> real_filter(torch.tensor([[1 + 2j]]))
    tensor([[ 1., -2.],
            [ 2.,  1.]])
    """
    re, im = torch.view_as_real(weight.resolve_conj()).unbind(-1)
    above, below = (im, -im) if transposed else (-im, im)
    rows = torch.stack((re, above), -1), torch.stack((below, re), -1)
    return torch.stack(rows, 1).flatten(0, 1).flatten(-2)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast lowers no operator on the tensor's device.

    It is torch's own, which older versions of ``torch.compile`` can trace, too: complex tensors
    take this path in compiled code, unlike :func:`layoutconv.ops.autocast.without_autocast`.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), without_autocast(torch.ones(1)):
    ...     print((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
    torch.float32
    """
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if device in AUTOCAST else nullcontext()
