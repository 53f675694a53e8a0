"""Convolutions of few terms: each element of the result is a short sum of its own.

Tensor cores multiply whole k-tiles, of which three channels fill a part, and rows of three channels
are loaded element by element. As in a depthwise convolution, every element is instead a problem of
one row and one column, which a thread sums by itself.
"""

from __future__ import annotations

from ..base.caches import kept_in
from ..view.gemm_view import GemmView
from .dense_views import VIEWS, grouped_fprop, memories
from .depthwise_views import side_by_side
from .gradients import grouped_dgrad
from .problem import ConvProblem

_NO_GROUP = {"l": slice(1, None)}  # drops the leaf of the one group


@kept_in(VIEWS)
def few_terms_fprop_view(problem: ConvProblem) -> GemmView:
    """Forward convolution of one group: ``k`` runs over channels and taps, ``l`` over the result.

    Operands are those of :func:`~layoutconv.conv.fprop_view`.

    >>> print(few_terms_fprop_view(ConvProblem((2, 8, 1), (16, 3), padding=1)))
    A: (N,W,C):(W*C,C,1) o (0,-1,0) o (1,(C,S),(K,Q,N)):(0@2,(1@2,1@1),(0@2,1@1,1@0))
    B: (K,S,C):(S*C,C,1) o 0 o (1,(C,S),(K,Q,N)):(0@2,(1@2,1@1),(1@0,0@2,0@2))
    D: (N,Q,K):(Q*K,K,1) o 0 o (1,1,(K,Q,N)):(0@2,0@2,(1@2,1@1,1@0))
    """
    view = grouped_fprop(problem, *memories(problem, None, None, None))
    return side_by_side(view, "n", "ml", _NO_GROUP)


@kept_in(VIEWS)
def few_terms_dgrad_view(problem: ConvProblem) -> GemmView:
    """The gradient of the activation, of one group and stride 1: ``k`` runs over filters and taps.

    Operands are those of :func:`~layoutconv.conv.dgrad_views`.

    >>> print(few_terms_dgrad_view(ConvProblem((2, 8, 16), (3, 1))).d)
    (N,W,C):(W*C,C,1) o (0,0,0) o (1,1,(C,W,N)):(0@2,0@2,(1@2,1@1,1@0))
    """
    (view,) = grouped_dgrad(problem, *memories(problem, None, None, None))
    return side_by_side(view, "n", "ml", _NO_GROUP)
