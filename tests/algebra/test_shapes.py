"""CuTe's vocabulary: entries of tuples and modes of layouts, arithmetic of shapes, permutations."""

from __future__ import annotations

import itertools
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import (
    F2,
    E,
    Layout,
    LayoutError,
    LayoutTypeError,
    common_coarsening,
    common_refinement,
    compatible,
    composition,
    greatest_common_domain,
    size,
)
from layoutconv.algebra.int_tuple import flatten
from layoutconv.testing.oracle import table
from layoutconv.testing.strategies import layouts

# Of at most 5 extents: some laws ask every coordinate.
SHAPES = st.recursive(
    st.integers(1, 4), lambda t: st.lists(t, min_size=1, max_size=2).map(tuple), max_leaves=5
)


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
    assert lc.get(tensor, 0)[3] == (3, 0)  # as in CuTe, whose iterator has both modes
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
    if isinstance(shape, tuple):  # coordinates that are added to are in the same order
        sums = [lc.ArithmeticTuple(c) for c in crds]
        assert sorted(sums, reverse=True) == sums[::-1]
        assert all(c < d and d > c and not d <= c for c, d in itertools.pairwise(sums))
        assert all(lc.idx2crd(c, shape) == d for c, d in zip(sums, crds, strict=True))
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
    assert lc.make_layout((4, 8), stride=(8, 1)) == Layout((4, 8), (8, 1))
    assert lc.make_layout((4, 8)) == Layout((4, 8))
    assert lc.make_layout(Layout(4, 1), Layout(3, 4)) == Layout((4, 3), (1, 4))
    assert lc.make_layout((Layout(4, 1), Layout(3, 4))) == Layout((4, 3), (1, 4))
    for wrong in (((4, 8), (8, 1), (1, 1)), ((4, 8), Layout(4))):
        with pytest.raises(LayoutError, match="expected a shape and a stride, or layouts"):
            lc.make_layout(*wrong)


@settings(deadline=None)
@given(SHAPES, layouts(max_rank=2, strides=(0, 1, 2, 3, 4, 6, 8), max_size=12))
def test_tiles_are_counted_as_the_divide_makes_them(shape, tile):
    """A layout counts as what it tiles, by itself or as a mode of a tuple."""
    try:
        rest = lc.zipped_divide(Layout(size(shape)), tile)[1]
    except LayoutError:
        assert not lc.evenly_divides(shape, tile)
        return
    assert lc.ceil_div(shape, tile) == lc.ceil_div(size(shape), tile) == rest.shape
    exact = size(tile) * size(rest) == size(shape)
    assert lc.evenly_divides(shape, tile) == exact
    assert lc.ceil_div((shape, 9, 7), (tile, 4)) == (rest.shape, 3, 7)
    assert lc.evenly_divides((shape, 9, 7), (tile, 3)) == exact
    assert not lc.evenly_divides((shape, 9), (tile, 4))
    assert lc.ceil_div(shape, str(tile)) == rest.shape


def test_an_integer_is_divided_as_a_shape_of_one_mode():
    assert lc.evenly_divides(16, (8,))
    for extent, tiler in ((12, (8,)), (16, (2, 8)), (16, ((2, 8),))):
        assert not lc.evenly_divides(extent, tiler)
    with pytest.raises(LayoutTypeError, match="argument `b`"):
        lc.round_up((9, 10), (Layout(4), 4))


@settings(deadline=None)
@given(SHAPES, st.integers(1, 48))
def test_a_distributed_domain_is_ordered_and_divides(shape, count):
    """C++: the result is ordered, and a tiler that every layout of the shape takes."""
    found = lc.domain_distribute(shape, count)
    values = table(found)
    assert values == sorted(set(values))
    assert count % found.size() == 0
    assert lc.size(lc.zipped_divide(Layout(shape), found)[1]) * found.size() == size(shape)
    left = count
    for extent in flatten(shape):  # as many as the leaves can give, first leaves first
        left //= gcd(extent, left)
    assert found.size() == count // left


