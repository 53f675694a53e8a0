"""CuTe's vocabulary: entries of tuples and modes of layouts, arithmetic of shapes, permutations."""

from __future__ import annotations

import itertools
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import (
    Layout,
    LayoutError,
    common_coarsening,
    common_refinement,
    compatible,
    composition,
    greatest_common_domain,
    size,
)
from layoutconv.testing.oracle import table
from layoutconv.testing.strategies import layouts

SHAPES = st.recursive(st.integers(1, 4), lambda t: st.lists(t, min_size=1, max_size=2).map(tuple))


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), max_size=4), st.lists(st.integers(1, 12), max_size=4))
def test_greatest_common_domain(a, b):
    a, b = tuple(a), tuple(b)
    found = greatest_common_domain(a, b)
    assert found == greatest_common_domain(b, a)
    assert not any(gcd(Layout(a).size(), Layout(b).size()) % s for s in [found.size()])
    for shape in (a, b):  # any layout of either shape is one on it
        odd = Layout(shape, tuple(7**i + i for i in range(len(shape))))
        whole = composition(odd, found)
        assert [whole(i) for i in range(found.size())] == [
            odd(found(i)) for i in range(found.size())
        ]


def test_refinements():
    assert common_refinement((4, 6), ((2, 2), 6)) == ((2, 2), 6)
    for a, b in (((6, 5), (2, 15)), ((2, (3, 5)), ((3, 2), 5))):
        with pytest.raises(LayoutError, match="no shape has the coordinates of both"):
            common_refinement(a, b)
        assert common_coarsening(a, b) == 30
    with pytest.raises(LayoutError, match="sizes differ"):
        common_coarsening(7, (2, 3))


@settings(deadline=None)
@given(layouts(max_rank=3), layouts(max_rank=3))
def test_refinement_and_coarsening_are_join_and_meet(x, y):
    a, b = x.shape, y.shape
    if size(a) == size(b):
        meet = common_coarsening(a, b)
        assert compatible(meet, a)
        assert compatible(meet, b)
    try:
        join = common_refinement(a, b)
    except LayoutError:
        assert not compatible(a, b)
        assert not compatible(b, a)
    else:
        assert compatible(a, join)
        assert compatible(b, join)


@settings(deadline=None)
@given(layouts(max_rank=3))
def test_modes_taken_apart_and_joined_are_the_layout(x):
    modes = [lc.get(x, i) for i in range(lc.rank(x))] if isinstance(x.shape, tuple) else [x]
    assert lc.concat(*map(lc.wrap, modes)) == lc.wrap(x) or isinstance(x.shape, tuple)
    again = lc.make_layout([])
    for mode in modes:
        again = lc.append(again, mode)
    assert again == lc.wrap(x) == lc.take(lc.wrap(x), 0, len(modes))
    assert lc.select(again, range(len(modes))[::-1]) == lc.make_layout(modes[::-1])
    assert lc.unflatten(lc.flatten(lc.wrap(x)), lc.wrap(x).shape) == lc.wrap(x)
    assert lc.product_each(again) == tuple(mode.size() for mode in modes)
    for i, mode in enumerate(modes):
        assert lc.replace(again, i, mode) == again
        assert lc.size(again, mode=[i]) == mode.size()
        assert lc.cosize(again, mode=i) == mode.cosize()
        assert (lc.shape(again, i), lc.stride(again, i)) == (mode.shape, mode.stride)
        assert lc.rank(again, i) == mode.rank
        assert lc.depth(again, i) == mode.depth


def test_modes_of_composed_layouts_and_tensors_are_those_of_their_domain():
    swizzled = lc.composition(lc.Swizzle(3, 3, 3), Layout((8, 64), (64, 1)))
    assert str(lc.select(swizzled, [1, 0])) == "S<3,3,3> o 0 o (64,8):(1,64)"
    assert str(lc.append(swizzled, Layout(3, 512))) == "S<3,3,3> o 0 o (8,64,3):(64,1,512)"
    tensor = lc.make_identity_tensor((4, 8))
    assert lc.select(tensor, [1])[5] == (0, 5)
    assert lc.get(tensor, 0)[3] == (3,)
    with pytest.raises(LayoutError, match="has no entry 2"):
        lc.get(tensor, 2)


