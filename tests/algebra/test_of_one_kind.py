"""Tilers of XOR strides on layouts of integers and of coordinates: their modes add as those do."""

from __future__ import annotations

import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import F2, E, Layout, LayoutError
from layoutconv.algebra.basis import add


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
    for i in range(parts[0].size()):
        for j in range(parts[1].size()):
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


def test_products_whose_copies_carry_are_refused():
    with pytest.raises(lc.LayoutTypeError, match=r"logical_product: the modes .* add with carries"):
        lc.logical_product("(4,4):(1,4)", (Layout((2, 2), (F2(1), F2(3))), None))


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
