"""Bound calls as autograd records them: one ``autograd.Function`` for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..base.torch_internals import comes_to, keeps_graph
from ..tensors.epilogue_in_torch import FP8
from .formulas import Gradients, as_inputs, keep, linear, through_epilogue
from .function_gradients import tensors_of, through_function, with_all

is_grad_enabled = torch.is_grad_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..view.epilogue import Pointwise


class BoundCall:
    """A convolution of one signature, from tensors of it to a result.

    Attributes:
        wanted: whether autograd records it.
        only_sums: whether nothing follows the sums, which have the dtype of the operands.
        ending: its activation, and the slope.
        asks: whether backward passes ask which gradients are asked for. Not once that was an error,
            18 us, as where ``torch.autograd.grad`` is asked for those of all parameters.
        as_torch: the sums, of two tensors and a bias, as an operation of torch that autograd
            records by itself, where that is all of the call.
        lowers: the dtype that autocast gives the second tensor, of a call that does so itself: one
            function is recorded, not two.
    """

    wanted: bool
    only_sums: bool
    ending: tuple[str | None, float]
    asks: bool = True
    as_torch: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    lowers: torch.dtype | None = None

    def run(
        self,
        a: Tensor,
        b: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        found: Any = None,
    ) -> Tensor:
        """The convolution; ``found`` is the kernel map of a sparse one."""
        if self.as_torch is not None:
            return self.as_torch(a, b, bias)
        if self.wanted:
            # What is not there is left out: torch looks at each argument.
            ending = () if self.only_sums else (bias, scale, residual)
            recorded: Tensor = _record(a, b, self, found, *ending)
            return recorded
        if self.lowers is not None:
            b = b.to(self.lowers)
        return self.forward(a, b, bias, scale, residual)

    def run_function(
        self,
        function: Pointwise,
        a: Tensor,
        b: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        found: Any = None,
    ) -> Tensor:
        """The convolution with a user's function behind it, in place of an activation."""
        if not self.wanted:
            return self.forward(a, b, bias, scale, residual, function)
        tensors = tensors_of(function)
        ending = bias, scale, residual
        inputs = a, b, self, found, *ending, function, *tensors
        recorded: Tensor = RecordedFunction.apply(*inputs)  # type: ignore[no-untyped-call]
        return recorded

    def forward(
        self,
        a: Tensor,
        b: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """Compute it, which records nothing."""
        raise NotImplementedError

    def sums(self, found: Any, a: Tensor, b: Tensor) -> Tensor:
        """The sums alone, fp32 (fp64 of float64), which autograd records."""
        raise NotImplementedError

    def gradients(
        self, found: Any, needed: Sequence[bool], grad: Tensor, a: Any, b: Any
    ) -> Gradients:
        """The gradients of both tensors from that of the sums, by the formula of the operator, as
        far as they are ``needed``.
        """
        raise NotImplementedError


class Recorded(torch.autograd.Function):
    """A call as autograd records it; its gradients are by the formula of its operator."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, call: BoundCall, found: Any, *ending: Any
    ) -> Tensor:
        ctx.call, ctx.found = call, found
        if call.lowers is not None:
            ctx.given = (b, b._version) if ctx.needs_input_grad[1] else None
            b = b.to(call.lowers)
        out = call.forward(a, b, *ending)
        if call.only_sums:
            needed = ctx.needs_input_grad
            ctx.save_for_backward(a if needed[1] else None, b if needed[0] else None)
            ctx.dtype = a.dtype
        else:
            keep(ctx, (a, b), (*ending, *call.ending), out, 4)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b, *ending = ctx.saved_tensors
        call, found, others = ctx.call, ctx.found, ()
        if not keeps_graph():  # a loss that somebody holds does not hold the map of its cloud
            ctx.call = ctx.found = None
        needed = asked_for(ctx, call) if call.asks else ctx.needs_input_grad
        if not call.only_sums:
            scale, result = ending
            grad, others = through_epilogue(ctx, grad, scale, result, needed)
        if not (needed[0] or needed[1]):
            return None, None, None, None, *others
        if call.lowers is not None and b is not None and is_grad_enabled() and ctx.given:
            b = lowered_again(ctx, call)
        if call.lowers is not None and not keeps_graph():
            ctx.given = None  # nor the filter
        # The engine gives gradients the dtypes of inputs, where autocast lowered these.
        gradients = call.gradients(found, needed, grad, a, b)
        if ctx.dtype in FP8:
            gradients = as_inputs(gradients, ctx.dtype)
        return *gradients, None, None, *others


def lowered_again(ctx: Any, call: BoundCall) -> Tensor:
    """The second tensor as the call lowered it, where gradients of gradients go back to it.

    Raises ``RuntimeError`` if somebody wrote to it since.
    """
    b, version = ctx.given
    if b._version != version:
        raise RuntimeError("the filter was written to, and gradients of its gradients want it")
    lowered: Tensor = b.to(call.lowers)
    return lowered


_BIAS = 4  # its place among the inputs of ``Recorded``


def asked_for(ctx: Any, call: BoundCall) -> Sequence[bool]:
    """Return which of the required gradients a backward pass asks for.

    torch asks a function of Python for all of them, also where ``torch.autograd.grad`` is after
    the input's alone, as for a saliency map or a gradient penalty: half of the products then.
    """
    needed: Sequence[bool] = ctx.needs_input_grad
    of_bias = len(needed) > _BIAS and needed[_BIAS]
    if needed[0] + needed[1] + of_bias < 2:
        return needed
    nodes, found = ctx.next_functions, list(needed)
    try:
        # Where a bias is asked for, so is what is beside it in its layer, as in training.
        if of_bias and comes_to(nodes[2][0]):
            return needed
        if of_bias:
            found[_BIAS] = False
        if needed[0] and needed[1]:
            found[1] = comes_to(nodes[1][0])
    except RuntimeError:
        call.asks = False
        return needed
    return found


# Past what ``apply`` asks of transforms, which nobody who finds a bound call is inside of: a third
# of the time that autograd takes to record one.
_record: Any = super(torch.autograd.Function, Recorded).apply


class RecordedFunction(torch.autograd.Function):
    """A call with a user's function behind it, as autograd records it.

    Unless the function has a backward function, what it was given is computed once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        call: BoundCall,
        found: Any,
        *ending: Any,
    ) -> Tensor:
        bias, scale, residual, function, *tensors = ending
        out = call.forward(a, b, bias, scale, residual, function)
        ctx.call, ctx.found = call, found
        ctx.function = with_all(function, [None] * len(tensors))  # which saved tensors replace
        again, needed = function.backward is None, ctx.needs_input_grad
        ctx.save_for_backward(
            a if again or needed[1] else None, b if again or needed[0] else None,
            bias if again else None, scale, residual if again else None,
            None if again else out, *tensors,
        )  # fmt: skip
        ctx.dtype, ctx.ending_at, ctx.activation = a.dtype, 4, (None, 0.0)
        ctx.others = tuple(None if t is None else t.dtype for t in (bias, residual))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b, bias, scale, residual, out, *tensors = ctx.saved_tensors
        call, over_map, needed = ctx.call, ctx.found, ctx.needs_input_grad
        if not keeps_graph():
            ctx.call = ctx.found = None
        function, value = with_all(ctx.function, tensors), None
        if function.backward is None:
            value = linear(call.sums(over_map, a, b), bias, scale, residual)
        grad, named = through_function(function, grad, value, out, needed[8:])
        grad, others = through_epilogue(ctx, grad, scale, None)
        found = call.gradients(over_map, needed, grad, a, b)
        of_named = [
            None if g is None else g.to(t.dtype) for g, t in zip(named, tensors, strict=True)
        ]
        return *as_inputs(found, ctx.dtype), None, None, *others, None, *of_named
