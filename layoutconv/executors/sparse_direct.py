"""Sparse convolutions past torch's dispatcher, and past checks that were made: host time of a call.

As :mod:`~layoutconv.executors.direct` for dense ones: the first call of a *signature* takes the
operator, with every check; later ones allocate and launch, and autograd records them as one
function. What a call came to depends on a kernel map too, and is kept with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch

from ..epilogue import Epilogue
from ..gemm_view import GemmView
from . import execute_cpu
from . import sparse as operators
from .autograd import has_gradient, keep, through_epilogue
from .passes import epilogue_of
from .plain import is_plain, wants_gradient
from .sparse import Maps, kept_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse.kernel_map import KernelMap

LIMIT = 64  # signatures that are kept with a map


def signature(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    numbers: tuple[Any, ...],
) -> Hashable:
    """All that a call depends on beside data and the map; None if it has to take the operator.

    >>> signature(torch.ones(2, 3), torch.ones(4, 1, 3), None, None, None, ()) is None
    False
    >>> with torch.autocast("cpu"):
    ...     signature(torch.ones(2, 3), torch.ones(4, 1, 3), None, None, None, ()) is None
    True
    """
    number = scale if type(scale) is float or type(scale) is int else None
    column: Any = scale if number is None else None
    if bias is None and column is None and residual is None:
        if not is_plain(x, weight):
            return None
        wanted, others = wants_gradient(x, weight), None
    else:
        tensors = [t for t in (x, weight, bias, column, residual) if t is not None]
        if not is_plain(*tensors):
            return None
        wanted, others = wants_gradient(*tensors), (_of(bias), _of(column), _of(residual))
    if wanted and (number is not None or (column is not None and column.requires_grad)):
        return None
    try:
        return (
            wanted, numbers, number, others,
            x.shape, x.stride(), x.dtype, x.device,
            weight.shape, weight.stride(), weight.dtype, weight.device,
        )  # fmt: skip
    except RuntimeError:  # no strides
        return None


def find(found: KernelMap, key: Hashable) -> Call | None:
    """What was kept with a map for a signature."""
    kept: Any = found.views.get("executor")
    try:
        return None if kept is None else kept.calls.get(key)
    except TypeError:  # what is no number
        return None


def remember(
    found: KernelMap,
    key: Hashable,
    maps: Maps,
    result: Tensor,
    x: Tensor,
    weight: Tensor,
    groups: int,
    ending: tuple[Any, ...],
) -> None:
    """Keep what the call of a signature came to; ``ending`` has what follows the sums."""
    bias, scale, residual, activation, slope = ending
    columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
    wanted = wants_gradient(x, weight, *columns, residual)
    if (
        not (x.numel() and result.numel())
        or not (x.is_cpu or x.is_cuda)
        or not all(t.is_contiguous() for t in columns)
        or (wanted and not has_gradient(activation, slope))
    ):
        return
    calls = kept_of(found).calls
    if len(calls) >= LIMIT:
        calls.clear()
    calls[key] = Call(found, maps, result, x, weight, groups, wanted, ending)


class Call:
    """Sparse convolutions of one signature over one kernel map."""

    def __init__(
        self,
        found: KernelMap,
        maps: Maps,
        result: Tensor,
        x: Tensor,
        weight: Tensor,
        groups: int,
        wanted: bool,
        ending: tuple[Any, ...],
    ) -> None:
        bias, scale, residual, self.activation, self.slope = ending
        self.maps, self.groups, self.mirrored, self.wanted = maps, groups, found.mirrored, wanted
        self.inputs, self.filter = tuple(x.shape), tuple(weight.shape)
        epilogue = epilogue_of(bias, scale, residual, self.activation, self.slope)
        view = operators.conv_view(maps, len(x), self.filter, len(result), groups)
        self.forward = Bound(view, tuple(result.shape), result.dtype, x, epilogue)
        self._dgrad: Bound | None = None
        self._wgrad: tuple[Bound, Tensor] | None = None

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        if self.wanted:
            return _Recorded.apply(x, weight, bias, scale, residual, self)
        return self.forward(x, weight, bias, scale, residual, self.activation, self.slope)

    def dgrad(self, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the features."""
        rows, C = self.inputs
        if not is_plain(grad, weight) or wants_gradient(grad, weight):
            numbers = *self.maps, rows, self.groups, True, self.mirrored
            return operators.conv_of_tensors(grad, weight, *numbers)
        bound = self._dgrad
        if bound is None:
            of = self.maps, len(grad), self.filter, rows, self.groups, True, self.mirrored
            view = operators.conv_view(*of)
            bound = self._dgrad = Bound(view, (rows, C), grad.dtype, grad, None)
        return bound(grad, weight)

    def wgrad(self, grad: Tensor, x: Tensor) -> Tensor:
        """The gradient of the filter."""
        taps = self.filter[1:-1]
        if not is_plain(grad, x) or wants_gradient(grad, x):
            return operators.wgrad_of_tensors(grad, x, *self.maps, taps, self.groups, self.mirrored)
        if self._wgrad is None:
            K, C = self.filter[0], self.inputs[1]
            view, lengths = operators.wgrad_view(self.maps, len(grad), len(x), K, C, self.groups)
            shape = len(self.maps.pair_outputs), K, C // self.groups
            exact = torch.promote_types(x.dtype, torch.float32)
            self._wgrad = Bound(view, shape, exact, grad, None), lengths
        bound, lengths = self._wgrad
        return operators.sum_chunks(bound(grad, x), lengths, taps, x.dtype)


