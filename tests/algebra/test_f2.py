"""XOR strides: swizzles as layouts, and linear algebra over F2."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import (
    F2,
    ComposedLayout,
    E,
    Layout,
    LayoutError,
    LayoutValueError,
    ScaledBasis,
    Swizzle,
    coalesce,
    complement,
    composition,
    cosize,
    f2_layout,
    filter,
    from_f2,
    is_bijective,
    is_injective,
    is_surjective,
    left_inverse,
    logical_divide,
    nullspace,
    overlaps,
    right_inverse,
    to_f2,
    vector_width,
)
from layoutconv.algebra.bit_planes import planes_of
from layoutconv.algebra.budget import Budget
from layoutconv.algebra.overlap import _among_xor
from layoutconv.algebra.xor_image import XorImage, mask_of_sums
from layoutconv.testing.oracle import factorizations

from .tables import table

EVERY = settings(max_examples=60, deadline=None)


@st.composite
def swizzles(draw):
    bits = draw(st.integers(0, 3))
    shift = draw(st.integers(bits, 4)) * draw(st.sampled_from([1, -1]))
    return Swizzle(bits, draw(st.integers(0, 3)), shift)


@st.composite
def linear_layouts(draw):
    extents = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3))
    return Layout(tuple(extents), tuple(F2(draw(st.integers(0, 20))) for _ in extents))


@EVERY
@given(swizzles())
def test_a_swizzle_is_its_own_inverse_and_a_permutation(swizzle):
    values = table(swizzle)
    assert [swizzle(v) for v in values] == list(range(swizzle.size()))
    low = (1 << swizzle.base) - 1
    assert all(v & low == i & low for i, v in enumerate(values))


@EVERY
@given(swizzles())
def test_a_swizzle_is_a_layout(swizzle):
    layout = f2_layout(swizzle)
    assert isinstance(layout, Layout)
    assert table(layout) == table(swizzle)
    assert from_f2(to_f2(layout)) == coalesce(layout) or table(from_f2(to_f2(layout))) == table(
        layout
    )


def test_a_swizzled_tile_is_a_layout_of_its_shape():
    tile = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    layout = f2_layout(tile)
    assert layout == Layout((8, 64), (F2(72), F2(1)))
    assert table(layout) == [tile(i) for i in range(512)]
    assert all(layout(i, j) == tile(i, j) for i in range(8) for j in range(64))


def test_what_is_not_linear_is_refused_with_a_witness():
    with pytest.raises(LayoutValueError):
        to_f2(Layout(6))
    bad = Layout((4, 4), (1, 3))
    with pytest.raises(LayoutError) as caught:
        to_f2(bad)
    x, y = caught.value.witness
    assert bad(x ^ y) != bad(x) ^ bad(y)


@EVERY
@given(linear_layouts())
def test_the_matrix_is_the_function(layout):
    columns = to_f2(layout)
    assert table(from_f2(columns, layout.shape)) == table(layout)
    assert table(from_f2(columns)) == table(layout)
    assert table(coalesce(layout)) == table(layout)
    assert cosize(layout) == max(table(layout)) + 1
    assert is_injective(layout) == (len(set(table(layout))) == layout.size())


@EVERY
@given(linear_layouts())
def test_inverses_kernel_and_complement(layout):
    values = table(layout)
    right = right_inverse(layout)
    assert [values[int(right(k))] for k in range(right.size())] == list(range(right.size()))
    assert (
        right.size() not in values
        or 2 * right.size() - 1 > max(values)
        or not all(k in values for k in range(2 * right.size()))
    )
    kernel = table(nullspace(layout))
    assert sorted(kernel) == [i for i, v in enumerate(values) if v == 0]
    if is_injective(layout):
        left = left_inverse(layout)
        assert [int(left(v)) for v in values] == list(range(layout.size()))
        rest = table(complement(layout, 64))
        assert rest == sorted(rest)
        reached = sorted(v ^ r for v in values for r in rest)
        assert reached == list(range(len(reached)))
        assert len(reached) >= 64
    elif is_injective(filter(layout)):  # strides of 0 do not count: their coordinate is 0 again
        left = left_inverse(layout)
        assert all(values[int(left(v))] == v for v in values)
    else:
        with pytest.raises(LayoutError) as caught:
            left_inverse(layout)
        i, j = caught.value.witness
        assert i != j
        assert values[i] == values[j]


@EVERY
@given(linear_layouts(), st.integers(0, 2**32))
def test_composition_is_exact_or_refused(layout, seed):
    rng = random.Random(seed)
    for _ in range(5):
        inner = Layout(
            tuple(rng.choice([1, 2, 3, 4]) for _ in range(2)),
            tuple(rng.choice([0, 1, 2, 4, 3]) for _ in range(2)),
        )
        try:
            result = composition(layout, inner)
        except LayoutError as error:
            best, exact, witness = error.best, error.exact, error.witness
            assert best(witness) != exact
            assert int(layout(inner(witness))) == exact
            assert not exists(layout, inner)
        else:
            assert table(result) == [int(layout(inner(i))) for i in range(inner.size())]


def exists(a, b):
    """Return whether a layout of XOR strides refines b's shape and is a o b: try all splits."""
    for splits in itertools.product(*[factorizations(s) for s in b.shape]):
        strides = []
        for i, (extents, d) in enumerate(zip(splits, b.stride, strict=True)):
            place = 1
            for e in extents:
                strides.append((e, F2(int(a(place * d)))))
                place *= e
            if not extents:
                strides.append((1, F2(0)))
            assert i < 2
        layout = Layout(tuple(e for e, _ in strides), tuple(d for _, d in strides))
        if table(layout) == [int(a(b(i))) for i in range(b.size())]:
            return True
    return False


