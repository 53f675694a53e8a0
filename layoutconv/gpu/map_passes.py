"""Passes of sparse convolutions over kernel maps, as what is new of each map: numbers and memory.

Views of them are made later, or never: see :mod:`~layoutconv.gpu.map_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ..conv.k_major_filter import turned
from ..sparse.maps.tap_pairs import Pairs
from ..sparse.views import kernel_map_dgrad_view, kernel_map_view, pairs_wgrad_view
from ..view.gemm_view import GemmView
from .map_views import Buffers, Over

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]


class Rows:
    """The index of a map one way, with the order of its rows, as views over it read them.

    Attributes:
        ordered: whether rows are in an order other than their own.
        buffers: the memory of both; None of an index that does not lie as those of maps do.
    """

    __slots__ = ("buffers", "index", "order", "ordered")

    def __init__(self, index: Tensor, order: Tensor) -> None:
        self.index, self.order = index, order
        own, width = index.shape
        self.ordered = order.numel() > 0
        self.buffers: Buffers | None = None
        if index.stride() != (1, own):
            return
        if self.ordered and (order.shape != (own,) or order.device != index.device):
            return
        if order.is_contiguous():
            flat = index.as_strided((own * width,), (1,))
            self.buffers = flat, None, order if self.ordered else None


def conv_over(
    rows: Rows,
    count: int,
    w: Ints,
    groups: int = 1,
    transposed: bool = False,
    mirrored: bool = False,
) -> Over:
    """A forward pass that reads ``count`` rows, or the gradient of the inputs: see `conv`.

    ``w`` is the shape of the filter.
    """
    index, order, ordered, buffers = rows.index, rows.order, rows.ordered, rows.buffers
    own, width = index.shape
    if width != prod(w[1:-1]):
        buffers = None
    in_rows, out_rows = (own, count) if transposed else (count, own)
    numbers = {"M": own, "L": own * width, "in_rows": in_rows, "out_rows": out_rows}
    key = "conv", transposed, mirrored, tuple(w), groups, ordered, index.dtype, order.dtype
    make = partial(_make_conv_view, rows, count, w, groups, transposed, mirrored)
    return Over(key, make, numbers, buffers)


def _make_conv_view(
    rows: Rows, count: int, w: Ints, groups: int, transposed: bool, mirrored: bool
) -> GemmView:
    K, C = w[0], w[-1] * groups
    options: dict[str, Any] = {"kernel_size": tuple(w[1:-1]), "groups": groups}
    if rows.ordered:
        options["scatter_index"] = rows.order
    if transposed:
        of = {"mirrored": mirrored, "out_rows": count, **options}
        return kernel_map_dgrad_view(rows.index, C, K, **of)
    return kernel_map_view(rows.index, C, K, in_rows=count, **options)


def turned_over(over: Over) -> Over:
    """A pass whose filter was turned before: of another kind, over the same map."""
    return over._replace(key=("turned", over.key), make=partial(_make_turned, over.make))


def _make_turned(make: Callable[[], GemmView]) -> GemmView:
    return turned(make())


def pairs_over(
    made: Pairs,
    out_rows: int,
    in_rows: int,
    K: int,
    C: int,
    groups: int = 1,
    buffers: Buffers | None = None,
) -> Over:
    """The products of pairs, whose memory ``buffers`` are, where somebody has them."""
    outputs, inputs = made.outputs, made.inputs
    chunks, chunk = outputs.shape
    numbers = {"P": chunk, "L": chunks, "L*P": chunks * chunk}
    numbers.update(in_rows=in_rows, out_rows=out_rows)
    if buffers is None and outputs.shape == inputs.shape and outputs.device == inputs.device:
        buffers = outputs.reshape(-1), inputs.reshape(-1), None
    key = "wgrad", K, C, groups, chunk, outputs.dtype, inputs.dtype
    make = partial(pairs_wgrad_view, made, C, K, groups=groups, in_rows=in_rows, out_rows=out_rows)
    return Over(key, make, numbers, buffers)