@settings(deadline=None)
@given(layouts(max_rank=3), st.data())
def test_tiles_unzipped_are_those_of_the_divide(layout, data):
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    layout = lc.with_shape(layout, shape)
    tiler = tuple([data.draw(st.sampled_from(_divisors(size(mode)))) for mode in shape])
    try:
        divided = lc.logical_divide(layout, tiler)
    except LayoutError:
        return  # a mode of which the tiles are no layout
    assert lc.tile_unzip(divided, tiler) == lc.zipped_divide(layout, tiler)


def _divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


@settings(deadline=None)
@given(st.permutations([0, 1, 2]), st.tuples(*[st.integers(1, 4)] * 3), st.data())
def test_an_image_mask_has_a_bit_for_each_offset_of_a_mode(order, shape, data):
    cluster = lc.make_ordered_layout(shape, tuple(order))
    crd = tuple([data.draw(st.integers(0, extent - 1)) for extent in shape])
    for mode, extent in enumerate(shape):
        along = [cluster((*crd[:mode], i, *crd[mode + 1 :])) for i in range(extent)]
        assert lc.make_layout_image_mask(cluster, crd, mode) == sum(1 << rank for rank in along)
    for wrong in ((crd, 3), (crd[:2], 0), (crd, -1)):
        with pytest.raises(LayoutError, match="which has rank 3"):
            lc.make_layout_image_mask(cluster, *wrong)


@settings(deadline=None)
@given(layouts(max_rank=3), st.data())
def test_dice_keeps_what_slice_drops(layout, data):
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    layout = lc.with_shape(layout, shape)
    crd = tuple([data.draw(st.sampled_from([None, 0])) for _ in shape])
    kept, dropped = lc.slice_(crd, layout), lc.dice(crd, layout)
    closed = [i for i, c in enumerate(crd) if c is not None]
    assert dropped.shape == lc.dice(crd, shape) == tuple([shape[i] for i in closed])
    assert list(dropped) == [layout[i] for i in closed]
    assert list(kept) == [layout[i] for i, c in enumerate(crd) if c is None]
    swizzled = lc.ComposedLayout(lc.Swizzle(1, 0, 1), 0, layout)
    assert lc.dice(crd, swizzled).inner == dropped


def test_the_other_order_of_slice_and_dice_is_an_error():
    layout = Layout((4, 8), (8, 1))
    for cut in (lc.slice_, lc.dice):
        with pytest.raises(LayoutError, match="the coordinate comes first"):
            cut(layout, (None, 3))
    with pytest.raises(LayoutError, match="the coordinate comes first"):
        lc.dice((4, 5, 6), (None, 1, 1))


@settings(deadline=None)
@given(layouts(max_rank=3))
def test_registers_of_a_partition_are_compact(layout):
    """Every register once, and in the first mode none for what has stride 0."""
    found = lc.make_fragment_like(layout)
    values = table(found)
    assert found.shape == layout.shape
    assert sorted(set(values)) == list(range(len(set(values))))
    if layout.rank > 1 and isinstance(layout.shape, tuple):
        repeated = [d == 0 for d in flatten(layout.stride[0])]
        extents = flatten(layout.shape[0])
        copies = 1
        for extent, zero in zip(extents, repeated, strict=True):
            copies *= extent if zero else 1
        assert len(values) == copies * len(set(values))


@settings(deadline=None)
@given(layouts(max_rank=3), st.integers(-20, 200))
def test_the_coordinate_of_an_offset(layout, offset):
    """crd2idx(result, shape, stride) == offset, or there is none."""
    where = [i for i, found in enumerate(table(layout)) if found == offset]
    try:
        position = layout.get_1d_coord(offset)
    except LayoutError:
        assert len(where) != 1 or not _inverts(layout)
        return
    crd = layout.get_hier_coord(offset)
    assert layout(crd) == layout(position) == layout(layout.get_flat_coord(offset)) == offset
    assert lc.congruent(crd, layout.shape)


def _inverts(layout):
    try:
        lc.left_inverse(layout)
    except LayoutError:
        return False
    return True


