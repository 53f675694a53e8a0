"""Warm dense convolutions: calls that skip torch's dispatcher and checks made before.

An operator written in Python has tens of microseconds of host overhead, and as much again if
autograd records it. The kernels of a call depend only on its *signature*: shapes, strides, dtypes,
devices and numbers. The first call of a signature takes the operator, with every check, and its
plan is kept as a :class:`DenseCall`. Later calls of the signature only allocate and launch. A call
that torch has to see is not kept, see :func:`~layoutconv.ops.guard.is_plain`.

A kernel takes the memory of tensors as it is, if that is in the order of ``channels_last``; views
of them in that order would cost a microsecond each.

The gradients of a call are calls themselves: each of their passes uses the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.compiler import is_compiling

from ..base import devices
from ..base.memory import allocator
from ..base.torch_internals import is_gradient_tracked, is_tracing
from ..gpu.few_terms_choice import ends_in_tiles
from ..tensors.epilogue_in_torch import FP8
from ..tensors.expected_tensors import expected
from ..view.epilogue import Pointwise
from ..view.gemm_view import GemmView
from .autocast import autocast_dtype, without_autocast
from .call_cache import dense
from .dense_operators import OPERATORS, of_dgrad, of_fprop, of_wgrad
from .dense_passes import (
    PassViews,
    TorchPass,
    dgrad,
    fprop,
    in_memory_order,
    is_torchs_pass,
    new_result,
    pass_maker,
    torch_pass,
    wgrad,
)
from .empty_sums import write_empty_sums
from .epilogue_args import EpilogueArgs, epilogue_of, sources_changed
from .formulas import Described, Gradients, Pass, PassArguments, PassRunner, has_gradient, wide_sums
from .function_gradients import may_be_bound, tensors_of
from .guard import is_bare, is_constant, is_plain, is_watched_unseen, wants_gradient
from .recorded import BoundCall

if TYPE_CHECKING:
    from torch import Tensor

find, forget = dense.find, dense.clear
is_grad_enabled = torch.is_grad_enabled

_DESCRIBED: dict[str, Described] = {"fprop": of_fprop, "dgrad": of_dgrad, "wgrad": of_wgrad}


class FirstCall(NamedTuple):
    """The first call of a signature, which takes the operator.

    Attributes:
        given: its numbers, as for :func:`find`.
        operands: its input and weight.
        ending: the epilogue as the caller gave it.
        numbers: those of the operator.
        name: of its pass, as for ``pass_maker``.
    """

    given: tuple[Any, ...]
    operands: tuple[Tensor, Tensor]
    ending: EpilogueArgs
    numbers: tuple[Any, ...]
    name: str


def remember(first: FirstCall, result: Tensor) -> Tensor:
    """Keep the :class:`DenseCall` of a signature after its first call, for :func:`find`.

    Returns the ``result``; if later calls are recorded as torch's own convolution, it returns
    such a result, so that the gradients of all calls have the same bits.
    """
    (input, weight), ending = first.operands, first.ending
    made: list[DenseCall] = []

    def make() -> DenseCall:
        made.append(DenseCall(first, result))
        return made[0]

    if input.dim() == weight.dim():  # not a single image
        dense.remember(make, first.given, first.operands, ending, result)
    if made and made[0].wanted and made[0].as_torch is not None:
        return made[0].as_torch(input, weight, ending.bias)
    return result


def by_torch(first: FirstCall, shape: tuple[int, ...]) -> Tensor | None:
    """Run a first forward pass as torch's own, like later ones, and keep the call; else None.

    No operator has saved tensors then: checkpointing counts saved tensors, and fails if a call
    saves fewer when it is repeated. ``shape`` is as for :func:`bound`.
    """
    (input, weight), ending = first.operands, first.ending
    if (
        not input.is_cpu
        or not weight.is_cpu
        or is_compiling()
        or input.dim() != weight.dim()
        or len(shape) < 4  # calls with one spatial mode are recorded here
        or 0 in shape
        or not input.numel()
        or not (ending.bias is None or ending.bias.is_contiguous())
        or not _is_torchs_alone(input, ending, ending.out_dtype or input.dtype)
        or not wants_gradient(input, weight, *(() if ending.bias is None else (ending.bias,)))
        or not is_torchs_pass(input, weight, first.numbers)
    ):
        return None
    made: list[DenseCall] = []

    def make() -> DenseCall:
        made.append(DenseCall(first, _as_result(input, shape, ending)))
        return made[0]

    dense.keep(make, first.given, ending.out_dtype, input, weight, ending.bias)
    if not made or made[0].as_torch is None:
        return None
    return made[0].as_torch(input, weight, ending.bias)


def below_autocast(
    convolve: Callable[..., Any],
    given: tuple[Any, ...],
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
    rest: tuple[Any, ...],
) -> Any:
    """Run ``convolve(input, weight, *ending, *rest)`` on operands that autocast lowers. None if it
    lowers nothing, and in ``torch.compile``, which sees operators that do.

    The call below autocast is kept for later calls with autocast on, for :func:`find`: they lower
    the filter inside the one function that autograd records. A caller that finds one compares its
    ``lowers`` with the current autocast dtype.

    The first call is recorded like these, so that its filter's gradient is rounded no more often.
    """
    input, weight = operands
    low = None if is_compiling() else autocast_dtype(input, weight)
    if low is None or input.dtype is not low:
        return None if low is None else convolve(input.to(low), weight, *ending, *rest)
    bias, scale, residual, _, _, out_dtype = ending
    tensors = input, weight, bias, scale, residual
    wanted, kept = wants_gradient(*_given(tensors)), _may_be_kept(given, tensors, ending)
    known: DenseCall | None = None
    with without_autocast(input.device.type):
        if kept:
            with torch.no_grad():
                lowered = weight.to(low)
                result = convolve(input, lowered, *ending, *rest)
                known = find(given, out_dtype, input, lowered, bias, scale, residual)
        if known is None and (wanted or not kept):  # such as one without elements
            return convolve(input, weight.to(low), *ending, *rest)
    if known is None:
        return result
    call = known.lowering(weight, low, wanted=wanted)
    dense.keep(lambda: call, given, out_dtype, *tensors, lowered=True)
    return call.run(*tensors) if wanted else result


def _given(tensors: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among operands and arguments of an epilogue."""
    return [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]


