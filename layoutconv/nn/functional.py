"""Convolutions as functions of torch tensors, with the shapes and the arguments of torch's.

Memory is NDHWC (NHWC, NWC): a tensor in ``channels_last`` order is taken as it is, and results are
in that order. A tensor in another order, channels first or with gaps, is copied once: a pass over
its memory, reading and writing, before the convolution.

Beyond torch's, every function has what may follow the sums, fused into them: ``activation(scale *
sum + bias + residual)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from ..conv.problem import Ints, Padding, padding_pairs, per_mode, transposed_mode
from ..errors import ArgumentError
from ..ops import dense_calls
from ..ops.dense_calls import below_autocast
from ..ops.epilogue_args import EpilogueArgs
from ..view.epilogue import Pointwise
from . import fuse
from .arguments import (
    check_activation,
    check_fits,
    check_function,
    check_groups,
    check_like_output,
    check_out_dtype,
    check_size,
    check_tensors,
    checked_executor,
    near_and_far,
)
from .batches import batch, like, of_batch
from .complex import complex_channels, real_channels, real_filter, without_autocast
from .overrides import overridden, tensors_given
from .own_function import known, with_function

get_autocast_dtype = torch.get_autocast_dtype

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
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_statistics: bool = False,
    executor: str | None = None,
) -> Any:
    """Convolution over one spatial mode: ``input`` (N, C, W), ``weight`` (K, C, S). As `conv3d`.

    >>> x = torch.tensor([[[1.0, 2, 3, 4]]])
    >>> conv1d(x, torch.tensor([[[1.0, 10, 100]]]), padding=((2, 0),))
    tensor([[[100., 210., 321., 432.]]])
    """
    return _convolution(
        1, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, dilation, groups, return_statistics, executor,
    )  # fmt: skip


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_statistics: bool = False,
    executor: str | None = None,
) -> Any:
    """Convolution over two spatial modes: ``input`` (N, C, H, W), ``weight`` (K, C, R, S).

    The arguments are those of :func:`conv3d`.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> conv2d(x, torch.ones(1, 1, 3, 3), padding="same", stride=1)[0, 0]
    tensor([[ 8., 15., 12.],
            [21., 36., 27.],
            [20., 33., 24.]])
    """
    return _convolution(
        2, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, dilation, groups, return_statistics, executor,
    )  # fmt: skip


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    return_statistics: bool = False,
    executor: str | None = None,
) -> Any:
    """Convolution over three spatial modes; like torch's, it is a cross-correlation.

    Args:
        input: (N, C, D, H, W), or (C, D, H, W); N may be 0. float16, bfloat16, float32, float64,
            int8, float8_e4m3fn, float8_e5m2, complex64 or complex128. ``channels_last_3d`` memory
            is not copied.
        weight: (K, C / groups, T, R, S) of the dtype of ``input``, best in ``channels_last_3d``
            memory.
        bias: (K,).
        stride, dilation: an int >= 1, or one per spatial mode.
        padding: cells of zeros: an int >= 0, an int or a pair ``(near, far)`` per spatial mode,
            'valid' for none, or, for a stride of 1, 'same' for an output of the input's size.
        groups: how many groups of channels convolve by themselves; it divides C and K. Where it is
            C, the convolution is depthwise.
        activation: "relu", "leaky_relu" (with ``slope`` below zero), "gelu", "gelu_tanh", "silu",
            "sigmoid", "tanh", "hardswish" or "relu6"; or a :class:`~layoutconv.Pointwise`, a
            function of your own: columns are channels, (K,), sources have the shape of the output,
            and a row is the number of a voxel in (N, Z, P, Q), last mode fastest.
        scale: (K,) or a number, what the sums are multiplied by first.
        residual: (N, K, Z, P, Q), added before the activation.
        out_dtype: the dtype of the output: float16, bfloat16, float32, int8, float8_e4m3fn or
            float8_e5m2, converted with saturation. By default that of ``input``, int32 for int8,
            float16 for float8.
        return_statistics: also return the sum and the sum of squares of every channel of the output
            as it is stored, fp32 (2, K), as a batch norm wants them. They have no gradient: what
            is computed from them is constant to ``backward``.
        executor: "view" runs the views on a CPU too, where torch's own convolution is called
            otherwise, with the same rounding and ending. A GPU runs views always. Under
            ``torch.compile`` torch's own is in the graph, unless it would be wrong.

    ``bias``, ``scale`` and ``residual`` are float16, bfloat16 or float32; of a float64 ``input``
    float64 as well, and a ``residual`` int8 of an int8 one. All steps are in fp32 (fp64 for
    float64), and rounded once.

    Returns (N, K, Z, P, Q) in ``channels_last_3d`` memory, or that and the statistics.
    Differentiable any number of times; lowered under autocast as torch's convolutions are, where
    the gradient of a float32 filter is not rounded in between; sums in fp32 (fp64 for float64,
    exact int32 for int8). Where a gradient is wanted, and that of the
    activation is not a function of its value (gelu, silu, hardswish), or ``scale`` has one, the
    epilogue is computed by torch: the same numbers, but for one rounding more. A function
    of your own is fused with a gradient, too: backward, the sums are computed once more, unless it
    has a backward function. torch runs it behind the sums, which are then stored in fp32, where it
    asks for rows, under ``torch.compile`` and transforms, and where ``scale`` has a gradient.

    Complex numbers are convolved as a real convolution of twice the channels; they take ``bias``,
    ``residual`` and a real ``scale``.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> x, w = torch.randn(2, 3, 4, 8, 8), torch.randn(5, 3, 3, 3, 3)
    >>> y = conv3d(x, w, stride=(1, 2, 2), padding=1)
    >>> torch.allclose(y, torch.nn.functional.conv3d(x, w, None, (1, 2, 2), 1), atol=1e-4)
    True
    >>> z = conv3d(x, w, stride=(1, 2, 2), padding=1, residual=y, activation="relu")
    >>> torch.allclose(z, torch.relu(2 * y), atol=1e-4)
    True
    """
    return _convolution(
        3, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, dilation, groups, return_statistics, executor,
    )  # fmt: skip


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    executor: str | None = None,
) -> Tensor:
    """Transposed convolution: ``input`` (N, K, W), ``weight`` (K, C, S). As `conv_transpose3d`.

    >>> x = torch.tensor([[[1.0, 2]]])
    >>> conv_transpose1d(x, torch.tensor([[[1.0, 10, 100]]]), stride=2)
    tensor([[[  1.,  10., 102.,  20., 200.]]])
    """
    return _transposed(
        1, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, output_padding, groups, dilation, executor,
    )  # fmt: skip


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    executor: str | None = None,
) -> Tensor:
    """Transposed convolution: ``input`` (N, K, H, W), ``weight`` (K, C, R, S).

    The arguments are those of :func:`conv_transpose3d`.

    >>> conv_transpose2d(torch.eye(2)[None, None], torch.ones(1, 1, 2, 2), padding=((0, 0), (1, 0)))
    tensor([[[[1., 0.],
              [2., 1.],
              [1., 1.]]]])
    """
    return _transposed(
        2, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, output_padding, groups, dilation, executor,
    )  # fmt: skip


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    activation: str | Pointwise | None = None,
    slope: float = 0.01,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    executor: str | None = None,
) -> Tensor:
    """Transposed convolution over three spatial modes: the gradient of :func:`conv3d`, as torch's.

    Args:
        input: (N, K, D, H, W), or (K, D, H, W).
        weight: (K, C / groups, T, R, S).
        bias: (C,).
        padding: cells that are cut off what comes out: an int >= 0, or an int or a pair ``(near,
            far)`` per spatial mode.
        output_padding: cells that are added at the far side, an int or one per spatial mode; below
            the stride or the dilation, or no more than ``far``.
        stride, groups, dilation, activation, slope, scale, residual, out_dtype: as in
            :func:`conv3d`, whose dtypes and memory these are; ``scale`` is (C,) or a number.

    Returns (N, C, ...) with ``(D - 1) * stride - near - far + dilation * (T - 1) + 1 +
    output_padding`` cells in a spatial mode.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, that names the argument.

    >>> x, w = torch.randn(2, 3, 4, 5, 6), torch.randn(3, 5, 3, 3, 3)
    >>> y = conv_transpose3d(x, w, None, 2, 1, 1)
    >>> torch.allclose(y, torch.nn.functional.conv_transpose3d(x, w, None, 2, 1, 1), atol=1e-4)
    True
    """
    return _transposed(
        3, input, weight, bias, scale, residual, activation, slope, out_dtype,
        stride, padding, output_padding, groups, dilation, executor,
    )  # fmt: skip


def _convolution(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    activation: str | Pointwise | None,
    slope: float,
    out_dtype: torch.dtype | None,
    stride: Ints,
    padding: Padding | str,
    dilation: Ints,
    groups: int,
    statistics: bool,
    executor: str | None,
) -> Any:
    given = "conv", rank, stride, padding, dilation, groups, executor, activation, slope
    if not statistics:
        call = dense_calls.find(given, out_dtype, input, weight, bias, scale, residual)
        if call is not None and (
            call.lowers is None or call.lowers is get_autocast_dtype(input.device.type)
        ):
            return call.run(input, weight, bias, scale, residual)
    operands = input, weight
    asked = EpilogueArgs(bias, scale, residual, activation, slope, out_dtype)
    if isinstance(activation, Pointwise):
        given = *given[:-2], *activation.key
        found = None if statistics else known(given, operands, asked)
        if found is not None:
            return found
    rest = stride, padding, dilation, groups, statistics, executor
    if has_torch_function(tensors_given(operands, asked)):
        more: dict[str, Any] = {"return_statistics": True} if statistics else {}
        more |= {"executor": executor} if executor else {}
        return overridden(globals()[f"conv{rank}d"], operands, asked, rest[:4], **more)
    found = below_autocast(partial(_convolution, rank), given, operands, asked, rest)
    if found is not None:
        return found
    groups = check_groups(groups)
    ending = _checked(rank, input, weight, asked, groups, transposed=False)
    steps, apart = per_mode("stride", stride, rank), per_mode("dilation", dilation, rank)
    pairs = near_and_far(padding, steps, apart, weight.shape[2:])
    check_fits(input.shape[-rank:], weight.shape[2:], pairs, apart)
    modes = zip(input.shape[-rank:], weight.shape[2:], steps, pairs, apart, strict=True)
    voxels = [(e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, (n, f), d in modes]
    check_like_output(ending, input, weight.shape[0], voxels)
    of_pass = steps, _flat(pairs), apart, groups, checked_executor(executor)
    shape = input.shape[0], weight.shape[0], *voxels
    check_size(shape, "padding", of_pass[1])
    if statistics:
        return _with_statistics(rank, input, weight, of_pass, ending)
    if isinstance(activation, Pointwise):
        endings = asked, ending
        return with_function(fuse.fprop, rank, given, operands, of_pass, endings, shape)
    first = dense_calls.FirstCall(given, operands, asked, of_pass, "fprop")
    found = dense_calls.by_torch(first, shape)
    if found is not None:
        return found
    return dense_calls.remember(first, _run(fuse.fprop, rank, input, weight, of_pass, ending))


def _transposed(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    activation: str | Pointwise | None,
    slope: float,
    out_dtype: torch.dtype | None,
    stride: Ints,
    padding: Padding,
    output_padding: Ints,
    groups: int,
    dilation: Ints,
    executor: str | None,
) -> Tensor:
    numbers = rank, stride, padding, output_padding, groups, dilation, executor
    given = "transposed", *numbers, activation, slope
    call = dense_calls.find(given, out_dtype, input, weight, bias, scale, residual)
    if call is not None and (
        call.lowers is None or call.lowers is get_autocast_dtype(input.device.type)
    ):
        return call.run(input, weight, bias, scale, residual)
    operands = input, weight
    asked = EpilogueArgs(bias, scale, residual, activation, slope, out_dtype)
    if isinstance(activation, Pointwise):
        given = "transposed", *numbers, *activation.key
        found = known(given, operands, asked)
        if found is not None:
            return found
    if has_torch_function(tensors_given(operands, asked)):
        rest = stride, padding, output_padding, groups, dilation
        more = {"executor": executor} if executor else {}
        return overridden(globals()[f"conv_transpose{rank}d"], operands, asked, rest, **more)
    found = below_autocast(partial(_transposed, rank), given, operands, asked, numbers[1:])
    if found is not None:
        return found
    groups = check_groups(groups)
    ending = _checked(rank, input, weight, asked, groups, transposed=True)
    steps, apart = per_mode("stride", stride, rank), per_mode("dilation", dilation, rank)
    extra = per_mode("output_padding", output_padding, rank, least=0)
    pairs = padding_pairs(padding, rank)
    modes = zip(input.shape[-rank:], weight.shape[2:], steps, apart, pairs, extra, strict=True)
    cells_and_pairs = [transposed_mode(*mode) for mode in modes]
    spatial = [cells for cells, _ in cells_and_pairs]
    sides = _flat(pair for _, pair in cells_and_pairs)
    check_like_output(ending, input, weight.shape[1] * groups, spatial)
    shape = input.shape[0], weight.shape[1] * groups, *spatial
    check_size(shape, "stride", steps, apart, extra)
    of_pass = spatial, steps, sides, apart, groups, checked_executor(executor)
    if isinstance(activation, Pointwise):
        endings = asked, ending
        return with_function(fuse.dgrad, rank, given, operands, of_pass, endings, shape)
    first = dense_calls.FirstCall(given, operands, asked, of_pass, "dgrad")
    return dense_calls.remember(first, _run(fuse.dgrad, rank, input, weight, of_pass, ending))


def _checked(
    rank: int,
    input: Tensor,
    weight: Tensor,
    asked: EpilogueArgs,
    groups: int,
    *,
    transposed: bool,
) -> EpilogueArgs:
    """Check tensors and options; return the epilogue, whose scale is a tensor."""
    check_tensors(rank, input, weight, asked, groups, transposed=transposed)
    if isinstance(asked.activation, Pointwise):
        K = weight.shape[1] * groups if transposed else weight.shape[0]
        check_function(asked.activation, input, K)
    else:
        check_activation(asked.activation, asked.slope, input)
    check_out_dtype(asked.out_dtype, input)
    scale = asked.scale
    if scale is not None and not isinstance(scale, torch.Tensor):
        wide = input.dtype in (torch.float64, torch.complex128)
        K = weight.shape[1] * groups if transposed else weight.shape[0]
        scale = input.new_full((K,), scale, dtype=torch.float64 if wide else torch.float32)
    return asked.of(asked.bias, scale, asked.residual)


def _run(
    convolve: Any,
    rank: int,
    input: Tensor,
    weight: Tensor,
    numbers: tuple[Any, ...],
    ending: EpilogueArgs,
) -> Tensor:
    """The convolution of a batch or of one image, complex ones as real ones."""
    x, w, ending = batch(input, rank), weight, of_batch(ending, rank)
    if not input.is_complex():
        return like(convolve(x, w, numbers, ending), input, rank)
    scale, bias, residual = ending.scale, ending.bias, ending.residual
    # The scale is wide before it is two: its gradient is rounded once, after both are added.
    real = ending.of(
        bias=None if bias is None else real_channels(bias),
        scale=None if scale is None else scale.to(x.real.dtype).repeat_interleave(2),
        residual=None if residual is None else _in_memory_order(real_channels, residual),
    )
    w = _in_memory_order(partial(real_filter, transposed=convolve is fuse.dgrad), w)
    with without_autocast(input):  # torch's does not lower them either
        y = convolve(_in_memory_order(real_channels, x), w, numbers, real)
    return like(_in_memory_order(complex_channels, y), input, rank)


def _with_statistics(
    rank: int, input: Tensor, weight: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> tuple[Tensor, Tensor]:
    """The same, and the sums and sums of squares of its channels."""
    if input.is_complex():
        raise ArgumentError("return_statistics", "False for complex numbers", True)
    x, ending = batch(input, rank), of_batch(ending, rank)
    y, sums = fuse.fprop_statistics(x, weight, numbers, ending)
    return like(y, input, rank), sums


def _in_memory_order(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Apply a function of channels-last memory to a tensor in torch's order."""
    return function(tensor.movedim(1, -1)).movedim(-1, 1)


def _flat(pairs: Any) -> list[int]:
    return [side for pair in pairs for side in pair]
