"""Bound calls as autograd records them, all with one ``autograd.Function``."""

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
    """A convolution of one signature, from tensors of that signature to a result.

    Attributes:
        wanted: whether autograd records it.
        only_sums: whether it only computes sums, which have the dtype of the operands.
        ending: its activation and slope.
        asks: whether backward passes query which gradients are needed; cleared once the query was
            an error (18 us), as when ``torch.autograd.grad`` asks for those of all parameters.
        as_torch: the sums, from two tensors and a bias, as a torch operation that autograd records
            by itself, if the call does nothing else.
        lowers: the dtype to which the call itself casts the second tensor under autocast, so that
            one function is recorded, not two.
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
        """Convolve; ``found`` is the kernel map of a sparse convolution."""
        if self.as_torch is not None:
            return self.as_torch(a, b, bias)
        if self.wanted:
            # Leave out absent arguments: torch looks at each.
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
        bias: Any,
        scale: Any,
        residual: Any,
        found: Any = None,
    ) -> Tensor:
        """Convolve with a user's function behind the sums, in place of an activation."""
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
        """Compute the result; nothing is recorded."""
        raise NotImplementedError

    def sums(self, found: Any, a: Tensor, b: Tensor) -> Tensor:
        """Return the sums alone, fp32 (fp64 for float64), recorded by autograd."""
        raise NotImplementedError

    def gradients(
        self, found: Any, needed: Sequence[bool], grad: Tensor, a: Any, b: Any
    ) -> Gradients:
        """Return the gradients of both tensors from that of the sums, by the operator's formula, as
        far as they are ``needed``.
        """
        raise NotImplementedError


class Recorded(torch.autograd.Function):
    """A call as autograd records it; its operator's formula gives the gradients."""

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
        if not keeps_graph():  # so that a loss kept alive does not keep its cloud's map
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
            ctx.given = None  # nor its filter
        # If autocast lowered inputs, the engine casts gradients to their dtypes.
        gradients = call.gradients(found, needed, grad, a, b)
        if ctx.dtype in FP8:
            gradients = as_inputs(gradients, ctx.dtype)
        return *gradients, None, None, *others


def lowered_again(ctx: Any, call: BoundCall) -> Tensor:
    """Cast the second tensor again as the call did, for gradients of gradients to reach it.

    Raises ``RuntimeError`` if it was written to since.
    """
    b, version = ctx.given
    if b._version != version:
        raise RuntimeError(
            "the filter was written to, but its second derivative needs the values it had"
        )
    lowered: Tensor = b.to(call.lowers)
    return lowered


_BIAS = 4  # its place among the inputs of ``Recorded``


def asked_for(ctx: Any, call: BoundCall) -> Sequence[bool]:
    """Return which of the required gradients a backward pass needs.

    torch asks a Python function for all of them, even if ``torch.autograd.grad`` wants only the
    input's, as for a saliency map or a gradient penalty: then this saves half of the products.
    """
    needed: Sequence[bool] = ctx.needs_input_grad
    of_bias = len(needed) > _BIAS and needed[_BIAS]
    if needed[0] + needed[1] + of_bias < 2:
        return needed
    nodes, found = ctx.next_functions, list(needed)
    try:
        # If the bias is needed, so are the other parameters of its layer, as in training.
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


# Skip the checks for transforms in ``apply``, since bound calls are never inside one: they take a
# third of the time that autograd needs to record a call.
_record: Any = super(torch.autograd.Function, Recorded).apply


class RecordedFunction(torch.autograd.Function):
    """A call with a user's function behind it, as autograd records it.

    Unless the function has a backward function, its input is computed again.
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
        ctx.function = with_all(function, [None] * len(tensors))  # saved tensors replace these
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
