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
from .call_cache import dense
from .dense_operators import OPERATORS, of_dgrad, of_fprop
from .dense_passes import Pass, dgrad_pass, fprop_pass, run, write_empty_sums
from .epilogue_args import epilogue_of
from .formulas import Over
from .guard import wants_gradient
from .recorded import BoundCall

if TYPE_CHECKING:
    from torch import Tensor

find, forget = dense.find, dense.clear


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
    input, weight, *_ = tensors
    if input.dim() == weight.dim():  # no single image
        make = partial(Call, result, tensors, ending, of_pass, transposed)
        dense.remember(make, numbers, out_dtype, tensors, result, ending)


class Call(BoundCall):
    """Convolutions of one signature, from tensors in torch's order to a result in that order."""

    def __init__(
        self,
        result: Tensor,
        tensors: tuple[Any, ...],
        ending: tuple[str | None, float],
        numbers: tuple[Any, ...],
        transposed: bool,
    ) -> None:
        input, weight, bias, scale, residual = tensors
        self.order, self.ending = _order(input.dim()), ending
        epilogue = epilogue_of(bias, scale, residual, *ending)
        self.only_sums = epilogue is None and result.dtype is input.dtype
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        self.wanted = wants_gradient(input, weight, *columns, residual)
        described = of_dgrad if transposed else of_fprop
        self.formula, self.over = described(input, weight, *numbers)
        x, w = (tuple(t.shape[i] for i in self.order) for t in (input, weight))
        of_gpu = columns_for(input) if transposed else line_for(input)
        of_pass = transposed, x, w, numbers, epilogue is not None, of_gpu
        found = _pass_of(*of_pass)
        self.zeroed = found.zeroed
        shape = tuple(result.shape)
        self.allocate = allocator(shape, result.stride(), result.dtype, result.device)
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
        if self.in_order and not self.zeroed:  # and nothing else, of tensors as they are
            self.forward = self.launch.result  # type: ignore[method-assign]
            if not self.wanted:
                self.run = self.launch.result  # type: ignore[method-assign]

    def runner(self, found: Any, grad: Tensor, a: Any, b: Any) -> tuple[Any, Over]:
        """Return the operators, which go past the dispatcher where that may be."""
        return OPERATORS, self.over

    def forward(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors that are not as kernels read them, or by the views."""
        result = self.allocate()
        a, b, out = (t.permute(self.order) for t in (a, b, result))
        residual = None if residual is None else residual.permute(self.order)
        if self.zeroed:
            ending = epilogue_of(bias, scale, residual, *self.ending)
            write_empty_sums(out, ending, a.dtype)
        a, b = a.contiguous(), b.contiguous()
        residual = None if residual is None else residual.contiguous()
        if self.found is None:
            self.launch.run(a, b, out, bias, scale, residual)
        else:
            ending = epilogue_of(bias, scale, residual, *self.ending)
            run(self.found.views, a, b, out, ending, turns=bool(self.found.turned))
        return result


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
        spatial, *others = numbers
        return dgrad_pass(x, w, spatial, tuple(others), ends=ends, columns=of_gpu)
    return fprop_pass(x, w, *numbers, line=of_gpu)


def _views_of(of_pass: tuple[Any, ...]) -> tuple[GemmView, ...]:
    return _pass_of(*of_pass).views


def _takes_memory(found: Pass, input: Tensor, result: Tensor) -> bool:
    """Return whether the kernels of a pass take memory, whatever the order of its modes."""
    return input.is_cuda and not found.is_depthwise and not {input.dtype, result.dtype} & FP8
