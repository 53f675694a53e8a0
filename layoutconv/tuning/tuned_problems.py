"""The GEMM views that the passes of a convolution run on a GPU, from its sizes."""

from __future__ import annotations

from math import prod

from ..conv import ConvProblem
from ..conv.k_major_filter import k_major_view
from ..conv.patches import patches_of
from ..errors import ArgumentError
from ..gpu.filter_choice import worth_k_major
from ..gpu.folding_choice import arranged_fprop, arranged_wgrad
from ..gpu.phase_choice import COLUMNS, arranged_dgrad
from ..view.gemm_view import GemmView

PASSES = ("fprop", "dgrad", "wgrad")


def views_of(
    problem: ConvProblem,
    direction: str,
    *,
    along_sums: bool = False,
    columns: int = COLUMNS,
    line: int = 0,
) -> tuple[GemmView, ...]:
    """Return the views that a pass runs: one, or for strided dgrad one per stride phase.

    ``along_sums``: kernels read this data along the sum only, so dgrad reads a filter that was
    first copied to K-major, if that pays. ``columns`` of concatenated stride phases, and the
    elements of a ``line`` with stride folding, depend on the GPU and the dtype.

    Raises ``ArgumentError`` for a depthwise convolution, whose kernels have no tiles to choose.

    >>> [view] = views_of(ConvProblem((2, 8, 8, 16), (32, 3, 3), padding=1), "wgrad")
    >>> view.m, view.n, view.k
    (32, 144, 128)
    """
    if direction not in PASSES:
        raise ArgumentError("direction", "fprop, dgrad or wgrad", repr(direction))
    if problem.groups > 1 and problem.groups == problem.C:
        raise ArgumentError("groups", f"fewer groups than the {problem.C} channels", problem.groups)
    if direction == "fprop":
        return (arranged_fprop(problem, line),)
    if direction == "wgrad":
        return (arranged_wgrad(problem),)
    views = arranged_dgrad(problem, columns)
    problem, _ = patches_of(problem)
    filter = (problem.K, *problem.taps, problem.C // problem.groups)
    if along_sums and worth_k_major(prod(problem.output[:-1]), filter, problem.groups):
        return tuple(map(k_major_view, views))
    return views
