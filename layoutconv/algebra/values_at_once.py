"""All values of a layout, composed or not, at once: computed on the bit planes of all of them.

A value is stored relative to a lower bound, with a plane for each of its bits. A sum, a digit or a
swizzle of 2^20 values then takes some hundred operations on integers of 2^20 bits, and so do
comparisons and extremes: 5 to 100 ms, where values one by one take a second.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .bit_planes import planes_of
from .budget import TABLE
from .composed import ComposedLayout
from .layout import Layout
from .lookups import at_places, of_stride, repeated
from .normal import Arithmetic, arithmetic, simplified
from .plane_values import Planes, Values, divided, plus, with_product
from .protocol import xor
from .swizzle import Swizzle

_WIDTH = 128  # most bits of a value


def values_at_once(f: Any) -> Values | None:
    """Return all values of a layout, if they are integers from bits, digits or short tables.

    None for more than 2^20 values, for values of more than 128 bits, for coordinates, and for
    functions that only give one value after the other.

    >>> swizzled = ComposedLayout(Swizzle(1, 0, 2), 0, Layout((2, 4), (4, 1)))
    >>> list(values_at_once(swizzled).listed())
    [0, 5, 1, 4, 2, 7, 3, 6]
    """
    size = f.size()
    if type(size) is not int or size > TABLE:
        return None
    if isinstance(f, Layout):
        return _of_layout(simplified(f), size)
    if not isinstance(f, ComposedLayout) or type(f.offset) is not int:
        return None
    inner = values_at_once(f.inner)
    return None if inner is None else through(f.outer, inner.moved(f.offset))


def through(outer: Any, values: Values) -> Values | None:
    """Evaluate ``outer`` at each value; None if it is not a function of their bits and digits.

    >>> list(through(Layout((3, 2), (5, -1)), values_at_once(Layout(6, 2))).listed())
    [0, 10, 4, -2, 8, 2]
    """
    if isinstance(outer, Swizzle):
        return _swizzled(outer, values)
    if isinstance(outer, ComposedLayout) and type(outer.offset) is int:
        inner = through(outer.inner, values)
        return None if inner is None else through(outer.outer, inner.moved(outer.offset))
    if not isinstance(outer, Layout):
        return None
    outer = simplified(outer)
    if arithmetic(outer) is Arithmetic.XOR:
        return _xors_of_digits(outer, values)
    return _sums_of_digits(outer, values) if outer._plain or _is_table(outer) else None


def _is_table(layout: Layout) -> bool:
    """Tell if a layout is short enough to compute all values of its strides."""
    size = layout.size()
    return type(size) is int and size <= TABLE


def _of_layout(layout: Layout, count: int) -> Values | None:
    if arithmetic(layout) is Arithmetic.XOR:
        ends = [(xor(d) or 0) << (s - 1).bit_length() for s, d in layout._leaves]
        width = max([end.bit_length() for end in ends], default=0)
        return Values(planes_of(layout, 0, width), count, 0) if width <= _WIDTH else None
    if not layout._plain:
        return _of_tables(layout, count)
    ends = [(s - 1) * d for s, d in layout._leaves]
    low, width = sum([min(0, end) for end in ends]), sum(map(abs, ends)).bit_length()
    return Values(planes_of(layout, -low, width), count, low) if width <= _WIDTH else None


def _of_tables(layout: Layout, count: int) -> Values | None:
    """Add the values of all leaves; None if they are not integers that add up."""
    planes: Planes = []
    low, place = 0, 1
    for s, d in layout._leaves:
        found = leaf_values(s, d)
        if found is None:
            return None
        planes = plus(planes, repeated(found, place, count))
        low += found.low
        place *= s
    return Values(planes, count, low) if len(planes) <= _WIDTH else None


def leaf_values(s: int, d: Any) -> Values | None:
    """Return the values of one leaf of a sum of integers; None if they are not known at once."""
    if type(d) is int:
        return _of_layout(Layout(s, d), s) if s <= TABLE else None
    return None if xor(d) else of_stride(d, s)


def _swizzled(swizzle: Swizzle, values: Values) -> Values:
    """Swizzle values, which count from the start of a period, as a swizzle permutes each period."""
    period = swizzle.size()
    low = values.low // period * period
    before = values.above(low)
    before = before + [0] * (period.bit_length() - 1 - len(before))
    planes = list(before)
    for j in range(period.bit_length() - 1):
        if swizzle.mask >> j & 1:
            planes[j - swizzle.shift] ^= before[j]
    return Values(planes, values.count, low)


def _sums_of_digits(layout: Layout, values: Values) -> Values | None:
    place = prod([s for s, _ in layout._leaves[:-1]])
    low = values.low // place  # of the last digit; the other digits are unaffected
    rest = values.above(low * place)
    total: Planes = []
    least, ones = 0, (1 << values.count) - 1
    for i, (s, d) in enumerate(layout._leaves):
        digit, start = rest, low
        if i < len(layout._leaves) - 1:
            rest, digit = divided(rest, s, ones)
            start = 0
        if type(d) is not int:
            found = _at_digit(s, d, Values(digit, values.count, start))
            if found is None:
                return None
            total, least = plus(total, found.planes), least + found.low
            continue
        least += start * d
        if d < 0:  # count down from the largest digit
            least += ((1 << len(digit)) - 1) * d
            digit = [plane ^ ones for plane in digit]
        total = with_product(total, digit, abs(d))
        if len(total) > _WIDTH:
            return None
    return Values(total, values.count, least) if len(total) <= _WIDTH else None


def _at_digit(s: int, d: Any, digit: Values) -> Values | None:
    """Return the values of a non-integer stride at a digit; None if the digit leaves the extent."""
    low, high = digit.extremes()
    table = leaf_values(s, d) if low >= 0 and high < s else None
    return None if table is None else at_places(table, digit)


def _xors_of_digits(layout: Layout, values: Values) -> Values | None:
    leaves = layout._leaves
    place = prod([s for s, _ in leaves[:-1]]) if values.low < 0 else 1
    if values.low < 0 and xor(leaves[-1][1]):
        return None
    rest, ones = values.above(min(0, values.low // place * place)), (1 << values.count) - 1
    total: Planes = []
    for i, (s, d) in enumerate(leaves):
        digit = rest
        if i < len(leaves) - 1:
            rest, digit = divided(rest, s, ones)
        by = xor(d) or 0
        total += [0] * (len(digit) + by.bit_length() - len(total))
        for j in range(by.bit_length()):
            for k, plane in enumerate(digit if by >> j & 1 else []):
                total[j + k] ^= plane
    return Values(total, values.count, 0) if len(total) <= _WIDTH else None
