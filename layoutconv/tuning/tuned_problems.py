"""The pass of a convolution that a call runs on a GPU, from its sizes: no GPU need be there."""

from __future__ import annotations

from ..conv import ConvProblem
from ..conv.k_major_filter import k_major_view
from ..errors import ArgumentError
from ..gpu.filter_choice import reads_along_sums
from ..gpu.folding_choice import line_of
from ..gpu.packing_choice import Multiplied
from ..gpu.phase_choice import columns_of
from ..ops.dense_passes import PassViews, dgrad_pass, fprop_pass, wgrad_pass
from ..view.gemm_view import GemmView

PASSES = ("fprop", "dgrad", "wgrad")


def pass_on(problem: ConvProblem, direction: str, of: Multiplied) -> PassViews:
    """Return the pass that a call runs on data and a GPU as ``of``, without an epilogue.

    Raises ``ArgumentError`` for another ``direction`` than fprop, dgrad and wgrad.

    >>> from ..gpu.packing_choice import multiplied_on
    >>> from ..planning.machine import MACHINES
    >>> import torch
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> stem = ConvProblem((64, 224, 224, 3), (64, 7, 7), stride=2, padding=3)
    >>> pass_on(stem, "fprop", fp16).packed.a.width > 3
    True
    """
    if direction not in PASSES:
        raise ArgumentError("direction", "fprop, dgrad or wgrad", repr(direction))
    x, w, y = problem.activation, problem.stored_filter, problem.output
    sides = [side for pair in problem.padding for side in pair]
    numbers = problem.stride, sides, problem.dilation, problem.groups
    packs = of if of.packs else None
    if direction == "fprop":
        return fprop_pass(x, w, *numbers, line=line_of(of.dtype, of.machine), of=packs)
    if direction == "dgrad":
        columns = columns_of(of.dtype, of.machine)
        return dgrad_pass(y, w, problem.spatial, numbers, columns=columns, of=packs)
    return wgrad_pass(y, x, problem.taps, numbers, of=packs)


def views_of(problem: ConvProblem, direction: str, of: Multiplied) -> tuple[GemmView, ...]:
    """Return the views of :func:`pass_on`: one, or for strided dgrad one per stride phase.

    They are those of copied operands, of packed channels or K-major, where a call makes copies.

    Raises ``ArgumentError`` also for a pass whose kernels have no tiles to choose: a depthwise one,
    and one of few channels that threads sum.

    >>> from ..gpu.packing_choice import multiplied_on
    >>> from ..planning.machine import MACHINES
    >>> import torch
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> [view] = views_of(ConvProblem((2, 8, 8, 16), (32, 3, 3), padding=1), "wgrad", fp16)
    >>> view.m, view.n, view.k
    (32, 144, 128)
    """
    found = pass_on(problem, direction, of)
    if found.by_threads and problem.groups > 1:
        raise ArgumentError("groups", f"fewer groups than the {problem.C} channels", problem.groups)
    if found.by_threads:
        expected = "a convolution of more channels: threads sum these, and have no tiles"
        raise ArgumentError("problem", expected, problem)
    return views_run(found, of)


def views_run(found: PassViews, of: Multiplied) -> tuple[GemmView, ...]:
    """Return the views that kernels run of a pass: those of its copies, if it makes any."""
    if found.packed is not None:
        return found.packed.views
    return tuple(map(k_major_view, found.views)) if copies_filter(found, of) else found.views


def copies_filter(found: PassViews, of: Multiplied) -> bool:
    """Return whether a pass, of no packed channels, copies its filter to K-major first."""
    return bool(found.k_major) and reads_along_sums(of.dtype, of.precision, of.machine)
