"""The passes of sparse convolutions as differentiable torch operators, ``torch.ops.layoutconv.*``.

    sparse_conv(x, w, *maps, rows, groups, transposed, mirrored, bias, ..., out_dtype) -> y
    sparse_wgrad(y, x, *maps, taps, groups, mirrored) -> w

``x`` (inputs, C), ``w`` (K, *taps, C / groups), ``y`` (outputs, K). ``maps`` are the seven tensors
of a kernel map that :func:`tables` makes. ``transposed`` goes the other way, from ``y`` and ``w``
to ``x``: the gradient of the inputs, ``rows`` of them; else ``rows`` is the number of outputs. The
result is ``activation(scale * sum + bias + residual)``, as for the dense operators.

``sparse_conv`` and ``sparse_wgrad`` are linear in both their tensors; the gradients of each are the
others, to any order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base import devices
from ..base.caches import remembered
from ..base.contexts import setting
from ..base.memory import maker
from ..base.outlive import keeping
from ..base.torch_internals import operators_that_look
from ..cpu import gathered_passes
from ..cpu.gathered_passes import is_gathered, plan_of
from ..gpu import machines
from ..gpu.filter_choice import reads_k_major, worth_k_major
from ..gpu.fp32_precision import multiplied_as
from ..gpu.k_major_copy import k_major_copy
from ..gpu.map_passes import MapConv, conv_over, k_major_over, pairs_over
from ..gpu.map_views import map_view
from ..gpu.select import kernel_type
from ..planning.machine import Machine
from ..planning.pair_chunks import chunk_for, slots
from ..sparse.maps import pairs_operator
from ..sparse.maps.kernel_map import KernelMap
from ..sparse.maps.reversed_index import reversed_index
from ..sparse.maps.tap_pairs import Pairs
from ..tensors.tensor_checks import OUTPUTS
from ..view.gemm_view import GemmView
from .autocast import register_autocast
from .chunk_sums import sum_chunks
from .epilogue_args import SCHEMA, EpilogueArgs
from .execute import execute
from .flop_counts import count_products
from .formulas import (
    Formula,
    PassArguments,
    PassRunner,
    around,
    dgrad_gradients,
    fprop_gradients,
    pass_of,
    register,
    wgrad_gradients,
)
from .sparse_launches import kept, kept_gradient

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_LEAST_CHUNK = 512  # for graphs of torch.compile
_FEWEST = 32  # pairs of a chunk, for small clouds
_MOST_ON_CPU = 16384


class MapTensors(NamedTuple):
    """The tensors of a kernel map, in the order in which operators take them; empty if not made.

    ``forward`` is the index (outputs, taps) of the map, its rows in ``order``; if that is empty, in
    their own order. ``backward`` and ``backward_order`` are those of the inverse map, which a
    mirrored map does not need. The rest are the map's pairs.
    """

    forward: Tensor
    order: Tensor
    backward: Tensor
    backward_order: Tensor
    pair_outputs: Tensor
    pair_inputs: Tensor
    pair_chunks: Tensor


def tables(
    found: KernelMap,
    channels: tuple[int, int],
    *,
    gradients: bool,
    dtype: torch.dtype = torch.float16,
) -> MapTensors:
    """Return the tensors of a map; with ``gradients`` also those that its gradients need.

    ``channels`` are C and K, ``dtype`` is that of the features. On a GPU rows are sorted by their
    taps, so that tiles of neighbouring rows skip the same taps.
    """
    compiling = torch.compiler.is_compiling()
    runs = devices.runs_kernels(found.outputs.cells) or _stands_in
    if not gradients or not (runs or compiling):
        maps = forward_maps(found)  # on a CPU its pairs, found once, serve all passes
    else:
        pairs = pairs_for(found, channels, dtype)
        ways = both_ways(found)
        # Not _replace, which torch 2.8 does not compile.
        maps = MapTensors(
            ways.forward, ways.order, ways.backward, ways.backward_order,
            pairs.outputs, pairs.inputs, pairs.lengths,
        )  # fmt: skip
    if compiling:
        return maps  # tensors in its graphs have no attributes
    for owner in (maps.forward, maps.backward, maps.pair_outputs):
        if owner.numel():
            _keep_with(found, owner)
    return maps


_stands_in = False  # whether this CPU stands in for a GPU, where cells stay on it
_for_gpus: ContextVar[bool] = ContextVar("for_gpus", default=False)


def rows_as_on_gpus() -> AbstractContextManager[None]:
    """Sort the rows of maps by taps on a CPU, too, in this context: for export to GPUs."""
    return setting(_for_gpus, True)


def forward_maps(found: KernelMap) -> MapTensors:
    """Return the tensors that a forward pass needs."""
    kept: MapTensors | None = found.views.get("forward")
    if kept is not None:
        return kept
    # Not ``found.index``, which on a GPU is only made on demand.
    cells = found.outputs.cells
    watched = torch.compiler.is_compiling() or operators_that_look()  # tensors may be fake
    make = None if watched else maker(cells.device)
    none = keeping(cells.new_empty, 0) if make is None else keeping(make, (0,), (1,), cells.dtype)
    index, order = _rows(found, none)
    kept = found.views["forward"] = MapTensors(index, order, *[none] * 5)
    return kept


def both_ways(found: KernelMap) -> MapTensors:
    """Return also the tensors that the gradient of the inputs needs."""
    forward = forward_maps(found)
    if found.mirrored:
        return forward
    kept: MapTensors | None = found.views.get("both ways")
    if kept is None:
        back, back_order = _rows(found.inverse, forward.backward)
        none = forward.pair_outputs
        kept = MapTensors(forward.forward, forward.order, back, back_order, none, none, none)
        found.views["both ways"] = kept
    return kept


def pairs_for(found: KernelMap, channels: tuple[int, int], dtype: torch.dtype) -> Pairs:
    """Return the pairs over which the gradient of a filter of C and K ``channels`` sums, for
    features of a ``dtype``.
    """
    if "forward" not in found.views:  # before counting pairs: a search sorts an index
        forward_maps(found)
    if torch.compiler.is_compiling() and found.outputs.cells.is_cuda and not found.ways.traced:
        # The length of their chunks depends on their number, which no graph knows.
        return found.pairs_made()
    return found.pairs(chunk_of(found, channels, dtype))


def _keep_with(found: KernelMap, owner: Tensor) -> None:
    """Attach to a tensor a weak reference to the place that keeps views over it."""
    if not hasattr(owner, "_layoutconv_kept"):
        owner._layoutconv_kept = _KeptBy(kept_of(found))  # type: ignore[attr-defined]


class KeptWithMap:
    """Values that are derived from a kernel map, and kept with it.

    Index tensors refer to it weakly: its views hold their memory, so a strong reference would be a
    cycle, through torch's C++, which no garbage collector sees.
    """

    def __init__(self) -> None:
        self.views: dict[Any, GemmView] = {}


class _KeptBy:
    """The attribute of an index tensor: a weak reference, which copies and pickles lose."""

    def __init__(self, kept: KeptWithMap | None) -> None:
        self.reference = None if kept is None else weakref.ref(kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return _KeptBy, (None,)


def kept_of(found: KernelMap) -> KeptWithMap:
    """Return the values kept with a map; they have an entry of their own in its ``views``."""
    kept: KeptWithMap | None = found.views.get("executor")
    if kept is None:
        kept = found.views["executor"] = KeptWithMap()
    return kept


def _rows(found: KernelMap, none: Tensor) -> tuple[Tensor, Tensor]:
    on_gpu = found.outputs.cells.is_cuda or _stands_in
    if not on_gpu and not torch.compiler.is_dynamo_compiling():  # dynamo reads no ContextVar
        on_gpu = _for_gpus.get()
    return found.own.sorted if on_gpu else (found.index, none)


def chunk_of(found: KernelMap, channels: tuple[int, int], dtype: torch.dtype) -> int:
    """Return how many pairs of a tap one product of the filter's gradient sums over.

    On a CPU about a quarter of the rows, a power of two: larger chunks leave more of the last one
    empty. On a GPU as many as fill it, :func:`~layoutconv.planning.pair_chunks.chunk_for` the pairs
    of each tap; so another GPU sums in another order, and its parts take other memory. Pairs are
    not counted while a CUDA graph is captured: then a quarter of the most that are possible.
    """
    if found.ways.traced:
        return _LEAST_CHUNK
    cells = found.outputs.cells
    rows = cells.shape[0]
    if not (cells.is_cuda or _stands_in):
        return 1 << (min(max(rows // 4, _FEWEST), _MOST_ON_CPU) - 1).bit_length()
    counts = found.own.counts
    known = None if counts is None else counts.here
    precision = multiplied_as(dtype) or ""
    of_tiles = _slots(channels, dtype, precision, machines.machine_of(cells.get_device()))
    return chunk_for(known or (-(-rows // 4),) * prod(found.taps), *of_tiles)


@remembered(256)
def _slots(
    channels: tuple[int, int], dtype: torch.dtype, precision: str, machine: Machine
) -> tuple[int, int]:
    return slots(channels, kernel_type(dtype, precision), machine)


def _view(owner: Tensor, key: Any, make: Callable[[], GemmView]) -> GemmView:
    """Return a view over an index buffer, kept with the buffer's map."""
    attribute = getattr(owner, "_layoutconv_kept", None)
    reference = None if attribute is None else attribute.reference
    kept = None if reference is None else reference()
    if kept is None:
        return make()
    view: GemmView | None = kept.views.get(key)
    if view is None:
        view = kept.views[key] = make()
    return view


