"""Tilers of XOR strides on layouts of integers and of coordinates: their modes add as those do."""

from __future__ import annotations

import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import F2, E, Layout, LayoutError
from layoutconv.algebra.basis import add
from layoutconv.algebra.budget import Budget
from layoutconv.algebra.xor_image import first_missed


def a_tile(rng):
    """A tile of a mode: an integer, a layout of integers, or of XOR strides."""
    kind = rng.randrange(4)
    if kind == 0:
        return Layout(rng.choice((2, 4)), 1)
    if kind == 1:
        return Layout(rng.choice((2, 4)), rng.choice((1, 2)))
    shape = tuple(rng.choice((2, 4)) for _ in range(rng.choice((1, 2))))
    return Layout(shape, tuple(F2(rng.choice((1, 2, 3, 4, 5, 6, 8))) for _ in shape))


def a_layout(rng):
    """A layout of two modes, of integers or of coordinates of one axis or two."""
    if rng.random() < 0.5:
        shape = rng.choice((4, 8)), rng.choice((4, 8))
        return Layout(shape, tuple(rng.choice((0, 1, 2, 3, 4, 6, 8, 16)) for _ in shape))
    return Layout(
        (8, 8), (rng.choice((1, 2, 4)) * E(0), rng.choice((1, 2)) * E(rng.choice((0, 1))))
    )


def tried(operation, *operands):
    try:
        return operation(*operands)
    except LayoutError:
        return None


def check_composition(a, tiles):
    result = lc.composition(a, tiles)
    for i in range(tiles[0].size()):
        for j in range(tiles[1].size()):
            assert result(i, j) == a(tiles[0](i), tiles[1](j)), (a, tiles, i, j)
    return 1


def check_in_halves(result, zipped, parts, value):
    """Compare a result of two modes, each a tile and a rest, with the value of both."""
    halves = [(part[0].size(), part[1].size()) for part in parts]
    sizes = parts[0].size(), parts[1].size()
    step = 1 if isinstance(result, Layout) else sizes[0] * sizes[1] // 200 | 1  # 50 us each
    for place in range(0, sizes[0] * sizes[1], step):
        i, j = lc.idx2crd(place, sizes)
        a, b = lc.idx2crd(i, halves[0]), lc.idx2crd(j, halves[1])
        expected = value(parts[0](a), parts[1](b))
        assert result(a, b) == expected, (str(result), a, b)
        assert zipped((a[0], b[0]), (a[1], b[1])) == expected, (str(zipped), a, b)


def check_divide(a, tiles):
    result = tried(lc.logical_divide, a, tiles)
    if result is None:
        return 0
    parts = [lc.logical_divide(Layout(s), t) for s, t in zip(a.shape, tiles, strict=True)]
    check_in_halves(result, lc.zipped_divide(a, tiles), parts, lambda x, y: a(x, y))
    return 1


def check_product(a, tiles):
    result = tried(lc.logical_product, a, tiles)
    if result is None:
        return 0
    parts = [lc.logical_product(mode, t) for mode, t in zip(a, tiles, strict=True)]
    check_in_halves(result, lc.zipped_product(a, tiles), parts, add)
    return 1


