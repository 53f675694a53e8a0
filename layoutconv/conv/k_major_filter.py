"""K-major filter: a copy of the filter in which K, the summed index of dgrad, is contiguous.

Dgrad sums over K, and C is contiguous in a filter (K, T, R, S, C). ``wgmma`` reads 16-bit operands
in either order, but 32-bit operands only along the summed index. Transposing the filter tile by
tile takes a third of the kernel (vae in tf32, H200: 842 us, fprop 558 us); copying all of it first,
to (C, T, R, S, K), takes microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..algebra import ComposedLayout, Layout
from ..errors import ArgumentError, ArgumentTypeError
from ..view.gemm_view import GemmView, OperandLayout
from ..view.operands import row_major

if TYPE_CHECKING:
    from torch import Tensor


def k_major_view(view: GemmView) -> GemmView:
    """Return the view of a K-major filter: the first mode of B is contiguous, the last slowest.

    B is a filter (K, T, R, S, C) behind any chain of maps; the maps, A and D stay. The result
    computes with ``k_major_filter(w)`` what ``view`` computes with ``w``. It is cached with
    ``view``.

    Raises :class:`~layoutconv.errors.ArgumentError` if B has no map to memory, so that the strides
    of memory are those of the view.

    >>> from layoutconv.conv import ConvProblem, dgrad_views
    >>> [view] = dgrad_views(ConvProblem((2, 8, 8, 16), (32, 3, 5), padding=1))
    >>> print(view.b)
    (K,R,S,C):(R*S*C,S*C,C,1) o (0,0,0,0) o (C,(K,S,R)):(1@3,(1@0,1@2,1@1))
    >>> print(k_major_view(view).b)
    (K,R,S,C):(1,S*K,K,R*S*K) o (0,0,0,0) o (C,(K,S,R)):(1@3,(1@0,1@2,1@1))
    """
    kept: GemmView | None = view.kept.get("k_major")
    if kept is None:
        if not isinstance(view.b, ComposedLayout):
            raise ArgumentError("view", "maps from (n, k) to the memory of B", view.b)
        b = _stored_k_major(view.b)
        kept = view.kept["k_major"] = replace(view, b=b)
    return kept


def k_major_filter(w: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Copy a filter ``w``, (K, T, R, S, C / groups), to memory ordered as (C / groups, T, R, S, K).

    Shape and dtype stay: the copy is the B of a view from :func:`k_major_view`. Making it takes one
    launch on torch's current stream.

    Args:
        w: a filter of 1 to 4 spatial modes, or another tensor of two modes or more.
        shape: the filter's shape, if ``w`` has torch's order of modes, (K, C / groups, T, R, S):
            the memory of ``w`` is then read as a contiguous tensor of this shape.

    Raises :class:`~layoutconv.errors.ArgumentError` for fewer than two modes.

    >>> import torch
    >>> w = torch.arange(24.0).view(4, 3, 2)
    >>> k_major_filter(w).stride(), torch.equal(k_major_filter(w), w)
    ((1, 4, 12), True)
    """
    if not hasattr(w, "new_empty_strided"):
        raise ArgumentTypeError("w", "a torch tensor", type(w).__name__)
    if shape is not None:
        w = w.as_strided(tuple(shape), row_major(shape).stride)
    if w.dim() < 2:
        raise ArgumentError("w", "two modes or more, (K, *taps, C)", f"shape {tuple(w.shape)}")
    return w.new_empty_strided(w.shape, k_major_strides(w.shape)).copy_(w)


def k_major_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the strides of a contiguous tensor with its first and last modes exchanged."""
    first, *between, last = shape
    slowest, *strides, unit = row_major((last, *between, first)).stride
    return (unit, *strides, slowest)


def _stored_k_major(layout: OperandLayout) -> OperandLayout:
    """Return the chain of maps with K-major strides in its last."""
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(_stored_k_major(layout.outer), layout.offset, layout.inner)
    return Layout(layout.shape, k_major_strides(layout.shape))
