"""Kernels for batch norms of dense images in training, with the sum and activation after them.

Images in ``channels_last`` memory are rows (N * H * W, C), which kernels of :mod:`.row_norm`
normalise in two launches each way. torch reads and writes an image again for the sum, and once more
for the activation, and keeps the activation's input; the kernels recompute it. torch's own norm
serves all other cases: other memory, a CPU, evaluation, ``torch.compile`` and transforms.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn import functional

from ..base.torch_internals import in_shape
from ..gpu import row_norm
from ..gpu.row_norm import Norm
from ..ops.guard import PLAIN, wants_gradient
from ..tensors.epilogue_in_torch import activate
from .dense_norm import are_read, gradients_in_torch, may_launch
from .modules import Activated
from .trained_norm import told

_PLAIN_OR_NONE = PLAIN | {type(None)}
_MEMORY = {4: torch.channels_last, 5: torch.channels_last_3d}


def by_kernels(input: Tensor, module: Any, past: Any, activation: str | None) -> Tensor | None:
    """Compute ``activation(norm(input) + past)`` of images (N, C, ...) or rows (N, C) by kernels.

    ``past`` and ``activation``, one of ``row_norm.ACTIVATIONS``, may be None. Returns None, and has
    done nothing, if kernels cannot compute it. After a sum the kernels compute only a ReLU; torch
    computes other activations.

    ``module`` is a batch norm of torch. If it refuses the input, its ``ValueError`` is raised.

    >>> by_kernels(torch.ones(2, 3), torch.nn.BatchNorm1d(3), None, "silu") is None
    True
    """
    if not (module.training and may_launch(input) and type(past) in _PLAIN_OR_NONE):
        return None
    module._check_input_dim(input)
    learnt = module._parameters
    if not are_read(input, learnt.get("weight"), learnt.get("bias"), past):
        return None
    C = input.shape[1]
    rows = input.numel() // C if C else 0
    if rows < 2 or module.num_features != C or not is_in_rows(input):
        return None  # or an error, which torch raises
    if past is not None and (past.shape != input.shape or not is_in_rows(past)):
        return None
    own = activation if past is None or activation == "relu" else None
    norm = told(module, own, None if past is None else in_shape(past, (rows, C), (C, 1)))
    if norm is None or type(norm.momentum) is not float:
        return None
    if not _PLAIN_OR_NONE.issuperset(map(type, (norm.counted, *(norm.running or ())))):
        return None
    x = in_shape(input, (rows, C), (C, 1))
    if not row_norm.takes(x, norm):
        return None
    found: Tensor
    if wants_gradient(input, norm.weight, norm.bias, past):
        found = _record(input, norm.weight, norm.bias, past, (x, norm))
    else:
        found = row_norm.normalised(x, norm, None, (tuple(input.shape), input.stride()))[0]
    return found if own is activation else activate(found, str(activation))


def is_in_rows(x: Tensor) -> bool:
    """Return whether images (N, C, ...), or rows (N, C), are packed rows (..., C) in memory.

    >>> x = torch.ones(2, 3, 4, 4)
    >>> is_in_rows(x), is_in_rows(x.to(memory_format=torch.channels_last))
    (False, True)
    """
    order = _MEMORY.get(x.dim())
    return (
        x.movedim(1, -1).is_contiguous() if order is None else x.is_contiguous(memory_format=order)
    )


def _as_rows(x: Tensor, rows: int, C: int) -> Tensor:
    """View images as rows (rows, C); copy them if their memory is not packed rows."""
    if is_in_rows(x):
        return in_shape(x, (rows, C), (C, 1))
    return x.movedim(1, -1).reshape(rows, C)


class _BatchNormOnKernels(torch.autograd.Function):
    """The norm and its gradients by kernels; second derivatives by operations of torch."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, weight: Any, bias: Any, past: Any, call: tuple[Tensor, Norm]
    ) -> Tensor:
        x, norm = call
        planned = row_norm.planned(x, norm, alone=False)
        out, kept = row_norm.normalised(x, norm, planned, (tuple(input.shape), input.stride()))
        # Save images, not rows: then autograd notices in-place writes to them.
        read = norm.activation is not None and not planned.kernels.shape.remakes
        ctx.save_for_backward(input, weight, bias, kept, out if read else None)
        ctx.eps, ctx.last, ctx.added = norm.eps, norm.activation, past is not None
        ctx.planned = planned.back()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        input, weight, bias, kept, out = ctx.saved_tensors
        if torch.is_grad_enabled() or not are_read(grad):  # one of a batch of gradients, say
            # A ReLU's gradient follows from a saved result; otherwise the function computes it.
            own, last = (grad, ctx.last) if out is None else (grad.where(~(out <= 0), 0), None)
            leaves = input, weight, bias
            found = gradients_in_torch(
                lambda x, w, b: in_torch(x, w, b, ctx.eps, last), leaves, own
            )
            return *found, own if ctx.added else None, None
        rows, C = ctx.planned.schedule[:2]
        x = in_shape(input, (rows, C), (C, 1))
        result = None if out is None else in_shape(out, (rows, C), (C, 1))
        norm = Norm(weight, bias, None, 0.0, ctx.eps, activation=ctx.last)
        dx, dpast, both = row_norm.gradients(
            x, norm, result, kept, _as_rows(grad, rows, C), ctx.planned,
            (tuple(input.shape), input.stride()),
        )  # fmt: skip
        dpast = grad if dpast is None and ctx.added else dpast
        if weight is None:
            return dx, None, None, dpast, None
        dw, db = in_shape(both, (C,), (1,)), in_shape(both, (C,), (1,), C)
        if weight.dtype is not both.dtype:
            dw, db = dw.to(weight.dtype), db.to(weight.dtype)
        return dx, dw, db, dpast, None