def test_a_layout_of_a_swizzle_and_a_swizzle_of_a_layout():
    swizzle = f2_layout(ComposedLayout(Swizzle(2, 0, 3), 0, Layout((8, 4))))
    assert table(composition(Layout(32, 4), swizzle)) == [4 * v for v in table(swizzle)]
    tiled = logical_divide(swizzle, Layout(4, 2))
    assert sorted(table(tiled)) == sorted(table(swizzle))
    assert table(tiled[0]) == [table(swizzle)[2 * i] for i in range(4)]
    composed = composition(Swizzle(2, 0, 3), Layout((8, 4)))
    assert [composed(i) for i in range(32)] == table(swizzle)


@pytest.mark.parametrize("bad", [(-1, 0, 1), (2, -1, 3), (3, 0, 2), (1.0, 0, 1)])
def test_swizzles_that_are_none(bad):
    with pytest.raises(LayoutError):
        Swizzle(*bad)


@EVERY
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(-3, 70),
)
def test_the_image_of_xor_strides_is_known_without_its_table(modes, shift):
    layout = Layout(tuple([s for s, _ in modes]), tuple([F2(d) for _, d in modes]))
    values = table(layout)
    image, budget = XorImage(layout), Budget("", (), 1 << 30)
    assert image.mask() == sum(1 << v for v in set(values))
    for value in range(max(values) + 3):
        first = values.index(value) if value in values else None
        assert image.first(value, budget) == first
    runs = sorted(set(values))
    assert vector_width(layout) % image.block() == 0
    n = vector_width(layout)
    assert {v // n * n + k for v in runs for k in range(n)} == set(runs)
    assert is_surjective(layout) == (runs == list(range(max(values) + 1)))
    assert is_surjective(layout, 5) == (set(range(5)) <= set(runs))
    assert is_bijective(layout) == (sorted(values) == list(range(layout.size())))
    other = Layout((3, 4), (-7, 5))
    moved = {other(i) + shift for i in range(12)}
    assert overlaps(layout, other, shift) == overlaps(other, layout, -shift)
    assert overlaps(layout, other, shift) == bool(moved & set(values))
    assert mask_of_sums([(4, 5), (3, 7)]) == sum(
        1 << v for v in {5 * i + 7 * j for i in range(4) for j in range(3)}
    )


def test_what_is_long_is_answered_from_the_columns():
    assert right_inverse(Layout(654400, F2(1))) == Layout(654400, F2(1))
    assert str(right_inverse(Layout((1024, 600), (F2(1), F2(1024))))) == "614400:f1"
    assert right_inverse(Layout((1000, 600), (F2(1), F2(1024)))).size() == 1000
    assert composition(Layout(1 << 20, 365100), Layout(1 << 20, F2(128))) == Layout(
        1 << 20, 46732800
    )
    with pytest.raises(LayoutError, match="positions >= 0, for XOR strides, got -8191"):
        composition(Layout(4096, F2(1)), Layout(8192, -1))
    with pytest.raises(LayoutError, match="have the same offset"):
        left_inverse(Layout((1 << 16, 15), (F2(3), F2(696))))


def xor_and_integers(rng):
    """A small layout of XOR strides or of integers, over extents that are most often odd."""
    shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.5:
        return Layout(shape, tuple(F2(rng.randrange(40)) for _ in shape))
    return Layout(shape, tuple(rng.randint(-30, 40) for _ in shape))


def test_a_left_inverse_is_found_whatever_the_extents():
    rng = random.Random(11)
    two_steps, met = 0, []
    for _ in range(400):
        shape = tuple(rng.randint(2, 7) for _ in range(rng.randint(1, 3)))
        a = Layout(shape, tuple(F2(rng.randrange(1, 256)) for _ in shape))
        values = table(a)
        try:
            inverse = left_inverse(a)
        except LayoutError as error:
            i, j = error.witness
            met.append((i, j, a))
            continue
        assert [inverse(v) for v in values] == list(range(a.size())), a
        two_steps += isinstance(inverse, ComposedLayout)
    assert two_steps > 20
    assert len(met) > 10
    assert all(i != j and a(i) == a(j) for i, j, a in met)


def test_all_values_at_once_tell_what_overlaps():
    rng = random.Random(12)
    seen = set()
    for _ in range(500):
        a, b, shift = xor_and_integers(rng), xor_and_integers(rng), rng.randint(-40, 40)
        here = {int(a(i)) for i in range(a.size())}
        there = {int(b(i)) + shift for i in range(b.size())}
        assert overlaps(a, b, shift) == (not here.isdisjoint(there)), (a, b, shift)
        for plain, other, up in ((a, b, shift), (b, a, -shift)):
            known = _among_xor((plain, 0), (other, up), Budget("overlaps", (a, b)))
            assert known in (None, not here.isdisjoint(there)), (a, b, shift)
            seen.add(known)
    assert seen == {None, True, False}


def test_planes_are_the_bits_of_all_values():
    rng = random.Random(13)
    for _ in range(200):
        a, up = xor_and_integers(rng), rng.randint(-50, 50)
        planes = planes_of(a, up, 12)
        for i in range(a.size()):
            value = sum((plane >> i & 1) << j for j, plane in enumerate(planes))
            assert value == (int(a(i)) + up) % 4096, (a, up, i)


def test_bits_in_places_of_their_own_carry_as_integers_do():
    """A complement of XOR strides is one of single bits: products of it carry, or do not."""
    a = Layout((4, 8), (F2(2), F2(8)))
    assert str(composition(a, Layout((3, 4), (1, 1)))) == "(3,4):(2,2)"
    rng, refused = random.Random(14), []
    for _ in range(300):
        a = Layout((4, 8), (F2(1 << rng.randint(0, 2)), F2(1 << rng.randint(5, 8))))
        b = Layout((rng.randint(1, 4), rng.randint(1, 4)), (rng.randint(0, 5), rng.randint(0, 5)))
        values = [int(a(b(i))) for i in range(b.size())]
        try:
            whole = composition(a, b)
        except LayoutError as error:
            refused.append((error.exact, int(a(b(error.witness))), error.best(error.witness)))
        else:
            assert table(whole) == values
    assert len(refused) > 20
    assert all(exact == value != best for exact, value, best in refused)


def test_a_coordinate_that_adds_by_xor_is_multiplied_without_carries():
    axis = ScaledBasis(F2(1), (0,))
    assert F2(3) * axis == axis * F2(3) == ScaledBasis(F2(3), (0,))
    assert F2(3) * ScaledBasis(F2(3), (1,)) == ScaledBasis(F2(5), (1,))
    for other in (E(0), axis):
        with pytest.raises(TypeError, match="unsupported"):
            other * axis
    with pytest.raises(TypeError, match="unsupported"):
        F2(3) * E(0)
