"""Warm sparse convolutions: calls that skip torch's dispatcher and checks made before.

Like :mod:`~layoutconv.ops.dense_calls` for dense ones: the first call of a *signature* takes the
operator, with every check; later ones allocate and launch, and autograd records them as one
function. A :class:`SparseSignature` leaves out the number of rows, so the plan of one cloud serves
all clouds; a new kernel map adds its index buffers, in a :class:`SparseCall` that is kept with the
map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base import devices
from ..cpu import gathered_passes
from ..cpu.gathered_passes import is_gathered, plan_of
from ..gpu.launch import BoundLaunch, MapPassLaunch, RecordedMapPass, launch_over_map
from ..gpu.map_passes import MapConv, MapTables, conv_pass, index_tables, pair_tables, pairs_pass
from ..tensors.tensor_checks import OUTPUTS
from ..view.epilogue import Pointwise
from . import sparse_operators as operators
from .call_cache import sparse
from .chunk_sums import summing
from .epilogue_args import EpilogueArgs, epilogue_of, sources_changed
from .formulas import Gradients, PassArguments, fprop_gradients, wide_sums
from .function_gradients import may_be_bound, tensors_of
from .guard import is_bare, is_plain, wants_gradient
from .map_pass_on_cpu import PassOnCPU
from .recorded import BoundCall

is_grad_enabled = torch.is_grad_enabled

if TYPE_CHECKING:
    from torch import Tensor

    from ..cpu.gather_products import GatherPlan
    from ..sparse.maps.kernel_map import KernelMap

_CALLS = "calls"  # the name under which a map keeps its calls
_TABLES, _TABLES_BACK = "tables", "tables back"  # and its tables, for forward and backward passes
_LAUNCHES = "launches"  # and the launches of calls that only launch
_LIMIT = 1024  # calls per map

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
) -> SparseCall | None:
    """Return the bound call of a signature over a map; None if it has yet to be checked.

    ``numbers`` are its groups, its activation and the slope.
    """
    numbers = found.taps, found.mirrored, *numbers
    kind: SparseSignature | None = sparse.find(numbers, out_dtype, x, weight, bias, scale, residual)
    call = None if kind is None else _over(kind, found)
    if call is None or x.size(0) != call.in_rows:
        return None
    return call if residual is None or residual.size(0) == call.out_rows else None


def signature_of(
    found: KernelMap,
    numbers: tuple[Any, ...],
    out_dtype: torch.dtype | None,
    *tensors: Any,
) -> SparseSignature | None:
    """Return the signature of such calls, over any map; arguments are as for :func:`find`."""
    kind: SparseSignature | None = sparse.find(
        (found.taps, found.mirrored, *numbers), out_dtype, *tensors
    )
    return kind


def keep_lowering(
    kind: SparseSignature,
    found: KernelMap,
    numbers: tuple[Any, ...],
    out_dtype: torch.dtype | None,
    *tensors: Any,
) -> None:
    """Keep a call for which autocast, which is on, lowers the filter, for :func:`find`.

    ``kind`` is that of the call below autocast, with the same features and other ``tensors``. A
    caller that finds it compares its ``lowers`` with the current autocast dtype.
    """
    if is_bare(tensors[1]):
        numbers, make = (found.taps, found.mirrored, *numbers), partial(kind.lowering, *tensors)
        sparse.keep(make, numbers, out_dtype, *tensors, lowered=True)


def find_function(
    found: KernelMap, groups: int, operands: tuple[Tensor, Tensor], ending: EpilogueArgs
) -> SparseCall | None:
    """Return the bound call with a user's function behind it, as :func:`find` does."""
    (x, weight), (bias, scale, residual, function, _, out_dtype) = operands, ending
    assert isinstance(function, Pointwise)
    numbers = found.taps, found.mirrored, groups, *function.key
    columns = bias, scale, residual
    kind: SparseSignature | None = sparse.find(
        numbers, out_dtype, x, weight, *columns, *tensors_of(function)
    )
    call = None if kind is None else _over(kind, found)
    if call is None or x.size(0) != call.in_rows:
        return None
    for like in function.like_d if residual is None else (*function.like_d, residual):
        if like.size(0) != call.out_rows:
            return None
    return call


