"""Initialization of kernels (taps, C, K)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ....errors import ArgumentError
from ...tensor_arguments import check_tensors


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill a kernel (taps, C, K) with normal numbers scaled by its fan; for a kernel of two modes,
    the second counts as the fan in, as in MinkowskiEngine."""
    check_tensors(tensor=tensor)
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ArgumentError("mode", "fan_in or fan_out", mode)
    if tensor.dim() < 2:
        raise ArgumentError("tensor", "a tensor of two or more modes", tuple(tensor.shape))
    shape = tensor.shape
    fans = (shape[1], shape[0]) if len(shape) == 2 else (shape[1], shape[2])
    taps = 1 if len(shape) == 2 else shape[0]
    fan = taps * fans[mode.lower() == "fan_out"]
    gain = torch.nn.init.calculate_gain(nonlinearity, a)  # type: ignore[arg-type]
    with torch.no_grad():
        return tensor.normal_(0, gain / math.sqrt(fan))
