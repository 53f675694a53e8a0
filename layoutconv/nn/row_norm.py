"""Batch norms over rows, in training: kernels on a GPU, operations of torch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ..base.torch_internals import (
    in_shape,
    is_batched,
    is_gradient_tracked,
    is_tracing,
    transform_on_top,
)
from ..gpu import row_norm
from ..gpu.row_norm import Norm
from ..ops.guard import PLAIN, is_watched_unseen
from ..tensors.epilogue_in_torch import activate
from .dense_norm import gradients_in_torch

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN_OR_NONE = PLAIN | {type(None)}
_LASTS = None, "relu"  # activations whose results give second derivatives


def batch_norm(x: Tensor, norm: Norm) -> Tensor:
    """Normalise features ``x`` (rows, C) over the rows that count, and apply the norm's epilogue;
    other rows get zeros.

    Kernels also normalise over the rows of several ranks. Running statistics move like torch's, but
    not for fewer than two rows, which torch refuses; batches are counted all the same.

    >>> x, there = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([True, True, False])
    >>> running = torch.zeros(1), torch.ones(1)
    >>> batch_norm(x, Norm(None, None, running, 0.5, 0.0, there)).T, running
    (tensor([[-1.,  1.,  0.]]), (tensor([1.]), tensor([1.5000])))
    """
    found = by_kernels(x, norm)
    if found is not None:
        return found
    there = x.new_ones(len(x), dtype=torch.bool) if norm.there is None else norm.there
    y, *statistics = normalised_rows(x, there[:, None], norm.weight, norm.bias, norm.eps)
    with torch.no_grad():
        if norm.running is not None:
            follow(norm.running, norm.momentum, *statistics)
        if norm.counted is not None:
            norm.counted.add_(1)
    y = y if norm.past is None else (y + norm.past).where(there[:, None], 0)
    return y if norm.activation is None else activate(y, norm.activation)


def by_kernels(x: Tensor, norm: Norm) -> Tensor | None:
    """Compute :func:`batch_norm` by kernels; None, and nothing done, unless :func:`on_kernels`."""
    if not on_kernels(x, norm):
        return None
    record = _record if norm.ranks is None else _RowNormOverRanks.apply
    found: Tensor = record(x, norm.weight, norm.bias, norm.past, norm)
    return found


def normalised_rows(
    features: Tensor, there: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalise features (rows, C) over the rows in ``there``, bool (rows, 1); zeros elsewhere.

    Also returns the mean and the biased variance, (C,), and the number of these rows.

    >>> x, there = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[True], [True], [False]])
    >>> y, mean, variance, count = normalised_rows(x, there, None, None, 0)
    >>> y.T, mean, variance, count
    (tensor([[-1.,  1.,  0.]]), tensor([2.]), tensor([1.]), tensor(2))
    """
    exact = torch.promote_types(features.dtype, torch.float32)
    count = there.sum()
    x = features.to(exact).where(there, 0)
    mean = x.sum(0) / count.clamp(min=1)
    centred = (x - mean).where(there, 0)
    variance = centred.square().sum(0) / count.clamp(min=1)
    y = centred * (variance + eps).rsqrt()
    y = y if weight is None else y * weight
    y = y if bias is None else (y + bias).where(there, 0)
    return y.to(features.dtype), mean, variance, count


def follow(
    running: tuple[Tensor, Tensor], momentum: Any, mean: Tensor, variance: Tensor, count: Tensor
) -> None:
    """Move a running mean and variance by the share ``momentum`` towards those of ``count`` rows.

    >>> running = torch.zeros(1), torch.ones(1)
    >>> follow(running, 0.5, torch.tensor([4.0]), torch.tensor([1.0]), torch.tensor(2))
    >>> running
    (tensor([2.]), tensor([1.5000]))
    """
    share = momentum * (count > 1).to(mean.dtype)
    unbiased = variance * count / (count - 1).clamp(min=1)
    for memory, now in zip(running, (mean, unbiased), strict=True):
        memory.copy_(memory + share * (now - memory))


