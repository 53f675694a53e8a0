"""Extents of the grids of convolutions' outputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..absent import explain
from ..core import AlgoHint, ConvAlgo

__all__ = [
    "AlgoHint",
    "ConvAlgo",
    "get_conv_output_size",
    "get_deconv_output_size",
    "maximum_value_int_",
]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Return the extents of a convolution's outputs, as in torch.

    >>> get_conv_output_size([41, 1600], [3, 3], [2, 2], [0, 1], [1, 1])
    [20, 800]
    """
    modes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return [(e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in modes]


def get_deconv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """Return the extents of a transposed convolution's outputs: torch's for a dilation of 1.

    Like spconv, it ignores the dilation. Cells that a dilated filter feeds past the end of this
    grid are dropped.

    >>> get_deconv_output_size([5], [3], [2], [1], [1], [1])
    [10]
    """
    modes = zip(input_size, kernel_size, stride, padding, output_padding, strict=True)
    return [(e - 1) * s - 2 * p + k + o for e, k, s, p, o in modes]


def maximum_value_int_(ten: Tensor, value: int) -> None:
    """Raise the numbers of a tensor to ``value`` where they are less, in place.

    >>> import torch
    >>> count = torch.tensor([3, 9], dtype=torch.int32)
    >>> maximum_value_int_(count, 5)
    >>> count.tolist()
    [5, 9]
    """
    ten.clamp_(min=value)


__getattr__ = explain(__name__)
