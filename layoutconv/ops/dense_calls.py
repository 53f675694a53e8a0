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
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..base.memory import allocator
from ..tensors.epilogue_in_torch import FP8
from ..view.epilogue import Pointwise
from ..view.gemm_view import GemmView
from .call_cache import dense
from .dense_operators import OPERATORS, of_dgrad, of_fprop
from .dense_passes import (
    Pass,
    TorchPass,
    in_memory_order,
    is_torchs_pass,
    new_result,
    pass_maker,
    torch_pass,
    write_empty_sums,
)
from .epilogue_args import EpilogueArgs, epilogue_of, sources_changed
from .formulas import Arguments, wide_sums
from .function_gradients import may_be_bound, tensors_of
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
) -> Tensor:
    """Keep what a call came to, which :func:`find` finds by ``numbers`` and the rest.

    ``operands`` are its input and weight, ``of_pass`` the numbers of the operator. Returns the
    ``result``; where later calls are recorded as torch's own, one of those, so that gradients of
    all calls have the same bits.
    """
    input, weight = operands
    made: list[Call] = []

    def make() -> Call:
        made.append(Call(result, operands, ending, of_pass, transposed))
        return made[0]

    if input.dim() == weight.dim():  # no single image
        dense.remember(make, numbers, operands, ending, result)
    if made and made[0].wanted and made[0].as_torch is not None:
        return made[0].as_torch(input, weight, ending.bias)
    return result


def bound(
    numbers: tuple[Any, ...],
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
    shape: tuple[int, ...],
    of_pass: tuple[Any, ...],
    *,
    transposed: bool,
) -> Call | None:
    """Bind a convolution with a user's function behind it, kept for :func:`find`.

    ``shape`` is the result's, in torch's order; the rest is as of :func:`remember`. None for a call
    that torch has to see, of which :func:`~layoutconv.ops.guard.is_plain` decides, and for a
    function of rows: views count them in orders of their own.
    """
    (input, weight), (bias, scale, residual, function, _, out_dtype) = operands, ending
    assert isinstance(function, Pointwise)
    if not may_be_bound(function, operands, ending, prod(shape)):
        return None
    meta = torch.empty(0, dtype=input.dtype, device="meta")
    first, channels, *modes = shape
    result = new_result(meta, (first, *modes, channels), out_dtype)
    call = Call(result, operands, ending, of_pass, transposed)
    named = tensors_of(function)
    dense.keep(lambda: call, numbers, out_dtype, input, weight, bias, scale, residual, *named)
    return call


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
        function = activation if isinstance(activation, Pointwise) else None
        self.ending = (None if isinstance(activation, Pointwise) else activation, slope)
        self.out_dtype, self.transposed = result.dtype, transposed
        epilogue = ending.epilogue()
        self.only_sums = epilogue is None and result.dtype is input.dtype
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        named = () if function is None else tensors_of(function)
        self.wanted = wants_gradient(input, weight, *columns, residual, *named)
        described = of_dgrad if transposed else of_fprop
        self.formula, self.over = described(input, weight, *numbers)
        name = "dgrad" if transposed else "fprop"
        self.launch: Any = None
        self.found: Pass | TorchPass | None = None  # where it is no launch
        if is_torchs_pass(input, weight, numbers):
            self.found = torch_pass(name, input, weight, numbers)
            if _is_torchs_alone(input, ending, result):
                self.as_torch = self.found.recorded
            return
        make = pass_maker(name, input, weight, numbers, ends=epilogue is not None)
        found = make()
        self.zeroed, self.packed = found.zeroed, found.packed
        shape = tuple(result.shape)
        self.allocate = allocator(shape, result.stride(), result.dtype, input.device)
        if not _takes_memory(found, input, result, epilogue is not None):
            self.found = found
            return
        from ..gpu.launch import Launch

        views = partial(_views_of, make)
        turned = () if found.packed else found.turned
        self.launch = Launch(views, input, result.dtype, epilogue, turned, self.allocate)
        sources = () if function is None else function.like_d
        read = [t for t in (input, weight, residual, *sources) if t is not None]
        if (
            not self.zeroed
            and found.packed is None
            and all(in_memory_order(t).is_contiguous() for t in read)
        ):
            self.forward = self.launch.result  # type: ignore[method-assign]
            if not self.wanted and function is None:
                self.run = self.launch.result  # type: ignore[method-assign]

    def runner(self, found: Any, grad: Tensor, a: Any, b: Any) -> tuple[Any, Arguments]:
        """Return the operators, which go past the dispatcher where that may be."""
        return OPERATORS, self.over

    def sums(self, found: Any, a: Tensor, b: Tensor) -> Tensor:
        """The sums alone, fp32 (fp64 of float64), which autograd records."""
        wide = wide_sums(a.dtype)
        if self.transposed:
            return OPERATORS.dgrad(self.over._replace(dgrad=(*self.over.dgrad, *wide)), a, b)
        return OPERATORS.fprop(self.over._replace(fprop=(*self.over.fprop, *wide)), a, b)

    def forward(
        self,
        a: Tensor,
        b: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """The convolution of tensors that are not as kernels read them, by views, or by torch."""
        activation, slope = self.ending if function is None else (function, 0.0)
        if self.found is not None:
            args = EpilogueArgs(bias, scale, residual, activation, slope, self.out_dtype)
            return self.found.compute(a, b, args)[0]
        result = self.allocate()
        out = in_memory_order(result)
        a, b = in_memory_order(a).contiguous(), in_memory_order(b).contiguous()
        if residual is not None:
            residual = in_memory_order(residual).contiguous()
        if function is not None:
            function = sources_changed(function, _as_memory)
        if self.zeroed:
            epilogue = epilogue_of(bias, scale, residual, function or activation, slope)
            write_empty_sums(out, epilogue, a.dtype)
        if self.packed is not None:
            a, b = self.packed.operands(a, b)
            out = self.packed.written(out)  # the result itself: of a gradient of the filter alone
        self.launch.run(a, b, out, bias, scale, residual, function)
        return result


def _is_torchs_alone(input: Tensor, ending: EpilogueArgs, result: Tensor) -> bool:
    """Return whether torch's own convolution is all of a call on a CPU: sums, and a bias."""
    bias, scale, residual, activation, _, _ = ending
    kinds = {input.dtype, result.dtype} | ({bias.dtype} if bias is not None else set())
    plain = scale is None and residual is None and activation is None
    return plain and len(kinds) == 1 and kinds <= {torch.float32, torch.float64}


def _views_of(make: Callable[[], Pass]) -> tuple[GemmView, ...]:
    found = make()
    return found.views if found.packed is None else found.packed.views


def _as_memory(tensor: Tensor) -> Tensor:
    return in_memory_order(tensor).contiguous()


def _takes_memory(found: Pass, input: Tensor, result: Tensor, ends: bool) -> bool:
    """Return whether the kernels of a pass take memory, whatever the order of its modes.

    ``ends`` says whether anything comes after the sums, which torch applies to some depthwise ones.
    """
    if not input.is_cuda or {input.dtype, result.dtype} & FP8:
        return False
    if not found.is_depthwise:
        return True
    from ..gpu.depthwise_plan import launches_alone

    return all(launches_alone(view, result.dtype, ends=ends) for view in found.views)
