"""Views of tensors in other memory: what they multiply, against the loop nest of every pass."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import E, Layout, SymInt
from layoutconv.algebra.symint import is_runtime
from layoutconv.conv import (
    ConvProblem,
    dgrad_views,
    fprop_view,
    interleaved,
    interleaved_filter,
    wgrad_view,
)
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.testing.problems import conv_problems
from layoutconv.view.gemm_view import stages
from layoutconv.view.vectors import vector_extent

from .loops import Passes, Places, ranges, sums, table


@st.composite
def memories(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout | None:
    """Any order of the modes, gaps between them, channels of a few digits; None: contiguous."""
    if draw(st.integers(0, 3)) == 0:
        return None
    digits, left = [], shape[-1]
    while left > 1 and draw(st.booleans()):
        digits.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= digits[-1]
    extents = [*shape[:-1], *digits, left]
    strides, length = [0] * len(extents), draw(st.integers(1, 2))
    for mode in draw(st.permutations(range(len(extents)))):
        strides[mode] = length
        length *= max(extents[mode], 1) + draw(st.integers(0, 1))
    last = len(shape) - 1
    if not digits:
        return Layout(shape, tuple(strides))
    nested = tuple(extents[last:]), tuple(strides[last:])
    letters = SymInt(extents[0], "N")  # plain extents are not 0
    return Layout((letters, *shape[1:-1], nested[0]), (*strides[:last], nested[1]))


@settings(max_examples=60, deadline=None)
@given(problem=conv_problems(), data=st.data())
def test_views_in_any_memory_are_the_loop_nest(problem, data):
    """Channels of 1, 2, 4 and 8, whose digits always divide one another."""
    C, K, groups = (data.draw(st.sampled_from([1, 2, 4])) for _ in "CKG")
    problem = ConvProblem(
        (problem.N, *problem.spatial, C * groups),
        (K * groups, *problem.taps),
        problem.stride,
        problem.padding,
        problem.dilation,
        groups,
    )
    shapes = problem.activation, problem.stored_filter, problem.output
    if not problem.N:
        shapes = tuple((SymInt(0, "N"), *s[1:]) if s[0] == 0 else s for s in shapes)
    x, w, y = (data.draw(memories(shape)) for shape in shapes)
    expected = Passes.of(Places(problem, x, w, y))
    where = {"activation_layout": x, "filter_layout": w, "output_layout": y}
    fprop = fprop_view(problem, **where)
    assert sums(fprop) == expected.fprop
    assert sums(*dgrad_views(problem, **where)) == expected.dgrad
    assert sums(wgrad_view(problem, **where)) == expected.wgrad
    assert fprop.a.shape[1] == fprop.b.shape[1]


@settings(max_examples=30, deadline=None)
@given(problem=conv_problems(groups=2), images=st.integers(0, 3), data=st.data())
def test_a_batch_that_is_gathered(problem, images, data):
    entries = st.lists(st.integers(-1, images - 1), min_size=problem.N, max_size=problem.N)
    index = torch.tensor(data.draw(entries), dtype=torch.int32)
    view = fprop_view(problem, batch_index=index, images=images)
    dense = fprop_view(problem)
    assert (view.b, view.d) == (dense.b, dense.d)
    cells = prod(problem.activation[1:])
    for l in range(view.l if problem.N else 0):
        read = table(view.a, view.m, view.k, l)
        for m, row in enumerate(table(dense.a, view.m, view.k, l)):
            for k, at in enumerate(row):
                image = int(index[at // cells]) if at >= 0 else -1
                assert read[m][k] == (image * cells + at % cells if image >= 0 else -1)


@pytest.mark.parametrize("width", [4, 32])
@pytest.mark.parametrize("cells", [(3,), (3, 5), (2, 3, 5)])
def test_interleaved_memory_is_that_of_the_permuted_tensor(width, cells):
    """NC/xHWx and C/xRSKx, element by element."""
    N, C = 2, 2 * width
    x = torch.arange(N * prod(cells) * C).view(N, C // width, *cells, width)
    w = torch.arange(N * prod(cells) * C).view(C // width, *cells, N, width)
    layout, stored = interleaved((N, *cells, C), width), interleaved_filter((N, *cells, C), width)
    for n, *cell, c in ranges(N, *cells, C):
        assert layout(n, *cell, c) == x[(n, c // width, *cell, c % width)]
        assert stored(n, *cell, c) == w[(c // width, *cell, n, c % width)]
    assert x.movedim(1, -1).stride() == (*layout.stride[:-1], *layout.stride[-1])
    assert w.movedim((0, -2), (-1, 0)).stride() == (*stored.stride[:-1], *stored.stride[-1])


def test_vectors_of_interleaved_memory():
    problem = ConvProblem((2, 8, 8, 128), (64, 3, 3), padding=1)
    where = {
        "activation_layout": interleaved(problem.activation, 32),
        "filter_layout": interleaved_filter(problem.stored_filter, 32),
        "output_layout": interleaved(problem.output, 32),
    }
    fprop, wgrad = fprop_view(problem, **where), wgrad_view(problem, **where)
    [dgrad] = dgrad_views(problem, **where)
    assert [vector_extent(o, 1) for o in (fprop.a, fprop.b, fprop.d, dgrad.a, dgrad.d)] == [32] * 5
    assert [vector_extent(o, 0) for o in (wgrad.a, wgrad.b)] == [32] * 2


def test_strides_are_arguments_of_a_kernel_but_for_the_unit():
    problem = ConvProblem((2, 8, 8, 64), (32, 3, 3))
    where = {
        "activation_layout": interleaved(problem.activation, 32),
        "filter_layout": interleaved_filter(problem.stored_filter, 32),
        "output_layout": Layout(problem.output, (10_000, 1000, 100, 1)),
    }
    view = fprop_view(problem, **where)
    a, b, d = (stages(operand)[-1].layout for operand in (view.a, view.b, view.d))
    assert str(a) == "(N,H,W,32,2):(xN,xH,xW,1,xC1)"
    assert str(d) == "(N,P,Q,K):(yN,yP,yQ,1)"
    assert not any(map(is_runtime, (*b.shape, *b.stride)))
    mine = Layout(problem.output, (SymInt(10_000, "image"), 1000, 100, SymInt(1, "one", False)))
    stored = stages(fprop_view(ConvProblem((2, 8, 8, 7), (32, 3, 3)), output_layout=mine).d)[-1]
    assert str(stored.layout) == "(N,P,Q,K):(image,yP,yQ,one)"


PROBLEM = ConvProblem((2, 8, 6), (4, 3))


@pytest.mark.parametrize("views", [fprop_view, dgrad_views, wgrad_view])
@pytest.mark.parametrize(
    ("argument", "layout", "error", "message"),
    [
        ("activation_layout", Layout((2, 8, 4)), ArgumentError, "(N, *spatial, C) = (2, 8, 6)"),
        ("activation_layout", Layout((2, 8)), ArgumentError, "(N, *spatial, C) = (2, 8, 6)"),
        (
            "activation_layout",
            Layout((2, (4, 2), 6)),
            ArgumentError,
            "only the last mode may be nested",
        ),
        ("filter_layout", Layout((4, 3, 5)), ArgumentError, "the shape (K, *taps, C) = (4, 3, 6)"),
        ("output_layout", Layout((2, 8, 4)), ArgumentError, "(N, *voxels, K) = (2, 6, 4)"),
        ("output_layout", (2, 6, 4), ArgumentTypeError, "expected a Layout, got tuple"),
        (
            "output_layout",
            Layout((2, 6, 4), (E(0), E(1), E(2))),
            ArgumentTypeError,
            "a layout with integer strides",
        ),
    ],
)
def test_layouts_of_another_shape(views, argument, layout, error, message):
    with pytest.raises(error) as caught:
        views(PROBLEM, **{argument: layout})
    assert f"`{argument}`" in str(caught.value)
    assert message in str(caught.value)


def test_digits_that_do_not_divide_one_another():
    x = Layout((2, 8, (2, 3)), (48, 6, (1, 2)))
    w = Layout((4, 3, (3, 2)), (18, 6, (1, 3)))
    with pytest.raises(
        ArgumentError, match=r"`activation_layout`: .* divide one another, not 2 and 3"
    ):
        fprop_view(PROBLEM, activation_layout=x, filter_layout=w)
    wgrad_view(PROBLEM, activation_layout=x, filter_layout=w)  # where they need not meet
    with pytest.raises(ArgumentError, match="divide one another, not 2 and 3"):
        fprop_view(ConvProblem((2, 8, 6), (4, 3), groups=2), activation_layout=x)


def test_errors_of_a_gathered_batch():
    index = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ArgumentError, match="`batch_index`: expected N = 2 entries"):
        fprop_view(PROBLEM, batch_index=index[:1])
    with pytest.raises(ArgumentTypeError, match=r"`batch_index`: expected .* int32, got torch"):
        fprop_view(PROBLEM, batch_index=index.long())
    with pytest.raises(ArgumentError, match="`images`: expected a number of rows >= 0, got -1"):
        fprop_view(PROBLEM, batch_index=index, images=-1)
    with pytest.raises(ArgumentError, match="`images`: expected None without a batch_index, got 3"):
        fprop_view(PROBLEM, images=3)
    stored = Layout((3, 8, 6))
    fprop_view(PROBLEM, batch_index=index, images=3, activation_layout=stored)
    with pytest.raises(ArgumentError, match=r"`activation_layout`: .* \(2, 8, 6\)"):
        fprop_view(PROBLEM, batch_index=index, activation_layout=stored)


@pytest.mark.parametrize("constructor", [interleaved, interleaved_filter])
def test_channels_that_are_not_whole_pieces(constructor):
    with pytest.raises(ArgumentError, match=r"`shape`: expected a multiple of 32 .* 48"):
        constructor((2, 8, 48), 32)


@pytest.mark.parametrize("make", [interleaved, interleaved_filter])
@pytest.mark.parametrize(
    ("shape", "width", "message"),
    [
        (None, 2, "`shape`: expected two or more extents, the channels last, got None"),
        ("(4, 8)", 2, "`shape`: expected two or more extents"),
        ((8,), 2, "`shape`: expected two or more extents"),
        ((2, "a"), 2, "`shape`: expected integers"),
        ([[1, 2], [3]], 2, "`shape`: expected integers"),
        ((4, 4.0), 2, "`shape`: expected integers"),
        ((4, 6), 4, "`shape`: expected a multiple of 4 channels in the last mode, got 6"),
        ((4, 6), 0, "`width`: expected an int >= 1, got 0"),
        ((4, 6), "2", "`width`: expected integers"),
    ],
)
def test_what_is_not_interleaved(make, shape, width, message):
    with pytest.raises(ArgumentError, match=message):
        make(shape, width)
