"""The passes of a dense convolution as differentiable torch operators, ``torch.ops.layoutconv.*``.

    conv_fprop(x, w, ..., bias, scale, residual, activation, slope, out_dtype) -> y
    conv_dgrad(y, w, spatial, ..., bias, scale, residual, activation, slope, out_dtype) -> x
    conv_wgrad(y, x, taps, ...) -> w
    conv_fprop_statistics(as conv_fprop) -> y, statistics

Tensors have torch's shapes, ``x`` (N, C, D, H, W), ``w`` (K, C/groups, T, R, S), ``y`` (N, K, Z, P,
Q), for 1 to 3 spatial modes; memory in another order than that of ``channels_last`` is copied, and
results are in that order. A compiler's graph has no transposed views between operators then, which
inductor cannot save for a backward pass where their sizes are symbolic. ``padding`` is (near, far)
for every spatial mode, flat. The result is ``activation(scale * sum + bias + residual)``, fused
into the pass: ``bias`` and ``scale`` have a number for each channel of the result, ``residual`` its
shape.

Each pass is linear in both its tensors, and the gradients of each are the other two: gradients of
any order come from these three. That of an activation is taken from its value, which relu,
leaky_relu (of a slope >= 0), sigmoid and tanh allow; through others, and with respect to ``scale``,
there is none here. ``statistics`` are fp32 (2, K), as ``execute`` makes them, without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError
from . import dense_passes
from .guard import is_plain, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_NUMBERS = "int[] stride, int[] padding, int[] dilation, int groups=1"
EPILOGUE = (
    "Tensor? bias=None, Tensor? scale=None, Tensor? residual=None, "
    "str? activation=None, float slope=0.01, ScalarType? out_dtype=None"
)
_SCHEMAS = {
    "conv_fprop": f"(Tensor x, Tensor w, {_NUMBERS}, {EPILOGUE}) -> Tensor",
    "conv_fprop_statistics": f"(Tensor x, Tensor w, {_NUMBERS}, {EPILOGUE}) -> (Tensor, Tensor)",
    "conv_dgrad": f"(Tensor y, Tensor w, SymInt[] spatial, {_NUMBERS}, {EPILOGUE}) -> Tensor",
    "conv_wgrad": f"(Tensor y, Tensor x, SymInt[] taps, {_NUMBERS}) -> Tensor",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"layoutconv::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

conv_fprop = torch.ops.layoutconv.conv_fprop.default
conv_fprop_statistics = torch.ops.layoutconv.conv_fprop_statistics.default
conv_dgrad = torch.ops.layoutconv.conv_dgrad.default
conv_wgrad = torch.ops.layoutconv.conv_wgrad.default

for _device in ("cpu", "cuda"):
    torch.library.impl("layoutconv::conv_fprop", _device, dense_passes.fprop)
    torch.library.impl("layoutconv::conv_fprop_statistics", _device, dense_passes.fprop_statistics)
    torch.library.impl("layoutconv::conv_dgrad", _device, dense_passes.dgrad)
    torch.library.impl("layoutconv::conv_wgrad", _device, dense_passes.wgrad)


# -- what they would return: shapes without data ---------------------------------------------------


@torch.library.register_fake("layoutconv::conv_fprop")
def _fake_fprop(
    x: Tensor,
    w: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    near, far = padding[::2], padding[1::2]
    modes = zip(x.shape[2:], w.shape[2:], stride, near, far, dilation, strict=True)
    voxels = [(e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, n, f, d in modes]
    return dense_passes.new_result(x, (x.shape[0], *voxels, w.shape[0]), out_dtype)


@torch.library.register_fake("layoutconv::conv_fprop_statistics")
def _fake_fprop_statistics(x: Tensor, w: Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    y = _fake_fprop(x, w, *args, **options)
    return y, x.new_empty((2, w.shape[0]), dtype=torch.float32)


@torch.library.register_fake("layoutconv::conv_dgrad")
def _fake_dgrad(
    y: Tensor,
    w: Tensor,
    spatial: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    slope: float = 0.01,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return dense_passes.new_result(y, (y.shape[0], *spatial, w.shape[1] * groups), out_dtype)


@torch.library.register_fake("layoutconv::conv_wgrad")
def _fake_wgrad(
    y: Tensor,
    x: Tensor,
    taps: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
) -> Tensor:
    return dense_passes.new_result(y, (y.shape[1], *taps, x.shape[1] // groups))


# -- gradients: each pass is linear in its tensors, and theirs are the other two -------------------

_BACKWARD: dict[str, Any] = {
    "relu": lambda grad, y, slope: torch.ops.aten.threshold_backward(grad, y, 0),
    "leaky_relu": lambda grad, y, slope: torch.ops.aten.leaky_relu_backward(grad, y, slope, True),
    "sigmoid": lambda grad, y, slope: torch.ops.aten.sigmoid_backward(grad, y),
    "tanh": lambda grad, y, slope: torch.ops.aten.tanh_backward(grad, y),
}


def has_gradient(activation: str | None, slope: float) -> bool:
    """Return whether the operators can go backward through an activation, knowing its value alone.

    >>> has_gradient("relu", 0.01), has_gradient("gelu", 0.01), has_gradient("leaky_relu", -1.0)
    (True, False, False)
    """
    if activation == "leaky_relu":
        return slope >= 0
    return activation is None or activation in _BACKWARD


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save what backward passes need of an operator's inputs: two tensors, numbers, an ending."""
    first, second, *numbers = inputs
    bias, scale, residual, activation, slope, _ = numbers[-6:]
    result = output[0] if isinstance(output, tuple) else output
    if isinstance(output, tuple):
        ctx.mark_non_differentiable(output[1])
    needed = ctx.needs_input_grad
    ctx.save_for_backward(
        first if needed[1] else None,
        second if needed[0] else None,
        scale if needed[0] or needed[1] else None,
        result if activation is not None else None,
    )
    ctx.shapes = first.shape, second.shape
    ctx.dtype = first.dtype
    ctx.linear = len(inputs) - 6  # arguments before `bias`
    ctx.numbers = tuple(numbers[:-6])
    ctx.others = tuple(None if t is None else t.dtype for t in (bias, residual))
    ctx.activation = activation, slope