def _natural(index: Tensor, order: Tensor) -> Tensor:
    """Return an index with its rows in their own order."""
    if not order.numel():
        return index
    return torch.empty_like(index.T).index_copy_(1, order.long(), index.T).T


def rows_of(found: KernelMap, *, backward: bool = False) -> tuple[Tensor, Tensor]:
    """Return the index and the order of a map, or of its inverse for the inputs' gradient."""
    if backward and not found.mirrored:
        maps = both_ways(found)
        return maps.backward, maps.backward_order
    maps = forward_maps(found)
    return maps.forward, maps.order


def conv_view(
    found: MapTensors, count: int, rows: int, of: MapConv, k_major: bool = False
) -> GemmView:
    """Return the view of a pass from ``count`` rows to ``rows``.

    ``k_major`` says whether the filter comes from ``k_major_copy``.
    """
    index, order = found.forward, found.order
    if of.transposed and not of.mirrored:
        index, order = found.backward, found.backward_order
        if not index.numel():
            sorted_by = found.order if found.order.numel() else None
            index = reversed_index(found.forward, rows, sorted_by)
            order = index.new_empty(0)
    key = of, count, order.numel() > 0, k_major

    def make() -> GemmView:
        over = conv_over(index, order, count, of)
        return map_view(k_major_over(over) if k_major else over)

    return _view(index, key, make)


