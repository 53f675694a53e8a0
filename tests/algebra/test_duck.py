"""Layouts of values that are no integers but compute like them, as a kernel that is traced has."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from layoutconv.algebra import (
    ComposedLayout,
    E,
    Layout,
    LayoutTypeError,
    SymInt,
    composition,
    crd2idx,
    idx2crd,
    logical_divide,
)
from layoutconv.algebra.int_tuple import map_leaves


class Traced:
    """A value with + - * // % alone; it counts its operations, and nothing can look inside."""

    operations = 0

    def __init__(self, value):
        self.value = value

    def _apply(self, other, operation):
        Traced.operations += 1
        return Traced(operation(self.value, other.value if isinstance(other, Traced) else other))

    def __add__(self, other):
        return self._apply(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._apply(other, lambda a, b: a - b)

    def __mul__(self, other):
        if not isinstance(other, int | Traced):
            return NotImplemented
        return self._apply(other, lambda a, b: a * b)

    def __floordiv__(self, other):
        return self._apply(other, lambda a, b: a // b)

    def __mod__(self, other):
        return self._apply(other, lambda a, b: a % b)

    def __radd__(self, other):
        return self._apply(other, lambda a, b: b + a)

    def __rmul__(self, other):
        return self._apply(other, lambda a, b: b * a)

    def __rfloordiv__(self, other):
        return self._apply(other, lambda a, b: b // a)

    def __rmod__(self, other):
        return self._apply(other, lambda a, b: b % a)

    def __bool__(self):
        raise TypeError("a traced value has no truth value")

    __index__ = __int__ = __bool__


class Divisor:
    """An extent that only knows how to be divided by."""

    def __init__(self, value):
        self.value = value

    def __rdivmod__(self, c):
        quotient, rest = divmod(c.value if isinstance(c, Traced) else c, self.value)
        return Traced(quotient), Traced(rest)


def value(x):
    return tuple(map(value, x)) if isinstance(x, tuple) else getattr(x, "value", x)


@pytest.mark.parametrize(
    "layout",
    [
        Layout((4, (2, 3)), (1, (16, 4))),
        Layout((4, (2, 3)), (E(1), (2 * E(0), E(1)))),
        ComposedLayout(Layout((9, 40), (7, 1)), (-1, 2), Layout((4, 6), (E(0), E(1)))),
    ],
    ids=str,
)
def test_traced_coordinates(layout):
    for i in range(4):
        for j in range(6):
            assert value(layout(Traced(i), Traced(j))) == layout(i, j)
            assert value(layout(i, Traced(j))) == layout(i, j)
    for i in range(24):
        assert value(layout(Traced(i))) == layout(i)


def test_traced_and_divisor_extents_and_strides():
    plain = Layout((4, (2, 3)), (6, (1, 2)))
    traced = Layout((Traced(4), (Traced(2), Traced(3))), (Traced(6), (1, Traced(2))))
    divisors = Layout((Divisor(4), (Divisor(2), Divisor(3))), (6, (1, Traced(2))))
    for i in range(24):
        assert value(traced(i)) == value(divisors(Traced(i))) == plain(i)
        assert value(traced(Traced(i))) == value(divisors(i)) == plain(i)


def test_coordinates_of_shapes_of_divisors():
    shape, divisors = (4, (2, 3)), (Divisor(4), (Divisor(2), Divisor(3)))
    for i in range(24):
        assert value(crd2idx(i, divisors, (6, (1, 2)))) == crd2idx(i, shape, (6, (1, 2)))
        assert value(idx2crd(i, divisors)) == idx2crd(i, shape)


def test_no_operation_is_wasted_on_zeros():
    Traced.operations = 0
    Layout((4, 8), (8, 1))(Traced(1), Traced(2))
    assert Traced.operations == 3  # two products and a sum


def test_exactness_is_not_decided_on_values_that_are_not_known():
    traced = Layout((Traced(4), 3), (1, 4))
    with pytest.raises(LayoutTypeError, match="Python integers"):
        composition(traced, Layout(2))
    with pytest.raises(LayoutTypeError, match="Python integers"):
        composition(Layout(12), traced)


def test_symbolic_layouts_compose_and_divide_by_their_values():
    D, H = SymInt(6, "D"), SymInt(4, "H")
    layout = Layout((H, D), (1, H))
    assert str(composition(layout, (None, Layout(3, 2)))) == "(H,3):(1,2*H)"
    assert logical_divide(layout, (2, 3)) == Layout(((2, 2), (3, 2)), ((1, 2), (4, 12)))
    grid = Layout((D, H), (H * E(0), E(0)))
    assert str(grid) == "(D,H):(H@0,1@0)"
    assert grid(5, 3) == (23,)


@pytest.mark.parametrize("leaf", [Decimal(4), Fraction(4), 4.0, 4j, b"4", None, {}, object()])
def test_what_does_not_compute_like_an_integer_is_refused(leaf):
    with pytest.raises(LayoutTypeError):
        Layout((leaf, 2))
    with pytest.raises(LayoutTypeError):
        Layout((4, 2), (leaf, 1))


@pytest.mark.parametrize("zero", [0, 0 * E(1), 0 * E(0)])
@pytest.mark.parametrize("shape", [(2, 3), (1, 6), ((2, 2), 3)])
def test_arrays_of_zeros_are_added_to_coordinates(shape, zero):
    """Where a whole array goes through a mode of stride 0, nothing shows that it is a zero."""
    layout = Layout(shape, (map_leaves(lambda _: zero, shape[0]), E(0)))
    numbers = np.arange(int(layout.size()))
    first, *others = layout(numbers)
    assert first.tolist() == [(layout(i) + 0 * E(0))[0] for i in numbers.tolist()]
    assert not any(other.any() for other in others)
