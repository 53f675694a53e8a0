"""Pointwise convolutions as plain GEMMs: the pixels of all images are the rows of one matrix.

With one tap, a stride of 1 and no padding, a pixel of the output reads only that pixel of the
input, and channels-last memory is a matrix (M, C) whose rows are the M pixels. So rows need no
division into coordinates, TMA tiled loads A as it does B, and one kernel serves images of any
shape.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ..algebra import ComposedLayout, E, Layout
from ..base.caches import kept_in
from ..view.gemm_view import GemmView
from ..view.operands import row_major, runtime, static, transposed
from .dense_views import VIEWS, fprop_view
from .gradients import dgrad_views, wgrad_view
from .problem import ConvProblem


def is_pointwise(problem: ConvProblem) -> bool:
    """Return whether a pixel of the output reads the same pixel of the input, and no other.

    False if there are no pixels.

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
        and prod(problem.output[:-1]) > 0
    )


@kept_in(VIEWS)
def pointwise_fprop_view(problem: ConvProblem) -> GemmView:
    """The forward pass of a problem that :func:`is_pointwise`, over the memory of ``fprop_view``'s.

    D's memory keeps its number of modes, which a kernel's argument fixes; all pixels are in the
    last spatial one.

    >>> print(pointwise_fprop_view(ConvProblem((2, 8, 8, 16), (32, 1, 1))))
    A: (M,C):(C,1) o 0 o (M,C):(1@0,1@1)
    B: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    D: (1,1,M,K):(M*K,M*K,K,1) o 0 o (M,K):(1@2,1@3)
    """
    C, K = static(problem.C, "C"), static(problem.K, "K")
    return replace(fprop_view(problem), a=_matrix(problem, C), d=_matrix(problem, K, problem.rank))


@kept_in(VIEWS)
def pointwise_dgrad_view(problem: ConvProblem) -> GemmView:
    """The gradient of the activation, over the memory of ``dgrad_views``'.

    >>> print(pointwise_dgrad_view(ConvProblem((2, 8, 8, 16), (32, 1, 1))).d)
    (1,1,M,C):(M*C,M*C,C,1) o 0 o (M,C):(1@2,1@3)
    """
    (view,) = dgrad_views(problem)
    C, K = static(problem.C, "C"), static(problem.K, "K")
    return replace(view, a=_matrix(problem, K), d=_matrix(problem, C, problem.rank))


@kept_in(VIEWS)
def pointwise_wgrad_view(problem: ConvProblem) -> GemmView:
    """The gradient of the filter, a sum over pixels, over the memory of ``wgrad_view``'s.

    >>> print(pointwise_wgrad_view(ConvProblem((2, 8, 8, 16), (32, 1, 1))))
    A: (M,K):(K,1) o 0 o (K,M):(1@1,1@0)
    B: (M,C):(C,1) o 0 o (C,M):(1@1,1@0)
    D: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    """
    C, K = static(problem.C, "C"), static(problem.K, "K")
    a, b = (transposed(_matrix(problem, channels)) for channels in (K, C))
    return replace(wgrad_view(problem), a=a, b=b)


def _matrix(problem: ConvProblem, channels: Any, further: int = 0) -> ComposedLayout:
    """Return (M, channels), over memory with ``further`` leading modes of extent 1."""
    pixels = runtime(prod(problem.output[:-1]), "M")
    shape = pixels, channels
    domain = Layout(shape, (E(further), E(further + 1)))
    return ComposedLayout(row_major((*(1 for _ in range(further)), *shape)), 0, domain)
