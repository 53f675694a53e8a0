"""A view that cannot be run is refused where it is made, with the operand that is at fault."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv import ComposedLayout, E, GemmView, Layout, Swizzle
from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.view.gemm_view import inside, locate, stages, through_coordinates

SQUARE = Layout((4, 4), (4, 1))
BATCH = Layout((4, 4, 3), (4, 1, 16))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        (("(4,4):(4,1)", SQUARE, SQUARE), r"`a`: expected a Layout, .* got str: \(4,4\)"),
        ((SQUARE, Swizzle(3, 3, 3), SQUARE), r"`b`: expected a Layout, .* got Swizzle"),
        ((SQUARE, SQUARE, ComposedLayout(Swizzle(1, 0, 1), 0, SQUARE)), "`d`: .* got Swizzle"),
        ((SQUARE, None, SQUARE), "`b`: expected a Layout, .* got NoneType"),
        ((SQUARE, Layout((4, 3)), SQUARE), "`b`: expected 4 columns, as a has, got 3"),
        ((SQUARE, SQUARE, Layout((4, 5))), "`d`: expected 4 x 4, the rows of a and b, got 4 x 5"),
        ((BATCH, BATCH[:2], BATCH), r"`b`: expected 2 modes in each .* each, got 3, 2 and 3 modes"),
        (
            (Layout(4), Layout(4), Layout(4)),
            r"`a`: expected 2 modes in each of a, b and d, or 3 in each, got 1, 1 and 1 modes",
        ),
        ((BATCH, Layout((4, 4, 5)), BATCH), "`b`: expected 3 problems in mode 2, as a has, got 5"),
        ((BATCH, BATCH, Layout((4, 4, 5))), "`d`: expected 3 problems in mode 2, as a has, got 5"),
        ((SQUARE, SQUARE, Layout((4, 4), (0, 1))), r"`d`: .* a place .* \(0, 0\) and \(1, 0\)"),
        ((SQUARE, SQUARE, Layout((4, 4), (1, 3))), r"`d`: .* a place .* \(3, 0\) and \(0, 1\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_run(operands, message):
    with pytest.raises(lc.ArgumentError, match=message):
        GemmView(*operands)


extents = st.integers(1, 4)


@given(st.tuples(extents, extents), st.tuples(st.integers(0, 5), st.integers(-4, 5)))
def test_results_have_places_of_their_own_or_the_view_is_refused(shape, stride):
    m, n = shape
    places = [i * stride[0] + j * stride[1] for i in range(m) for j in range(n)]
    a, b, d = Layout((m, 2)), Layout((n, 2)), Layout(shape, stride)
    if len(set(places)) == len(places):
        assert GemmView(a, b, d).d is d
    else:
        with pytest.raises(lc.ArgumentError, match="`d`: expected a place"):
            GemmView(a, b, d)


@pytest.mark.parametrize("a", [SQUARE, Layout(((2, 2), (2, 2)), ((8, 1), (4, 2)))], ids=str)
def test_a_plain_layout_is_its_memory_behind_coordinates(a):
    view = GemmView(a, SQUARE, SQUARE)
    made = through_coordinates(view)
    for one, other in ((view.a, made.a), (view.b, made.b), (view.d, made.d)):
        assert isinstance(other, ComposedLayout)
        assert other.shape == one.shape
        every = [(i, j) for i in range(4) for j in range(4)]
        assert [locate(other, *c) for c in every] == [locate(one, *c) for c in every]
    assert through_coordinates(made) is made


def test_a_view_keeps_what_was_derived_and_a_copy_has_none_of_it() -> None:
    """Nothing but its fields is written to a view, and what is kept does not tell it apart."""
    view = dgrad_views(ConvProblem((1, 4, 4, 8), (8, 3, 3), padding=1))[0]
    view = dataclasses.replace(view)  # no cache holds it
    fresh = dataclasses.replace(view)
    y, w = torch.ones(1, 4, 4, 8), torch.ones(8, 3, 3, 8)
    found = lc.execute(view, y, w)
    assert k_major_view(view) is k_major_view(view)
    assert set(view.kept) == {"expected", "tables", "k_major"}
    fields = {field.name for field in dataclasses.fields(GemmView)}
    assert set(vars(view)) - {"m", "n", "k", "l"} == fields
    assert (view, hash(view), repr(view)) == (fresh, hash(fresh), repr(fresh))
    for other in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert other == view
        assert other.kept == {}
        assert torch.equal(lc.execute(other, y, w), found)


def test_a_plain_product_is_one_on_a_cpu():
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    view = GemmView(Layout((4, 6), (6, 1)), Layout((5, 6), (6, 1)), Layout((4, 5), (5, 1)))
    torch.testing.assert_close(lc.execute(view, x, w), x @ w.T)
    mapped = ComposedLayout(Layout((4, 6), (6, 1)), 0, Layout((4, 6), (E(0), E(1))))
    assert torch.equal(lc.execute(GemmView(mapped, view.b, view.d), x, w), lc.execute(view, x, w))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stages(None), "`layout`: expected a Layout or a ComposedLayout .* got NoneType"),
        (lambda: locate("(4,4):(4,1)", 0, 0), "`layout`: expected a Layout .* got str"),
        (lambda: locate(SQUARE, 1, 2, 3), r"`crd`: .* of the shape \(4,4\), got \(1, 2, 3\)"),
        (lambda: locate(SQUARE, (1, 2), 3), r"`crd`: .* of the shape 4, got \(1, 2\)"),
        (lambda: locate(SQUARE, None, 1), "`crd`: expected integers, or integer arrays, got None"),
        (lambda: inside((0, "x"), (4, 4)), "`crd`: expected integers, or integer arrays, got 'x'"),
        (lambda: inside((1, 2), 4), r"`crd`: expected a coordinate of the shape 4, got \(1, 2\)"),
    ],
)
def test_coordinates_that_are_none_are_named(call, message):
    with pytest.raises(lc.ArgumentError, match=message):
        call()
