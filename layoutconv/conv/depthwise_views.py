"""Depthwise convolutions: every channel has its own filters, so nothing is summed over channels.

As grouped convolutions they would be matrix products of one column. Here every element of the
result is a problem of its own, with one row and one column, and the problems run along the
contiguous channels: a memory-bound sum over the taps (over the voxels, for the filter's gradient).

Each view is that of the grouped convolution, with everything that is not summed moved into the
third mode, channels first: ``(Kg, C)`` with ``Kg = K / C`` filters per channel, or ``C`` if Kg = 1.
"""

from __future__ import annotations

from typing import Any

from ..algebra import ComposedLayout, E, Layout
from ..algebra.int_tuple import paired_leaves
from ..base.caches import kept_in
from ..errors import ArgumentError
from ..view.gemm_view import GemmView, stages
from .dense_views import VIEWS, grouped_fprop, memories
from .gradients import grouped_dgrad, grouped_wgrad
from .problem import ConvProblem, checked_problem

Leaves = list[tuple[Any, Any]]  # extents and steps of a mode

_ALL_BUT_CHANNEL = slice(1, None)  # drops the first leaf: a group has a single channel


@kept_in(VIEWS)
def depthwise_fprop_view(problem: ConvProblem) -> GemmView:
    """Forward depthwise convolution: ``k`` runs over the taps, ``l`` over everything else.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (N, D, H, W, C), ``b`` (K, T, R,
    S, 1), and the result is (N, Z, P, Q, K).

    Raises :class:`~layoutconv.errors.ArgumentError` unless ``problem.groups`` is C.

    >>> print(depthwise_fprop_view(ConvProblem((2, 8, 16), (16, 3), 2, padding=1, groups=16)))
    A: (N,W,C):(W*C,C,1) o (0,-1,0) o (1,(S),(C,Q,N)):(0@2,(1@1),(1@2,2@1,1@0))
    B: (K,S,1):(S,1,1) o 0 o (1,(S),(C,Q,N)):(0@2,(1@1),(1@0,0@2,0@2))
    D: (N,Q,K):(Q*K,K,1) o 0 o (1,1,(C,Q,N)):(0@2,0@2,(1@2,1@1,1@0))
    >>> print(depthwise_fprop_view(ConvProblem((2, 8, 16), (32, 3), groups=16)).d)
    (N,Q,K):(Q*K,K,1) o 0 o (1,1,((Kg,C),Q,N)):(0@2,0@2,((1@2,Kg@2),1@1,1@0))
    """
    view = grouped_fprop(_depthwise(problem), *memories(problem, None, None, None))
    return side_by_side(view, "nl", "m", {"n": _filters(problem), "k": _ALL_BUT_CHANNEL})


@kept_in(VIEWS)
def depthwise_dgrad_views(problem: ConvProblem, *, empty: bool = True) -> tuple[GemmView, ...]:
    """The gradient of the activation: ``k`` runs over the filters of a channel and the taps.

    There is a view per residue of the cells, as for :func:`dgrad_views`. The operands of
    ``execute(view, a, b, out)``: ``a`` the gradient of the output (N, Z, P, Q, K), ``b`` the filter
    (K, T, R, S, 1), ``out`` (N, D, H, W, C), all contiguous.

    Raises :class:`~layoutconv.errors.ArgumentError` unless ``problem.groups`` is C.

    >>> [view] = depthwise_dgrad_views(ConvProblem((2, 8, 16), (32, 3), groups=16))
    >>> print(view)
    A: (N,Q,K):(Q*K,K,1) o (0,0,0) o (1,(Kg,S),(C,W,N)):(0@2,(1@2,-1@1),(Kg@2,1@1,1@0))
    B: (K,S,1):(S,1,1) o (0,0,0) o (1,(Kg,S),(C,W,N)):(0@2,(1@0,1@1),(Kg@0,0@2,0@2))
    D: (N,W,C):(W*C,C,1) o (0,0,0) o (1,1,(C,W,N)):(0@2,0@2,(1@2,1@1,1@0))
    """
    kept = {"n": _ALL_BUT_CHANNEL, "k": _filters(_depthwise(problem))}
    views = grouped_dgrad(problem, *memories(problem, None, None, None), empty=empty)
    return tuple(side_by_side(view, "l", "m", kept) for view in views)


