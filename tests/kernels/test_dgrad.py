"""The activation's gradient through the template, in the machine; its filter with K contiguous."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutconv.algebra import make_ordered_layout
from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.gemm_view import GemmView

from .launcher import DTYPES, check_view_runs
from .test_random import few, problems, tiles


def views(problem: ConvProblem) -> tuple[GemmView, ...]:
    shape = (problem.K, *problem.taps, problem.C)
    order = (0, *range(problem.rank, 0, -1), problem.rank + 1)
    return dgrad_views(problem, make_ordered_layout(shape, order))


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_a_residue(data: st.DataObject, dtype: torch.dtype) -> None:
    found = [view for view in views(data.draw(problems(16 // dtype.itemsize))) if view.k]
    assume(found)
    check_view_runs(data.draw(st.sampled_from(found)), dtype, data.draw(tiles(dtype)))