def find_followed(
    found: KernelMap,
    groups: int,
    key: tuple[Any, ...],
    operands: tuple[Tensor, Tensor],
    bias: Tensor | None,
    columns: tuple[Tensor, ...],
    sources: tuple[Tensor, ...],
) -> SparseCall | None:
    """Return what :func:`find_function` returns for a function with ``key``, these columns and
    these result-like tensors, without constructing the function.
    """
    x, weight = operands
    numbers = found.taps, found.mirrored, groups, *key
    kind: SparseSignature | None = sparse.find(
        numbers, None, x, weight, bias, None, None, *columns, *sources
    )
    call = None if kind is None else _over(kind, found)
    if call is None or x.shape[0] != call.in_rows:
        return None
    for like in sources:
        if like.shape[0] != call.out_rows:
            return None
    return call


def launch_over(
    kind: SparseSignature, found: KernelMap
) -> tuple[MapPassLaunch | RecordedMapPass, int, int] | None:
    """Return the launch over this map of a kind that only launches, with its input and output rows.

    The kind was found for another map; the launch is kept with this one. None over a map of another
    signature.
    """
    launches: dict[SparseSignature, Any] | None = found.views.get(_LAUNCHES)
    if launches is None or len(launches) >= _LIMIT:
        launches = found.views[_LAUNCHES] = {}
    made: tuple[Any, int, int] | None = launches.get(kind)
    if made is None:
        if kind.taps != found.taps or kind.mirrored is not found.mirrored or not kind.fits(found):
            return None
        tables = found.views.get(_TABLES) or _tables_of(found)
        rows, numbers = found.outputs.cells.shape[0], tables.numbers
        launch: Any = kind.fprop(tables, (rows, kind.K), (kind.K, 1))
        made = launches[kind] = launch, numbers["in_rows"], rows
    return made


def call_over(kind: SparseSignature, found: KernelMap) -> SparseCall | None:
    """Return the call over this map of a kind found for another map; None over a map of another
    signature.
    """
    calls = found.views.get(_CALLS)
    call: SparseCall | None = None if calls is None else calls.get(kind)
    if call is None and kind.taps == found.taps and kind.mirrored is found.mirrored:
        call = _over(kind, found)
    return call


def _over(kind: SparseSignature, found: KernelMap) -> SparseCall | None:
    """Return the call of a kind over a map; None if the kind does not fit."""
    calls = found.views.get(_CALLS)
    call: SparseCall | None = None if calls is None else calls.get(kind)
    if call is None:
        if not kind.fits(found):
            return None
        if calls is None or len(calls) >= _LIMIT:
            calls = found.views[_CALLS] = {}
        call = calls[kind] = (GatheredCall if kind.gathered else SparseCall)(kind, found)
    return call


def _tables_of(found: KernelMap, *, backward: bool = False) -> MapTables:
    """Return a map's tables for a forward pass or for the gradient of its inputs, kept with it.

    A mirrored map has the same tables for both.
    """
    rows = found.inputs.cells.shape[0], found.outputs.cells.shape[0]
    maps = operators.both_ways(found) if backward else operators.forward_maps(found)
    made = found.views[_TABLES_BACK if backward else _TABLES] = index_tables(
        maps, *rows, 2 if backward else 0
    )
    return made


def bound(
    found: KernelMap,
    groups: int,
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
) -> SparseCall | None:
    """Bind a convolution with a user's function behind it, and keep it for :func:`find`.

    Arguments are as for :func:`remember`. None for a call that torch has to see, and for a function
    of rows, which kernels sort.
    """
    (x, weight), (bias, scale, residual, function, _, out_dtype) = operands, ending
    assert isinstance(function, Pointwise)
    elements = len(found.outputs) * weight.shape[0]
    if not may_be_bound(function, operands, ending, elements):
        return None
    kind = SparseSignature(operands, ending, out_dtype or OUTPUTS[x.dtype], groups, found.mirrored)
    call = _over(kind, found)
    if call is not None:
        key = found.taps, found.mirrored, groups, *function.key
        named = tensors_of(function)
        sparse.keep(lambda: kind, key, out_dtype, x, weight, bias, scale, residual, *named)
    return call