def _may_be_kept(numbers: tuple[Any, ...], tensors: Sequence[Any], ending: EpilogueArgs) -> bool:
    """Return whether a call may be kept: nothing but autocast and autograd intercepts it."""
    there, (input, weight, *columns, _) = _given(tensors), tensors
    return (
        not isinstance(ending.activation, Pointwise)
        and has_gradient(ending.activation, ending.slope)
        and is_constant(ending.scale)
        and input.dim() == weight.dim()  # not a single image
        and all(column.is_contiguous() for column in _given(columns))
        and not (is_watched_unseen() or is_tracing())
        and all(tensor.numel() and is_bare(tensor) for tensor in there)
        and not any(map(is_gradient_tracked, there))
        and dense.has_key(numbers)
    )


def bound(first: FirstCall, shape: tuple[int, ...]) -> DenseCall | None:
    """Bind a convolution with a user's function behind it, and keep it for :func:`find`.

    ``shape`` is the result's, in torch's order. None for a call that torch has to see, see
    :func:`~layoutconv.ops.guard.is_plain`, and for a function of rows, which views number in an
    order of their own.
    """
    operands, ending = first.operands, first.ending
    (input, weight), (bias, scale, residual, function, _, out_dtype) = operands, ending
    assert isinstance(function, Pointwise)
    if not may_be_bound(function, operands, ending, prod(shape)):
        return None
    call = DenseCall(first, _as_result(input, shape, ending))
    named = tensors_of(function)
    dense.keep(lambda: call, first.given, out_dtype, input, weight, bias, scale, residual, *named)
    return call


