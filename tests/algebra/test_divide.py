"""Coalesce, complement and division against their definitions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import (
    F2,
    ComposedLayout,
    CustomStride,
    E,
    IndexedGather,
    Layout,
    LayoutError,
    LayoutValueError,
    ScaledBasis,
    SymInt,
    coalesce,
    coalesce_x,
    complement,
    composition,
    coprofile,
    filter,
    flat_divide,
    flatten_layout,
    group_modes,
    logical_divide,
    make_identity_layout,
    make_layout,
    tiled_divide,
    weakly_congruent,
    zipped_divide,
)
from layoutconv.testing.oracle import evaluate, forced_complement
from layoutconv.testing.strategies import layouts

from .tables import table

EVERY = settings(max_examples=80, deadline=None)


@EVERY
@given(layouts(max_rank=4), st.integers(-40, 200))
def test_coalesce_keeps_the_function_and_no_mode_can_go(layout, outside):
    short = coalesce(layout)
    assert table(short) == table(layout)
    assert coalesce(short) == short
    assert short.depth <= 1
    extended = coalesce_x(layout)
    assert evaluate(extended.shape, extended.stride, outside) == evaluate(
        layout.shape, layout.stride, outside
    )
    by_mode = coalesce(layout, (1,) * layout.rank)
    assert [table(m) for m in by_mode] == [table(m) for m in layout]
    assert table(flatten_layout(layout)) == table(layout)


def test_coalesce_by_mode():
    assert coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1)) == Layout((2, 6), (1, 2))
    assert coalesce(Layout((2, (1, 6)), (1, (6, 2))), (None, 1)) == Layout((2, 6), (1, 2))
    assert coalesce_x(Layout((4, 1), (1, 7))) == Layout((4, 1), (1, 7))
    with pytest.raises(LayoutValueError):
        coalesce(Layout((2, 3)), (1, 1, 1))


@EVERY
@given(layouts(max_rank=3), layouts(max_rank=3), st.integers(-9, 60))
def test_coalesce_x_by_mode_keeps_each_mode_on_all_integers(a, b, outside):
    pair = make_layout(a, b)
    assert coalesce_x(pair, (1, None)) == make_layout(coalesce_x(a), b)
    assert coalesce_x(pair, (None, 1)) == make_layout(a, coalesce_x(b))
    assert coalesce_x(pair, (1, 1))(outside, outside + 1) == a(outside) + b(outside + 1)


@EVERY
@given(layouts())
def test_filter_keeps_the_image(layout):
    short = filter(layout)
    assert set(table(short)) == set(table(layout))
    assert all(d != 0 for _, d in short._leaves) or short == Layout(1, 0)


@EVERY
@given(layouts(), st.integers(1, 60))
def test_complement_has_ordered_copies_that_do_not_meet(layout, bound):
    offsets = {evaluate(layout.shape, layout.stride, i)[0] for i in range(layout.size())}
    modes = sorted((abs(d), s) for s, d in layout._leaves if d and s > 1)
    ordered = all(d * s <= e for (d, s), (e, _) in itertools.pairwise(modes))
    if not ordered:
        with pytest.raises(LayoutError) as caught:
            complement(layout, bound)
        assert caught.value.witness in [d for d, _ in modes]
        return
    starts = table(complement(layout, bound))
    assert starts == sorted(set(starts))
    copies = [o - min(offsets) + r for o in offsets for r in starts]
    assert len(set(copies)) == len(copies)
    assert max(copies) + 1 >= bound - max((d for d, _ in modes), default=0)
    if forced := forced_complement(sorted(offsets), bound):  # no gaps, where there need be none
        assert starts[: len(forced)] == forced


@EVERY
@given(layouts(), st.integers(0, 40))
def test_a_complement_without_a_bound_goes_on_without_meeting(layout, further):
    modes = sorted((abs(d), s) for s, d in layout._leaves if d and s > 1)
    if not all(d * s <= e for (d, s), (e, _) in itertools.pairwise(modes)):
        with pytest.raises(LayoutError):
            complement(layout, None)
        return
    rest = complement(layout, None)
    assert rest.shape == 1 or rest.shape[-1] == 1
    starts = [rest(j) for j in range(rest.size() + further)]
    assert all(x < y for x, y in itertools.pairwise(starts))
    offsets = {evaluate(layout.shape, layout.stride, i)[0] for i in range(layout.size())}
    copies = [o + r for o in offsets for r in starts]
    assert len(set(copies)) == len(copies)
    # It is what every bounded complement begins with.
    bounded = complement(layout, 500)
    assert [bounded(j) for j in range(bounded.size())] == [rest(j) for j in range(bounded.size())]


@pytest.mark.parametrize(
    "strides",
    [(E(0), 2 * E(2)), (3 * E(1), 9 * E(1)), (E(0, 1), 4 * E(1)), (0, 5 * E(1, 0)), (F2(1), F2(8))],
)
def test_a_complement_without_a_bound_has_the_modes_of_the_coordinates(strides):
    tile = Layout((3, 4) if isinstance(strides[0], ScaledBasis) else (4, 4), strides)
    rest = complement(tile, None)
    assert weakly_congruent(coprofile(tile), rest.shape)
    seen = [rest(j) for j in range(2 * rest.size())]
    assert len(set(seen)) == len(seen)
    reached = set()
    for i in range(tile.size()):
        for j in range(rest.size()):
            start = rest(j)
            reached.add(tile(i) ^ start if isinstance(start, int) else tile(i) + start)
    assert len(reached) == len({tile(i) for i in range(tile.size())}) * rest.size()


def test_complement_of_coordinates_fills_every_mode():
    tile = Layout((4, 2), (E(0), 2 * E(1)))
    rest = complement(tile, (8, 8))
    seen = {tuple(tile(i) + rest(j)) for i in range(8) for j in range(rest.size())}
    assert seen == {(x, y) for x in range(8) for y in range(8)}
    assert len(seen) == tile.size() * rest.size()


@EVERY
@given(layouts(max_rank=3), st.data())
def test_divide_is_a_permutation_and_its_first_mode_the_tile(layout, data):
    tile = data.draw(layouts(max_rank=2, nested=False))
    try:
        result = logical_divide(layout, tile)
    except LayoutError:
        return
    assert table(result[0]) == table(composition(layout, tile))
    if min(table(tile)) >= 0 and filter(tile).size() == tile.size():
        rest = complement(tile, layout.size())
        reached = [t + r for t in table(tile) for r in table(rest)]
        assert len(set(reached)) == len(reached)
        assert set(range(layout.size())) <= set(reached)  # no position is lost


def test_divides_that_libraries_get_wrong():
    with pytest.raises(LayoutValueError):
        logical_divide(Layout((6, 2), (7, 6)), Layout(2, 4))
    with pytest.raises(LayoutValueError, match="copies would overlap"):
        complement(Layout((2, 2), (3, 2)), 24)
    with pytest.raises(LayoutValueError, match="copies would overlap"):
        complement(Layout((3, 2), (1, 2)), 24)


def test_the_forms_of_divide():
    layout = Layout((9, (4, 8)), (59, (13, 1)))
    tiler = (Layout(3, 3), Layout((2, 4), (1, 8)))
    assert str(logical_divide(layout, tiler)) == "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"
    assert str(zipped_divide(layout, tiler)) == "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"
    assert str(tiled_divide(layout, tiler)) == "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"
    assert str(flat_divide(layout, tiler)) == "(3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))"
    assert zipped_divide(layout, (None, 4)) == Layout(((1, 4), (9, 8)), ((0, 13), (59, 1)))
    assert zipped_divide(Layout((4, 6)), (2,)) == Layout(((2,), (2, 6)), ((1,), (2, 4)))
    assert group_modes(Layout((2, 3, 4)), 0, 2) == Layout(((2, 3), 4), ((1, 2), 6))
    assert group_modes(Layout((2, 3, 4)), 1) == group_modes(Layout((2, 3, 4)), 1, 3)
    with pytest.raises(LayoutValueError, match="3 modes"):
        zipped_divide(layout, (1, 1, 1))


def test_a_gather_is_divided_in_its_domain():
    gather = Layout((4, 2), (CustomStride(IndexedGather([7, 5, 3, 1]), 10), 1))
    tiled = zipped_divide(gather, (2, 2))
    assert isinstance(tiled, ComposedLayout)
    for i, j, k in [(0, 0, 0), (1, 0, 1), (1, 1, 1), (0, 1, 1)]:
        assert tiled((i, j), (k, 0)) == gather(i + 2 * k, j)
    assert composition(gather, Layout(3, 1))(2) == 30
    assert composition(gather, (2, 2))(1, 1) == 51


def test_symbolic_and_basis_layouts_are_divided():
    H = SymInt(8, "H")
    assert str(zipped_divide(Layout((H, 4), (4, 1)), (2, 4))) == (
        "((2,4),((H+1)//2,1)):((4,1),(8,0))"
    )
    identity = make_identity_layout((8, 4))
    assert str(zipped_divide(identity, (2, 2))) == "((2,2),(4,2)):((1@0,1@1),(2@0,2@1))"
    assert str(logical_divide(Layout((8, 4)), Layout((4, 2), (E(0), 2 * E(1))))) == (
        "((4,2),(2,2)):((1,16),(4,8))"
    )