def remember(
    found: KernelMap,
    groups: int,
    operands: tuple[Tensor, Tensor],
    ending: EpilogueArgs,
    result: Tensor,
) -> None:
    """Keep a finished call for :func:`find`; ``operands`` are its features and weight."""
    make = partial(SparseSignature, operands, ending, result.dtype, groups, found.mirrored)
    sparse.remember(make, _numbers(found, groups, ending), operands, ending, result)


def remembers(
    found: KernelMap, groups: int, operands: tuple[Tensor, Tensor], ending: EpilogueArgs
) -> bool:
    """Return whether :func:`remember` keeps such a call, once it has a result."""
    return sparse.remembers(_numbers(found, groups, ending), operands, ending)


def _numbers(found: KernelMap, groups: int, ending: EpilogueArgs) -> tuple[Any, ...]:
    """Return the part of a signature that is not about tensors."""
    return found.taps, found.mirrored, groups, ending.activation, ending.slope


class SparseSignature:
    """The common part of sparse convolutions of one signature, over any map. It holds no tensor."""

    lowers: torch.dtype | None = None

    def __init__(
        self,
        operands: tuple[Tensor, Tensor],
        ending: EpilogueArgs,
        out_dtype: torch.dtype,
        groups: int,
        mirrored: bool,
    ) -> None:
        (x, weight), (bias, scale, residual, activation, slope, _) = operands, ending
        function = activation if isinstance(activation, Pointwise) else None
        self.groups, self.mirrored = groups, mirrored
        self.ending = (None if isinstance(activation, Pointwise) else activation, slope)
        columns = [t for t in (bias, scale) if isinstance(t, torch.Tensor)]
        named = () if function is None else tensors_of(function)
        self.wanted = wants_gradient(x, weight, *columns, residual, *named)
        self.only_sums = not ending.ends and out_dtype is x.dtype
        self.filter, self.device = tuple(weight.shape), x.device
        self.taps = self.filter[1:-1]
        self.K, self.C, self.dtype = weight.shape[0], x.shape[1], x.dtype
        self.of_filter = x.dtype  # the dtype of its gradient
        # Must hold for any number of rows; a single row may be contiguous with other strides.
        in_order = x.stride() == (self.C, 1) and weight.is_contiguous()
        like = [t for t in (residual, *(function.like_d if function else ())) if t is not None]
        self.contiguous = in_order and all(t.stride() == (self.K, 1) for t in like)
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        on_gpu = devices.runs_kernels(x)
        self.only_launches = on_gpu and self.contiguous and not self.wanted
        self.gathered, self.out_dtype = not on_gpu and is_gathered(x), out_dtype
        forward = partial(conv_pass, MapConv(self.filter, groups))
        back = partial(conv_pass, MapConv(self.filter, groups, True, mirrored))
        products = partial(pairs_pass, K=self.K, C=self.C, groups=groups)
        if on_gpu:
            launches = (
                BoundLaunch(tuple, x, out_dtype, ending.epilogue()),
                BoundLaunch(tuple, x, x.dtype, None, self.filter),
                BoundLaunch(tuple, x, exact, None),
            )
            self.fprop: _Pass = partial(launch_over_map, launches[0], forward)
            self.dgrad: _Pass = partial(launch_over_map, launches[1], back)
            self.wgrad: _Pass = partial(launch_over_map, launches[2], products)
        else:
            on_cpu = partial(partial, PassOnCPU, x.device)
            self.fprop = on_cpu(forward, dtype=out_dtype, ending=self.ending)
            self.dgrad, self.wgrad = on_cpu(back, dtype=x.dtype), on_cpu(products, dtype=exact)

    def lowering(self, x: Tensor, weight: Tensor, *others: Any) -> SparseSignature:
        """Return a copy for calls in which autocast lowers the filter; the call casts itself.

        If kernels sum the gradient of a float32 filter, it is not rounded in between.
        """
        made = object.__new__(SparseSignature)
        made.__dict__.update(self.__dict__)
        made.lowers = self.dtype
        tensors = [each for each in others if isinstance(each, torch.Tensor)]
        made.wanted = wants_gradient(x, weight, *tensors)
        made.only_launches = self.only_launches and not made.wanted
        if weight.dtype is torch.float32 and devices.runs_kernels(x):
            made.of_filter = torch.float32
        return made

    def fits(self, found: KernelMap) -> bool:
        """Return whether the kind serves calls over a map, whose tensors have its signature."""
        if found.ways.extended is not None:  # its index has other rows
            return False
        inputs, outputs = found.inputs.cells.shape[0], found.outputs.cells.shape[0]
        # One element per group is a dot product, whose launch applies no epilogue (``dot``).
        finished = outputs == 1 and self.groups == self.K and not self.only_sums
        return (
            bool(inputs and outputs) and found.outputs.cells.device == self.device and not finished
        )