@pytest.mark.law
@pytest.mark.parametrize("check", [check_composition, check_divide, check_product])
def test_modes_of_xor_tilers_add_as_the_modes_of_the_layout(check):
    rng = random.Random(20)
    done = [check(a_layout(rng), (a_tile(rng), a_tile(rng))) for _ in range(120)]
    assert sum(done) > 40


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda a, t: lc.logical_divide(a, (t[0], t[0])), "((2,2),(2,2)):((1,2),(2,4))"),
        (lambda a, t: lc.zipped_divide(a, (t[0], t[0])), "((2,2),(2,2)):((1,2),(2,4))"),
        (lambda a, t: lc.composition(a, (t[2], t[2])), "(4,4):(1,2)"),
        (
            lambda a, t: lc.composition(a, (t[1], 2)),
            "(4,4):(1,2) o 0 o ((2,2),2):((f1@0,f3@0),1@1)",
        ),
        (lambda a, t: lc.composition("(4,4):(1,4)", (t[1], 2)), "((2,2),2):((f1,f3),f4)"),
        (lambda a, t: lc.logical_product("3:1", t[0]), "(3,2):(1,3)"),
        (lambda a, t: lc.logical_product("(4,4):(1,4)", t[1]), "((4,4),(2,2)):((f1,f4),(f16,f48))"),
    ],
)
def test_what_carries_stays_in_integers(result, expected):
    tiles = Layout(2, F2(1)), Layout((2, 2), (F2(1), F2(3))), Layout(4, F2(1))
    assert str(result(Layout((4, 4), (1, 2)), tiles)) == expected


def test_products_whose_copies_carry_go_over_coordinates():
    tiler = Layout((2, 2), (F2(1), F2(3))), None
    for operation in (lc.logical_product, lc.zipped_product, lc.tiled_product, lc.flat_product):
        result = operation("(4,4):(1,4)", tiler)
        assert str(result.outer) == "((4,4),4):((1,4),4)"
    assert str(lc.logical_product("(4,4):(1,4)", tiler).inner) == (
        "((4,(2,2)),4):((1@0@0,(f1@1@0,f3@1@0)),1@1)"
    )
    table = [0, 1, 3, 2]  # of the copies that the tiler takes: a copy is 4 long
    product = lc.logical_product("(4,4):(1,4)", tiler)
    for i in range(4):
        for j in range(4):
            assert [product((i, j), k) for k in range(4)] == [
                i + 4 * table[j] + 4 * k for k in range(4)
            ]


def test_blocks_whose_copies_carry_are_paired_mode_by_mode():
    block, tiler = Layout(3, 4), Layout((4, 2), (F2(2), F2(5)))
    blocked, raked = lc.blocked_product(block, tiler), lc.raked_product(block, tiler)
    starts = [0, 1, 2, 3, *range(12, 16)]  # four copies in the gaps of 3:4, then after the whole
    for i in range(3):
        for j in range(4):
            for k in range(2):
                expected = 4 * i + starts[2 * j ^ 5 * k]
                assert blocked((i, j), (0, k)) == raked((j, i), (k, 0)) == expected


def test_products_name_what_was_called_and_the_mode_that_a_basis_misses():
    block, tiler = Layout((2, 2), (1, 6)), Layout((2, 2), (1, 2))
    with pytest.raises(lc.LayoutValueError, match=r"^raked_product\(\(2,2\):\(1,6\), ") as caught:
        lc.raked_product(block, tiler)
    error = caught.value
    assert (error.operation, error.operands) == ("raked_product", (block, tiler))
    assert error.exact == 12 != error.best(error.witness)
    with pytest.raises(lc.LayoutValueError, match=r"^tile_to_shape\(\(2,2\):\(3,2\), \(4,4\)\)"):
        lc.tile_to_shape(Layout((2, 2), (3, 2)), (4, 4))
    with pytest.raises(lc.LayoutValueError, match=r"^logical_product\(.* basis 1@1@0 "):
        lc.logical_product(block, Layout((2, 2), (E(0, 1), E(0))))


def test_nested_tilers_compose_with_the_modes_of_a_mode():
    a, pairs = Layout(((2, 4), 4), ((1, 9), 5)), Layout((2, 2), (F2(1), F2(3)))
    result = lc.composition(a, ((None, pairs), Layout(2, 2)))
    for i in range(2):
        for j in range(4):
            for k in range(2):
                assert result((i, j), k) == a((i, pairs(j)), 2 * k)
    assert str(result.inner) == "((2,(2,2)),2):((1@0@0,(f1@1@0,f3@1@0)),2@1)"


