"""ConvProblem: output extents count window positions; bad numbers are named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.conv import (
    ConvProblem,
    depthwise_dgrad_views,
    depthwise_fprop_view,
    depthwise_wgrad_view,
    dgrad_views,
    fprop_view,
    wgrad_view,
)
from layoutconv.errors import ArgumentError, ArgumentTypeError


@settings(max_examples=100, deadline=None)
@given(
    extent=st.integers(1, 9),
    taps=st.integers(1, 4),
    stride=st.integers(1, 5),
    near=st.integers(0, 6),
    far=st.integers(0, 6),
    dilation=st.integers(1, 3),
)
def test_output_extent_counts_the_windows(extent, taps, stride, near, far, dilation):
    first, last = -near, extent + far - 1
    starts = [s for s in range(first, last + 1, stride) if s + dilation * (taps - 1) <= last]

    def problem() -> ConvProblem:
        return ConvProblem((1, extent, 3), (5, taps), stride, ((near, far),), dilation)

    if starts:
        assert problem().output == (1, len(starts), 5)
    else:
        with pytest.raises(ArgumentError, match="argument `filter`: expected a filter that fits"):
            problem()


def test_spellings_of_one_problem_are_equal():
    short = ConvProblem((2, 8, 9, 4), (6, 3, 3), 2, 1, 1)
    long = ConvProblem([2, 8, 9, 4], [6, 3, 3], (2, 2), [(1, 1), 1], [1, 1])
    assert short == long
    assert hash(short) == hash(long)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": (1, 4)}, "argument `activation`: expected (N, *spatial, C) with 1, 2 or"),
        ({"activation": (1,) * 6}, "argument `activation`: expected (N, *spatial, C) with 1, 2"),
        ({"activation": None}, "argument `activation`: expected integers, got None"),
        ({"filter": "233"}, "argument `filter`: expected integers, got '233'"),
        ({"activation": (-1, 4, 4, 2)}, "argument `activation`: expected N >= 0, got -1"),
        ({"activation": (1, 4, 0, 2)}, "argument `activation`: expected every extent >= 1, got 0"),
        ({"activation": (1, 4, 4, 0)}, "argument `activation`: expected every extent >= 1, got 0"),
        ({"filter": (2, 3)}, "argument `filter`: expected (K, *taps) with 2 taps"),
        ({"filter": (0, 3, 3)}, "argument `filter`: expected every extent >= 1, got 0"),
        ({"filter": (2, 3, 5)}, "spatial mode 1, got one that spans 5"),
        ({"stride": 0}, "argument `stride`: expected every entry >= 1, got 0"),
        ({"stride": (1, 1, 1)}, "argument `stride`: expected an int, or 2 ints"),
        ({"stride": 1.5}, "argument `stride`: expected integers, got 1.5"),
        ({"padding": -1}, "argument `padding`: expected every side >= 0, got -1"),
        ({"padding": (1, (1, 2, 3))}, "argument `padding`: expected a pair (near, far)"),
        ({"padding": "same"}, "argument `padding`: expected integers, got 'same'"),
        ({"dilation": (0, 1)}, "argument `dilation`: expected every entry >= 1, got 0"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    good = {"activation": (1, 4, 4, 2), "filter": (2, 3, 3)}
    with pytest.raises(ArgumentError) as error:
        ConvProblem(**{**good, **arguments})
    assert message in str(error.value)


@pytest.mark.parametrize("extents", [np.array(3), torch.tensor(3)])
@pytest.mark.parametrize("argument", ["activation", "filter"])
def test_a_number_that_is_an_array_is_no_shape(argument, extents):
    good = {"activation": (1, 4, 4, 2), "filter": (2, 3, 3)}
    with pytest.raises(ArgumentTypeError, match=f"`{argument}`: expected integers, got "):
        ConvProblem(**{**good, argument: extents})


@pytest.mark.parametrize(
    "make",
    [
        *(fprop_view, dgrad_views, wgrad_view),
        *(depthwise_fprop_view, depthwise_dgrad_views, depthwise_wgrad_view),
    ],
)
@pytest.mark.parametrize("problem", [None, (1, 8, 8, 3), [1, 8, 8, 3], "(1, 8, 8, 3)"])
def test_views_are_of_problems_alone(make, problem):
    with pytest.raises(ArgumentTypeError, match="`problem`: expected a ConvProblem, got"):
        make(problem)
