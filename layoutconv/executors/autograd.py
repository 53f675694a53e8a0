"""The passes of a dense convolution as differentiable torch operators, ``torch.ops.layoutconv.*``.

    conv_fprop(x, w, ...) -> y
    conv_dgrad(y, w, spatial, ...) -> x
    conv_wgrad(y, x, taps, ...) -> w

Tensors are in the order of memory, ``x`` (N, D, H, W, C), ``w`` (K, T, R, S, C), ``y`` (N, Z, P, Q,
K), for 1 to 3 spatial modes; others than contiguous ones are copied. Each pass is linear in both
its tensors, and the gradients of each are the other two: gradients of any order come from these
three. ``padding`` is (near, far) for every spatial mode, flat.

On a CPU each is the executor's. On a GPU ``conv_fprop`` and ``conv_dgrad`` are the kernel
template's, the latter on a copy of the filter with K as its contiguous mode, which is small beside
the activations; ``conv_wgrad`` is torch's own (cuDNN's), as its operands run along GEMM-M and
GEMM-N, which the template does not read yet: a network that trains now is worth more than an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..algebra import make_ordered_layout
from ..conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from ..errors import ArgumentError
from . import execute

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_NUMBERS = "int[] stride, int[] padding, int[] dilation"
_SCHEMAS = {
    "conv_fprop": f"(Tensor x, Tensor w, {_NUMBERS}) -> Tensor",
    "conv_dgrad": f"(Tensor y, Tensor w, SymInt[] spatial, {_NUMBERS}) -> Tensor",
    "conv_wgrad": f"(Tensor y, Tensor x, SymInt[] taps, {_NUMBERS}) -> Tensor",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"layoutconv::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

conv_fprop = torch.ops.layoutconv.conv_fprop.default
conv_dgrad = torch.ops.layoutconv.conv_dgrad.default
conv_wgrad = torch.ops.layoutconv.conv_wgrad.default


@lru_cache(maxsize=1024)
def _problem(activation: Any, filter: Any, stride: Any, padding: Any, dilation: Any) -> ConvProblem:
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return ConvProblem(activation, filter, stride, pairs, dilation)


# -- what they compute -----------------------------------------------------------------------------


def _fprop(x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    problem = _problem(x.shape, w.shape[:-1], *map(tuple, (stride, padding, dilation)))
    _check_vectors(x, problem)
    return execute(fprop_view(problem), x.contiguous(), w.contiguous())


def _dgrad(
    y: Tensor, w: Tensor, spatial: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> Tensor:
    activation = (y.shape[0], *spatial, w.shape[-1])
    problem = _problem(activation, w.shape[:-1], *map(tuple, (stride, padding, dilation)))
    _check_vectors(y, problem)
    y, w, layout = y.contiguous(), w.contiguous(), None
    if y.is_cuda:
        order = (0, *range(problem.rank, 0, -1), problem.rank + 1)
        layout = make_ordered_layout(tuple(w.shape), order)
        w = w.transpose(0, -1).contiguous().transpose(0, -1)
    views = [view for view in dgrad_views(problem, layout) if view.k]
    whole = sum(view.m for view in views) * problem.C == prod(activation)
    x = (y.new_empty if whole else y.new_zeros)(activation)
    for view in views:
        execute(view, y, w, x)
    return x


def _wgrad(y: Tensor, x: Tensor, taps: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    filter = (y.shape[-1], *taps)
    problem = _problem(x.shape, filter, *map(tuple, (stride, padding, dilation)))
    return execute(wgrad_view(problem), y.contiguous(), x.contiguous())


def _wgrad_of_torch(
    y: Tensor, x: Tensor, taps: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> Tensor:
    K, C, rank = y.shape[-1], x.shape[-1], len(taps)
    near, far = padding[::2], padding[1::2]
    if near != far:  # torch has one number for both sides
        x = torch.nn.functional.pad(x, (0, 0, *_innermost_first(padding)))
        near = [0] * rank
    like = y.new_empty((K, *taps, C)).movedim(-1, 1)  # whose values do not matter
    _, grad, _ = torch.ops.aten.convolution_backward(
        y.movedim(-1, 1), x.movedim(-1, 1), like, None, stride, near, dilation,
        False, [0] * rank, 1, [False, True, False],
    )  # fmt: skip
    return grad.movedim(1, -1).contiguous()


torch.library.impl("layoutconv::conv_fprop", ("cpu", "cuda"), _fprop)
torch.library.impl("layoutconv::conv_dgrad", ("cpu", "cuda"), _dgrad)
torch.library.impl("layoutconv::conv_wgrad", "cpu", _wgrad)
torch.library.impl("layoutconv::conv_wgrad", "cuda", _wgrad_of_torch)


def _check_vectors(tensor: Tensor, problem: ConvProblem) -> None:
    """Refuse channels that are not whole vectors on a GPU, by the names that a user gave."""
    if not tensor.is_cuda:
        return
    vector = 16 // tensor.itemsize
    for letter, channels in (("C", problem.C), ("K", problem.K)):
        if channels % vector:
            expected = f"{letter} a multiple of {vector} channels (16 bytes) on a GPU"
            raise ArgumentError("weight", expected, channels)


def _innermost_first(padding: Ints) -> list[int]:
    """(near, far) of every spatial mode, the last mode first."""
    return [side for i in range(len(padding) - 2, -1, -2) for side in padding[i : i + 2]]


# -- what they would return: shapes without data ---------------------------------------------------


@torch.library.register_fake("layoutconv::conv_fprop")
def _(x: Tensor, w: Tensor, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    near, far = padding[::2], padding[1::2]
    modes = zip(x.shape[1:-1], w.shape[1:-1], stride, near, far, dilation, strict=True)
    voxels = [(e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, n, f, d in modes]
    return x.new_empty((x.shape[0], *voxels, w.shape[0]))


@torch.library.register_fake("layoutconv::conv_dgrad")
def _(y: Tensor, w: Tensor, spatial: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    return y.new_empty((y.shape[0], *spatial, w.shape[-1]))


@torch.library.register_fake("layoutconv::conv_wgrad")
def _(y: Tensor, x: Tensor, taps: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
    return y.new_empty((y.shape[-1], *taps, x.shape[-1]))


# -- gradients: each pass is linear in its tensors, and theirs are the other two -------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, *_, stride, padding, dilation = inputs
    ctx.save_for_backward(
        first if ctx.needs_input_grad[1] else None, second if ctx.needs_input_grad[0] else None
    )
    ctx.shapes = first.shape, second.shape
    ctx.numbers = stride, padding, dilation


def _fprop_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (x, w), (x_shape, w_shape) = ctx.saved_tensors, ctx.shapes
    dx, dw = None, None
    if ctx.needs_input_grad[0]:
        dx = conv_dgrad(grad, w, x_shape[1:-1], *ctx.numbers)
    if ctx.needs_input_grad[1]:
        dw = conv_wgrad(grad, x, w_shape[1:-1], *ctx.numbers)
    return dx, dw, None, None, None


def _dgrad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (y, w), (_, w_shape) = ctx.saved_tensors, ctx.shapes
    dy, dw = None, None
    if ctx.needs_input_grad[0]:
        dy = conv_fprop(grad, w, *ctx.numbers)
    if ctx.needs_input_grad[1]:
        dw = conv_wgrad(y, grad, w_shape[1:-1], *ctx.numbers)
    return dy, dw, None, None, None, None


def _wgrad_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (y, x), (_, x_shape) = ctx.saved_tensors, ctx.shapes
    dy, dx = None, None
    if ctx.needs_input_grad[0]:
        dy = conv_fprop(x, grad, *ctx.numbers)
    if ctx.needs_input_grad[1]:
        dx = conv_dgrad(y, grad, x_shape[1:-1], *ctx.numbers)
    return dy, dx, None, None, None, None


for _name, _backward in (
    ("conv_fprop", _fprop_backward),
    ("conv_dgrad", _dgrad_backward),
    ("conv_wgrad", _wgrad_backward),
):
    torch.library.register_autograd(f"layoutconv::{_name}", _backward, setup_context=_keep)


# -- autocast: as torch's convolutions, in the lower precision -------------------------------------


def _autocast(op: Any, device: str) -> Any:
    def lowered(a: Tensor, b: Tensor, *numbers: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return op(_lower(a, dtype), _lower(b, dtype), *numbers)

    return lowered


def _lower(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if eligible else tensor


for _op in (conv_fprop, conv_dgrad, conv_wgrad):
    torch.library.impl(_op.name(), "AutocastCPU")(_autocast(_op, "cpu"))
    torch.library.impl(_op.name(), "AutocastCUDA")(_autocast(_op, "cuda"))
