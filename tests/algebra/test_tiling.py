"""Tiles and partitions of tensors, layouts and gathers; and operations over coordinates."""

from __future__ import annotations

import pytest

from layoutconv.algebra import (
    ComposedLayout,
    CustomStride,
    E,
    IndexedGather,
    Layout,
    LayoutError,
    Swizzle,
    Tensor,
    composition,
    domain_offset,
    downcast,
    flat_divide,
    left_inverse,
    local_partition,
    local_tile,
    make_identity_layout,
    make_layout_like,
    make_ordered_layout,
    recast,
    right_inverse,
    slice_,
    upcast,
    with_shape,
    zipped_divide,
)

from .tables import table

MATRIX = Tensor(list(range(48)), Layout((6, 8), (8, 1)))


def test_tiles_cover_the_tensor():
    for i in range(3):
        for j in range(2):
            tile = local_tile(MATRIX, (2, 4), (i, j))
            for r in range(2):
                for c in range(4):
                    assert tile[r, c] == MATRIX[2 * i + r, 4 * j + c]
    column = local_tile(MATRIX, (2, 4), (None, 1))
    assert column.shape == (2, 4, 3)
    assert column[1, 2, 2] == MATRIX[5, 6]
    assert local_tile(MATRIX, (2, 4, 9), (1, None, 0), proj=(1, 1, None)).shape == (2, 4, 2)


def test_a_tensor_is_divided_in_its_domain():
    zipped = zipped_divide(MATRIX, (2, 4))
    assert zipped[(1, 3), (2, 1)] == MATRIX[5, 7]
    assert flat_divide(MATRIX, (2, 4)).shape == (2, 4, 3, 2)


def test_partitions_cover_the_tensor():
    threads = Layout((2, 4), (4, 1))
    seen = []
    for t in range(8):
        part = local_partition(MATRIX, threads, t)
        seen += table(part)
        assert part[0, 0] == MATRIX[t // 4, t % 4]
    assert sorted(seen) == list(range(48))
    with pytest.raises(LayoutError):
        local_partition(MATRIX, Layout((2, 2), (1, 4)), 2)


def test_a_plain_layout_gives_its_offset_too():
    layout = MATRIX.layout
    tile, offset = local_tile(layout, (2, 4), (1, 1))
    assert offset + tile(1, 3) == layout(3, 7)
    same, moved = domain_offset((1, 2), layout)
    assert same == layout
    assert moved + same(2, 3) == layout(3, 5)


@pytest.mark.parametrize(
    "view",
    [
        ComposedLayout(Swizzle(2, 0, 3), 0, Layout((8, 4), (4, 1))),
        Layout((8, 4), (CustomStride(IndexedGather([5, 2, 7, 0, 1, 6, 3, 4]), 10), 1)),
        ComposedLayout(
            Layout((8, 4), (CustomStride(IndexedGather([5, 2, 7, 0, 1, 6, 3, 4]), 10), 1)),
            0,
            make_identity_layout((8, 4)),
        ),
    ],
    ids=["swizzle", "gather", "gather of coordinates"],
)
def test_gathers_and_swizzles_are_tiled_in_their_domain(view):
    tile = local_tile(view, (4, 2), (1, 1))
    part = local_partition(view, Layout((4, 2)), 6)
    moved = domain_offset((2, 1), view)
    if not isinstance(moved, ComposedLayout):
        shifted, at = moved
        moved = lambda *c: at + shifted(*c)  # noqa: E731
    for i in range(4):
        for j in range(2):
            assert tile(i, j) == view(4 + i, 2 + j)
    for i in range(2):
        for j in range(2):
            assert part(i, j) == view(2 + 4 * i, 1 + 2 * j)
            assert moved(i, j) == view(2 + i, 1 + j)
    row = slice_((3, None), tile)
    assert [row(j) for j in range(2)] == [view(7, 2), view(7, 3)]


def test_inverses_of_coordinates():
    layout = Layout((4, 8), (E(1), E(0)))
    right = right_inverse(layout)
    left = left_inverse(layout)
    for i in range(32):
        assert left(layout(i)) == i
        assert right(layout(i)) == i
    nested = Layout((2, 3, 4), (E(1, 0), 2 * E(1, 0), E(0)))
    for i in range(24):
        assert left_inverse(nested)(nested(i)) == i
    transposed = composition(Layout((8, 4), (4, 1)), layout)
    assert transposed == Layout((4, 8), (1, 4))


def test_composition_with_coordinates_checks_carries_within_each_mode():
    a = Layout(((2, 3), 4), ((1, 10), 100))
    tile = Layout((3, 2), (2 * E(0), E(1)))
    assert composition(a, tile) == Layout((3, 2), (10, 100))
    with pytest.raises(LayoutError):
        composition(a, Layout((2, 2), (E(0), E(0))))
    with pytest.raises(LayoutError, match="no mode"):
        composition(a, Layout(2, E(2)))
    diagonal = composition(Layout((4, 4), (1, 10)), Layout(4, E(0) + E(1)))
    assert diagonal == Layout(4, 11)
    into_sum = composition(Layout((4, 6), (E(0), E(1))), Layout(2, 5))
    assert into_sum(1) == (1, 1)


def test_recast_of_swizzles():
    tile = ComposedLayout(Swizzle(3, 3, 3), 64, Layout((8, 64), (64, 1)))
    wide = upcast(tile, 8)
    for i in range(8):
        for j in range(64):
            assert wide(i, j // 8) == tile(i, j) // 8
    assert downcast(wide, 8) == ComposedLayout(Swizzle(3, 3, 3), 64, Layout((8, 64), (64, 1)))
    assert recast(tile, 16, 128) == wide
    for bad in (16, 3):
        with pytest.raises(LayoutError):
            upcast(tile, bad)
    with pytest.raises(LayoutError):
        upcast(tile, 0)


def test_constructors():
    assert make_ordered_layout((2, (3, 4)), (1, (2, 0))) == Layout((2, (3, 4)), (4, (8, 1)))
    assert make_layout_like(Layout((4, 2, 8), (0, 10, 1))) == Layout((4, 2, 8), (0, 8, 1))
    assert with_shape(Layout(24, 2), (4, (2, 3))) == Layout((4, (2, 3)), (2, (8, 16)))
    assert make_identity_layout((4, (2, 3)))((3, (1, 2))) == (3, (1, 2))
    with pytest.raises(LayoutError):
        with_shape(Layout((4, 6), (1, 5)), (3, 8))
    with pytest.raises(LayoutError):
        make_ordered_layout((2, 3), (1, 2, 3))
