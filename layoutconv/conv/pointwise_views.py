"""Pointwise convolutions as plain GEMMs: the pixels of all images are the rows of one matrix.

With one tap, a stride of 1 and no padding, a pixel of the output reads that pixel of the input
alone, and channels-last memory is a matrix (M, C) whose rows are the M pixels. Read so, no row is
divided into coordinates, TMA tiled loads A as it does B, and one kernel serves sequences, images
and volumes.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ..algebra import ComposedLayout, E, Layout
from ..base.caches import kept_in
from ..view.gemm_view import GemmView
from ..view.operands import row_major, runtime, static, transposed
from .dense_views import VIEWS
from .problem import ConvProblem


class PointwiseViews(NamedTuple):
    """The passes of a pointwise convolution, as views of contiguous matrices.

    The activation is (M, C), the filter (K, C), the output (M, K); M are the pixels of all images.
    """

    fprop: GemmView
    dgrad: GemmView
    wgrad: GemmView


def is_pointwise(problem: ConvProblem) -> bool:
    """Return whether a pixel of the output reads the same pixel of the input, and no other.

    >>> is_pointwise(ConvProblem((2, 8, 8, 16), (32, 1, 1)))
    True
    >>> is_pointwise(ConvProblem((2, 8, 8, 16), (32, 1, 1), stride=2))
    False
    """
    return (
        problem.groups == 1
        and set(problem.taps) == {1}
        and set(problem.stride) == {1}
        and set(problem.padding) == {(0, 0)}
    )


@kept_in(VIEWS)
def pointwise_views(problem: ConvProblem) -> PointwiseViews:
    """The views of a problem that :func:`is_pointwise`, over the memory of ``fprop_view``'s.

    >>> views = pointwise_views(ConvProblem((2, 8, 8, 16), (32, 1, 1)))
    >>> print(views.fprop)
    A: (M,C):(C,1) o 0 o (M,C):(1@0,1@1)
    B: (K,C):(C,1) o 0 o (K,C):(1@0,1@1)
    D: (M,K):(K,1) o 0 o (M,K):(1@0,1@1)
    >>> print(views.wgrad)
    A: (M,K):(K,1) o 0 o (K,M):(1@1,1@0)
    B: (M,C):(C,1) o 0 o (C,M):(1@1,1@0)
    D: (K,C):(C,1) o 0 o (K,C):(1@0,1@1)
    """
    M = runtime(prod(problem.output[:-1]), "M")
    C, K = static(problem.C, "C"), static(problem.K, "K")
    x, w, y = (_matrix(*shape) for shape in ((M, C), (K, C), (M, K)))
    return PointwiseViews(
        fprop=GemmView(x, w, y),
        dgrad=GemmView(y, transposed(w), x),
        wgrad=GemmView(transposed(y), transposed(x), w),
    )


def _matrix(rows: object, columns: object) -> ComposedLayout:
    shape = rows, columns
    return ComposedLayout(row_major(shape), 0, Layout(shape, (E(0), E(1))))