def conv(x: Tensor, w: Tensor, *numbers: Any) -> Tensor:
    """Run the forward pass, (rows, K); or, ``transposed``, the gradient of the inputs, (rows, C).

    ``numbers`` are the other arguments of the operator ``sparse_conv``.
    """
    maps, ending, rows, of = _conv_args(w, *numbers)
    if not devices.runs_kernels(x) and is_gathered(x) and not maps.order.numel():
        plan = plan_of(maps.forward, rows if of.transposed else len(x))
        ends = ending.epilogue(), ending.out_dtype
        return gathered_passes.forward(plan, x, w, of.groups, *ends, transposed=of.transposed)
    k_major = of.transposed and worth_k_major(rows, w.shape, of.groups, over_map=True)
    k_major = k_major and reads_k_major(x)
    view = conv_view(maps, len(x), rows, of, k_major)
    y = x.new_empty((rows, of.channels), dtype=ending.out_dtype or OUTPUTS.get(x.dtype))
    w = k_major_copy(w) if k_major else w.contiguous()
    execute(view, x.contiguous(), w, y, epilogue=ending.epilogue())
    return y


def _conv_args(
    w: Tensor, *others: Any, **named: Any
) -> tuple[MapTensors, EpilogueArgs, int, MapConv]:
    """Return maps, epilogue, rows and pass from the arguments of ``sparse_conv`` after ``w``."""
    first = len(MapTensors._fields)
    rows, *numbers = others[first : first + 4]
    ending = EpilogueArgs(*others[first + 4 :], **named)
    return MapTensors(*others[:first]), ending, rows, MapConv(tuple(w.shape), *numbers)


def pair_products_view(
    found: MapTensors, out_rows: int, in_rows: int, K: int, C: int, groups: int = 1
) -> tuple[GemmView, Tensor]:
    """Return the view of the products of pairs, and the number of chunks of each tap."""
    outputs, inputs, lengths = found.pair_outputs, found.pair_inputs, found.pair_chunks
    if lengths.numel():
        made = Pairs(outputs, inputs, lengths, 0)
    else:
        made = pairs_operator.compiled_or_not(_natural(found.forward, found.order), _LEAST_CHUNK)
    return pairs_view(made, out_rows, in_rows, K, C, groups), made.lengths


def pairs_view(
    made: Pairs, out_rows: int, in_rows: int, K: int, C: int, groups: int = 1
) -> GemmView:
    """Return the view of the products of pairs."""
    key = "wgrad", C, K, groups, in_rows, out_rows

    def make() -> GemmView:
        return map_view(pairs_over(made, out_rows, in_rows, K, C, groups))

    return _view(made.outputs, key, make)


