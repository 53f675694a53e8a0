"""Choice of threads that sum few terms each, in place of tensor cores."""

from __future__ import annotations

from math import prod

import torch

from ..conv import ConvProblem
from ..conv.few_terms import few_terms_dgrad_view, few_terms_fprop_view
from ..view.gemm_view import GemmView
from .packing_choice import Multiplied

# On an H200, sums of 1 to 4 terms take what memory does, 1.1 to 5 times less than the tiles that
# load such rows element by element; of 5 to 7 terms as long as these, and results that are smaller,
# too. A sum over several taps is faster in tiles (docs/lab_notebook.md).
TERMS = 4
ELEMENTS = 1 << 23  # of the result, at least
# Fewer: each thread takes at least two elements of any result, and there are fewer than 2^31.
MOST, MOST_VOXELS = 1 << 32, 1 << 31
MOST_COLUMNS = 1 << 20  # a grid has 65,535 CTAs of 32 vectors along them, of an element or more
VECTORS = 2  # of 16 bytes, at least, in its rows


def ends_in_tiles(out_dtype: torch.dtype | None) -> bool:
    """Return whether tiles alone store a dtype: behind the sums of threads, torch rounds to 8 bits.

    >>> ends_in_tiles(torch.int8), ends_in_tiles(torch.float32), ends_in_tiles(None)
    (True, False, False)
    """
    return out_dtype is not None and out_dtype.itemsize == 1


def few_terms_fprop(problem: ConvProblem, of: Multiplied | None) -> GemmView | None:
    """Return the view of the forward pass whose elements are threads' own sums; None if slower.

    >>> from ..planning.machine import MACHINES
    >>> from .packing_choice import multiplied_on
    >>> fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    >>> few_terms_fprop(ConvProblem((2, 128, 128, 128, 1), (32, 1, 1, 1)), fp16).n
    1
    >>> few_terms_fprop(ConvProblem((2, 128, 128, 128, 8), (32, 1, 1, 1)), fp16) is None
    True
    """
    if not _pays(problem, problem.C, problem.K, of):
        return None
    return few_terms_fprop_view(problem)


def few_terms_dgrad(problem: ConvProblem, of: Multiplied | None) -> GemmView | None:
    """Return the view of the dgrad whose elements are threads' own sums over few filters; None if
    slower.
    """
    if not _pays(problem, problem.K, problem.C, of):
        return None
    return few_terms_dgrad_view(problem)


def _pays(problem: ConvProblem, terms: int, columns: int, of: Multiplied | None) -> bool:
    """Return whether threads sum faster, and can number all that they sum."""
    if of is None or of.by_tiles or problem.groups > 1 or terms > TERMS:
        return False
    plain = set(problem.taps) == set(problem.stride) == {1} and not any(map(any, problem.padding))
    vectors, rest = divmod(columns, of.vector)
    voxels = problem.N * prod(problem.spatial)
    numbered = columns * voxels < MOST and columns <= MOST_COLUMNS and voxels < MOST_VOXELS
    enough = columns * voxels >= ELEMENTS and vectors >= VECTORS
    return plain and rest == 0 and enough and numbered
