"""Views of the activation's gradient: what they multiply, against the forward loop nest."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import Layout, make_ordered_layout
from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.conv.stride_phases import reached_residues
from layoutconv.errors import ArgumentError
from layoutconv.planning.structural_zeros import leaves_bounds
from layoutconv.testing.problems import conv_problems

from .loops import Passes, Places, ranges, sums


@settings(max_examples=40, deadline=None)
@given(problem=conv_problems(), data=st.data())
def test_dgrad_views_are_the_loop_nest(problem, data):
    shape = (problem.K, *problem.taps, problem.C)
    order = data.draw(st.permutations(range(len(shape))), "order of the filter's modes")
    stored = data.draw(st.sampled_from([None, make_ordered_layout(shape, tuple(order))]))
    expected = Passes.of(Places(problem, filter=stored)).dgrad
    assert sums(*dgrad_views(problem, stored)) == expected


@settings(max_examples=40, deadline=None)
@given(problem=conv_problems())
def test_no_product_is_formed_between_voxels(problem):
    """As many (cell, tap) as are a whole number of strides apart: padding alone reads zero."""
    reached = sum(
        all(
            (c + near - t * d) % s == 0
            for c, (near, _), t, d, s in zip(
                cell, problem.padding, tap, problem.dilation, problem.stride, strict=True
            )
        )
        for cell in ranges(*problem.spatial)
        for tap in ranges(*problem.taps)
    )
    formed = sum(view.m * view.k for view in dgrad_views(problem))
    assert formed == problem.N * problem.K * reached


@settings(max_examples=60, deadline=None)
@given(problem=conv_problems(), data=st.data())
def test_residues_side_by_side_are_the_loop_nest(problem, data):
    modes = [i for i, dilation in enumerate(problem.dilation) if dilation == 1]
    chosen = tuple(mode for mode in modes if data.draw(st.booleans(), f"mode {mode}"))
    views = dgrad_views(problem, side_by_side=chosen)
    assert sums(*views) == Passes.of(Places(problem)).dgrad
    count, ways = 0, 1
    for mode, extent in enumerate(problem.spatial):  # views without taps have whole modes behind
        reached = 1 if mode in chosen else len(reached_residues(problem, mode))
        residues = 1 if mode in chosen else min(problem.stride[mode], extent)
        behind = all(problem.spatial[mode + 1 :])
        count, ways = count + ways * (residues - reached) * behind, ways * reached
    assert len(views) == count + ways


@settings(max_examples=60, deadline=None)
@given(problem=conv_problems(), data=st.data())
def test_residues_that_are_alike_are_the_loop_nest(problem, data):
    modes = [i for i, dilation in enumerate(problem.dilation) if dilation == 1]
    chosen = tuple(mode for mode in modes if data.draw(st.booleans(), f"mode {mode}"))
    empty = data.draw(st.booleans(), "empty")
    views = dgrad_views(problem, alike=chosen, empty=empty)
    expected = Passes.of(Places(problem)).dgrad
    if empty:
        assert sums(*views) == expected
    apart = [min(problem.stride[i], problem.spatial[i]) for i in range(problem.rank)]
    assert len(views) <= prod(2 if i in chosen else n for i, n in enumerate(apart))
    assert not any(leaves_bounds(view) for view in views if view.k)  # no tap is missing


@pytest.mark.parametrize("near", [0, 1])
def test_a_mode_beside_residues_of_another(near):
    """D is folded along one mode; along the other a residue begins at a cell of its own."""
    problem = ConvProblem((1, 3, 6, 1), (2, 1, 4), 2, ((0, 0), (near, near)))
    assert sums(*dgrad_views(problem, alike=(1,))) == Passes.of(Places(problem)).dgrad


def test_residues_of_a_dilated_mode_are_not_side_by_side():
    problem = ConvProblem((1, 9, 9, 4), (8, 3, 3), stride=2, dilation=(1, 2))
    with pytest.raises(
        ArgumentError, match=r"`side_by_side`: .* from 0 to 1 with dilation 1, got \(1,\)"
    ):
        dgrad_views(problem, side_by_side=(1,))


def test_residues_without_taps_are_empty_sums():
    views = dgrad_views(ConvProblem((1, 7, 4), (8, 1), stride=3))
    assert [(view.m, view.k) for view in views] == [(3, 8), (2, 0), (2, 0)]


def test_a_filter_layout_of_another_shape():
    problem = ConvProblem((1, 7, 4), (8, 3))
    with pytest.raises(
        ArgumentError, match=r"`filter_layout`: expected the shape .* = \(8, 3, 4\)"
    ):
        dgrad_views(problem, Layout((4, 3, 8)))


@pytest.mark.parametrize("argument", ["side_by_side", "alike"])
def test_modes_are_given_in_any_sequence(argument):
    problem = ConvProblem((1, 6, 8, 2), (3, 2, 2), stride=2)
    expected = dgrad_views(problem, **{argument: (1,)})
    for modes in ([1], range(1, 2), {1}, 1, np.array([1])):
        assert dgrad_views(problem, **{argument: modes}) == expected


@pytest.mark.parametrize("argument", ["side_by_side", "alike"])
@pytest.mark.parametrize("modes", [None, "x", "", [2], (-1,), [0.5], [[0]], [True]])
def test_modes_that_there_are_not_are_named(argument, modes):
    problem = ConvProblem((1, 6, 8, 2), (3, 2, 2), stride=2)
    with pytest.raises(
        ArgumentError, match=f"`{argument}`: expected spatial modes from 0 to 1 with dilation 1"
    ):
        dgrad_views(problem, **{argument: modes})
