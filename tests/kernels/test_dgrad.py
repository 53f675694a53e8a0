"""The activation's gradient through the template, in the machine: residues, and both filters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutconv.algebra import Layout, make_ordered_layout
from layoutconv.conv import ConvProblem, dgrad_views

from .launcher import DTYPES, check_view_runs
from .test_random import few, problems, tiles
from .test_template import small_tile


def k_contiguous(problem: ConvProblem) -> Layout:
    """The filter as (C, T, R, S, K) in memory: its vectors run along the sum."""
    order = (0, *range(problem.rank, 0, -1), problem.rank + 1)
    return make_ordered_layout(problem.stored_filter, order)


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES), transposed=st.booleans())
def test_a_residue(data: st.DataObject, dtype: torch.dtype, transposed: bool) -> None:
    problem = data.draw(problems(16 // dtype.itemsize))
    views = dgrad_views(problem, k_contiguous(problem) if transposed else None)
    found = [view for view in views if view.k]
    assume(found)
    check_view_runs(data.draw(st.sampled_from(found)), dtype, data.draw(tiles(dtype)))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_filter_runs_along_what_is_contiguous(transposed: bool) -> None:
    problem = ConvProblem((2, 5, 6, 24), (40, 3, 3), padding=1)
    (view,) = dgrad_views(problem, k_contiguous(problem) if transposed else None)
    dtype = DTYPES[transposed]
    ran = check_view_runs(view, dtype, small_tile(int(transposed), dtype))
    assert ran.written.all()


def test_a_residue_that_no_tap_reaches_is_zeros() -> None:
    problem = ConvProblem((2, 9, 8), (16, 2), stride=3)
    views = dgrad_views(problem)
    empty = [view for view in views if not view.k]
    assert len(empty) == 1
    assert len(views) == 3
    for number, dtype in enumerate(DTYPES):
        ran = check_view_runs(empty[0], dtype, small_tile(number, dtype))
        assert not ran.out[ran.written].any()
        assert ran.written.sum() == 2 * 3 * 8