@pytest.mark.parametrize("modes", [(Layout(4), Layout(2)), (), ((4, 8), 1)])
def test_strides_are_named_of_one_shape_alone(modes):
    with pytest.raises(LayoutError, match="make_layout"):
        lc.make_layout(*modes, stride=(8, 1))


@settings(deadline=None)
@given(layouts(max_rank=3))
def test_dice_of_a_coordinate_that_is_no_tuple(layout):
    assert lc.dice(3, layout) == layout
    assert lc.dice(None, layout) == Layout((), ())
    assert lc.dice(3, layout.shape) == layout.shape
    assert lc.dice(None, layout.shape) == ()


@settings(deadline=None)
@given(layouts(max_rank=3))
def test_sort_and_unflatten_keep_the_offsets(layout):
    ordered = lc.sort(layout)
    leaves = list(zip(flatten(ordered.stride), flatten(ordered.shape), strict=True))
    assert leaves == sorted(leaves)
    assert sorted(table(ordered)) == sorted(table(layout))
    flat = lc.flatten_layout(lc.make_layout([layout]))
    assert lc.unflatten(flat, lc.make_layout([layout])) == lc.make_layout([layout])


def test_operands_of_no_value_are_errors_of_layouts():
    N = lc.symbols("N")
    for wrong in (Layout(4), "4", 2.5, 0, -2, N):
        with pytest.raises(LayoutError, match="domain_distribute"):
            lc.domain_distribute((4, 8), wrong)
    for operation in (lc.complement, lc.logical_divide):
        operands = Layout((2, 4), (lc.F2(1), lc.F2(4))), N
        with pytest.raises(LayoutError):
            operation(*(operands if operation is lc.complement else operands[::-1]))


def test_dice_goes_into_every_map():
    swizzled = lc.ComposedLayout(lc.Swizzle(1, 2, 3), 0, Layout((4, 8)))
    twice = lc.ComposedLayout(Layout(100), 3, swizzled)
    assert str(lc.dice((1, None), twice)) == "100:1 o 3 o S<1,2,3> o 0 o (4):(1)"


def test_coordinates_have_zeros_after_them_wherever_they_are_asked():
    e0, e1, e10 = lc.E(0), lc.E(1), lc.E(1, 0)
    short = lc.ArithmeticTuple((3,))
    assert e0 == (1, 0, 0)
    assert e1 == (0, 1)
    assert e10 == (0, (1,))
    assert lc.idx2crd(e0, (8, 8)) == lc.idx2crd((1, 0), (8, 8)) == (1, 0)
    assert lc.idx2crd(short, (8, (2, 4))) == (3, (0, 0))
    plain = Layout((8, (2, 4)), (8, (1, 2)))
    assert plain(e1) == plain(0, 1)
    assert plain(e10) == plain(0, (1, 0))
    assert plain(short) == 24
    assert lc.weakly_congruent(short, (8, 8))
    assert lc.weakly_congruent(e10, (8, (2, 4)))
    assert not lc.weakly_congruent(e10, (8, 8))
    assert not lc.weakly_congruent(lc.ArithmeticTuple((1, 1, 1)), (8, 8))
    assert lc.colex_less(lc.ArithmeticTuple((5,)), lc.ArithmeticTuple((0, 1)))
    assert lc.colex_less((5, 0), lc.ArithmeticTuple((0, 1)))
    for wrong in (lambda: plain(lc.F2(3)), lambda: lc.idx2crd(lc.F2(3), (4, 2))):
        with pytest.raises(LayoutError, match="is not an integer"):
            wrong()


def test_xor_values_are_their_own_negatives_alone_and_in_coordinates():
    one, four = lc.F2(1), lc.F2(4)
    assert -four == four
    assert four - one == one - four == lc.F2(5)
    assert one < four <= four
    x, y = lc.ScaledBasis(one, (0,)), lc.ScaledBasis(four, (0,))
    assert -x == x
    assert y - x == lc.ScaledBasis(lc.F2(5), (0,)) == x + y
    assert x + x == 0
    assert x - x == 0
    assert x + lc.E(1) == (one, 1)
    assert one * 0 + x == x
    assert x < y
    assert y >= x
    with pytest.raises(TypeError):
        _ = x < 5
    with pytest.raises(LayoutError, match="cannot add f4"):
        _ = x + four


