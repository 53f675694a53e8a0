"""The grids that convolutions have as results."""

from __future__ import annotations

from collections.abc import Sequence

from ..absent import explain
from ..core import ConvAlgo

__all__ = ["ConvAlgo", "get_conv_output_size", "get_deconv_output_size"]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The extents of a convolution's outputs, torch's.

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
    """The extents of a transposed convolution's outputs: torch's for a dilation of 1.

    spconv leaves the dilation out of account. Cells that a dilated filter feeds past the end of
    this grid are not there.

    >>> get_deconv_output_size([5], [3], [2], [1], [1], [1])
    [10]
    """
    modes = zip(input_size, kernel_size, stride, padding, output_padding, strict=True)
    return [(e - 1) * s - 2 * p + k + o for e, k, s, p, o in modes]


_MAPS = "layoutconv.sparse has submanifold_map, strided_map and transposed_map"
_CONV = "layoutconv.nn.sparse has the convolutions as functions of a kernel map"
_POOL = "layoutconv.nn.sparse_pool has pooling as functions of a kernel map"

__getattr__ = explain(
    __name__,
    {
        "get_indice_pairs": _MAPS,
        "get_indice_pairs_implicit_gemm": _MAPS,
        "indice_conv": _CONV,
        "indice_conv_backward": _CONV,
        "implicit_gemm": _CONV,
        "implicit_gemm_backward": _CONV,
        "indice_maxpool": _POOL,
        "indice_maxpool_backward": _POOL,
        "indice_maxpool_implicit_gemm": _POOL,
        "indice_maxpool_implicit_gemm_backward": _POOL,
        "indice_avgpool_implicit_gemm": _POOL,
        "indice_avgpool_implicit_gemm_backward": _POOL,
        "global_pool_rearrange": _POOL,
    },
)
