"""Calls that are bound to launches, as autograd records them: one function for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .formulas import Formula, keep, through_epilogue

if TYPE_CHECKING:
    from torch import Tensor


class BoundCall:
    """A convolution of one signature, from tensors of it to a result.

    Attributes:
        wanted: whether autograd records it.
        only_sums: whether nothing follows the sums, which have the dtype of the operands.
        ending: its activation, and the slope.
        formula: that of the operator, whose gradients these are.
    """

    wanted: bool
    only_sums: bool
    ending: tuple[str | None, float]
    formula: Formula

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
        if self.wanted:
            # What is not there is left out: torch looks at each argument.
            ending = () if self.only_sums else (bias, scale, residual)
            recorded: Tensor = Recorded.apply(a, b, self, found, *ending)
            return recorded
        return self.forward(a, b, bias, scale, residual)

    def forward(
        self, a: Tensor, b: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """Compute it, which records nothing."""
        raise NotImplementedError

    def runner(self, found: Any, grad: Tensor, a: Any, b: Any) -> tuple[Any, Any]:
        """Return what runs the passes of the formula, and what they are over."""
        raise NotImplementedError


class Recorded(torch.autograd.Function):
    """A call as autograd records it; its gradients are by the formula of its operator."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, a: Tensor, b: Tensor, call: BoundCall, found: Any, *ending: Any
    ) -> Tensor:
        out = call.forward(a, b, *ending)
        ctx.call, ctx.found = call, found
        if call.only_sums:
            needed = ctx.needs_input_grad
            ctx.save_for_backward(a if needed[1] else None, b if needed[0] else None)
        else:
            keep(ctx, (a, b), (*ending, *call.ending), out, 4)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        call, others = ctx.call, ()
        a, b, *ending = ctx.saved_tensors
        if not call.only_sums:
            grad, others = through_epilogue(ctx, grad, *ending)
        run, over = call.runner(ctx.found, grad, a, b)
        found = call.formula(run, over, ctx.needs_input_grad, grad, a, b)
        return *found, None, None, *others
