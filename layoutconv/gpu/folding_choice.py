"""Arrangement of memory for a pass on a GPU: stride folding, patches, pointwise layers as matrices.

``phase_choice.py`` arranges dgrad.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..conv import ConvProblem, fprop_view, wgrad_view
from ..conv.patches import patches_of
from ..conv.pointwise_views import is_pointwise, pointwise_fprop_view, pointwise_wgrad_view
from ..conv.stride_folding import folded_fprop_view, folded_taps, folds
from ..view.gemm_view import GemmView
from . import machines

LINE = 64  # numbers of 16 bits that Hopper's kernels copy of a row at most; k-tiles are half or all
CHANNELS = 64  # more are enough to multiply for what is read
COLUMNS = 64  # of tiles whose rows taps share
ALL_COLUMNS = 256  # of the widest tile: zeros are left out of whole rows
WASTE = 1.5  # taps of folded cells, those outside the filter included, for one of the filter
ROWS = 1 << 15  # of fewer, tiles share sums, and multiply what others leave out


def line_for(a: Tensor) -> int:
    """Return how many elements a line has where the activation ``a`` is read; 0 where none is
    folded.

    >>> import torch
    >>> line_for(torch.zeros(1, dtype=torch.float16))
    0
    """
    return line_of(a.dtype, a.get_device()) if a.is_cuda else 0


def line_of(dtype: torch.dtype, device: int) -> int:
    """The same of data of ``dtype`` on the GPU of a number."""
    hopper = dtype.itemsize == 2 and machines.machine_of(device).arch == "sm_90a"
    return LINE if hopper else 0


def arranged_fprop(problem: ConvProblem, line: int = 0) -> GemmView:
    """``fprop_view`` as it is fastest: the same products of the same memory.

    Windows that share no cell along W are cells of more channels there, ``patches_of``; a pointwise
    layer is a plain GEMM.
    ``line``: what :func:`line_for` says. With few channels a tile reads too much for what it
    multiplies. Stride folding allows halo reuse; structural zeros outside the
    filter are skipped where a k-tile or an instruction has nothing else.

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
    """``wgrad_view`` as it is fastest, over the memory of ``patches_of`` the problem.

    >>> arranged_wgrad(ConvProblem((2, 8, 8, 16), (32, 1, 1))).b.inner.shape
    (C, M)
    """
    problem, _ = patches_of(problem)
    return pointwise_wgrad_view(problem) if is_pointwise(problem) else wgrad_view(problem)


def unfolded(view: GemmView) -> GemmView | None:
    """Return the view before stride folding; None for a view that is not folded.

    Where no tile skips the structural zeros, as with unaligned memory, they would be multiplied: by
    an infinity beside a window, say.
    """
    found: GemmView | None = view.kept.get("unfolded")
    return found