def test_a_range_of_modes_that_ends_before_it_begins_is_an_error():
    for begin, end in ((3, 1), (-1, 2), ("a", 2), (0, 5)):
        with pytest.raises(LayoutError):
            lc.take((1, 2, 3, 4), begin, end)


def test_products_of_tuples_refuse_what_they_would_repeat_or_cut_off():
    assert lc.prefix_product((4, 8), 2) == (2, 8)
    assert lc.prefix_product(((2, 3), (4, 5)), (1, 100)) == ((1, 2), (100, 400))
    assert lc.suffix_product(((2, 3), 4), (1, 10)) == ((3, 1), 10)
    assert lc.prefix_product((4, 8), lc.E(1)) == (lc.E(1), 4 * lc.E(1))
    for wrong in (
        lambda: lc.prefix_product((4, 8), "a"),
        lambda: lc.prefix_product((4, 8), 2.5),
        lambda: lc.prefix_product((4, 8), (1, 2, 3)),
        lambda: lc.inner_product((1, 2), (1, 2, 3)),
        lambda: lc.inner_product((1, 2), 3),
        lambda: lc.transform_leaf(lambda x, y: x + y, (1, 2), (1,)),
        lambda: lc.transform_leaf(abs),
    ):
        with pytest.raises(LayoutError):
            wrong()


def test_integers_do_not_add_to_coordinates():
    coordinates = Layout((2, 2), (E(1), E(0)))
    for whole in (Layout(4), Layout((4,)), Layout(((), 4), ((), 1))):
        with pytest.raises(LayoutTypeError, match="layout_add: the stride 1"):
            lc.layout_add(whole, coordinates)
    zeros = lc.layout_add(Layout(4, 0), coordinates)
    assert [zeros(i) for i in range(4)] == [coordinates(i) for i in range(4)]


def test_a_shape_may_have_layouts_in_it():
    assert lc.product((Layout((2, 3)), 2)) == 12
    assert lc.complement(Layout(4), (Layout(4), 2)) == Layout(2, 4)


def test_a_fragment_of_strides_that_are_sums_of_bases():
    both = Layout((3, 2), (E(0) + E(1), E(0)))
    assert lc.make_fragment_like(both) == Layout((3, 2), (1, 3))


def test_overlaps_of_xor_strides_and_a_name_say_what_has_no_value():
    with pytest.raises(LayoutTypeError, match="H is not an integer with a known value"):
        lc.overlaps(Layout((4, 4), (F2(5), F2(16))), Layout(lc.symbols("H"), 1), 1)


@pytest.mark.parametrize(("a", "b"), [((3, 4), ((1, 2), 2)), (((1, 2), 2), (3, 4)), (3, (1, 2))])
def test_a_tuple_is_no_factor_of_a_leaf(a, b):
    """Python's own product of an integer and a tuple repeats the tuple."""
    with pytest.raises(LayoutTypeError, match="does not have the profile"):
        lc.inner_product(a, b)


@pytest.mark.parametrize("shape", [0, (0, 4), (4, -2), None])
def test_shapes_without_elements_share_no_domain(shape):
    with pytest.raises(LayoutError, match=r"not positive|not an integer"):
        lc.greatest_common_domain(shape, 2)


@pytest.mark.parametrize("shape", [3, (3,)])
@pytest.mark.parametrize("nested", [False, True])
def test_a_function_of_the_coordinate_is_no_stride(shape: int | tuple[int], nested: bool) -> None:
    gather = lc.IndexedGather([3, 1, 2])
    with pytest.raises(LayoutTypeError, match=r"is not a stride; .*CustomStride\(function, stride"):
        lc.crd2idx(1, shape, (gather,) if nested else gather)
