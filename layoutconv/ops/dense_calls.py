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

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base.memory import allocator
from ..tensors.epilogue_in_torch import FP8
from ..view.gemm_view import GemmView
from .call_cache import dense
from .dense_operators import OPERATORS, of_dgrad, of_fprop
from .dense_passes import (
    Pass,
    TorchPass,
    in_memory_order,
    is_torchs_pass,
    pass_maker,
    torch_pass,
    write_empty_sums,
)
from .epilogue_args import EpilogueArgs, epilogue_of
from .formulas import Arguments
from .guard import wants_gradient
from .recorded import BoundCall

if TYPE_CHECKING:
    from torch import Tensor

find, forget = dense.find, dense.clear


def remember(
    numbers: tuple[Any, ...],
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
    result: Tensor,
    of_pass: tuple[Any, ...],
    *,
    transposed: bool,
) -> None:
    """Keep what a call came to, which :func:`find` finds by ``numbers`` and the rest.

    ``operands`` are its input and weight, ``of_pass`` the numbers of the operator.
    """
    input, weight = operands
    if input.dim() == weight.dim():  # no single image
        make = partial(Call, result, operands, ending, of_pass, transposed)
        dense.remember(make, numbers, operands, ending, result)


class Call(BoundCall):
    """Convolutions of one signature, from tensors in torch's order to a result in that order."""

    def __init__(
        self,
        result: Tensor,
        operands: tuple[Tensor, Tensor],
        ending: EpilogueArgs,
        numbers: tuple[Any, ...],
        transposed: bool,
    ) -> None:
        (input, weight), (bias, scale, residual, activation, slope, _) = operands, ending
        self.ending, self.out_dtype = (activation, slope), result.dtype
        epilogue = ending.epilogue()
        self.only_sums = epilogue is None and result.dtype is input.dtype
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        self.wanted = wants_gradient(input, weight, *columns, residual)
        described = of_dgrad if transposed else of_fprop
        self.formula, self.over = described(input, weight, *numbers)
        name = "dgrad" if transposed else "fprop"
        self.launch: Any = None
        self.found: Pass | TorchPass | None = None  # where it is no launch
        if is_torchs_pass(input, weight, numbers):
            self.found = torch_pass(name, input, weight, numbers)
            return
        make = pass_maker(name, input, weight, numbers, ends=epilogue is not None)
        found = make()
        self.zeroed = found.zeroed
        shape = tuple(result.shape)
        self.allocate = allocator(shape, result.stride(), result.dtype, result.device)
        if not _takes_memory(found, input, result):
            self.found = found
            return
        from ..gpu.launch import Launch

        views = partial(_views_of, make)
        self.launch = Launch(views, input, result.dtype, epilogue, found.turned, self.allocate)
        read = [t for t in (input, weight, residual) if t is not None]
        if not self.zeroed and all(in_memory_order(t).is_contiguous() for t in read):
            self.forward = self.launch.result  # type: ignore[method-assign]
            if not self.wanted:
                self.run = self.launch.result  # type: ignore[method-assign]

    def runner(self, found: Any, grad: Tensor, a: Any, b: Any) -> tuple[Any, Arguments]:
        """Return the operators, which go past the dispatcher where that may be."""
        return OPERATORS, self.over

    def forward(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors that are not as kernels read them, by views, or by torch."""
        if self.found is not None:
            args = EpilogueArgs(bias, scale, residual, *self.ending, self.out_dtype)
            return self.found.compute(a, b, args)[0]
        result = self.allocate()
        out = in_memory_order(result)
        a, b = in_memory_order(a).contiguous(), in_memory_order(b).contiguous()
        if residual is not None:
            residual = in_memory_order(residual).contiguous()
        if self.zeroed:
            write_empty_sums(out, epilogue_of(bias, scale, residual, *self.ending), a.dtype)
        self.launch.run(a, b, out, bias, scale, residual)
        return result


def _views_of(make: Callable[[], Pass]) -> tuple[GemmView, ...]:
    return make().views


def _takes_memory(found: Pass, input: Tensor, result: Tensor) -> bool:
    """Return whether the kernels of a pass take memory, whatever the order of its modes."""
    return input.is_cuda and not found.is_depthwise and not {input.dtype, result.dtype} & FP8
