"""Passes of sparse convolutions, described by what is new in each kernel map: numbers and memory.

Views of them are made later, or never: see :mod:`~layoutconv.gpu.map_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ..conv.k_major_filter import k_major_view
from ..sparse.maps.tap_pairs import Pairs
from ..sparse.views import kernel_map_dgrad_view, kernel_map_view, pairs_wgrad_view
from ..view.gemm_view import GemmView
from .map_views import Buffers, Over

if TYPE_CHECKING:
    from torch import Tensor

Ints = Sequence[int]

_new: Any = tuple.__new__  # a NamedTuple's own takes a call of Python


def conv_over(
    index: Tensor,
    order: Tensor,
    count: int,
    w: Ints,
    groups: int = 1,
    transposed: bool = False,
    mirrored: bool = False,
) -> Over:
    """A forward pass that reads ``count`` rows, or the gradient of the inputs: see `conv`.

    ``index`` (rows, taps) is that of a map one way, its rows in ``order``; if that is empty, in
    their own. ``w`` is the shape of the filter.
    """
    own, width = index.shape
    in_rows, out_rows = (own, count) if transposed else (count, own)
    numbers = {"M": own, "L": own * width, "in_rows": in_rows, "out_rows": out_rows}
    ordered = order.numel() > 0
    key = "conv", transposed, mirrored, tuple(w), groups, ordered, index.dtype, order.dtype
    make = partial(_make_conv_view, count, w, groups, transposed, mirrored)
    buffers: Buffers | None = None  # of what does not lie as maps have it
    if width == prod(w[1:-1]) and index.stride() == (1, own) and order.is_contiguous():
        if not ordered:
            buffers = index, None, None
        elif order.shape == (own,) and order.device == index.device:
            buffers = index, None, order
    return _new(Over, (key, make, (index, order), numbers, buffers))  # type: ignore[no-any-return]


def _make_conv_view(
    count: int,
    w: Ints,
    groups: int,
    transposed: bool,
    mirrored: bool,
    index: Tensor,
    order: Tensor,
) -> GemmView:
    K, C = w[0], w[-1] * groups
    options: dict[str, Any] = {"kernel_size": tuple(w[1:-1]), "groups": groups}
    if order.numel():
        options["scatter_index"] = order
    if transposed:
        of = {"mirrored": mirrored, "out_rows": count, **options}
        return kernel_map_dgrad_view(index, C, K, **of)
    return kernel_map_view(index, C, K, in_rows=count, **options)


def k_major_over(over: Over) -> Over:
    """The pass with a K-major filter: of another kind, over the same map."""
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
) -> Over:
    """The products of pairs."""
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
    return _new(Over, (key, make, (made,), numbers, buffers))  # type: ignore[no-any-return]