# A pass over a map's tables, from the shape and the strides of its result.
_Bound = Callable[..., "Tensor"]
_Pass = Callable[
    [MapTables, tuple[int, ...], tuple[int, ...]], "MapPassLaunch | RecordedMapPass | PassOnCPU"
]


class SparseCall(BoundCall):
    """The bound launches of a kind over one kernel map.

    The map keeps the call, so the call holds no map: backward passes get it as an argument.
    """

    # ``f(x, weight, columns, sources)``, if the call only launches.
    followed: Callable[..., Tensor] | None = None

    def __init__(self, kind: SparseSignature, found: KernelMap) -> None:
        self.kind = kind
        self.wanted, self.only_sums, self.ending = kind.wanted, kind.only_sums, kind.ending
        self.lowers = kind.lowers
        self.in_rows = found.inputs.cells.shape[0]
        self.out_rows = found.outputs.cells.shape[0]
        tables = found.views.get(_TABLES) or _tables_of(found)
        if kind.wanted:
            found.start_counting()
        fprop = kind.fprop(tables, (self.out_rows, kind.K), (kind.K, 1))
        self._fprop = fprop.result
        if kind.contiguous:
            self.forward = fprop.result  # type: ignore[method-assign,assignment]
            if kind.only_launches and not isinstance(fprop, PassOnCPU):
                self.followed = fprop.followed
        self._dgrad: _Bound | None = None
        self._wgrad: _Bound | None = None
        self._summed: Any = None  # sums chunks to the filter's gradient

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """Convolve tensors whose memory kernels cannot read as it is."""
        x, weight = x.contiguous(), weight.contiguous()
        residual = None if residual is None else residual.contiguous()
        if function is not None:
            function = sources_changed(function, torch.Tensor.contiguous)
        return self._fprop(x, weight, bias, scale, residual, function)

    def sums(self, found: KernelMap, x: Tensor, weight: Tensor) -> Tensor:
        """Return the sums alone, fp32 (fp64 for float64), recorded by autograd."""
        passes = self._passes(found)
        passes = passes._replace(fprop=(*passes.fprop, *wide_sums(x.dtype)))
        return operators.OPERATORS.fprop(passes, x, weight)

    def gradients(
        self, found: KernelMap, needed: Sequence[bool], grad: Tensor, a: Any, b: Any
    ) -> Gradients:
        """Return the gradients, with launches alone unless torch has to see them."""
        grad = grad.contiguous()
        both = a is not None and b is not None
        alone = both and not is_grad_enabled() and is_plain(grad, a, b)  # as in training
        if not (alone or _is_alone(grad, a, b)):
            return fprop_gradients(operators.OPERATORS, self._passes(found), needed, grad, a, b)
        da = db = None
        plain = self.kind.contiguous
        if needed[0]:
            bound = self._dgrad or self._bind_dgrad(found)
            da = bound(grad, b if plain else b.contiguous())
        if needed[1]:
            bound = self._wgrad or self._bind_wgrad(found)
            db = self._summed(bound(grad, a if plain else a.contiguous()))
        return da, db

    def _bind_dgrad(self, found: KernelMap) -> _Bound:
        kind, back = self.kind, not found.mirrored
        tables = found.views.get(_TABLES_BACK if back else _TABLES)
        tables = tables or _tables_of(found, backward=back)
        bound = self._dgrad = kind.dgrad(tables, (self.in_rows, kind.C), (kind.C, 1)).result
        return bound

    def _bind_wgrad(self, found: KernelMap) -> _Bound:
        kind, K, C = self.kind, self.kind.K, self.kind.filter[-1]
        pairs = operators.pairs_for(found, (kind.C, K), kind.dtype)
        tables = pair_tables(pairs, self.out_rows, self.in_rows)
        parts = pairs.outputs.shape[0], K, C
        self._summed = summing(parts, pairs.lengths, kind.taps, kind.of_filter)
        bound = self._wgrad = kind.wgrad(tables, parts, (K * C, C, 1)).result
        return bound

    def _passes(self, found: KernelMap) -> PassArguments:
        kind = self.kind
        channels = kind.C, kind.K
        maps = operators.tables(found, channels, gradients=True, dtype=kind.dtype)
        of_map = kind.taps, kind.groups, found.mirrored
        return operators.over(maps, self.in_rows, self.out_rows, of_map)