class Bound:
    """A view bound to dtypes, a device and the structure of an epilogue: a call launches."""

    def __init__(
        self,
        view: GemmView,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        a: Tensor,
        epilogue: Epilogue | None,
    ) -> None:
        self.view, self.shape, self.dtype, self.device = view, shape, dtype, a.device
        self.empty = not (view.m and view.n and view.l)
        self.on_gpu = a.is_cuda
        if self.on_gpu:
            from . import gpu

            self.gpu = gpu
            self.operand, self.index = a.dtype, a.get_device()
            self.structure = "" if epilogue is None else epilogue.structure
            self.constants = () if epilogue is None else epilogue.numbers
            self.plans: dict[Hashable, Any] = {}

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Any = None,
        residual: Tensor | None = None,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if self.empty:
            return out
        a, b = a.contiguous(), b.contiguous()
        if not self.on_gpu:
            epilogue = epilogue_of(bias, scale, residual, activation, slope)
            return execute_cpu(self.view, a, b, out, epilogue)
        gpu, reads = self.gpu, self.gpu.NOTHING
        sources: tuple[Tensor, ...] = ()
        if self.structure:
            columns = (scale,) if isinstance(scale, torch.Tensor) else ()
            columns = columns if bias is None else (*columns, bias)
            sources = () if residual is None else (residual.contiguous(),)
            reads = gpu.Reads(self.constants, columns, sources)
        key = gpu.multiplied_as(self.operand), gpu.aligned_to(a, b, out, sources)
        plan = self.plans.get(key)
        if plan is None:
            precision, aligned = key
            of = self.operand, self.index, self.dtype, precision, False, self.structure, aligned
            plan = self.plans[key] = gpu.plan_of(self.view, *of)
        plan(a, b, out, reads)
        return out


class _Recorded(torch.autograd.Function):
    """A sparse convolution as autograd records it; its gradients are those of the operator."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Any, scale: Any, residual: Any, call: Call
    ) -> Tensor:
        activation, slope = call.activation, call.slope
        out = call.forward(x, weight, bias, scale, residual, activation, slope)
        keep(ctx, (x, weight, bias, scale, residual, activation, slope, None), out)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, *ending = ctx.saved_tensors
        call = ctx.call
        grad, others = through_epilogue(ctx, grad, *ending)
        needed = ctx.needs_input_grad
        dx = call.dgrad(grad, weight) if needed[0] else None
        dw = call.wgrad(grad, x) if needed[1] else None
        return dx, dw, *others[:3], None


def _of(tensor: Any) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
