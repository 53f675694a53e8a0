"""Inputs on which some library is silently wrong, and what is right."""

from __future__ import annotations

import pytest

from layoutconv.algebra import (
    Layout,
    LayoutError,
    blocked_product,
    coalesce,
    complement,
    composition,
    cosize,
    left_inverse,
    logical_divide,
    logical_product,
)


def L(shape, stride):
    return Layout(shape, stride)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (L((5, 3), (6, 6)), L(6, 2)),
        (L((4, 6, 8), (2, 3, 5)), L(6, 3)),
        (L((4, 3), (1, 8)), L(6, 1)),
        (L((4, 2), (2, 1)), L(4, -1)),
        (L((6, 2), (1, 7)), L((3, 2), (2, 3))),
    ],
    ids=lambda layout: str(layout),
)
def test_compositions_without_a_layout_are_refused_with_a_true_witness(a, b):
    with pytest.raises(LayoutError) as caught:
        composition(a, b)
    error = caught.value
    assert error.operands == (a, b)
    assert error.exact == a(b(error.witness)) != error.best(error.witness)
    assert str(a) in str(error)
    assert str(error.witness).replace(" ", "") in str(error)


def test_compositions_that_exist_are_found():
    assert composition(L((2, 2, 2), (1, 3, 5)), L(3, 3)) == L(3, 4)
    assert composition(L((4, 2), (1, 4)), L(4, -1)) == L(4, -1)
    assert composition(L((6, 2), (1, 6)), L((3, 2), (2, 3))) == L((3, 2), (2, 3))
    assert composition(L((4, 1), (1, 7)), L(2, 4)) == L(2, 7)


def test_associativity_holds_only_without_carries():
    a, b, c = L((5, 3), (1, 7)), L(4, 1), L(2, 5)
    assert composition(a, composition(b, c)) == L(2, 7)
    # a o b restricts a to a mode of 4:1, whose last mode goes on as 1 a step: 5, not 7.
    assert composition(composition(a, b), c) == L(2, 5)


def test_complements():
    with pytest.raises(LayoutError) as caught:
        complement(L((2, 2), (3, 2)), 24)
    assert caught.value.witness == 3  # the mode that steps into the one below it
    assert complement(complement(L(4, 2), 24), 24) == L(4, 2)
    assert complement(L(4, 1), 3) == L(1, 0)
    assert complement(L(4, 0), 6) == L(6, 1)


def test_divides_and_products():
    with pytest.raises(LayoutError):
        logical_divide(L((6, 2), (7, 6)), L(2, 4))
    assert logical_product(L(4, 1), 3) == L((4, 3), (1, 4))
    blocked = blocked_product(L((2, 2), (1, 4)), L((2, 2), (1, 2)))
    assert blocked == L(((2, 2), (2, 2)), ((1, 2), (4, 8)))
    assert sorted(blocked(i) for i in range(16)) == list(range(16))


def test_inverses_and_cosize():
    inverse = left_inverse(L((4, 8), (1, 5)))
    assert [inverse(L((4, 8), (1, 5))(i)) for i in range(32)] == list(range(32))
    assert cosize(L(4, -1)) == 4


def test_coalesce_by_mode():
    assert coalesce(L((2, (1, 6)), (1, (6, 2))), (1, 1)) == L((2, 6), (1, 2))


def test_an_equal_sign_between_a_layout_and_anything_else():
    assert L(4, 1) != 4
    assert L(4, 1) != "4:1"
    assert L(4, 1) is not None


def test_a_tiler_longer_than_the_layout():
    for operation in (composition, logical_divide, logical_product):
        with pytest.raises(LayoutError, match="3 modes"):
            operation(L((4, 2), (1, 4)), (1, 1, 1))