def on_kernels(x: Tensor, norm: Norm) -> bool:
    """Return whether kernels compute a norm: of plain tensors on a GPU, and nothing watches.

    >>> on_kernels(torch.ones(2, 3), Norm(None, None, None, 0.1, 1e-5))
    False
    """
    others = norm.weight, norm.bias, norm.there, norm.past, norm.counted, *(norm.running or ())
    return (
        type(x) in PLAIN
        and x.is_cuda
        and _PLAIN_OR_NONE.issuperset(map(type, others))
        and isinstance(norm.momentum, float)
        and norm.activation in _LASTS
        and not is_watched_unseen()
        and not is_tracing()
        and transform_on_top() is None
        and not is_gradient_tracked(x)  # nor one that a finished transform left
        and row_norm.takes(x, norm)
    )


class _RowNormOnKernels(torch.autograd.Function):
    """The norm and its gradients by kernels; second derivatives by operations of torch."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Any, bias: Any, past: Any, norm: Norm
    ) -> Tensor:
        planned = row_norm.planned(x, norm)
        out, kept = row_norm.normalised(x, norm, planned)
        ctx.save_for_backward(x, weight, bias, norm.there, kept, out if norm.activation else None)
        ctx.eps, ctx.last = norm.eps, norm.activation
        ctx.added, ctx.ranks = past is not None, norm.ranks
        ctx.planned = planned.back()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, bias, there, kept, out = ctx.saved_tensors
        if torch.is_grad_enabled() or (ctx.ranks is None and not is_read(grad)):
            leaves = x, weight, bias
            *grads, own = gradients_of_rows(leaves, there, ctx.eps, out, grad)
            return *grads, own if ctx.added else None, None
        past = x if ctx.added else None  # a stand-in: its gradient has the shape and dtype of x
        norm = Norm(weight, bias, None, 0.0, ctx.eps, there, past, ctx.last, ranks=ctx.ranks)
        dx, dpast, both = row_norm.gradients(x, norm, out, kept, grad, ctx.planned)
        dpast = grad if dpast is None and ctx.added else dpast
        if weight is None:
            return dx, None, None, dpast, None
        C = x.shape[1]
        dw, db = in_shape(both, (C,), (1,)), in_shape(both, (C,), (1,), C)
        if weight.dtype is not both.dtype:
            dw, db = dw.to(weight.dtype), db.to(weight.dtype)
        return dx, dw, db, dpast, None


# Skips the questions of ``apply`` about transforms, which :func:`on_kernels` has asked.
_record: Any = super(torch.autograd.Function, _RowNormOnKernels).apply


class _RowNormOverRanks(_RowNormOnKernels):
    """The norm over the rows of several ranks, without second derivatives."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return _RowNormOnKernels.backward(ctx, grad)


def is_read(grad: Tensor) -> bool:
    """Return whether kernels may read a gradient: not of another type, nor a batch of gradients.

    It makes only C calls, as a backward pass asks it for each layer.

    >>> is_read(torch.ones(2)), is_read(torch._neg_view(torch.ones(2)))
    (True, False)
    """
    return (
        type(grad) in PLAIN
        and not (is_batched(grad) or grad.is_neg())
        and transform_on_top() is None
    )


def gradients_of_rows(
    leaves: tuple[Tensor, Tensor | None, Tensor | None],
    there: Tensor | None,
    eps: float,
    out: Tensor | None,
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the ``leaves``, features, weight and bias, and of the added tensor.

    They are operations of torch, so autograd can differentiate them again. ``out`` is the result if
    a ReLU followed.
    """
    x = leaves[0]
    rows = (x.new_ones(len(x), dtype=torch.bool) if there is None else there)[:, None]
    own = grad.where(rows if out is None else rows & ~(out <= 0), 0)
    found = gradients_in_torch(lambda x, w, b: normalised_rows(x, rows, w, b, eps)[0], leaves, own)
    return *found, own
