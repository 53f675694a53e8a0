"""Convolutions past torch's dispatcher, and past checks that were made: host time of a call.

An operator that is written in Python takes tens of microseconds before anything is computed, and as
many to be recorded by autograd. What it comes to depends on data in nothing: on shapes, strides,
dtypes, devices and numbers alone, a *signature*. The first call of a signature takes the operator,
with every check; if that succeeds, what was derived on the way is kept as a :class:`Call`, and
later calls of the signature do nothing but allocate and launch. A call that torch has to see, of
which :func:`~layoutconv.executors.plain.is_plain` decides, has no signature.

Tensors are in torch's order here, (N, C, D, H, W). A kernel takes their memory as it is, where that
is in the order of ``channels_last``; views of them would cost a microsecond each.
"""

from __future__ import annotations

from collections.abc import Hashable
from marshal import dumps
from typing import TYPE_CHECKING, Any

import torch

from .autograd import dgrad_backward, fprop_backward, has_gradient, keep
from .finish import FP8
from .passes import Pass, dgrad_pass, epilogue_of, fprop_pass, run
from .plain import is_plain, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

LIMIT = 4096  # signatures that are kept
_kept: dict[Hashable, Call] = {}


def signature(
    kind: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    out_dtype: torch.dtype | None,
    numbers: tuple[Any, ...],
) -> Hashable:
    """All that a call depends on beside data; None for a call that has to take the operator.

    ``kind`` is the name of the function. Numbers that are equal, but of another type, are another
    signature: 1.0 may be refused where 1 is not.
    """
    number = scale if type(scale) is float or type(scale) is int else None
    scales: Any = scale if number is None else None
    alone = bias is None and scales is None and residual is None
    tensors: tuple[Tensor, ...] = (input, weight)
    if not alone:
        tensors = (input, weight, *[t for t in (bias, scales, residual) if t is not None])
    if not is_plain(*tensors):
        return None
    wanted = wants_gradient(*tensors)
    if wanted and (number is not None or (scales is not None and scales.requires_grad)):
        return None
    try:
        key = (
            kind, wanted, out_dtype, dumps((numbers, number), 2),
            input.shape, input.stride(), input.dtype, input.device,
            weight.shape, weight.stride(), weight.dtype, weight.device,
        )  # fmt: skip
        return key if alone else (key, _of(bias), _of(scales), _of(residual))
    except (RuntimeError, ValueError):  # no strides; what is no number
        return None


def find(key: Hashable) -> Call | None:
    """What was kept for a signature."""
    return _kept.get(key)


def remember(
    key: Hashable,
    result: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    activation: str | None,
    slope: float,
    numbers: tuple[Any, ...],
    *,
    transposed: bool,
) -> None:
    """Keep what the call of a signature came to; ``numbers`` are those of the operator."""
    columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
    wanted = wants_gradient(input, weight, *columns, residual)
    if (
        key is None
        or input.dim() != weight.dim()  # one image
        or not (input.numel() and result.numel())
        or result.is_complex()
        or not (result.is_cpu or result.is_cuda)
        or not all(t.is_contiguous() for t in columns)
        or (wanted and not has_gradient(activation, slope))
    ):
        return
    if len(_kept) >= LIMIT:
        _kept.clear()
    ending = bias, scale, residual, activation, slope
    _kept[key] = Call(result, input, weight, ending, numbers, transposed)


def forget() -> None:
    """Drop what was kept, of all signatures."""
    _kept.clear()


