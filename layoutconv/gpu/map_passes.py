"""Passes of sparse convolutions, described by the new parts of each kernel map: numbers and memory.

Their views are made later, or never: see :mod:`~layoutconv.gpu.map_views`. If a launch of the kind
and size is known, :class:`MapTables` are all that a new map adds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..conv.k_major_filter import k_major_view
from ..planning.view_rules import MAX_GROUPS
from ..sparse.maps.tap_pairs import Pairs
from ..sparse.views import kernel_map_dgrad_view, kernel_map_view, pairs_wgrad_view
from ..view.gemm_view import GemmView
from .map_views import LAST, Buffers, MapPass

if TYPE_CHECKING:
    from torch import Tensor

_new: Any = tuple.__new__  # a NamedTuple's own takes a call of Python


class MapTables(NamedTuple):
    """The tables of a kernel map that passes read, and the arguments of known plans made of them.

    Attributes:
        tables: the tensors of a map, with the index and its order from ``first`` on; or pairs.
        kind: what a pass's plan depends on, beside the pass itself and ``size``.
        size: the rows or chunks; tiles are chosen for their size class.
        addresses: of the index buffers of A, B and D; None if plans cannot be shared.
        numbers: the kernels' integer arguments, by name.
    """

    tables: Any
    first: int
    kind: tuple[Any, ...]
    size: int
    addresses: tuple[int | None, ...] | None
    numbers: dict[str, int]


def index_tables(
    tables: tuple[Tensor, ...], in_rows: int, out_rows: int, first: int = 0
) -> MapTables:
    """Return the tables of an index (rows, taps) and its row order; an empty order is the identity.

    They are ``tables[first]`` and ``tables[first + 1]``. ``in_rows`` and ``out_rows`` are those of
    the layer, in whichever direction the index maps.
    """
    index, order = tables[first : first + 2]
    own, width = index.shape
    numbers = {"M": own, "L": own * width, "in_rows": in_rows, "out_rows": out_rows}
    buffers = _buffers_of(index, order)
    ordered, addresses = buffers is not None and buffers[2] is order, None
    if buffers is not None and own > 1 and in_rows > 1 and out_rows > 1 and own * width <= LAST:
        addresses = index.data_ptr(), None, order.data_ptr() if ordered else None
    kind = width, ordered, index.dtype, order.dtype
    return _new(MapTables, (tables, first, kind, own, addresses, numbers))  # type: ignore[no-any-return]


def pair_tables(made: Pairs, out_rows: int, in_rows: int) -> MapTables:
    """Return the tables of pairs."""
    outputs, inputs = made.outputs, made.inputs
    chunks, chunk = outputs.shape
    numbers = {
        "P": chunk, "L": chunks, "L*P": chunks * chunk, "in_rows": in_rows, "out_rows": out_rows,
    }  # fmt: skip
    addresses: tuple[int | None, ...] | None = None
    fits = outputs.shape == inputs.shape and outputs.device == inputs.device
    fits = fits and outputs.is_contiguous() and inputs.is_contiguous() and chunks <= MAX_GROUPS
    if fits and min(numbers.values()) > 1 and max(numbers.values()) <= LAST:
        addresses = outputs.data_ptr(), inputs.data_ptr(), None
    kind = chunk, outputs.dtype, inputs.dtype
    return _new(MapTables, (made, 0, kind, chunks, addresses, numbers))  # type: ignore[no-any-return]


def _buffers_of(index: Tensor, order: Tensor) -> Buffers | None:
    """Return the index buffers of a pass; None if their memory is not laid out as maps have it."""
    own = index.shape[0]
    if index.stride() != (1, own) or not order.is_contiguous():
        return None
    if not order.numel():
        return index, None, None
    known = order.shape == (own,) and order.device == index.device
    return (index, None, order) if known else None


class MapConv(NamedTuple):
    """A forward pass over a kernel map, or the gradient of its inputs.

    Attributes:
        w: the shape of the filter, (K, *taps, C / groups).
        transposed: whether it is the gradient, whose result has the C channels of the inputs.
        mirrored: whether the gradient uses the index of the forward pass, with reversed taps.
    """

    w: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    mirrored: bool = False

    @property
    def channels(self) -> int:
        """The number of channels of the result."""
        return self.w[-1] * self.groups if self.transposed else self.w[0]


def conv_over(index: Tensor, order: Tensor, count: int, of: MapConv) -> MapPass:
    """Return a pass that reads ``count`` rows.

    ``index`` (rows, taps) is one direction of a map, with its rows in ``order``; an empty order is
    the identity.
    """
    own, width = index.shape
    in_rows, out_rows = (own, count) if of.transposed else (count, own)
    numbers = {"M": own, "L": own * width, "in_rows": in_rows, "out_rows": out_rows}
    ordered = order.numel() > 0
    key = "conv", *of, ordered, index.dtype, order.dtype
    make = partial(_make_conv_view, count, of)
    buffers = _buffers_of(index, order) if width == prod(of.w[1:-1]) else None
    return _new(MapPass, (key, make, (index, order), numbers, buffers))  # type: ignore[no-any-return]


def conv_pass(of: MapConv, tables: MapTables) -> MapPass:
    """Return :func:`conv_over` for the result of :func:`index_tables`."""
    first, numbers = tables.first, tables.numbers
    index, order = tables.tables[first : first + 2]
    count = numbers["out_rows" if of.transposed else "in_rows"]
    return conv_over(index, order, count, of)


def _make_conv_view(count: int, of: MapConv, index: Tensor, order: Tensor) -> GemmView:
    K, C = of.w[0], of.w[-1] * of.groups
    options: dict[str, Any] = {"kernel_size": of.w[1:-1], "groups": of.groups}
    if order.numel():
        options["scatter_index"] = order
    if of.transposed:
        options |= {"mirrored": of.mirrored, "out_rows": count}
        return kernel_map_dgrad_view(index, C, K, **options)
    return kernel_map_view(index, C, K, in_rows=count, **options)


def k_major_over(over: MapPass) -> MapPass:
    """Return the pass with a K-major filter: another kind, over the same map."""
    return over._replace(key=("k_major", over.key), make=partial(_make_k_major, over.make))


def _make_k_major(make: Callable[..., GemmView], *tables: Any) -> GemmView:
    return k_major_view(make(*tables))


def pairs_over(
    made: Pairs,
    out_rows: int,
    in_rows: int,
    K: int,
    C: int,
    groups: int = 1,
) -> MapPass:
    """Return the wgrad pass over pairs."""
    outputs, inputs = made.outputs, made.inputs
    chunks, chunk = outputs.shape
    numbers = {"P": chunk, "L": chunks, "L*P": chunks * chunk}
    numbers.update(in_rows=in_rows, out_rows=out_rows)
    buffers: Buffers | None = None
    if outputs.shape == inputs.shape and outputs.device == inputs.device:
        buffers = outputs.contiguous(), inputs.contiguous(), None
    key = "wgrad", K, C, groups, chunk, outputs.dtype, inputs.dtype
    make = partial(
        pairs_wgrad_view, in_channels=C, out_channels=K, groups=groups,
        in_rows=in_rows, out_rows=out_rows,
    )  # fmt: skip
    return _new(MapPass, (key, make, (made,), numbers, buffers))  # type: ignore[no-any-return]


def pairs_pass(tables: MapTables, K: int, C: int, groups: int) -> MapPass:
    """Return :func:`pairs_over` for the result of :func:`pair_tables`."""
    numbers = tables.numbers
    return pairs_over(tables.tables, numbers["out_rows"], numbers["in_rows"], K, C, groups)
