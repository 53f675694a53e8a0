"""Sparse convolutions past torch's dispatcher, and past checks that were made: host time of a call.

As :mod:`~layoutconv.ops.dense_calls` for dense ones: the first call of a *signature* takes the
operator, with every check; later ones allocate and launch, and autograd records them as one
function. A signature says nothing of how many rows there are, so that what was found out of one
cloud, a :class:`Kind`, serves all; a new kernel map adds its index buffers, in a :class:`Call` that
is kept with the map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base.memory import allocator
from ..gpu.launch import Launch, OverMap
from ..gpu.map_passes import conv_over, pairs_over
from ..gpu.map_views import Over, map_view
from ..tensors.tensor_checks import check_indices
from . import sparse_operators as operators
from .call_cache import sparse
from .epilogue_args import EpilogueArgs, epilogue_of
from .execute import execute_cpu
from .formulas import fprop_gradients
from .guard import is_plain, wants_gradient
from .recorded import BoundCall

is_grad_enabled = torch.is_grad_enabled

if TYPE_CHECKING:
    from torch import Tensor

    from ..sparse.maps.kernel_map import KernelMap

_CALLS = "calls"  # the name under which a map keeps them
_LIMIT = 1024  # calls of a map

forget = sparse.clear


def find(
    found: KernelMap,
    numbers: tuple[Any, ...],
    out_dtype: torch.dtype | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | float | None = None,
    residual: Tensor | None = None,
) -> Call | None:
    """Return what is known of a call over a map; None where every check has yet to be made.

    ``numbers`` are its groups, its activation and the slope.
    """
    numbers = found.taps, found.mirrored, *numbers
    kind: Kind | None = sparse.find(numbers, out_dtype, x, weight, bias, scale, residual)
    if kind is None:
        return None
    calls = found.views.get(_CALLS)
    call: Call | None = None if calls is None else calls.get(kind)
    if call is None:
        if not kind.fits(found):
            return None
        if calls is None or len(calls) >= _LIMIT:
            calls = found.views[_CALLS] = {}
        call = calls[kind] = Call(kind, found)
    if x.size(0) != call.in_rows or not (residual is None or residual.size(0) == call.out_rows):
        return None
    return call


def remember(
    found: KernelMap,
    groups: int,
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
    result: Tensor,
) -> None:
    """Keep what a call came to, for :func:`find`: ``operands`` are its features and weight."""
    make = partial(Kind, operands, ending, result.dtype, groups)
    signature = found.taps, found.mirrored, groups, ending.activation, ending.slope
    sparse.remember(make, signature, operands, ending, result)


class Kind:
    """What sparse convolutions of one signature have in common. It holds no tensor."""

    def __init__(
        self,
        operands: tuple[Tensor, Tensor],
        ending: EpilogueArgs,
        out_dtype: torch.dtype,
        groups: int,
    ) -> None:
        (x, weight), (bias, scale, residual, activation, slope, _) = operands, ending
        self.groups, self.ending = groups, (activation, slope)
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        self.wanted = wants_gradient(x, weight, *columns, residual)
        self.only_sums = not ending.ends and out_dtype is x.dtype
        self.filter, self.device = tuple(weight.shape), x.device
        self.K, self.C = weight.shape[0], x.shape[1]
        # Of any number of rows, though a single one may be contiguous with other strides.
        in_order = x.stride() == (self.C, 1) and weight.is_contiguous()
        self.contiguous = in_order and (residual is None or residual.stride() == (self.K, 1))
        exact = torch.promote_types(x.dtype, torch.float32)
        self.fprop: _Pass = partial(_OnCPU, dtype=out_dtype, ending=self.ending)
        self.dgrad: _Pass = partial(_OnCPU, dtype=x.dtype)
        self.wgrad: _Pass = partial(_OnCPU, dtype=exact)
        if _takes_memory(x):
            self.fprop = partial(OverMap, Launch(tuple, x, out_dtype, ending.epilogue()))
            self.dgrad = partial(OverMap, Launch(tuple, x, x.dtype, None, self.filter))
            self.wgrad = partial(OverMap, Launch(tuple, x, exact, None))

    def fits(self, found: KernelMap) -> bool:
        """Whether calls over a map are as this says, once their tensors are of its signature."""
        if found.extended is not None:  # its index is of other rows
            return False
        inputs, outputs = len(found.inputs), len(found.outputs)
        # One element of each group is a dot product, whose launch finishes no sums (``dot``).
        finished = outputs == 1 and self.groups == self.K and not self.only_sums
        return (
            bool(inputs and outputs) and found.outputs.cells.device == self.device and not finished
        )


# A pass over a map, from the shape, the strides and the device of its result.
_Bound = Callable[..., "Tensor"]
_Pass = Callable[[Over, tuple[int, ...], tuple[int, ...], torch.device], "OverMap | _OnCPU"]


class Call(BoundCall):
    """Sparse convolutions of a kind over a kernel map.

    The map keeps it, so that it does not hold the map: what goes backward is given it.
    """

    formula = staticmethod(fprop_gradients)

    def __init__(self, kind: Kind, found: KernelMap) -> None:
        self.kind = kind
        self.wanted, self.only_sums, self.ending = kind.wanted, kind.only_sums, kind.ending
        self.in_rows, self.out_rows = len(found.inputs), len(found.outputs)
        rows = operators.rows_of(found)
        if kind.wanted:
            found.start_counting()
        over = conv_over(*rows, self.in_rows, kind.filter, kind.groups)
        shape, stride = (self.out_rows, kind.K), (kind.K, 1)
        self._fprop = kind.fprop(over, shape, stride, kind.device).result
        if kind.contiguous:
            self.forward = self._fprop  # type: ignore[method-assign,assignment]
        self._dgrad: _Bound | None = None
        self._wgrad: tuple[_Bound, Tensor] | None = None

    def forward(
        self, x: Tensor, weight: Tensor, bias: Any = None, scale: Any = None, residual: Any = None
    ) -> Tensor:
        """The convolution of tensors whose memory is not as kernels read it."""
        x, weight = x.contiguous(), weight.contiguous()
        residual = None if residual is None else residual.contiguous()
        return self._fprop(x, weight, bias, scale, residual)

    def dgrad(self, found: KernelMap, grad: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the features."""
        kind, rows = self.kind, self.in_rows
        bound = self._dgrad
        if bound is None:
            index, order = operators.rows_of(found, backward=True)
            of_map = kind.groups, True, found.mirrored
            over = conv_over(index, order, self.out_rows, kind.filter, *of_map)
            found_pass = kind.dgrad(over, (rows, kind.C), (kind.C, 1), kind.device)
            bound = self._dgrad = found_pass.result
        return bound(grad.contiguous(), weight.contiguous())

    def wgrad(self, found: KernelMap, grad: Tensor, x: Tensor) -> Tensor:
        """The gradient of the filter."""
        kind = self.kind
        if self._wgrad is None:
            pairs = operators.pairs_for(found, (kind.C, kind.K))
            K, C = kind.K, kind.filter[-1]
            over = pairs_over(pairs, self.out_rows, self.in_rows, K, kind.C, kind.groups)
            of = (pairs.outputs.shape[0], K, C), (K * C, C, 1), kind.device
            self._wgrad = kind.wgrad(over, *of).result, pairs.lengths
        bound, lengths = self._wgrad
        parts = bound(grad.contiguous(), x.contiguous())
        return operators.sum_chunks(parts, lengths, kind.filter[1:-1], x.dtype)

    def runner(self, found: KernelMap, grad: Tensor, a: Any, b: Any) -> tuple[Any, Any]:
        """Return this call, over the map; where torch has to see gradients, the operators."""
        there = [tensor for tensor in (grad, a, b) if tensor is not None]
        if is_plain(*there) and not (is_grad_enabled() and wants_gradient(*there)):
            return self, found
        kind = self.kind
        maps = operators.tables(found, (kind.C, kind.K), gradients=True)
        of_map = kind.filter[1:-1], kind.groups, found.mirrored
        return operators.OPERATORS, operators.over(maps, self.in_rows, self.out_rows, of_map)


class _OnCPU:
    """A pass over a map on a CPU, which reads its index buffers out of whatever memory they say."""

    def __init__(
        self,
        over: Over,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype,
        ending: tuple[str | None, float] = (None, 0.01),
    ) -> None:
        self.view = map_view(over)
        check_indices(self.view)
        self.allocate = allocator(shape, stride, dtype, device)
        self.empty, self.ending = 0 in shape, ending

    def result(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Any = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return what :meth:`OverMap.result` is, of contiguous tensors."""
        out = self.allocate()
        if self.empty:
            return out
        return execute_cpu(self.view, a, b, out, epilogue_of(bias, scale, residual, *self.ending))


def _takes_memory(a: Tensor) -> bool:
    """Return whether kernels run."""
    return a.is_cuda
