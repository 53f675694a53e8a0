"""Convolutions as functions of torch tensors, with the shapes and the arguments of torch's.

Memory is NDHWC (NHWC, NWC): a tensor in ``channels_last`` order is taken as it is, and results are
in that order. A tensor in another order is copied once, a pass over its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..conv.problem import Padding, padding_pairs, per_mode, transposed_mode
from ..errors import ArgumentError, ArgumentTypeError
from ..executors.autograd import conv_dgrad, conv_fprop

if TYPE_CHECKING:
    from torch import Tensor

Ints = int | Sequence[int]

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over one spatial mode: ``input`` (N, C, W), ``weight`` (K, C, S). As `conv3d`.

    >>> x = torch.tensor([[[1.0, 2, 3, 4]]])
    >>> conv1d(x, torch.tensor([[[1.0, 10, 100]]]), padding=((2, 0),))
    tensor([[[100., 210., 321., 432.]]])
    """
    return _convolution(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over two spatial modes: ``input`` (N, C, H, W), ``weight`` (K, C, R, S).

    The arguments are those of :func:`conv3d`.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> conv2d(x, torch.ones(1, 1, 3, 3), padding="same", stride=1)[0, 0]
    tensor([[ 8., 15., 12.],
            [21., 36., 27.],
            [20., 33., 24.]])
    """
    return _convolution(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over three spatial modes, in truth the cross-correlation, as torch's.

    Args:
        input: (N, C, D, H, W), or (C, D, H, W); N may be 0. float16, bfloat16, float32 or float64
            (the last on a CPU alone). ``channels_last_3d`` memory is not copied.
        weight: (K, C, T, R, S) of the dtype of ``input``, best in ``channels_last_3d`` memory. On a
            GPU, C and K have to be multiples of 16 bytes for now.
        bias: (K,).
        stride, dilation: an int >= 1, or one per spatial mode.
        padding: cells of zeros: an int >= 0, an int or a pair ``(near, far)`` per spatial mode,
            'valid' for none, or, for a stride of 1, 'same' for an output of the input's size.
        groups: 1, for now.

    Returns (N, K, Z, P, Q) in ``channels_last_3d`` memory. Differentiable any number of times;
    lowered under autocast as torch's convolutions are; sums in fp32 (fp64 for float64).

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> x, w = torch.randn(2, 3, 4, 8, 8), torch.randn(5, 3, 3, 3, 3)
    >>> y = conv3d(x, w, stride=(1, 2, 2), padding=1)
    >>> torch.allclose(y, torch.nn.functional.conv3d(x, w, None, (1, 2, 2), 1), atol=1e-4)
    True
    """
    return _convolution(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution: ``input`` (N, K, W), ``weight`` (K, C, S). As `conv_transpose3d`.

    >>> x = torch.tensor([[[1.0, 2]]])
    >>> conv_transpose1d(x, torch.tensor([[[1.0, 10, 100]]]), stride=2)
    tensor([[[  1.,  10., 102.,  20., 200.]]])
    """
    return _transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution: ``input`` (N, K, H, W), ``weight`` (K, C, R, S).

    The arguments are those of :func:`conv_transpose3d`.

    >>> conv_transpose2d(torch.eye(2)[None, None], torch.ones(1, 1, 2, 2), padding=((0, 0), (1, 0)))
    tensor([[[[1., 0.],
              [2., 1.],
              [1., 1.]]]])
    """
    return _transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over three spatial modes: the gradient of :func:`conv3d`, as torch's.

    Args:
        input: (N, K, D, H, W), or (K, D, H, W).
        weight: (K, C, T, R, S).
        bias: (C,).
        padding: cells that are cut off what comes out: an int >= 0, or an int or a pair ``(near,
            far)`` per spatial mode.
        output_padding: cells that are added at the far side, an int or one per spatial mode; below
            the stride, or no more than ``far``.
        stride, groups, dilation: as in :func:`conv3d`, whose dtypes, limits and memory these are.

    Returns (N, C, ...) with ``(D - 1) * stride - near - far + dilation * (T - 1) + 1 +
    output_padding`` cells in a spatial mode.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> x, w = torch.randn(2, 3, 4, 5, 6), torch.randn(3, 5, 3, 3, 3)
    >>> y = conv_transpose3d(x, w, None, 2, 1, 1)
    >>> torch.allclose(y, torch.nn.functional.conv_transpose3d(x, w, None, 2, 1, 1), atol=1e-4)
    True
    """
    return _transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _convolution(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Padding | str,
    dilation: Ints,
    groups: int,
) -> Tensor:
    _check(rank, input, weight, bias, groups, transposed=False)
    steps, apart = per_mode("stride", stride, rank), per_mode("dilation", dilation, rank)
    pairs = near_and_far(padding, steps, apart, weight.shape[2:])
    x, w = _in_memory_order(input, rank), weight.movedim(1, -1)
    return _finish(conv_fprop(x, w, steps, _flat(pairs), apart), bias, input, rank)


def _transposed(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
) -> Tensor:
    _check(rank, input, weight, bias, groups, transposed=True)
    steps, apart = per_mode("stride", stride, rank), per_mode("dilation", dilation, rank)
    spans = [d * (t - 1) + 1 for d, t in zip(apart, weight.shape[2:], strict=True)]
    extra = per_mode("output_padding", output_padding, rank, least=0)
    pairs = padding_pairs(padding, rank)
    modes = zip(input.shape[-rank:], spans, steps, pairs, extra, strict=True)
    cells_and_pairs = [transposed_mode(*mode) for mode in modes]
    spatial = [cells for cells, _ in cells_and_pairs]
    sides = _flat(pair for _, pair in cells_and_pairs)
    y, w = _in_memory_order(input, rank), weight.movedim(1, -1)
    return _finish(conv_dgrad(y, w, spatial, steps, sides, apart), bias, input, rank)


def _in_memory_order(input: Tensor, rank: int) -> Tensor:
    """(N, D, H, W, C) of a batch, or of the one image that there is."""
    return (input if input.dim() == rank + 2 else input.unsqueeze(0)).movedim(1, -1)


def _finish(y: Tensor, bias: Tensor | None, input: Tensor, rank: int) -> Tensor:
    if bias is not None:
        y = y + bias.to(y.dtype)
    y = y.movedim(-1, 1)
    return y if input.dim() == rank + 2 else y.squeeze(0)


def _flat(pairs: Any) -> list[int]:
    return [side for pair in pairs for side in pair]


def near_and_far(
    padding: Padding | str,
    stride: Sequence[int],
    dilation: Sequence[int],
    taps: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """(near, far) of every spatial mode; of 'same', the odd cell is at the far side, as torch's.

    >>> near_and_far("same", (1, 1), (1, 1), (3, 4))
    ((1, 1), (1, 2))
    """
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if padding == "same":
        if any(step != 1 for step in stride):
            raise ArgumentError("padding", "'same' with a stride of 1 alone", f"stride {stride}")
        total = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
        return tuple((cells // 2, cells - cells // 2) for cells in total)
    if isinstance(padding, str):
        raise ArgumentError("padding", "'same', 'valid' or numbers", repr(padding))
    return padding_pairs(padding, len(taps))


def _check(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *, transposed: bool
) -> None:
    """What torch's shapes and dtypes have to be, in the user's words."""
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor) and not (name == "bias" and tensor is None):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
    if input.dim() not in (rank + 1, rank + 2):
        expected = f"(N, C) or (C,) and {rank} spatial modes"
        raise ArgumentError("input", expected, f"shape {tuple(input.shape)}")
    if weight.dim() != rank + 2:
        expected = f"2 modes of channels and {rank} of taps"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    if groups != 1:
        raise ArgumentError("groups", "1, as grouped convolutions are not there yet", groups)
    into, out_of = (0, 1) if transposed else (1, 0)
    channels = input.shape[-rank - 1]
    if weight.shape[into] != channels:
        expected = f"{channels} channels in mode {into}, as in the input"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    if bias is not None and tuple(bias.shape) != (weight.shape[out_of],):
        expected = f"shape ({weight.shape[out_of]},), an entry per channel of the output"
        raise ArgumentError("bias", expected, f"shape {tuple(bias.shape)}")
    lowered = torch.is_autocast_enabled(input.device.type)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype != input.dtype and not lowered:
            raise ArgumentTypeError(name, f"{input.dtype}, as the input", str(tensor.dtype))
        if tensor.device != input.device:
            raise ArgumentError(name, f"{input.device}, where the input is", str(tensor.device))