def through_epilogue(
    ctx: Any, grad: Tensor, scale: Tensor | None, result: Tensor | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """The gradient of the sums, and those of an operator's inputs from ``bias`` on.

    ``scale`` and ``result`` are what :func:`keep` saved last. Whoever calls has unpacked what was
    saved: under ``torch.utils.checkpoint`` that is possible once.
    """
    (activation, slope), (bias_dtype, residual_dtype) = ctx.activation, ctx.others
    # The dispatcher leaves out arguments at the end that are at their defaults.
    needed = (*ctx.needs_input_grad, *[False] * (ctx.linear + 3))
    needs_bias, needs_scale, needs_residual = needed[ctx.linear : ctx.linear + 3]
    if needs_scale or not has_gradient(activation, slope):
        name, got = ("scale", "one") if needs_scale else ("activation", f"{activation} of {slope}")
        expected = "None, or without a gradient: it is no function of the result"
        raise ArgumentError(name, expected, got)
    if activation is not None:
        grad = _BACKWARD[activation](grad, result, slope)
    bias = residual = None
    if needs_bias:
        exact = torch.promote_types(grad.dtype, torch.float32)
        others = [mode for mode in range(grad.dim()) if mode != 1]
        bias = grad.sum(others, dtype=exact).to(bias_dtype)
    if needs_residual:
        residual = grad.to(residual_dtype)
    sums = grad if scale is None else grad * per_channel(scale, grad)
    return sums.to(ctx.dtype), (bias, None, residual, None, None, None)


def per_channel(column: Tensor, like: Tensor) -> Tensor:
    """A number for each channel, (C,), in a shape that broadcasts over (N, C, ...).

    >>> per_channel(torch.ones(3), torch.ones(2, 3, 4, 4)).shape
    torch.Size([3, 1, 1])
    """
    return column.view(-1, *[1] * (like.dim() - 2))


def around(op: Any, function: Any) -> Any:
    """An operator that is called past the dispatcher where that makes no difference."""

    def call(a: Tensor, b: Tensor, *numbers: Any) -> Tensor:
        plain = is_plain(a, b) and not wants_gradient(a, b) and not a.is_meta
        return (function if plain else op)(a, b, *numbers)

    return call


_fprop = around(conv_fprop, dense_passes.fprop)
_dgrad = around(conv_dgrad, dense_passes.dgrad)
_wgrad = around(conv_wgrad, dense_passes.wgrad)


def fprop_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    (x, w, *ending), (x_shape, w_shape) = ctx.saved_tensors, ctx.shapes
    grad, others = through_epilogue(ctx, grad, *ending)
    dx, dw = None, None
    if ctx.needs_input_grad[0]:
        dx = _dgrad(grad, w, x_shape[2:], *ctx.numbers)
    if ctx.needs_input_grad[1]:
        dw = _wgrad(grad, x, w_shape[2:], *ctx.numbers)
    return dx, dw, None, None, None, None, *others


def dgrad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (y, w, *ending), (_, w_shape) = ctx.saved_tensors, ctx.shapes
    grad, others = through_epilogue(ctx, grad, *ending)
    _, *numbers = ctx.numbers
    dy, dw = None, None
    if ctx.needs_input_grad[0]:
        dy = _fprop(grad, w, *numbers)
    if ctx.needs_input_grad[1]:
        dw = _wgrad(y, grad, w_shape[2:], *numbers)
    return dy, dw, None, None, None, None, None, *others


def _keep_wgrad(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    y, x, _, *numbers = inputs
    needed = ctx.needs_input_grad
    ctx.save_for_backward(y if needed[1] else None, x if needed[0] else None)
    ctx.spatial, ctx.numbers = x.shape[2:], tuple(numbers)


def _wgrad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    y, x = ctx.saved_tensors
    dy, dx = None, None
    if ctx.needs_input_grad[0]:
        dy = _fprop(x, grad, *ctx.numbers)
    if ctx.needs_input_grad[1]:
        dx = _dgrad(y, grad, ctx.spatial, *ctx.numbers)
    return dy, dx, None, None, None, None, None


for _name, _backward, _setup in (
    ("conv_fprop", fprop_backward, keep),
    ("conv_fprop_statistics", fprop_backward, keep),
    ("conv_dgrad", dgrad_backward, keep),
    ("conv_wgrad", _wgrad_backward, _keep_wgrad),
):
    torch.library.register_autograd(f"layoutconv::{_name}", _backward, setup_context=_setup)


# -- autocast: as torch's convolutions, in the lower precision -------------------------------------

_LOWERED = frozenset({torch.float16, torch.bfloat16, torch.float32})


def autocast(op: Any, device: str) -> Any:
    def lowered(a: Tensor, b: Tensor, *others: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return op(lower(a, dtype), lower(b, dtype), *others, **options)

    return lowered


def lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what autocast to ``dtype`` makes of an operand."""
    return tensor.to(dtype) if tensor.dtype in _LOWERED else tensor


for _op in (conv_fprop, conv_fprop_statistics, conv_dgrad, conv_wgrad):
    torch.library.impl(_op.name(), "AutocastCPU")(autocast(_op, "cpu"))
    torch.library.impl(_op.name(), "AutocastCUDA")(autocast(_op, "cuda"))
