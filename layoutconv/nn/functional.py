"""Convolutions as functions of torch tensors, with the shapes and arguments of torch's functions.

Memory is NDHWC (NHWC, NWC): tensors in ``channels_last`` order are read in place, and results are
in that order. A tensor in another order, channels first or with gaps, is copied once before the
convolution: one pass that reads and writes its memory.

Beyond torch's arguments, each function takes an epilogue and fuses it: ``activation(scale * sum +
bias + residual)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from ..conv.problem import Ints, Padding, padding_pairs, per_mode, transposed_mode
from ..errors import ArgumentError, truth_of
from ..ops import dense_calls
from ..ops.dense_calls import below_autocast
from ..ops.epilogue_args import EpilogueArgs
from ..view.epilogue import Pointwise
from . import fuse
from .arguments import (
    check_activation,
    check_dense_operands,
    check_fits,
    check_function,
    check_groups,
    check_like_output,
    check_out_dtype,
    check_size,
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
    """Convolve over one spatial mode: ``input`` (N, C, W), ``weight`` (K, C, S); see `conv3d`.

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
    """Convolve over two spatial modes: ``input`` (N, C, H, W), ``weight`` (K, C, R, S).

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
    """Convolve over three spatial modes; like torch's, this is a cross-correlation.

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
        groups: the number of groups of channels that convolve separately; it divides C and K. If it
            is C, the convolution is depthwise.
        activation: "relu", "leaky_relu" (with ``slope`` below zero), "gelu", "gelu_tanh", "silu",
            "sigmoid", "tanh", "hardswish" or "relu6"; or a :class:`~layoutconv.Pointwise`, a
            function of your own: columns are channels, (K,), sources have the shape of the output,
            and a row is the number of a voxel in (N, Z, P, Q), last mode fastest.
        scale: (K,) or a number, multiplies the sums first.
        residual: (N, K, Z, P, Q), added before the activation.
        out_dtype: the dtype of the output: float16, bfloat16, float32, int8, float8_e4m3fn or
            float8_e5m2, converted with saturation. By default that of ``input``, int32 for int8,
            float16 for float8.
        return_statistics: also return the sum and the sum of squares of every channel of the stored
            output, fp32 (2, K), as a batch norm needs them. They have no gradient: ``backward``
            treats what is computed from them as constant.
        executor: "view" runs the views on a CPU too, which otherwise calls torch's own convolution,
            with the same rounding and epilogue. A GPU always runs views. Under ``torch.compile``
            the graph contains torch's own, unless that would be wrong.

    ``bias``, ``scale`` and ``residual`` are float16, bfloat16 or float32; for a float64 ``input``
    also float64, and for an int8 one ``residual`` may be int8. All steps are in fp32 (fp64 for
    float64), and the result is rounded once.

    Returns (N, K, Z, P, Q) in ``channels_last_3d`` memory, or that and the statistics. Sums are in
    fp32 (fp64 for float64, exact int32 for int8). Differentiable any number of times. Autocast
    lowers it like torch's convolutions, but does not round the gradient of a float32 filter in
    between.

    With a gradient, torch computes the epilogue if ``scale`` needs a gradient, or if the
    activation's gradient is not a function of its value (gelu, silu, hardswish): the same numbers,
    but for one more rounding. A function of your own is fused with a gradient, too: backward
    computes the sums once more, unless the function has a backward function. torch runs it on the
    sums, which are then stored in fp32, if it asks for rows, under ``torch.compile`` and
    transforms, and if ``scale`` has a gradient.

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
    """Transpose-convolve: ``input`` (N, K, W), ``weight`` (K, C, S); see `conv_transpose3d`.

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
    """Transpose-convolve: ``input`` (N, K, H, W), ``weight`` (K, C, R, S).

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
    """Transpose-convolve over three spatial modes: the gradient of :func:`conv3d`, like torch's.

    Args:
        input: (N, K, D, H, W), or (K, D, H, W).
        weight: (K, C / groups, T, R, S).
        bias: (C,).
        padding: cells cut off the result: an int >= 0, or an int or a pair ``(near, far)`` per
            spatial mode.
        output_padding: cells added at the far side, an int or one per spatial mode; below the
            stride or the dilation, or at most ``far``.
        stride, groups, dilation, activation, slope, scale, residual, out_dtype: as in
            :func:`conv3d`, with its dtypes and memory; ``scale`` is (C,) or a number.

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
    if statistics is False:
        call = dense_calls.find(given, out_dtype, input, weight, bias, scale, residual)
        if call is not None and (
            call.lowers is None or call.lowers is get_autocast_dtype(input.device.type)
        ):
            return call.run(input, weight, bias, scale, residual)
    operands, statistics = (input, weight), truth_of("return_statistics", statistics)
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
    check_dense_operands(rank, input, weight, asked, groups, transposed=transposed)
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
        scale = input.new_full((K,), float(scale), dtype=torch.float64 if wide else torch.float32)
    return asked.of(asked.bias, scale, asked.residual)


def _run(
    convolve: Any,
    rank: int,
    input: Tensor,
    weight: Tensor,
    numbers: tuple[Any, ...],
    ending: EpilogueArgs,
) -> Tensor:
    """Convolve a batch or one image, complex numbers as real ones."""
    x, w, ending = batch(input, rank), weight, of_batch(ending, rank)
    if not input.is_complex():
        return like(convolve(x, w, numbers, ending), input, rank)
    scale, bias, residual = ending.scale, ending.bias, ending.residual
    # Widen the scale before repeating it: then its gradient is rounded once, after both are added.
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
    """Convolve, and return the sums and sums of squares of the result's channels, too."""
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
