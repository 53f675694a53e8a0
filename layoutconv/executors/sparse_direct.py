"""Sparse convolutions past torch's dispatcher, and past checks that were made: host time of a call.

As :mod:`~layoutconv.executors.direct` for dense ones: the first call of a *signature* takes the
operator, with every check; later ones allocate and launch, and autograd records them as one
function. What a call came to depends on a kernel map too, and is kept with it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..epilogue import Epilogue
from ..gemm_view import GemmView
from . import execute_cpu
from . import sparse as operators
from .autograd import has_gradient, keep, through_epilogue
from .passes import epilogue_of
from .plain import is_constant, is_plain, wants_gradient
from .signature import Signatures
from .sparse import Maps

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse.kernel_map import KernelMap

_CALLS = "calls"  # the name under which a map keeps them


def find(found: KernelMap, *call: Any) -> Call | None:
    """What was kept with a map for a call, as ``Signatures.find`` takes it."""
    kept = found.views.get(_CALLS)
    return None if kept is None else kept.find(*call)


def remember(
    found: KernelMap,
    numbers: tuple[Any, ...],
    out_dtype: torch.dtype | None,
    tensors: tuple[Any, ...],
    result: Tensor,
    maps: Maps,
    groups: int,
    ending: tuple[str | None, float],
) -> None:
    """Keep with a map what a call came to, which :func:`find` finds by ``numbers`` and the rest.

    ``tensors`` are its features, weight, bias, scale and residual, ``ending`` is its activation
    with the slope.
    """
    if torch.compiler.is_compiling():
        return
    x, weight, bias, scale, residual = tensors
    columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
    wanted = wants_gradient(x, weight, *columns, residual)
    if (
        not (x.numel() and result.numel())
        or not (x.is_cpu or x.is_cuda)
        or not all(t.is_contiguous() for t in columns)
        or (wanted and not (has_gradient(*ending) and is_constant(scale)))
    ):
        return
    kept = found.views.setdefault(_CALLS, Signatures(limit=64))
    make = partial(Call, found, maps, result, tensors, groups, wanted, ending)
    kept.keep(make, numbers, out_dtype, *tensors)


class Call:
    """Sparse convolutions of one signature over one kernel map."""

    def __init__(
        self,
        found: KernelMap,
        maps: Maps,
        result: Tensor,
        tensors: tuple[Any, ...],
        groups: int,
        wanted: bool,
        ending: tuple[str | None, float],
    ) -> None:
        x, weight, bias, scale, residual = tensors
        self.ending, self.wanted = ending, wanted
        self.maps, self.groups, self.mirrored = maps, groups, found.mirrored
        self.inputs, self.filter = tuple(x.shape), tuple(weight.shape)
        self.contiguous = all(t.is_contiguous() for t in (x, weight, residual) if t is not None)
        epilogue = epilogue_of(bias, scale, residual, *ending)
        view = operators.conv_view(maps, len(x), self.filter, len(result), groups)
        self._forward = Bound(view, tuple(result.shape), result.dtype, x, epilogue)
        self._dgrad: Bound | None = None
        self._wgrad: tuple[Bound, Tensor] | None = None

    def run(
        self, x: Tensor, weight: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors of the signature."""
        if self.wanted:
            return _Recorded.apply(x, weight, bias, scale, residual, self)
        return self.forward(x, weight, bias, scale, residual)

    def forward(self, x: Tensor, weight: Tensor, bias: Any, scale: Any, residual: Any) -> Tensor:
        """The convolution, with what follows the sums."""
        if not self.contiguous:
            x, weight = x.contiguous(), weight.contiguous()
            residual = None if residual is None else residual.contiguous()
        return self._forward.run(x, weight, bias, scale, residual, self.ending)

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
        return bound.run(grad.contiguous(), weight.contiguous())

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
        parts = bound.run(grad.contiguous(), x.contiguous())
        return operators.sum_chunks(parts, lengths, taps, x.dtype)


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
        self.view = view
        stride = torch.empty(shape, device="meta").stride()  # 0.3 us less than by torch.empty
        self.allocate = partial(torch.empty_strided, shape, stride, dtype=dtype, device=a.device)
        self.empty = not (view.m and view.n and view.l)
        self.launch: Any = None
        if _takes_memory(a):
            from .launch import Launch

            self.launch = Launch((view,), a, dtype, epilogue)

    def run(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Any = None,
        residual: Tensor | None = None,
        ending: tuple[str | None, float] = (None, 0.01),
    ) -> Tensor:
        """What the view says, of contiguous tensors."""
        out = self.allocate()
        if self.empty:
            return out
        if self.launch is None:
            return execute_cpu(self.view, a, b, out, epilogue_of(bias, scale, residual, *ending))
        self.launch.run(a, b, out, bias, scale, residual)
        return out


def _takes_memory(a: Tensor) -> bool:
    """Whether kernels run."""
    return a.is_cuda


class _Recorded(torch.autograd.Function):
    """A sparse convolution as autograd records it; its gradients are those of the operator."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Any, scale: Any, residual: Any, call: Call
    ) -> Tensor:
        out = call.forward(x, weight, bias, scale, residual)
        keep(ctx, (x, weight, bias, scale, residual, *call.ending, None), out)
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