def _is_alone(*tensors: Tensor | None) -> bool:
    """Return whether only autograd sees computations on tensors, and it records nothing."""
    there = [tensor for tensor in tensors if tensor is not None]
    return is_plain(*there) and not (is_grad_enabled() and wants_gradient(*there))


class GatheredCall(SparseCall):
    """A sparse convolution on a CPU, by the pairs of the map, which serve all passes and kinds."""

    def __init__(self, kind: SparseSignature, found: KernelMap) -> None:
        self.kind = kind
        self.wanted, self.only_sums, self.ending = kind.wanted, kind.only_sums, kind.ending
        self.lowers = kind.lowers
        self.in_rows, self.out_rows = len(found.inputs), len(found.outputs)
        self._index = operators.forward_maps(found).forward
        plan_of(self._index, self.in_rows)  # raises for entries beyond the rows

    def _plan(self) -> GatherPlan:
        return plan_of(self._index, self.in_rows)

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Any = None,
        scale: Any = None,
        residual: Any = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        activation, slope = self.ending
        epilogue = epilogue_of(bias, scale, residual, function or activation, slope)
        of = self._plan(), x, weight, self.kind.groups, epilogue, self.kind.out_dtype
        return gathered_passes.forward(*of)

    def gradients(
        self, found: KernelMap, needed: Sequence[bool], grad: Tensor, a: Any, b: Any
    ) -> Gradients:
        """Return the gradients, both at once if both are needed."""
        grad = grad.contiguous()
        if not _is_alone(grad, a, b):
            return fprop_gradients(operators.OPERATORS, self._passes(found), needed, grad, a, b)
        if not (needed[0] and needed[1]):
            return fprop_gradients(self, found, needed, grad, a, b)
        return gathered_passes.gradients(self._plan(), grad, a, b, self.kind.groups)

    def dgrad(self, found: KernelMap, grad: Tensor, weight: Tensor) -> Tensor:
        of = self._plan(), grad, weight, self.kind.groups, None, grad.dtype
        return gathered_passes.forward(*of, transposed=True)

    def wgrad(self, found: KernelMap, grad: Tensor, x: Tensor) -> Tensor:
        taps, groups = self.kind.taps, self.kind.groups
        return gathered_passes.filter_gradient(self._plan(), grad, x, taps, groups)