# Skips the questions of ``apply`` about transforms, which :func:`by_kernels` has asked.
_record: Any = super(torch.autograd.Function, _BatchNormOnKernels).apply


def in_torch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None = None
) -> Tensor:
    """Compute the norm and an activation by operations of torch, with gradients of any order.

    >>> in_torch(torch.tensor([[1.0], [3.0]]), None, None, 3.0).T
    tensor([[-0.5000,  0.5000]])
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    scale, offset = (None if t is None else t.to(exact) for t in (weight, bias))
    y = functional.batch_norm(x.to(exact), None, None, scale, offset, True, 0.0, eps)
    return (y if activation is None else activate(y, activation)).to(x.dtype)


class _BatchNorm(Activated):
    """The constructor and forward pass of batch norms."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        numbers = num_features, eps, momentum, affine, track_running_stats
        more = {} if bias else {"bias": False}  # supported since torch 2.13
        super().__init__(*numbers, device, dtype, **more)  # type: ignore[call-arg]
        self._activate(activation, slope)

    def forward(self: Any, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if isinstance(input, torch.fx.Proxy):  # torch would count its modes
            y = functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias,
                self.training or self.running_mean is None, self.momentum or 0.0, self.eps,
            )  # fmt: skip
            return self._activated(y if residual is None else y + residual)  # type: ignore[no-any-return]
        last = self.activation if self.activation in row_norm.ACTIVATIONS else None
        y = by_kernels(input, self, residual, last)
        if y is not None:
            return y if last is self.activation else self._activated(y)
        y = super().forward(input)  # type: ignore[misc]
        return self._activated(y if residual is None else y + residual)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """torch's batch norm of rows (N, C) or images (N, C, L); see :class:`BatchNorm3d` for the rest.

    >>> BatchNorm1d(1, eps=3.0, affine=False)(torch.tensor([[1.0], [3.0]])).T
    tensor([[-0.5000,  0.5000]])
    """


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """torch's batch norm of images (N, C, H, W); see :class:`BatchNorm3d` for the rest.

    >>> norm = BatchNorm2d(1, eps=3.0, affine=False, activation="relu")
    >>> norm(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[[[0.0000, 0.5000]]]])
    """


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """torch's batch norm of images (N, C, D, H, W) (Ioffe and Szegedy, "Batch Normalization",
    2015), with a sum and an activation: ``activation(norm(input) + residual)``.

    Args:
        bias: whether an ``affine`` norm has a bias; False needs torch 2.13 or later.
        activation, slope: as of :class:`~layoutconv.nn.Conv3d`.

    ``forward(input, residual=None)`` takes a residual of the shape of ``input``, or one that torch
    can add to the norm. The other arguments, the state, the errors and the results are torch's:
    without a sum, in the dtype of ``input``, under autocast too.

    In training, kernels compute it for ``channels_last`` images of float16, bfloat16 or float32 on
    a GPU, with the sum and a ReLU, or with "relu6", "silu" or "hardswish" if nothing is added, and
    round once. torch computes other activations, and the norm if ``momentum`` is None. Each rank
    has its own statistics; torch's ``convert_sync_batchnorm`` would drop the activation.

    Raises :class:`~layoutconv.errors.ArgumentError` for ``activation`` or ``slope``.

    >>> norm, x, past = BatchNorm3d(8, activation="relu"), *torch.randn(2, 2, 8, 3, 4, 5)
    >>> y = torch.nn.BatchNorm3d(8)(x)
    >>> torch.allclose(norm(x, past), torch.relu(y + past))
    True
    """
