"""The view of the filter's gradient: what it multiplies, against the forward loop nest."""

from __future__ import annotations

from hypothesis import given, settings

from layoutconv.conv import wgrad_view
from layoutconv.testing.problems import conv_problems

from .loops import Passes, Places, sums


@settings(max_examples=40, deadline=None)
@given(problem=conv_problems())
def test_wgrad_view_is_the_loop_nest(problem):
    assert sums(wgrad_view(problem)) == Passes.of(Places(problem)).wgrad
