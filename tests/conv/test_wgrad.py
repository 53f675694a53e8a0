"""The view of the filter's gradient: what it multiplies, against the forward loop nest."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from layoutconv.conv import wgrad_view

from .loops import flat, meetings, problems, ranges, sums


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_wgrad_view_is_the_loop_nest(problem):
    shape = (problem.K, *problem.taps, problem.C)
    expected = {flat(at, shape): Counter() for at in ranges(*shape)}
    for voxel, tap, cell in meetings(problem):
        for k, c in ranges(problem.K, problem.C):
            pair = flat((*voxel, k), problem.output), flat((*cell, c), problem.activation)
            expected[flat((k, *tap, c), shape)][pair] += 1
    assert sums(wgrad_view(problem)) == expected
