"""Gradients of the passes: one formula each, run by operators or by bound launches.

A pass is linear in both its tensors, and the gradients of each are the other two:

    fprop(x, w) -> y        dx = dgrad(dy, w)    dw = wgrad(dy, x)
    dgrad(y, w) -> x        dy = fprop(dx, w)    dw = wgrad(y, dx)
    wgrad(y, x) -> w        dy = fprop(x, dw)    dx = dgrad(y, dw)

A runner has the three passes: torch operators, dense or sparse, the functions of ``transforms``, or
a bound call. The passes' other arguments, ``over``, are the runner's own: numbers and shapes, or a
kernel map.

The gradient of an activation is computed from its value, which relu, relu6, leaky_relu (slope >=
0), sigmoid and tanh allow; through others, and with respect to ``scale``, there is none here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.torch_internals import keeps_graph
from ..errors import ArgumentError
from ..gpu import column_sums
from ..tensors.epilogue_in_torch import FP8, convert
from .guard import is_plain, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

Pass = Callable[[Any, Any, Any], "Tensor"]  # of ``over`` and two tensors
Gradients = tuple["Tensor | None", "Tensor | None"]
Formula = Callable[[Any, Any, Sequence[bool], "Tensor", Any, Any], Gradients]

is_grad_enabled = torch.is_grad_enabled


class PassArguments(NamedTuple):
    """The arguments of operators after their operands, for each pass over the same problem.

    ``tables`` come first in all three: the tensors of a kernel map.
    """

    fprop: tuple[Any, ...]
    dgrad: tuple[Any, ...]
    wgrad: tuple[Any, ...]
    tables: tuple[Tensor, ...] = ()


class PassRunner(NamedTuple):
    """Three passes as functions of ``over`` and two tensors."""

    fprop: Pass
    dgrad: Pass
    wgrad: Pass


def fprop_gradients(
    run: Any, over: Any, needed: Sequence[bool], grad: Tensor, x: Any, w: Any
) -> Gradients:
    """Return the gradients of activation and filter of a forward pass, as far as ``needed``."""
    dx = run.dgrad(over, grad, w) if needed[0] else None
    return dx, run.wgrad(over, grad, x) if needed[1] else None


def dgrad_gradients(
    run: Any, over: Any, needed: Sequence[bool], grad: Tensor, y: Any, w: Any
) -> Gradients:
    """Return the gradients of the result and of the filter, for a transposed convolution."""
    dy = run.fprop(over, grad, w) if needed[0] else None
    return dy, run.wgrad(over, y, grad) if needed[1] else None


def wgrad_gradients(
    run: Any, over: Any, needed: Sequence[bool], grad: Tensor, y: Any, x: Any
) -> Gradients:
    """Return the gradients of the result and of the activation, for a filter's gradient."""
    dy = run.fprop(over, x, grad) if needed[0] else None
    return dy, run.dgrad(over, y, grad) if needed[1] else None


