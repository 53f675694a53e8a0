"""Coordinates whose modes add in different ways: by carries, or by XOR."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import (
    F2,
    ArithmeticTuple,
    ComposedLayout,
    E,
    Layout,
    LayoutTypeError,
    ScaledBasis,
    composition,
    coprofile,
    coshape,
    is_injective,
    left_inverse,
    right_inverse,
    size,
    weakly_congruent,
)

EVERY = settings(max_examples=80, deadline=None)


@st.composite
def axis_layouts(draw):
    """Modes of XOR strides along E(0), and of a compact or a XOR layout along E(1)."""
    xors = [(draw(st.sampled_from([2, 4, 8])), draw(st.integers(0, 12))) for _ in range(2)]
    modes = [(s, ScaledBasis(F2(d), (0,))) for s, d in xors]
    if draw(st.booleans()):
        modes.append((draw(st.sampled_from([2, 4])), E(1)))
    else:
        modes.append((4, ScaledBasis(F2(draw(st.integers(1, 6))), (1,))))
    modes = draw(st.permutations(modes))
    return Layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))


def by_hand(layout):
    """The coordinate of every position, mode by mode, from the definition."""
    table = []
    extents = [range(s) for s in layout.shape]
    for digits in itertools.product(*reversed(extents)):
        sums = [0, 0]
        for c, d in zip(reversed(digits), layout.stride, strict=True):
            (mode,) = d.path
            if isinstance(d.value, F2):
                for bit in range(c.bit_length()):
                    sums[mode] ^= (c >> bit & 1) * (d.value.value << bit)
            else:
                sums[mode] += c * d.value
        table.append(tuple(sums))
    return table


def padded(coordinate):
    return (*coordinate, 0, 0)[:2]


@EVERY
@given(axis_layouts())
def test_each_mode_of_a_coordinate_adds_in_its_own_way(layout):
    table = by_hand(layout)
    assert [padded(layout(i)) for i in range(size(layout))] == table
    assert all(type(x) is int for i in range(size(layout)) for x in layout(i))
    reached = tuple([max(column) + 1 for column in zip(*table, strict=True)])
    assert padded(coshape(layout)) == padded(reached)


@EVERY
@given(axis_layouts())
def test_a_right_inverse_leads_back_to_each_coordinate_below_its_shape(layout):
    inverse = right_inverse(layout)
    assert weakly_congruent(coprofile(layout), inverse.shape)
    table = by_hand(layout)
    extents = [size(inverse[i]) if i < inverse.rank else 1 for i in range(2)]
    for c in itertools.product(*map(range, extents)):
        assert table[inverse(c[: inverse.rank])] == c
    # It is the longest: along each mode the next coordinate is reached by none.
    for mode, extent in enumerate(extents):
        axis = {c[mode] for c in table}
        assert extent not in axis or not set(range(2 * extent)) <= axis


@EVERY
@given(axis_layouts())
def test_a_left_inverse_leads_every_position_back(layout):
    table = by_hand(layout)
    if len(set(table)) < len(table):
        assert not is_injective(layout)
        return
    inverse = left_inverse(layout)
    assert [inverse(layout(i)) for i in range(size(layout))] == list(range(size(layout)))


def test_modes_that_carry_and_modes_that_do_not_have_no_common_inverse():
    low, high = ScaledBasis(F2(1), (0,)), ScaledBasis(F2(5), (0,))
    assert str(right_inverse(Layout((4, 4, 4), (low, E(1), high)))) == "((4,4),4):((f1,f17),f4)"
    with pytest.raises(LayoutTypeError, match="invert them apart"):
        left_inverse(Layout((2, 4, 4, 3), (E(1), high, low, 4 * E(1))))


@EVERY
@given(axis_layouts(), st.data())
def test_a_slice_keeps_what_its_offset_adds_by_xor(layout, data):
    fixed = data.draw(st.integers(0, layout.rank - 1))
    crd = [None] * layout.rank
    crd[fixed] = data.draw(st.integers(0, layout.shape[fixed] - 1))
    whole = ComposedLayout(Layout((1 << 12, 1 << 12), (E(0), E(1))), 0, layout)
    rest = whole[tuple(crd)]
    for c in itertools.product(
        *[range(s) if c is None else [c] for s, c in zip(layout.shape, crd, strict=True)]
    ):
        open_part = tuple([x for x, given in zip(c, crd, strict=True) if given is None])
        assert padded(rest(open_part)) == padded(whole(c))


def test_zeros_are_the_zero_of_every_kind():
    zeros = [0 * E(0), 0 * E(2, 1), ArithmeticTuple(()), ArithmeticTuple((0, (0, 0)))]
    for zero in zeros:
        assert zero == 0
        assert hash(zero) == hash(0)
        assert all(zero == other for other in zeros)
    assert E(0) != 1
    assert ArithmeticTuple((5,)) != 5
    assert ArithmeticTuple(((0,), 1)) == ArithmeticTuple((0, 1)) == E(1)
    assert Layout((4, 5), (0, E(0)))(3) == 0


@st.composite
def continued_layouts(draw):
    """Modes of XOR strides, most of which go on where the one before them ends."""
    modes = [(draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(0, 7)))]
    for _ in range(draw(st.integers(0, 3))):
        s, d = modes[-1]
        goes_on = draw(st.integers(0, 3)) > 0
        modes.append((draw(st.sampled_from([2, 3, 4])), s * d if goes_on else s + d))
    return Layout(tuple([s for s, _ in modes]), tuple([F2(d) for _, d in modes]))


@EVERY
@given(continued_layouts())
def test_a_composition_of_xor_strides_has_no_modes_that_continue_each_other(layout):
    found = composition(layout, size(layout))
    assert [found(i) for i in range(size(layout))] == [layout(i) for i in range(size(layout))]
    leaves = list(zip(*map(_flat, (found.shape, found.stride)), strict=True))
    for (s, d), (_, after) in itertools.pairwise(leaves):
        assert s > 1
        assert s & (s - 1) or s * d.value != after.value


def _flat(x):
    return x if isinstance(x, tuple) else (x,)
