"""Groups, and depthwise views: what they multiply, against the loop nest of every pass."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv import conv
from layoutconv.conv import ConvProblem
from layoutconv.errors import ArgumentError
from layoutconv.testing.problems import conv_problems
from layoutconv.view.vectors import vector_extent

from .loops import Passes, Places, sums


@settings(max_examples=30, deadline=None)
@given(problem=conv_problems(groups=3))
def test_grouped_views_are_the_loop_nest(problem):
    expected = Passes.of(Places(problem))
    fprop, wgrad = conv.fprop_view(problem), conv.wgrad_view(problem)
    dgrad = conv.dgrad_views(problem)
    assert {view.l for view in (fprop, *dgrad, wgrad)} == {problem.groups}
    assert sums(fprop) == expected.fprop
    assert sums(*dgrad) == expected.dgrad
    assert sums(wgrad) == expected.wgrad


@st.composite
def depthwise_problems(draw: st.DrawFn) -> ConvProblem:
    p, C = draw(conv_problems()), draw(st.integers(1, 3))
    K = C * draw(st.integers(1, 2))
    return ConvProblem(
        (*p.activation[:-1], C), (K, *p.taps), p.stride, p.padding, p.dilation, groups=C
    )


@settings(max_examples=40, deadline=None)
@given(problem=depthwise_problems())
def test_depthwise_views_are_the_loop_nest(problem):
    expected = Passes.of(Places(problem))
    fprop, wgrad = conv.depthwise_fprop_view(problem), conv.depthwise_wgrad_view(problem)
    dgrad = conv.depthwise_dgrad_views(problem)
    assert sums(fprop) == expected.fprop
    assert sums(*dgrad) == expected.dgrad
    assert sums(wgrad) == expected.wgrad
    views = (fprop, *dgrad, wgrad)
    assert {(view.m, view.n) for view in views} == {(1, 1)}


def test_depthwise_problems_run_along_the_channels():
    problem = ConvProblem((2, 9, 9, 24), (24, 3, 3), 2, 1, groups=24)
    [fprop, wgrad] = conv.depthwise_fprop_view(problem), conv.depthwise_wgrad_view(problem)
    reading = [fprop.a, fprop.d, wgrad.a, wgrad.b]
    reading += [o for view in conv.depthwise_dgrad_views(problem) for o in (view.a, view.d)]
    assert [vector_extent(operand, 2) for operand in reading] == [24] * len(reading)


def test_transposed_groups():
    problem = ConvProblem.transposed((1, 4, 6), (2, 3), 2, 1, groups=3)
    assert (problem.C, problem.K, problem.groups) == (6, 6, 3)
    assert problem.stored_filter == (6, 3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 3}, "argument `groups`: expected a divisor of C = 4 and of K = 6, got 3"),
        ({"groups": 4}, "argument `groups`: expected a divisor of C = 4 and of K = 6, got 4"),
        ({"groups": 0}, "argument `groups`: expected a number of groups >= 1, got 0"),
        ({"groups": 1.0}, "argument `groups`: expected integers, got 1.0"),
    ],
)
def test_groups_that_do_not_divide_the_channels(arguments, message):
    with pytest.raises(ArgumentError) as error:
        ConvProblem((1, 5, 4), (6, 3), **arguments)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "views", [conv.depthwise_fprop_view, conv.depthwise_dgrad_views, conv.depthwise_wgrad_view]
)
def test_a_problem_that_is_not_depthwise(views):
    with pytest.raises(ArgumentError, match=r"`problem`: expected one of groups = C = 4, .* = 2"):
        views(ConvProblem((1, 5, 4), (6, 3), groups=2))