class Call:
    """Convolutions of one signature, from tensors in torch's order to a result in that order."""

    def __init__(
        self,
        result: Tensor,
        input: Tensor,
        weight: Tensor,
        ending: tuple[Any, ...],
        numbers: tuple[Any, ...],
        transposed: bool,
    ) -> None:
        bias, scale, residual, self.activation, self.slope = ending
        self.order = (0, *range(2, input.dim()), 1)
        self.back = (0, input.dim() - 1, *range(1, input.dim() - 1))
        self.numbers, self.device = numbers, result.device
        self.shape, self.stride, self.dtype = tuple(result.shape), result.stride(), result.dtype
        self.scaled = isinstance(scale, torch.Tensor)  # else by a number, if at all
        epilogue = epilogue_of(bias, scale, residual, self.activation, self.slope)
        x, w = (tuple(t.shape[i] for i in self.order) for t in (input, weight))
        if transposed:
            ends, on_gpu = epilogue is not None, input.is_cuda
            found = dgrad_pass(x, w, *numbers, ends=ends, on_gpu=on_gpu)
        else:
            found = fprop_pass(x, w, *numbers)
        self.views, self.zeroed = found.views, found.zeroed
        self.recorded = _Transposed if transposed else _Convolution
        self.wanted = wants_gradient(input, weight, bias, residual)
        tensors = [t for t in (input, weight, residual) if t is not None]
        self.in_order = all(t.permute(self.order).is_contiguous() for t in tensors)
        self.on_gpu = _takes_memory(found, input, result)
        if self.on_gpu:
            from . import gpu

            self.gpu = gpu
            self.operand, self.index = input.dtype, input.get_device()
            self.structure = "" if epilogue is None else epilogue.structure
            self.constants = () if epilogue is None else epilogue.numbers
            self.plans: dict[Hashable, tuple[Any, ...]] = {}

    def __call__(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        if self.wanted:
            if residual is not None:
                residual = residual.permute(self.order)
            ending = bias, scale, residual, self.activation, self.slope, self.dtype
            a, b = a.permute(self.order), b.permute(self.order)
            return self.recorded.apply(a, b, *self.numbers, *ending, self).permute(self.back)
        out = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        if self.on_gpu and self.in_order:
            self.compute(a, b, out, bias, scale, residual)
        else:
            if residual is not None:
                residual = residual.permute(self.order)
            a, b = a.permute(self.order), b.permute(self.order)
            self.compute(a, b, out.permute(self.order), bias, scale, residual)
        return out

    def compute(
        self, a: Tensor, b: Tensor, out: Tensor, bias: Any, scale: Any, residual: Any
    ) -> None:
        """Write ``out``; tensors are in the order of memory, or all in any where there is a GPU."""
        if not self.in_order:
            a, b = a.contiguous(), b.contiguous()
            residual = None if residual is None else residual.contiguous()
        if self.zeroed:
            out.zero_()
        if self.on_gpu:
            self._launch(a, b, out, bias, scale, residual)
            return
        epilogue = epilogue_of(bias, scale, residual, self.activation, self.slope)
        run(self.views, a, b, out, epilogue)

    def _launch(
        self, a: Tensor, b: Tensor, out: Tensor, bias: Any, scale: Any, residual: Any
    ) -> None:
        gpu, reads = self.gpu, self.gpu.NOTHING
        sources = () if residual is None else (residual,)
        if self.structure:
            columns = (scale,) if self.scaled else ()
            columns = columns if bias is None else (*columns, bias)
            reads = gpu.Reads(self.constants, columns, sources)
        key = gpu.multiplied_as(self.operand), gpu.aligned_to(a, b, out, sources)
        plans = self.plans.get(key)
        if plans is None:
            precision, aligned = key
            of = self.operand, self.index, self.dtype, precision, False, self.structure, aligned
            plans = self.plans[key] = tuple(gpu.plan_of(view, *of) for view in self.views)
        for plan in plans:
            plan(a, b, out, reads)


class _Recorded(torch.autograd.Function):
    """A convolution as autograd records it: the inputs of the operator, then the :class:`Call`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        *_, bias, scale, residual, _, _, dtype, call = rest
        shape = [call.shape[i] for i in call.order]
        out = torch.empty(shape, dtype=dtype, device=call.device)
        call.compute(a, b, out, bias, scale, residual)
        keep(ctx, (a, b, *rest[:-1]), out)
        return out


class _Convolution(_Recorded):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return (*fprop_backward(ctx, grad), None)


class _Transposed(_Recorded):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return (*dgrad_backward(ctx, grad), None)


def _takes_memory(found: Pass, input: Tensor, result: Tensor) -> bool:
    """Whether the kernels of a pass take memory, whatever the order of its modes."""
    return input.is_cuda and not found.is_depthwise and not {input.dtype, result.dtype} & FP8


def _of(tensor: Any) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
