"""Allocate the result of a call that bypasses torch's dispatcher, in half an operator's time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .caches import remembered
from .torch_internals import empty_strided_on


def allocator(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """Return a function that makes uninitialised tensors of one shape, stride, dtype and device.

    Use it only if nothing intercepts calls (``plain.is_watched``): it calls torch's allocator
    without the dispatcher, like code that torch.compile generates. That function has no device
    index and uses the current GPU, so with several GPUs this calls ``torch.empty_strided`` instead.

    >>> make = allocator((2, 3), (1, 2), torch.float16, torch.device("cpu"))
    >>> make().shape, make().stride(), make().dtype
    (torch.Size([2, 3]), (1, 2), torch.float16)
    """
    make = past_dispatcher(device)
    if make is None:
        return partial(torch.empty_strided, shape, stride, dtype=dtype, device=device)
    return partial(make, tuple(shape), tuple(stride), dtype)


@remembered(64)
def maker(device: torch.device) -> Callable[..., Tensor]:
    """Return ``f(shape, stride, dtype)``, which makes such tensors on a device: for varying kinds.

    >>> maker(torch.device("cpu"))((2, 3), (1, 2), torch.int32).stride()
    (1, 2)
    """
    return past_dispatcher(device) or partial(_by_operator, device)


def _by_operator(
    device: torch.device, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


@remembered(64)
def past_dispatcher(device: torch.device) -> Callable[..., Tensor] | None:
    """Return ``f(shape, stride, dtype)``, which makes tensors on a device; None if torch has none.

    >>> past_dispatcher(torch.device("meta"))
    """
    only = device.type == "cpu" or (device.type == "cuda" and torch.cuda.device_count() < 2)
    return empty_strided_on(device.type) if only else None
