"""Choice of the view for fprop and wgrad on a GPU: stride folding, patches, pointwise matrices.

``phase_choice.py`` chooses for dgrad.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..conv import ConvProblem, fprop_view, wgrad_view
from ..conv.patches import patches_of
from ..conv.pointwise_views import is_pointwise, pointwise_fprop_view, pointwise_wgrad_view
from ..conv.stride_folding import folded_fprop_view, folded_taps, folds
from ..planning.machine import Machine
from ..view.gemm_view import GemmView
from . import machines

LINE = 64  # elements of 16 bits in a line on Hopper; a k-tile is a line or half of one
CHANNELS = 64  # with more, a tile has enough products per byte without folding
COLUMNS = 64  # of tiles with halo reuse
ALL_COLUMNS = 256  # of the widest tile: zeros are skipped only if a tile covers all columns
WASTE = 1.5  # taps of folded cells, those outside the filter included, per tap of the filter
ROWS = 1 << 15  # with fewer, tiles use split-K, and multiply the zeros that others skip


def line_for(a: Tensor) -> int:
    """Return the elements per line for the activation ``a``; 0 if its lines are not folded.

    >>> import torch
    >>> line_for(torch.zeros(1, dtype=torch.float16))
    0
    """
    return line_of(a.dtype, machines.machine_of(a.get_device())) if a.is_cuda else 0


def line_of(dtype: torch.dtype, machine: Machine) -> int:
    """Return the same for data of ``dtype`` on a machine."""
    return LINE if dtype.itemsize == 2 and machine.arch == "sm_90a" else 0


def arranged_fprop(problem: ConvProblem, line: int = 0) -> GemmView:
    """Return the fastest form of ``fprop_view``: the same products of the same memory.

    Windows that do not overlap along W become cells with more channels (``patches_of``); a
    pointwise layer becomes a plain GEMM. ``line`` is the result of :func:`line_for`. With few
    channels a tile reads too much for the products it forms; stride folding allows halo reuse.
    Structural zeros outside the filter are skipped where they fill a k-tile or an instruction.

    >>> def taps(C, K, *numbers):
    ...     view = arranged_fprop(ConvProblem((2, 64, 64, 64, C), (K, 3, 3, 3), *numbers), LINE)
    ...     return view.k // C
    >>> taps(32, 64, 2, 1), taps(32, 64, 1, 1), taps(24, 64, 2, 1), taps(32, 256, 2, 1)
    (36, 27, 27, 27)
    """
    problem, _ = patches_of(problem)
    if is_pointwise(problem):
        return pointwise_fprop_view(problem)
    if not line or not folds(problem):
        return fprop_view(problem)
    (_, taps), stride, C = folded_taps(problem), problem.stride[-1], problem.C
    whole = C % (line // 4) == 0 and stride * C % (line // 2) == 0 and C <= CHANNELS
    worth = stride * taps <= WASTE * problem.taps[-1] and prod(problem.output[:-1]) >= ROWS
    zeros = stride * taps > problem.taps[-1]
    few = taps == 1 or problem.K <= COLUMNS
    if not (whole and worth and few) or (zeros and problem.K > ALL_COLUMNS):
        return fprop_view(problem)
    view = folded_fprop_view(problem)
    view.kept["unfolded"] = fprop_view(problem)
    return view


def arranged_wgrad(problem: ConvProblem) -> GemmView:
    """Return the fastest form of ``wgrad_view``, over the memory of ``patches_of`` the problem.

    >>> arranged_wgrad(ConvProblem((2, 8, 8, 16), (32, 1, 1))).b.inner.shape
    (C, M)
    """
    problem, _ = patches_of(problem)
    return pointwise_wgrad_view(problem) if is_pointwise(problem) else wgrad_view(problem)


def unfolded(view: GemmView) -> GemmView | None:
    """Return the view before stride folding; None for a view that is not folded.

    Used where no tile skips the structural zeros, as with unaligned memory: they would be
    multiplied, possibly by an infinity beside a window.
    """
    found: GemmView | None = view.kept.get("unfolded")
    return found