class DenseCall(BoundCall):
    """The bound launches of one signature: tensors in torch's order to a result in that order.

    ``passes`` are those of its gradients, if not the usual ones.
    """

    passes: PassRunner | None = None

    def __init__(self, first: FirstCall, result: Tensor) -> None:
        _, operands, ending, numbers, name = first
        (input, weight), (bias, scale, residual, activation, slope, _) = operands, ending
        function = activation if isinstance(activation, Pointwise) else None
        self.ending = (None if isinstance(activation, Pointwise) else activation, slope)
        self.out_dtype, self.name = result.dtype, name
        epilogue = ending.epilogue()
        self.only_sums = epilogue is None and result.dtype is input.dtype
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        named = () if function is None else tensors_of(function)
        self.wanted = wants_gradient(input, weight, *columns, residual, *named)
        self._formula, self.over = _DESCRIBED[name](input, weight, *numbers)
        self.launch: Any = None
        self.stride = result.stride()
        self.found: PassViews | TorchPass | None = None  # if it is not a launch
        if is_torchs_pass(input, weight, numbers):
            self.found = torch_pass(name, input, weight, numbers)
            if _is_torchs_alone(input, ending, result.dtype):
                self.as_torch = self.found.recorded
            return
        by_tiles = ends_in_tiles(result.dtype)
        make = pass_maker(
            name, input, weight, numbers, ends=epilogue is not None, by_tiles=by_tiles
        )
        found = make()
        self.zeroed, self.packed = found.zeroed, found.packed
        self.stored = expected(found.views[0]).d.shape if found.packed is not None else ()
        shape = tuple(result.shape)
        self.allocate = allocator(shape, self.stride, result.dtype, input.device)
        if not _takes_memory(found, input, result, epilogue is not None):
            self.found = found
            return
        from ..gpu.launch import BoundLaunch

        views = partial(_views_of, make)
        k_major = () if found.packed else found.k_major
        self.launch = BoundLaunch(views, input, result.dtype, epilogue, k_major, self.allocate)
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

    def lowering(self, weight: Tensor, low: torch.dtype, *, wanted: bool) -> DenseCall:
        """Return a copy for calls in which autocast lowers the filter to ``low``; it casts itself.

        ``wanted`` says whether autograd records the call. The gradient of a float32 filter is not
        rounded to ``low`` in between.
        """
        made = copy(self)
        made.__dict__.pop("run", None)  # a launch does not cast the filter
        made.lowers, made.wanted = low, wanted
        made.passes = _WIDE if weight.dtype is torch.float32 else _CALLS
        return made

    def gradients(
        self, found: Any, needed: Sequence[bool], grad: Tensor, a: Any, b: Any
    ) -> Gradients:
        """Return the gradients, whose passes are cached calls where possible. Kernels read ``grad``
        with the result's strides, to which it is copied once for both.
        """
        if self.found is None and grad.stride() != self.stride:
            grad = in_memory_order(grad).contiguous().movedim(-1, 1)
        return self._formula(self.passes or _CALLS, self.over, needed, grad, a, b)

    def sums(self, found: Any, a: Tensor, b: Tensor) -> Tensor:
        """Return the sums alone, fp32 (fp64 for float64), recorded by autograd."""
        wide = wide_sums(a.dtype)
        if self.name == "dgrad":
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
        """Convolve tensors that kernels cannot read as they are, through views or torch."""
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
        if self.packed is None:
            self.launch.run(a, b, out, bias, scale, residual, function)
            return result
        out = out.view(self.stored)
        written = self.packed.written(out)
        self.launch.run(*self.packed.operands(a, b), written, bias, scale, residual, function)
        self.packed.finish(written, out)
        return result


