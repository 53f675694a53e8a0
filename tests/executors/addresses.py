"""Memory of the CPU behind an address, for what stands in for a kernel: kernels get addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor


def tensor_at(
    address: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """The tensor of a shape that starts there. Nothing keeps its memory alive."""
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address)
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
    return flat.as_strided(tuple(shape), tuple(stride))