def around(op: Callable[..., Tensor], function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an operator that bypasses the dispatcher when that is safe."""

    def call(a: Tensor, b: Tensor, *numbers: Any) -> Tensor:
        plain = is_plain(a, b) and not wants_gradient(a, b) and not a.is_meta
        return (function if plain else op)(a, b, *numbers)

    return call


def pass_of(op: Any, function: Any, name: str) -> Pass:
    """Return a runner's pass of this name: an operator, past the dispatcher when that is safe."""
    place = PassArguments._fields.index(name)

    def call(over: PassArguments, a: Tensor, b: Tensor) -> Tensor:
        plain = is_plain(a, b) and not a.is_meta
        plain = plain and not (is_grad_enabled() and wants_gradient(a, b))
        found: Tensor = (function if plain else op)(a, b, *over.tables, *over[place])
        return found

    return call


def as_inputs(found: Gradients, dtype: torch.dtype) -> Gradients:
    """Saturate gradients of fp8 inputs: autograd's own cast turns values out of range into NaN.

    >>> as_inputs((torch.tensor([500.0]).half(), None), torch.float8_e4m3fn)[0].float()
    tensor([448.])
    """
    if dtype not in FP8:
        return found
    first, second = (None if grad is None else convert(grad, dtype) for grad in found)
    return first, second


# -- the epilogue ---------------------------------------------------------------------------------

_BACKWARD: dict[str, Any] = {
    "relu": lambda grad, y, slope: torch.ops.aten.threshold_backward(grad, y, 0),
    "relu6": lambda grad, y, slope: torch.ops.aten.hardtanh_backward(grad, y, 0, 6),
    "leaky_relu": lambda grad, y, slope: torch.ops.aten.leaky_relu_backward(grad, y, slope, True),
    "sigmoid": lambda grad, y, slope: torch.ops.aten.sigmoid_backward(grad, y),
    "tanh": lambda grad, y, slope: torch.ops.aten.tanh_backward(grad, y),
}


def has_gradient(activation: str | None, slope: float) -> bool:
    """Return whether operators can differentiate an activation from its value alone.

    >>> has_gradient("relu", 0.01), has_gradient("gelu", 0.01), has_gradient("leaky_relu", -1.0)
    (True, False, False)
    """
    if activation == "leaky_relu":
        return slope >= 0
    return activation is None or activation in _BACKWARD


def keep(ctx: Any, operands: tuple[Tensor, Tensor], ending: Any, result: Tensor, at: int) -> None:
    """Save the tensors of a call that backward passes need.

    ``ending`` has bias, scale, residual, activation and slope; its tensors are the inputs from
    number ``at`` on.
    """
    (a, b), (bias, scale, residual, activation, slope) = operands, ending
    needed = ctx.needs_input_grad
    ctx.save_for_backward(
        a if needed[1] else None,
        b if needed[0] else None,
        scale if needed[0] or needed[1] else None,
        result if activation is not None else None,
    )
    ctx.dtype, ctx.ending_at, ctx.activation = a.dtype, at, (activation, slope)
    of_bias = None if bias is None else bias.dtype
    ctx.others = of_bias, None if residual is None else residual.dtype


def through_epilogue(
    ctx: Any,
    grad: Tensor,
    scale: Tensor | None,
    result: Tensor | None,
    needed: Sequence[bool] | None = None,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the gradient of the sums, and those of ``bias``, ``scale`` and ``residual``.

    ``needed`` has fewer than ``ctx.needs_input_grad`` if some are known not to be asked for.
    ``scale`` and ``result`` are the last tensors that :func:`keep` saved. The caller unpacks saved
    tensors: under ``torch.utils.checkpoint`` that works only once.
    """
    (activation, slope), (bias_dtype, residual_dtype) = ctx.activation, ctx.others
    # The dispatcher drops trailing arguments that are at their defaults.
    needed = (*(needed or ctx.needs_input_grad), *[False] * (ctx.ending_at + 3))
    needs_bias, needs_scale, needs_residual = needed[ctx.ending_at : ctx.ending_at + 3]
    if needs_scale or not (activation is None or has_gradient(activation, slope)):
        name, got = ("scale", "one") if needs_scale else ("activation", f"{activation} of {slope}")
        expected = "None, or no gradient: its derivative is not a function of the result"
        raise ArgumentError(name, expected, got)
    if activation is not None:
        grad = _BACKWARD[activation](grad, result, slope)
    bias = residual = None
    if needs_bias:
        bias = channel_sums(grad, bias_dtype)
    if needs_residual:
        residual = grad.to(residual_dtype)
    sums = grad if scale is None else grad * per_channel(scale, grad)
    if sums.dtype is not ctx.dtype:
        sums = convert(sums, ctx.dtype)
    return sums, (bias, None, residual)


def channel_sums(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum each channel, and round once.

    >>> channel_sums(torch.full((2, 1, 3000), 1.0, dtype=torch.float16), torch.float16)
    tensor([6000.], dtype=torch.float16)
    """
    # For rows of a cloud; volumes are summed as torch.compile does, bit for bit.
    of_rows = grad.dim() == 2 and grad.is_cuda and is_plain(grad) and not wants_gradient(grad)
    if of_rows and column_sums.takes(grad, dtype):
        return column_sums.column_sums(grad, dtype)
    others = 0, *range(2, grad.dim())
    if grad.is_cuda and grad.dtype is dtype:  # where torch sums 16 bits in fp32
        return grad.sum(others)
    return grad.sum(others, dtype=torch.promote_types(grad.dtype, torch.float32)).to(dtype)


def wide_sums(operand: torch.dtype) -> tuple[Any, ...]:
    """Return the last arguments of an operator that stores only sums, in their own precision.

    >>> wide_sums(torch.float16)
    (None, None, None, None, 0.01, torch.float32)
    """
    exact = torch.float64 if operand == torch.float64 else torch.float32
    return None, None, None, None, 0.01, exact


def linear(y: Tensor, bias: Any, scale: Any, residual: Any) -> Tensor:
    """Compute ``scale * y + bias + residual`` in fp32 (fp64 for float64) with torch operations."""
    exact = torch.promote_types(y.dtype, torch.float32)
    y = y.to(exact)
    if scale is not None:
        y = y * per_channel(scale.to(exact), y)
    y = y if bias is None else y + per_channel(bias.to(exact), y)
    return y if residual is None else y + residual.to(exact)


def per_channel(column: Tensor, like: Tensor) -> Tensor:
    """Reshape a number per channel, (C,), to broadcast over (N, C, ...).

    >>> per_channel(torch.ones(3), torch.ones(2, 3, 4, 4)).shape
    torch.Size([3, 1, 1])
    """
    return column.view(-1, *[1] * (like.dim() - 2))


# -- registration with torch ----------------------------------------------------------------------

# From an operator's inputs: its formula, and the arguments of its passes.
Described = Callable[..., tuple[Formula, PassArguments]]


def register(name: str, run: PassRunner, described: Described, *, ends: bool) -> None:
    """Register an operator's formula; ``ends``: its last arguments are those of an epilogue."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, *numbers = inputs
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(output[1])
            output = output[0]
        ctx.inputs = len(inputs)
        if ends:
            *numbers, bias, scale, residual, activation, slope, _ = numbers
            ending = bias, scale, residual, activation, slope
            keep(ctx, (a, b), ending, output, ctx.inputs - 6)
        else:
            needed = ctx.needs_input_grad
            ctx.save_for_backward(a if needed[1] else None, b if needed[0] else None)
            ctx.dtype = a.dtype
        ctx.formula, ctx.over = described(a, b, *numbers)

    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        a, b, *ending = ctx.saved_tensors
        others: tuple[Any, ...] = ()
        if ends:
            grad, others = through_epilogue(ctx, grad, *ending)
            others = *others, None, None, None
        over = ctx.over
        if not keeps_graph():
            ctx.over = None
        found = ctx.formula(run, over, ctx.needs_input_grad, grad, a, b)
        found = as_inputs(found, ctx.dtype)
        return *found, *[None] * (ctx.inputs - 2 - len(others)), *others

    torch.library.register_autograd(f"layoutconv::{name}", backward, setup_context=setup)
