"""Launch norms over channels (``kernels/pointwise/channel_norm.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.caches import remembered
from ..base.dry_hooks import dry_hooks
from ..base.memory import maker
from ..planning.channel_schedule import (
    AT_ONCE,
    MOST_VECTORS,
    THREADS,
    ChannelNormShape,
    lanes_of,
)
from ..planning.norm_schedule import columns_per_load
from ..tensors.channels_last import channels_last_stride
from . import machines
from .group_norm import is_in_order, sizes
from .row_norm import MOST, TYPES, bits

if TYPE_CHECKING:
    from torch import Tensor

CTAS = 132 * 8  # at most: each then takes a few thousand rows, and reads the weights once


class ChannelNormArgs(NamedTuple):
    """``x / max(|x|, least) * scale * weight + bias``, with the length ``|x|`` over channels.

    Attributes:
        weight: C elements.
        bias: C elements, or None.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    least: float


def takes(x: Tensor, norm: ChannelNormArgs) -> bool:
    """Return whether a kernel can compute a norm of images ``x`` (N, C, ...), by memory, dtypes and
    shapes: images must be ``channels_last``.
    """
    if x.dim() < 3 or x.dtype not in TYPES or not x.numel() or not is_in_order(x):
        return False
    C = x.shape[1]
    vectors = C // columns_per_load(C, x.element_size())
    for tensor in norm.weight, norm.bias:
        if tensor is not None and (
            tensor.dtype is not x.dtype
            or tensor.numel() != C
            or not tensor.is_contiguous()
            or tensor.device != x.device
            or tensor.data_ptr() & 15
        ):
            return False
    return (
        vectors <= MOST_VECTORS
        and 0 < norm.least < MOST
        and abs(norm.scale) < MOST
        and not x.data_ptr() & 15
    )


def normalised(x: Tensor, norm: ChannelNormArgs) -> Tensor:
    """Return the norm of images ``x`` (N, C, ...) on a GPU, like ``x``; ``takes`` accepts them."""
    images, C, voxels = sizes(x)
    rows = images * voxels
    vector = columns_per_load(C, x.element_size())
    log_lanes, turns = lanes_of(C // vector)
    early = x.is_cuda and machines.starts_early(x.get_device())
    per_rank, kernel = _kernel(x.dtype, vector, log_lanes, turns, norm.bias is not None, early)
    make = maker(x.device)
    out = make(tuple(x.shape), channels_last_stride(x.shape), x.dtype)
    if dry_hooks.load is not None:  # in a dry run nothing is written
        out.zero_()
    of = make((1, 1), (1, 1), torch.int32)  # the first tensor that launches expect
    at_once = AT_ONCE * THREADS >> log_lanes
    numbers = rows, C, min(CTAS, -(-rows // at_once)), bits(norm.scale), bits(norm.least)
    tensors = x, norm.weight, norm.weight if norm.bias is None else norm.bias, out
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    per_rank.launch(kernel, (of, *tensors), addresses, numbers)
    return out


@remembered(128)
def _kernel(
    dtype: torch.dtype, vector: int, log_lanes: int, turns: int, biased: bool, early: bool
) -> tuple[Any, Any]:
    """Return the launching module, and the kernel of a kind of rows."""
    from ..kernels.maps import per_rank
    from ..kernels.pointwise.channel_norm import ChannelNorm as Kernel

    name = str(dtype).removeprefix("torch.")
    return per_rank, Kernel(ChannelNormShape(name, vector, log_lanes, turns, biased, early))
