"""Stride folding: the forward pass multiplies what the loop nest does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem
from layoutconv.conv.stride_folding import folded_fprop_view, folded_taps, folds
from layoutconv.errors import ArgumentError
from layoutconv.planning.halo_reuse import halo_rows_per_tap, widened
from layoutconv.testing.problems import conv_problems

from .loops import Passes, Places, sums


@st.composite
def folding(draw: st.DrawFn) -> ConvProblem:
    """Problems whose last mode has a stride, of which it is a multiple; taps of any number."""
    found = draw(conv_problems())
    stride, taps = draw(st.integers(2, 4)), draw(st.integers(1, 7))
    cells = stride * draw(st.integers(-(-taps // stride), 4))
    return ConvProblem(
        (*found.activation[:-2], cells, found.C),
        (*found.filter[:-1], taps),
        (*found.stride[:-1], stride),
        found.padding,
        (*found.dilation[:-1], 1),
    )


@settings(max_examples=100, deadline=None)
@given(problem=folding())
def test_folded_lines_are_the_loop_nest(problem):
    view, want = folded_fprop_view(problem), Passes.of(Places(problem)).fprop
    assert sums(view) == want
    wide = widened(view)
    _, taps = folded_taps(problem)
    assert (wide is None) == (taps < 2)
    if wide is not None:  # rows between lines are written nowhere
        assert halo_rows_per_tap(wide) == 1
        assert sums(wide) == want


@settings(max_examples=60, deadline=None)
@given(problem=folding())
def test_every_tap_is_one_of_a_folded_cell(problem):
    """And the first and the last cell of a window have some."""
    (stride, near), taps = (problem.stride[-1], problem.padding[-1][0]), range(problem.taps[-1])
    first, count = folded_taps(problem)
    assert {(tap - near) // stride for tap in taps} == set(range(first, first + count))


def test_what_does_not_fold():
    problem = ConvProblem((1, 6, 8, 4), (8, 3, 3), stride=2)
    for changes in (
        {"stride": (2, 1)},
        {"dilation": (1, 2)},
        {"activation": (1, 6, 9, 4)},
        {"groups": 2},
    ):
        other = {name: getattr(problem, name) for name in ("activation", "filter", "padding")}
        numbers = {"stride": problem.stride, **other, **changes}
        refused = ConvProblem(**numbers)
        assert not folds(refused)
        with pytest.raises(ArgumentError, match="`problem`: expected a stride > 1 along W"):
            folded_fprop_view(refused)
    assert folds(problem)