def _by_calls(name: str, *, wide: bool = False) -> Pass:
    """Return a pass of a gradient as a cached call, found from its second time on.

    ``wide``: return the gradient of a filter as its float32 sums: no launch rounds them, and none
    widens them again. If its own gradient may be needed, or torch has to see it, it is rounded to
    the dtype of its operands.
    """
    place, operator = PassArguments._fields.index(name), getattr(OPERATORS, name)

    def run(over: PassArguments, a: Tensor, b: Tensor) -> Tensor:
        if wide and is_grad_enabled():
            return _CALLS.wgrad(over, a, b)
        numbers = over[place]
        key, kind = (name, numbers), torch.float32 if wide else None
        call = dense.find(key, kind, a, b)
        if call is not None:
            found: Tensor = call.run(a, b)
            return found
        # Autocast has nothing to lower.
        if a.dtype is b.dtype and autocast_dtype(a, b) is a.dtype and not is_compiling():
            with without_autocast(a.device.type):
                return run(over, a, b)
        ending = EpilogueArgs(out_dtype=kind)
        if not wide:
            result = operator(over, a, b)
        elif is_plain(a, b):
            result = wgrad(a, b, *numbers, *ending)
        else:
            return _CALLS.wgrad(over, a, b)
        return remember(FirstCall(key, (a, b), ending, numbers, name), result)

    return run


_CALLS = PassRunner(_by_calls("fprop"), _by_calls("dgrad"), _by_calls("wgrad"))
_WIDE = PassRunner(_CALLS.fprop, _CALLS.dgrad, _by_calls("wgrad", wide=True))


def _of_operator(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an operator's pass on real tensors as a cached call, found from its second time on.

    Graphs of ``torch.compile`` call operators. ``function`` is the pass with all its checks.
    """
    least = 3 if name == "fprop" else 4  # numbers; torch drops trailing defaults
    defaults = 1, None  # groups, executor

    def run(a: Tensor, b: Tensor, *given: Any) -> Tensor:
        numbers = given[: least + 2]
        numbers = *numbers, *defaults[len(numbers) - least :]
        ending = EpilogueArgs(*given[least + 2 :])
        bias, scale, residual, activation, slope, out_dtype = ending
        key = "operator", name, numbers, activation, slope
        call = dense.find(key, out_dtype, a, b, bias, scale, residual)
        if call is not None and not call.wanted:
            found: Tensor = call.forward(a, b, bias, scale, residual)
            return found
        result = function(a, b, *given)
        if wants_gradient(a, b, bias, scale, residual):
            return result  # autograd handles it above
        return remember(FirstCall(key, (a, b), ending, numbers, name), result)

    return run


for _name, _function in ("fprop", fprop), ("dgrad", dgrad), ("wgrad", wgrad):
    for _device in "cpu", "cuda":
        torch.library.impl(f"layoutconv::conv_{_name}", _device, _of_operator(_name, _function))


def _as_result(input: Tensor, shape: tuple[int, ...], ending: EpilogueArgs) -> Tensor:
    """Return a result without memory, with a ``shape`` in torch's order."""
    meta = torch.empty(0, dtype=input.dtype, device="meta")
    first, channels, *modes = shape
    return new_result(meta, (first, *modes, channels), ending.out_dtype)


def _is_torchs_alone(input: Tensor, ending: EpilogueArgs, stored: torch.dtype) -> bool:
    """Return whether a call on a CPU is just torch's own convolution, with or without bias."""
    bias, scale, residual, activation, _, _ = ending
    kinds = {input.dtype, stored} | ({bias.dtype} if bias is not None else set())
    plain = scale is None and residual is None and activation is None
    return plain and len(kinds) == 1 and kinds <= {torch.float32, torch.float64}


def _views_of(make: Callable[[], PassViews]) -> tuple[GemmView, ...]:
    found = make()
    return found.views if found.packed is None else found.packed.views


def _as_memory(tensor: Tensor) -> Tensor:
    return in_memory_order(tensor).contiguous()


def _takes_memory(found: PassViews, input: Tensor, result: Tensor, ends: bool) -> bool:
    """Return whether the kernels of a pass take memory directly, in any order of its modes.

    ``ends`` says whether an epilogue follows, which torch applies for some depthwise views.
    """
    if not devices.runs_kernels(input) or {input.dtype, result.dtype} & FP8:
        return False
    if not found.by_threads:
        return True
    from ..gpu.depthwise_plan import launches_alone

    return all(launches_alone(view, result.dtype, ends=ends) for view in found.views)
