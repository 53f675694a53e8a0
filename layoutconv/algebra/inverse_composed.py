"""Inverses of composed layouts: the inverses of the parts in reverse order, as in CuTe."""

from __future__ import annotations

from typing import Any

from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError
from .extent import extremes
from .f2_span import Span
from .fold import folded
from .inverse_table import right_inverse_of_table
from .layout import Layout, make
from .normal import Arithmetic, arithmetic
from .swizzle import Swizzle


def right_inverse_of_composed(a: ComposedLayout, right_inverse: Any) -> Any:
    """Return ``R`` with ``a(R(k)) == k``: for a swizzle, swizzle first, then invert the domain."""
    plain = folded(a)
    if plain is not None and plain[1] == 0:
        return right_inverse(plain[0])
    offset = a.offset
    if isinstance(a.outer, Swizzle) and gives_integers(a.inner) and type(offset) is int:
        inverse = right_inverse(a.inner)
        size = kept_below(a.outer, int(inverse.size()) + offset)
        if size > 0 and offset <= 0:
            return ComposedLayout(inverse, -offset, ComposedLayout(a.outer, 0, Layout(size, 1)))
        if offset > 0:
            raise LayoutValueError(f"right_inverse: no position of {a} has the offset 0")
    return right_inverse_of_table("right_inverse", a)


def left_inverse_of_composed(a: ComposedLayout, left_inverse: Any) -> Any:
    """Return ``L`` with ``L(a(i)) == i``: for a swizzle, swizzle first, then invert the domain."""
    plain = folded(a)
    if plain is not None:
        inverse = left_inverse(plain[0])
        if not isinstance(plain[1], int):
            raise LayoutTypeError(f"left_inverse: {a} gives coordinates with an offset")
        if plain[1] == 0:
            return inverse
        return ComposedLayout(inverse, -plain[1], Layout(_reach(a), 1))
    if type(a.offset) is not int or not gives_integers(a.inner):
        raise LayoutTypeError(f"left_inverse: {a} is composed over coordinates, or by a function")
    if isinstance(a.outer, Swizzle):
        inner = left_inverse(a.inner)
        return ComposedLayout(inner, -a.offset, ComposedLayout(a.outer, 0, Layout(_reach(a), 1)))
    if isinstance(a.outer, Layout) and arithmetic(a.outer) is Arithmetic.INTEGER:
        low, high = extremes(a.inner)
        outer = lengthened(a.outer, high + a.offset)
        if low + a.offset >= 0 and all(d for s, d in outer._leaves if s != 1):
            return ComposedLayout(left_inverse(a.inner), -a.offset, left_inverse(outer))
    raise LayoutTypeError(f"left_inverse: the outer map of {a} has no known inverse")


def gives_integers(a: Any) -> bool:
    """Tell if a layout gives integers."""
    return isinstance(a, Layout) and arithmetic(a) in (Arithmetic.INTEGER, Arithmetic.XOR)


def _reach(a: ComposedLayout) -> int:
    """Return a bound above all offsets of ``a``."""
    low, high = extremes(a)
    reach: int = max(1, high + 1, -low)
    return reach


def lengthened(outer: Layout, position: int) -> Layout:
    """Return the same function, with a last leaf long enough for a position."""
    leaves = list(outer._leaves)
    place = 1
    for s, _ in leaves[:-1]:
        place *= s
    if leaves:
        leaves[-1] = (max(leaves[-1][0], position // place + 1), leaves[-1][1])
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def kept_below(swizzle: Swizzle, bound: int) -> int:
    """Return the largest n such that the swizzle keeps 0 .. n - 1 below ``bound``.

    >>> kept_below(Swizzle(1, 1, 1), 8), kept_below(Swizzle(1, 1, 1), 6)
    (8, 4)
    """
    if bound < 1:
        return 0
    period = swizzle.size()
    last = bound // period * period
    least = last + period
    at = bound
    while at < last + period:  # the rest of a period, in aligned pieces of 2^t
        piece = at & -at if at else period
        piece = min(piece, period)
        columns = tuple([swizzle(1 << i) for i in range(piece.bit_length() - 1)])
        value, _ = Span(columns).reduced(swizzle(at))
        least = min(least, value)
        at += piece
    return least if bound % period else bound