@pytest.mark.parametrize(
    ("a", "tiler", "expected"),
    [
        (
            Layout(2, F2(1)),
            Layout((2, 4), (2, 3)),
            "(2,12):(f1,f2) o 0 o (2,(2,4)):(1@0,(2@1,3@1))",
        ),
        (Layout((4, 2), (F2(5), F2(0))), (Layout((2, 2), (F2(2), F2(1))), 3), None),
        (Layout((4, 2), (F2(5), F2(0))), (2, Layout((3, 4), (5, 1))), None),
    ],
)
def test_copies_of_xor_strides_add_by_xor(a, tiler, expected):
    result = lc.logical_product(a, tiler)
    assert expected is None or str(result) == expected
    modes = zip(a, tiler, strict=True) if isinstance(tiler, tuple) else [(a, tiler)]
    parts = [lc.logical_product(mode, t) for mode, t in modes]
    for i in range(result.size()):
        crd, expected = lc.idx2crd(i, tuple(part.size() for part in parts)), 0
        for part, c in zip(parts, crd, strict=True):
            expected ^= part(c)
        assert result(i) == expected, i


def test_names_of_extents_beside_xor_strides():
    a, b = lc.SymInt(4, "A"), lc.SymInt(3, "B")
    layout, plain = (
        Layout((a, (2, b)), (0, (F2(5), F2(2)))),
        Layout((4, (2, 3)), (0, (F2(5), F2(2)))),
    )
    for operation in (lc.cosize, lc.right_inverse, lc.left_inverse, lc.nullspace):
        assert str(operation(layout)) == str(operation(plain)), operation


def test_the_text_of_a_basis_scaled_by_xor_is_evaluated():
    for stride in (lc.ScaledBasis(F2(3), (0, 1)), 4 * E(1), E(0)):
        assert eval(repr(stride), vars(lc).copy()) == stride


def test_the_width_of_multiples_after_a_swizzle():
    steps = Layout((4, 4), (1, lc.CustomStride(lc.StridedGather(4), 2)))
    behind = lc.ComposedLayout(steps, 0, lc.ComposedLayout(lc.Swizzle(1, 1, 1), 0, Layout(8)))
    assert [behind(i) for i in range(8)] == [0, 1, 2, 3, 10, 11, 8, 9]
    assert lc.vector_width(behind) == 2


def test_coordinates_of_the_first_modes_are_drawn():
    first = lc.composition(Layout((5, 4), (3, 1)), (Layout((2, 2), (F2(1), F2(3))),))
    assert [first(i) for i in range(4)] == [0, 3, 9, 6]
    assert "12" in str(lc.ComposedLayout(Layout((16, 4), (1, 16)), 3, first).draw())


def test_modes_of_zeros_beside_xor_strides_are_copied_by_xor():
    a = Layout((1, (2, 2)), (F2(9), (F2(0), F2(0))))
    result = lc.logical_product(a, (Layout((4,), (F2(5),)), (Layout((3,), (F2(1),)), 2)))
    assert [result((0, i), ((0, j), (0, k))) for i, j, k in ((3, 2, 1), (1, 1, 1), (0, 2, 0))] == [
        lc.Layout(4, F2(5))(i) ^ j ^ k for i, j, k in ((3, 2, 1), (1, 1, 1), (0, 2, 0))
    ]


def test_names_beside_xor_strides_in_copies_and_units():
    extent = lc.SymInt(3, "A")
    layout, plain = (Layout((2, s, 2), (F2(2), 0, F2(6))) for s in (extent, 3))
    assert str(lc.complement(layout, 64)) == str(lc.complement(plain, 64))
    assert str(lc.logical_product(layout, 4)[1]) == str(lc.logical_product(plain, 4)[1])
    assert str(lc.upcast(layout, 2)) == str(lc.upcast(plain, 2))
    zeros = Layout((4, lc.symbols("B")), (F2(0), -3))
    assert str(lc.upcast(Layout((4, 2), (F2(0), 4)), 2)) == "(4,2):(0,2)"
    assert zeros(3, 1) == -3


