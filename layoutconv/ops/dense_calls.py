"""Convolutions past torch's dispatcher, and past checks that were made: host time of a call.

An operator that is written in Python takes tens of microseconds before anything is computed, and as
many to be recorded by autograd. What it comes to depends on data in nothing: on shapes, strides,
dtypes, devices and numbers alone, a *signature*. The first call of a signature takes the operator,
with every check; if that succeeds, what was derived on the way is kept as a :class:`Call`, and
later calls of the signature do nothing but allocate and launch. Of a call that torch has to see, of
which :func:`~layoutconv.ops.guard.is_plain` decides, nothing is kept.

A kernel takes the memory of tensors as it is, where that is in the order of ``channels_last``;
views of them in that order would cost a microsecond each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base.caches import remembered
from ..base.memory import allocator
from ..gpu.folding_choice import line_for
from ..gpu.phase_choice import columns_for
from ..tensors.epilogue_in_torch import FP8
from ..view.gemm_view import GemmView
from .call_cache import Signatures
from .dense_operators import dgrad_backward, fprop_backward, has_gradient, keep
from .dense_passes import Pass, dgrad_pass, epilogue_of, fprop_pass, run, write_empty_sums
from .guard import is_constant, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

_kept = Signatures("dense calls", entries=4096, nbytes=16 << 20)
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
        self.order = _order(input.dim())
        self.numbers, self.ending = numbers, ending
        self.shape, self.dtype, self.device = tuple(result.shape), result.dtype, result.device
        epilogue = epilogue_of(bias, scale, residual, *ending)
        x, w = (tuple(t.shape[i] for i in self.order) for t in (input, weight))
        of_gpu = columns_for(input) if transposed else line_for(input)
        of_pass = transposed, x, w, numbers, epilogue is not None, of_gpu
        found = _pass_of(*of_pass)
        self.zeroed = found.zeroed
        self.allocate = allocator(self.shape, result.stride(), self.dtype, self.device)
        self.recorded = _Transposed if transposed else _Convolution
        self.wanted = wanted
        operands = [t for t in (input, weight, residual) if t is not None]
        self.in_order = all(t.permute(self.order).is_contiguous() for t in operands)
        self.launch: Any = None
        self.found: Pass | None = None  # where it is run by the views
        if not _takes_memory(found, input, result):
            self.found = found
            return
        from ..gpu.launch import Launch

        views = partial(_views_of, of_pass)
        self.launch = Launch(views, input, result.dtype, epilogue, found.turned, self.allocate)
        if self.in_order and not self.zeroed and not wanted:
            # And nothing else, of tensors as they are.
            self.run = self.launch.result  # type: ignore[method-assign]

    def run(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors of the signature."""
        if self.wanted:
            ending = bias, scale, residual, *self.ending, self.dtype
            recorded: Tensor = self.recorded.apply(a, b, *self.numbers, *ending, self)
            return recorded
        out = self.allocate()
        self.compute(a, b, out, bias, scale, residual)
        return out

    def compute(
        self, a: Tensor, b: Tensor, out: Tensor, bias: Any, scale: Any, residual: Any
    ) -> None:
        """Write ``out``."""
        if self.zeroed:
            added = None if residual is None else residual.permute(self.order)
            ending = epilogue_of(bias, scale, added, *self.ending)
            write_empty_sums(out.permute(self.order), ending, a.dtype)
        if self.launch is not None and self.in_order:
            self.launch.run(a, b, out, bias, scale, residual)
            return
        a, b = (t.permute(self.order).contiguous() for t in (a, b))
        residual = None if residual is None else residual.permute(self.order).contiguous()
        out = out.permute(self.order)
        if self.found is None:
            self.launch.run(a, b, out, bias, scale, residual)
        else:
            ending = epilogue_of(bias, scale, residual, *self.ending)
            run(self.found.views, a, b, out, ending, turns=bool(self.found.turned))


class _Recorded(torch.autograd.Function):
    """A convolution as autograd records it: the inputs of the operator, then the :class:`Call`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        *_, bias, scale, residual, _, _, _, call = rest
        out: Tensor = call.allocate()
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


@remembered(8)
def _order(rank: int) -> tuple[int, ...]:
    """Of tensors of so many modes, from torch's order to that of memory."""
    return 0, *range(2, rank), 1


def _pass_of(
    transposed: bool,
    x: tuple[int, ...],
    w: tuple[int, ...],
    numbers: tuple[Any, ...],
    ends: bool,
    of_gpu: int,
) -> Pass:
    """The pass of tensors of two shapes, in the order of memory.

    ``of_gpu``: columns of residues side by side, or the elements of a folded line.
    """
    if transposed:
        return dgrad_pass(x, w, *numbers, ends=ends, columns=of_gpu)
    return fprop_pass(x, w, *numbers, line=of_gpu)


def _views_of(of_pass: tuple[Any, ...]) -> tuple[GemmView, ...]:
    return _pass_of(*of_pass).views


def _takes_memory(found: Pass, input: Tensor, result: Tensor) -> bool:
    """Return whether the kernels of a pass take memory, whatever the order of its modes."""
    return input.is_cuda and not found.is_depthwise and not {input.dtype, result.dtype} & FP8