@kept_in(VIEWS)
def depthwise_wgrad_view(problem: ConvProblem) -> GemmView:
    """The gradient of the filter: ``k`` runs over voxels of the output, ``l`` over channels, taps.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` the gradient of the output (N, Z,
    P, Q, K), ``b`` the activation (N, D, H, W, C), and the result is (K, T, R, S, 1).

    Raises :class:`~layoutconv.errors.ArgumentError` unless ``problem.groups`` is C.

    >>> print(depthwise_wgrad_view(ConvProblem((2, 8, 16), (16, 3), groups=16)))
    A: (N,Q,K):(Q*K,K,1) o 0 o (1,(Q,N),(C,S)):(0@2,(1@1,1@0),(1@2,0@2))
    B: (N,W,C):(W*C,C,1) o (0,0,0) o (1,(Q,N),(C,S)):(0@2,(1@1,1@0),(1@2,1@1))
    D: (K,S,1):(S,1,1) o 0 o (1,1,(C,S)):(0@2,0@2,(1@0,1@1))
    """
    view = grouped_wgrad(_depthwise(problem), *memories(problem, None, None, None))
    return side_by_side(view, "ml", "n", {"m": _filters(problem), "n": _ALL_BUT_CHANNEL})


def _depthwise(problem: ConvProblem) -> ConvProblem:
    if checked_problem(problem).groups != problem.C:
        expected = f"one of groups = C = {problem.C}, a group for every channel"
        raise ArgumentError("problem", expected, f"groups = {problem.groups}")
    return problem


def _filters(problem: ConvProblem) -> slice:
    """Return a slice that drops the leaf of filters per channel if there is only one."""
    return slice(problem.K == problem.C, None)


def side_by_side(view: GemmView, channels: str, others: str, kept: dict[str, slice]) -> GemmView:
    """Return the same products with mode l made of the leaves of modes ``channels``, then
    ``others``.

    ``kept`` selects the leaves to keep of some modes; the dropped ones have an extent of 1.
    """

    def leaves(letters: str, layout: Any) -> dict[str, Leaves]:
        modes = zip(letters, layout.inner.shape, layout.inner.stride, strict=True)
        everything = slice(None)
        return {i: paired_leaves(s, d)[kept.get(i, everything)] for i, s, d in modes}

    operands = [
        (layout, leaves(letters, layout))
        for letters, layout in (("mkl", view.a), ("nkl", view.b), ("mnl", view.d))
    ]
    all_leaves = {letter: found for _, modes in operands for letter, found in modes.items()}

    def operand(layout: Any, modes: dict[str, Leaves]) -> ComposedLayout:
        still = 0 * E(len(stages(layout)[1].layout.shape) - 1)

        def nested(letters: str) -> tuple[Any, Any]:
            shape = [s for i in letters for s, _ in all_leaves[i]]
            steps = [d for i in letters for _, d in modes.get(i, [(1, still)] * len(all_leaves[i]))]
            return tuple(shape), tuple(steps)

        (first, first_steps), (rest, rest_steps) = nested(channels), nested(others)
        if len(first) == 1:
            (first,), (first_steps,) = first, first_steps
        l_shape, l_steps = (first, *rest), (first_steps, *rest_steps)
        k_shape, k_steps = nested("k") if "k" in modes else (1, still)
        inner = Layout((1, k_shape, l_shape), (still, k_steps, l_steps))
        return ComposedLayout(layout.outer, layout.offset, inner)

    return GemmView(*(operand(layout, modes) for layout, modes in operands))
