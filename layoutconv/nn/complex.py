"""Complex convolutions as real ones: channels are pairs of a real and an imaginary part.

A tensor of C complex channels *is* one of 2C real channels, read with another layout. The filter
becomes real with a 2x2 block for each number, ``[[re, -im], [im, re]]``, so that one real
convolution of twice the channels has the four products of a complex one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..ops.autocast import AUTOCAST


def real_channels(tensor: Tensor) -> Tensor:
    """(..., C) complex as (..., 2C) real, of the same memory where it can be.

    >>> real_channels(torch.tensor([1 + 2j, 3 + 4j]))
    tensor([1., 2., 3., 4.])
    """
    return torch.view_as_real(tensor.resolve_conj()).flatten(-2)


def complex_channels(tensor: Tensor) -> Tensor:
    """(..., 2C) real as (..., C) complex: the inverse of :func:`real_channels`.

    >>> complex_channels(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([1.+2.j, 3.+4.j])
    """
    return torch.view_as_complex(tensor.unflatten(-1, (-1, 2)))


def real_filter(weight: Tensor, *, transposed: bool = False) -> Tensor:
    """(K, *taps, C) complex as the real filter (2K, *taps, 2C).

    A transposed convolution sums over K: its blocks are the other way round.

    >>> real_filter(torch.tensor([[1 + 2j]]))
    tensor([[ 1., -2.],
            [ 2.,  1.]])
    """
    re, im = torch.view_as_real(weight.resolve_conj()).unbind(-1)
    above, below = (im, -im) if transposed else (-im, im)
    rows = torch.stack((re, above), -1), torch.stack((below, re), -1)
    return torch.stack(rows, 1).flatten(0, 1).flatten(-2)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which no operator on a tensor's device lowers what it is given.

    It is torch's own, which older versions of ``torch.compile`` follow as well: complex tensors
    take this road there too, other than those of :func:`layoutconv.ops.autocast.without_autocast`.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), without_autocast(torch.ones(1)):
    ...     print((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
    torch.float32
    """
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if device in AUTOCAST else nullcontext()