@settings(deadline=None)
@given(SHAPES)
def test_orders_are_those_of_the_strides(shape):
    right, left = lc.make_layout(shape, lc.LayoutRight), lc.make_layout(shape, lc.LayoutLeft)
    assert left == Layout(shape)
    assert lc.is_bijective(right)
    assert lc.prefix_product(shape) == left.stride
    assert lc.suffix_product(shape) == right.stride
    crds = list(lc.coordinates(shape))
    assert [left(c) for c in crds] == list(range(size(shape)))
    for i, c in enumerate(crds):
        assert lc.increment(c, shape) == lc.idx2crd(i + 1, shape)
        assert right.get_hier_coord(right(c)) == c
        assert right.get_1d_coord(right(c)) == left(right.get_flat_coord(right(c))) == i
        assert lc.inner_product(c, right.stride) == right(c)
        assert lc.elem_less(c, shape)
    assert all(lc.colex_less(c, d) for c, d in itertools.pairwise(crds))
    by_right = sorted(crds, key=right)
    assert all(lc.lex_less(c, d) for c, d in itertools.pairwise(by_right))


@settings(deadline=None)
@given(SHAPES, st.integers(1, 64))
def test_division_of_shapes(shape, n):
    assert lc.ceil_div(shape, n) == -(-size(shape) // n) or isinstance(shape, tuple)
    try:
        rest = lc.shape_div(shape, n)
    except LayoutError:
        return
    assert size(rest) == max(1, size(shape) // n) or n > size(shape)
    assert lc.congruent(rest, shape)
    if size(shape) % n == 0:
        assert size(rest) * n == size(shape)


@settings(deadline=None)
@given(layouts(max_rank=3))
def test_the_image_is_the_set_of_offsets(x):
    values = table(x)
    assert lc.image(x) == sorted(set(values))
    assert {o: len(c) for o, c in lc.offset_table(x).items()} == {
        v: values.count(v) for v in values
    }
    found = lc.footprint(x)
    assert (found.first, found.last) == (min(values), max(values))
    assert found.holes == len(set(range(min(values), max(values))) - set(values))
    assert lc.is_contiguous(x) == (len(set(values)) == len(values) == found.span)
    assert lc.is_bijective(x) == (sorted(values) == list(range(len(values))))
    assert lc.functionally_equal(x, lc.coalesce(x))
    zeros = lc.filter_zeros(x)
    assert (lc.image(zeros), zeros.stride) == (lc.image(x), x.stride)
    if not lc.is_bijective(x):
        with pytest.raises(LayoutError, match="does not permute"):
            lc.cycles(x)


@settings(deadline=None)
@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_permutations_return(order, shape):
    x = lc.make_ordered_layout(tuple(shape), tuple(order))
    assert sorted(i for cycle in lc.cycles(x) for i in cycle) == list(range(x.size()))
    power = list(range(x.size()))
    for _ in range(lc.permutation_order(x)):
        power = [x(i) for i in power]
    assert power == list(range(x.size()))
    inversions = sum(x(i) > x(j) for j in range(x.size()) for i in range(j))
    assert lc.permutation_parity(x) == inversions % 2
    assert lc.fixed_points(x) == [c[0] for c in lc.cycles(x) if len(c) == 1]


def test_make_layout_takes_what_cute_takes():
    assert lc.make_layout((4, 8), (8, 1)) == Layout((4, 8), (8, 1))
    assert lc.make_layout((4, 8)) == Layout((4, 8))
    assert lc.make_layout(Layout(4, 1), Layout(3, 4)) == Layout((4, 3), (1, 4))
    assert lc.make_layout((Layout(4, 1), Layout(3, 4))) == Layout((4, 3), (1, 4))
    for wrong in (((4, 8), (8, 1), (1, 1)), ((4, 8), Layout(4))):
        with pytest.raises(LayoutError, match="expected a shape and a stride, or layouts"):
            lc.make_layout(*wrong)