def wgrad(y: Tensor, x: Tensor, *numbers: Any) -> Tensor:
    """Run the gradient of the filter, (K, *taps, C / groups): products of pairs, summed in order.

    ``numbers`` are the other arguments of the operator ``sparse_wgrad``.
    """
    count = len(MapTensors._fields)
    found, (taps, *rest) = MapTensors(*numbers[:count]), numbers[count:]
    groups = rest[0] if rest else 1
    if not devices.runs_kernels(x) and is_gathered(x) and not found.order.numel():
        plan = plan_of(found.forward, len(x))
        return gathered_passes.filter_gradient(plan, y, x, taps, groups)
    view, lengths = pair_products_view(found, len(y), len(x), y.shape[1], x.shape[1], groups)
    exact = torch.promote_types(x.dtype, torch.float32)
    parts = execute(view, y.contiguous(), x.contiguous(), out_dtype=exact)
    return sum_chunks(parts, lengths, taps, x.dtype)


# -- registration with torch -----------------------------------------------------------------------

_MAPS = ", ".join(f"Tensor {name}" for name in MapTensors._fields)
_SCHEMAS = {
    "sparse_conv": (
        f"(Tensor x, Tensor w, {_MAPS}, SymInt rows, int groups=1, bool transposed=False, "
        f"bool mirrored=False, {SCHEMA}) -> Tensor"
    ),
    "sparse_wgrad": (
        f"(Tensor y, Tensor x, {_MAPS}, SymInt[] taps, int groups=1, bool mirrored=False) -> Tensor"
    ),
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"layoutconv::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

sparse_conv = torch.ops.layoutconv.sparse_conv.default
sparse_wgrad = torch.ops.layoutconv.sparse_wgrad.default

for _device in ("cpu", "cuda"):
    torch.library.impl("layoutconv::sparse_conv", _device, kept(conv))
    torch.library.impl("layoutconv::sparse_wgrad", _device, kept_gradient(wgrad))


def _fake_conv(x: Tensor, w: Tensor, *numbers: Any, **options: Any) -> Tensor:
    _, ending, rows, of = _conv_args(w, *numbers, **options)
    return x.new_empty((rows, of.channels), dtype=ending.out_dtype or OUTPUTS.get(x.dtype))


torch.library.register_fake("layoutconv::sparse_conv", _fake_conv)


def _fake_wgrad(y: Tensor, x: Tensor, *numbers: Any, **_: Any) -> Tensor:
    taps, *rest = numbers[len(MapTensors._fields) :]
    groups = rest[0] if rest else 1
    return y.new_empty((y.shape[1], *taps, x.shape[1] // groups))


torch.library.register_fake("layoutconv::sparse_wgrad", _fake_wgrad)

# A pair of rows multiplies the filter of one tap, (K, C / groups).
count_products(sparse_conv, lambda args, _: args[1].shape[0] * args[1].shape[-1])
count_products(sparse_wgrad, lambda _, found: found.shape[0] * found.shape[-1])


# Bypasses the dispatcher when that is safe.
conv_of_tensors = around(sparse_conv, conv)

# -- gradients: formulas over the same map ---------------------------------------------------------

OPERATORS = PassRunner(
    pass_of(sparse_conv, conv, "fprop"),
    pass_of(sparse_conv, conv, "dgrad"),
    pass_of(sparse_wgrad, wgrad, "wgrad"),
)


def over(
    maps: MapTensors, in_rows: int, out_rows: int, of_map: tuple[Ints, int, bool]
) -> PassArguments:
    """Return the arguments of passes over a map; ``of_map`` is its taps, groups, ``mirrored``."""
    taps, groups, mirrored = of_map
    return PassArguments(
        (out_rows, groups, False, mirrored),
        (in_rows, groups, True, mirrored),
        (taps, groups, mirrored),
        maps,
    )


def _of_conv(a: Tensor, w: Tensor, *numbers: Any) -> tuple[Formula, PassArguments]:
    *maps, rows, groups, transposed, mirrored = numbers
    of_map = w.shape[1:-1], groups, mirrored
    if transposed:
        return dgrad_gradients, over(MapTensors(*maps), rows, a.shape[0], of_map)
    return fprop_gradients, over(MapTensors(*maps), a.shape[0], rows, of_map)


def _of_wgrad(y: Tensor, x: Tensor, *numbers: Any) -> tuple[Formula, PassArguments]:
    *maps, taps, groups, mirrored = numbers
    return wgrad_gradients, over(MapTensors(*maps), len(x), len(y), (taps, groups, mirrored))


register("sparse_conv", OPERATORS, _of_conv, ends=True)
register("sparse_wgrad", OPERATORS, _of_wgrad, ends=False)
register_autocast(sparse_conv, sparse_wgrad)