def test_integers_are_no_copies_of_coordinates():
    a = Layout((1, 2), (0, 3 * E(0)))
    for tiler in ((3, None), (Layout(3, F2(8)), None)):
        for operation in (lc.logical_product, lc.zipped_product):
            with pytest.raises(lc.LayoutTypeError, match=r"logical_product: .* to coordinates"):
                operation(a, tiler)
    assert str(lc.logical_product(a, (1, 3))) == "((1,1),(2,3)):((0,1),(3@0,1@0))"


def test_copies_in_the_order_of_an_index_buffer():
    pages = Layout(4, lc.CustomStride(lc.IndexedGather([3, 1, 0, 2]), 1))
    result = lc.logical_product(Layout((2, 2), (1, 4)), pages)
    assert [result(0, j) for j in range(4)] == [10, 2, 0, 8]
    assert [result(i, 0) for i in range(4)] == [10, 11, 14, 15]
    rows = lc.composition(Layout((4, 4), (1, 4)), (pages, 2))
    assert [rows(i, 1) for i in range(4)] == [7, 5, 4, 6]
    mixed = lc.composition("(4,4):(1,4)", ((Layout((2, 2), (F2(1), F2(3)))), pages))
    assert [mixed(i, 0) for i in range(4)] == [12, 13, 15, 14]


@pytest.mark.parametrize(("tile", "lost"), [("3:f1", 3), ("(3,3):(f1,f4)", 3), ("3:f4", 12)])
def test_divides_refuse_xor_tiles_that_leave_positions_out(tile, lost):
    tile = lc.parse(tile)
    with pytest.raises(lc.LayoutValueError, match=f"position {lost} is in no tile") as caught:
        lc.logical_divide(Layout(16), tile)
    assert caught.value.witness == lost
    rest = lc.complement(tile, 16)
    assert lost not in {tile(i) ^ rest(j) for i in range(tile.size()) for j in range(rest.size())}
    assert lc.logical_divide(Layout(lost), tile).size() >= lost  # reached as far as the layout goes


@pytest.mark.law
def test_the_first_position_that_copies_of_an_xor_tile_miss():
    rng = random.Random(5)
    for _ in range(200):
        shape = tuple(rng.choice((1, 2, 3, 4, 5, 6, 7, 12)) for _ in range(rng.randint(1, 3)))
        tile = Layout(shape, tuple(F2(rng.choice((0, 1, 2, 3, 4, 5, 6, 8, 9))) for _ in shape))
        rest = lc.complement(tile, 128)
        reached = {
            int(tile(i)) ^ int(rest(j)) for i in range(tile.size()) for j in range(rest.size())
        }
        missing = next((n for n in range(128) if n not in reached), None)
        assert first_missed(tile, Budget("", ())) == missing, tile


@pytest.mark.law
def test_nested_tilers_divide_the_modes_of_a_mode():
    rng, done = random.Random(21), 0
    for _ in range(150):
        strides = (rng.choice((1, 2, 3, 4)), rng.choice((0, 1, 5, 8))), rng.choice((1, 2, 7, 32))
        a, (x, y, z) = Layout(((8, 4), 8), strides), (a_tile(rng) for _ in range(3))
        result = tried(lc.logical_divide, a, ((x, y), z))
        if result is None:
            continue
        parts = [lc.logical_divide(Layout(s), t) for s, t in ((8, x), (4, y), (8, z))]
        zipped, done = lc.zipped_divide(a, ((x, y), z)), done + 1
        for _ in range(20):
            i, j, k = (
                lc.idx2crd(rng.randrange(part.size()), (part[0].size(), part[1].size()))
                for part in parts
            )
            expected = a((parts[0](i), parts[1](j)), parts[2](k))
            assert result((i, j), k) == expected, (str(a), x, y, z)
            assert zipped(((i[0], j[0]), k[0]), ((i[1], j[1]), k[1])) == expected, (str(a), x, y, z)
    assert done > 60
