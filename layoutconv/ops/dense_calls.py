"""Convolutions past torch's dispatcher, and past checks that were made: host time of a call.

An operator that is written in Python takes tens of microseconds before anything is computed, and as
many to be recorded by autograd. What it comes to depends on data in nothing: on shapes, strides,
dtypes, devices and numbers alone, a *signature*. The first call of a signature takes the operator,
with every check; if that succeeds, what was derived on the way is kept as a :class:`Call`, and
later calls of the signature do nothing but allocate and launch. Of a call that torch has to see, of
which :func:`~layoutconv.ops.torch_internals.is_plain` decides, nothing is kept.

Tensors are in torch's order here, (N, C, D, H, W). A kernel takes their memory as it is, where that
is in the order of ``channels_last``; views of them would cost a microsecond each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base.memory import allocator
from ..gpu.folding_choice import line_for
from ..gpu.phase_choice import columns_for
from ..tensors.epilogue_in_torch import FP8
from .call_cache import Signatures
from .dense_operators import dgrad_backward, fprop_backward, has_gradient, keep
from .dense_passes import Pass, dgrad_pass, epilogue_of, fprop_pass, run
from .torch_internals import is_constant, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

_kept = Signatures(limit=4096)
find, forget = _kept.find, _kept.clear


def remember(
    numbers: tuple[Any, ...],
    out_dtype: torch.dtype | None,
    tensors: tuple[Any, ...],
    result: Tensor,
    ending: tuple[str | None, float],
    of_pass: tuple[Any, ...],
    *,
    transposed: bool,
) -> None:
    """Keep what a call came to, which :func:`find` finds by ``numbers`` and the rest.

    ``tensors`` are its input, weight, bias, scale and residual, ``ending`` is its activation with
    the slope, ``of_pass`` are the numbers of the operator.
    """
    if torch.compiler.is_compiling():
        return
    input, weight, bias, scale, residual = tensors
    columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
    wanted = wants_gradient(input, weight, *columns, residual)
    if (
        input.dim() != weight.dim()  # one image
        or not (input.numel() and result.numel())
        or result.is_complex()
        or not (result.is_cpu or result.is_cuda)
        or not all(t.is_contiguous() for t in columns)
        or (wanted and not (has_gradient(*ending) and is_constant(scale)))
    ):
        return
    make = partial(Call, result, tensors, ending, of_pass, wanted, transposed)
    _kept.keep(make, numbers, out_dtype, *tensors)


class Call:
    """Convolutions of one signature, from tensors in torch's order to a result in that order."""

    def __init__(
        self,
        result: Tensor,
        tensors: tuple[Any, ...],
        ending: tuple[str | None, float],
        numbers: tuple[Any, ...],
        wanted: bool,
        transposed: bool,
    ) -> None:
        input, weight, bias, scale, residual = tensors
        self.order = (0, *range(2, input.dim()), 1)
        self.back = (0, input.dim() - 1, *range(1, input.dim() - 1))
        self.numbers, self.ending = numbers, ending
        self.shape, self.dtype, self.device = tuple(result.shape), result.dtype, result.device
        epilogue = epilogue_of(bias, scale, residual, *ending)
        x, w = (tuple(t.shape[i] for i in self.order) for t in (input, weight))
        if transposed:
            ends, columns = epilogue is not None, columns_for(input)
            found = dgrad_pass(x, w, *numbers, ends=ends, columns=columns)
        else:
            found = fprop_pass(x, w, *numbers, line=line_for(input))
        self.views, self.zeroed, self.turned = found.views, found.zeroed, found.turned
        self.allocate = allocator(self.shape, result.stride(), self.dtype, self.device)
        self.recorded = _Transposed if transposed else _Convolution
        self.wanted = wanted
        operands = [t for t in (input, weight, residual) if t is not None]
        self.in_order = all(t.permute(self.order).is_contiguous() for t in operands)
        self.launch: Any = None
        if _takes_memory(found, input, result):
            from ..gpu.launch import Launch

            of = found.views, input, result.dtype, epilogue, found.turned
            self.launch = Launch(*of, self.allocate)
            if self.in_order and not self.zeroed and not wanted:
                # And nothing else, of tensors as they are.
                self.run = self.launch.result  # type: ignore[method-assign]

    def run(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors of the signature."""
        if self.wanted:
            return self._record(a, b, bias, scale, residual)
        out = self.allocate()
        a, b, residual = self._in_memory_order(a, b, residual)
        self.compute(a, b, out.permute(self.order), bias, scale, residual)
        return out

    def compute(
        self, a: Tensor, b: Tensor, out: Tensor, bias: Any, scale: Any, residual: Any
    ) -> None:
        """Write ``out``; tensors are in the order of memory."""
        if not self.in_order:
            a, b = a.contiguous(), b.contiguous()
            residual = None if residual is None else residual.contiguous()
        if self.zeroed:
            out.zero_()
        if self.launch is not None:
            self.launch.run(a, b, out, bias, scale, residual)
        else:
            ending = epilogue_of(bias, scale, residual, *self.ending)
            run(self.views, a, b, out, ending, turns=bool(self.turned))

    def _record(self, a: Tensor, b: Tensor, bias: Any, scale: Any, residual: Any) -> Tensor:
        a, b, residual = self._in_memory_order(a, b, residual)
        ending = bias, scale, residual, *self.ending, self.dtype
        y: Tensor = self.recorded.apply(a, b, *self.numbers, *ending, self)
        return y.permute(self.back)

    def _in_memory_order(self, *tensors: Any) -> list[Any]:
        return [None if t is None else t.permute(self.order) for t in tensors]


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
