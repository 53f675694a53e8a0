"""``overlaps``: do two layouts share an offset? Cheap tests come first, a table of both last."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import gcd
from typing import Any

from .analysis import asked
from .basis import ArithmeticTuple, ScaledBasis, add
from .bit_planes import in_span, planes_of, scattered_bits
from .budget import MARKS, SET, TABLE, Budget, one_operation
from .checks import plain_shape
from .errors import LayoutBudgetError, LayoutTypeError, whole
from .fold import folded
from .layout import Layout
from .normal import Arithmetic, arithmetic, filtered
from .packing import Packing
from .plane_values import Values
from .reached import values_of_image
from .sums import solution
from .values_at_once import values_at_once
from .xor_image import MASK_BITS, XorImage, mask_of_sums

Plain = tuple[Layout, Any]  # a layout, and a constant to add to its values
_ZERO = Layout(1, 0)
_FEW = 4096  # values to look up one by one among the offsets of another layout
_SAMPLE = 512  # values to try first if there are more: one may be shared
_LOOKS = 24  # of these, values to look up among all values of another layout
_STEPS = 40_000
_WIDTH = 64  # most bits of values for bit planes, each of which is one integer for all values


@one_operation()
def overlaps(a: Any, b: Any, shift: Any = 0) -> bool:
    """Tell if some offset of ``a`` is also an offset of ``b`` moved by ``shift``.

    ``shift`` is an integer, or a coordinate if the layouts give coordinates.

    >>> evens, odds = Layout(8, 2), Layout(8, 2)
    >>> overlaps(evens, odds), overlaps(evens, odds, 1)
    (True, False)
    """
    shift = shift.as_tuple() if isinstance(shift, ScaledBasis) else plain_shape(shift)
    shift = ArithmeticTuple(shift) if type(shift) is tuple else shift
    if not isinstance(shift, int | tuple) or isinstance(shift, bool):
        raise LayoutTypeError(f"overlaps: the shift {shift} is not an integer with a known value")
    both = [asked("overlaps", x) for x in (a, b)]
    if shift != 0:
        kinds = [_is_coordinate(x) for x in (*both, shift)]
        if None not in kinds[1:] and kinds[1] != kinds[2]:
            raise LayoutTypeError(f"overlaps: {b} cannot be moved by {shift}")
        moved = kinds[1] if kinds[2] is None else kinds[2]
        if kinds[2] is not None and kinds[0] not in (None, moved):  # they can share only zero
            return overlaps(a, _ZERO) and overlaps(_ZERO, b, shift)
    one, two = (folded(x) for x in both)
    if one is not None and two is not None:
        additive = (Arithmetic.INTEGER, Arithmetic.COORDINATE)
        if arithmetic(one[0]) in additive and arithmetic(two[0]) in additive:
            sides = _sides(both, (one, two), shift)
            budget = Budget("overlaps", (a, b), _STEPS)
            budget.left //= 2 if sides else 1
            try:
                return _sums_meet(one, two, shift, budget)
            except LayoutBudgetError:
                if not sides:
                    raise
                return _values_meet(sides, budget)
        if all(type(x) is int for x in (one[1], two[1], shift)):
            known = _told(one, (two[0], two[1] + shift), a, b)
            if known is not None:
                return known
    for i, plain in enumerate((one, two)):
        if plain is not None and whole("overlaps", both[1 - i].size()) <= _FEW:
            values = values_of_image("overlaps", both[1 - i])
            has = _member(plain, Budget("overlaps", (a, b), _STEPS))
            if has is not None and all(type(x) is int for x in (*values, shift)):
                return any(has(x + (shift if i == 0 else -shift)) for x in values)
    if sides := _sides(both, (one, two), shift):
        return _values_meet(sides, Budget("overlaps", (a, b)))
    here, there = (values_of_image("overlaps", x) for x in both)
    if shift != 0:
        there = {x + shift if type(x) is type(shift) is int else add(x, shift) for x in there}
    return not there.isdisjoint(here)


def _is_coordinate(x: Any) -> bool | None:
    """Tell if a layout gives coordinates, or a value is one; None for zeros, which are of any kind.

    For a function, its value at 0 decides, if it is not 0.
    """
    if isinstance(x, Layout) and arithmetic(x) is not Arithmetic.OPAQUE:
        return arithmetic(x) is Arithmetic.COORDINATE if filtered(x) else None
    value = x(0) if callable(x) else x
    return isinstance(value, tuple) if value != 0 else None


def _sides(both: list[Any], plains: Any, shift: Any) -> list[tuple[Values, Plain | None]]:
    """Return all values of both layouts, the second moved, each with its plain form; or nothing."""
    values = [values_at_once(x) for x in both]
    if values[0] is None or values[1] is None or type(shift) is not int:
        return []
    one, two = plains
    moved = two and (two[0], two[1] + shift if type(two[1]) is int else None)
    return [(values[0], one), (values[1].moved(shift), moved)]


def _values_meet(sides: list[tuple[Values, Plain | None]], budget: Budget) -> bool:
    """Tell if two sets of values share one: try a sample of the candidates, then all.

    A value is a candidate if it lies within the other side's range and has its remainder.
    """
    masks = []
    for (values, _), (others, plain) in zip(sides, sides[::-1], strict=True):
        low, high = others.extremes()
        mask = values.at_least(low) & ~values.at_least(high + 1)
        modulus, remainder = (plain and _remainder(plain)) or (1, 0)
        masks.append(mask & values.multiples(modulus, remainder) if modulus != 1 else mask)
    (few, _), (many, _) = sides
    if masks[0].bit_count() > masks[1].bit_count():
        few, many = many, few
        masks.reverse()
    if not masks[0]:
        return False
    if any(many.place_of(few.at(i)) is not None for i in islice(scattered_bits(masks[0]), _LOOKS)):
        return True
    (low, high), (start, end) = few.extremes(), many.extremes()
    span = range(max(low, start), min(high, end) + 1)
    if len(span) <= MARKS:
        marks = many.marks(span)
        return any(map(marks.__getitem__, few.moved(-span.start).among(masks[0])))
    if masks[0].bit_count() > SET:
        budget.give_up()
    return not set(few.among(masks[0])).isdisjoint(many.among(masks[1]))


def _sums_meet(one: Plain, two: Plain, shift: Any, budget: Budget) -> bool:
    (first, start), (second, end) = one, two
    target = add(add(shift, end), -1 * start if type(start) is int else -start)
    strides = [d for layout in (first, second) for _, d in layout._leaves]
    size = whole("overlaps", first.size() + second.size())
    packing = Packing([*strides, target], 4 * size + 4)
    modes = [(s, packing.pack(d)) for s, d in first._leaves]
    modes += [(s, -packing.pack(d)) for s, d in second._leaves]
    return solution(packing.pack(target), modes, budget) is not None


def _told(one: Plain, two: Plain, a: Any, b: Any) -> bool | None:
    """Decide by remainders, bit planes, images as integers or a sample; None if undecided."""
    for plain, other in ((one, two), (two, one)):
        if arithmetic(plain[0]) is Arithmetic.COORDINATE:
            has = _member(other, Budget("overlaps", (a, b), _STEPS // 4))
            return None if has is None else has(plain[1])
    remainders = [_remainder(x) for x in (one, two)]
    if all(remainders):
        (m, r), (n, q) = remainders  # type: ignore[misc]
        common = gcd(m, n)
        if (r - q) % common if common else r != q:
            return False
    for plain, other in ((one, two), (two, one)):
        known = _among_xor(plain, other, Budget("overlaps", (a, b), _STEPS // 4))
        if known is not None:
            return known
    masks = [_mask(x) for x in (one, two)]
    if all(masks):
        (here, low), (there, lower) = masks  # type: ignore[misc]
        up = lower - low
        return abs(up) <= 1 << MASK_BITS and bool(here << max(0, -up) & there << max(0, up))
    for plain, other in ((one, two), (two, one)):
        has = _member(plain, Budget("overlaps", (a, b), _STEPS))
        size = whole("overlaps", other[0].size())
        if has is not None and size > _FEW:
            sample = range(0, size, -(-size // _SAMPLE))
            drawn = [other[0](i) + other[1] for i in sample]
            if any(has(v) for v in drawn if isinstance(v, int)):  # coordinates are not offsets
                return True
    return None


def _among_xor(plain: Plain, other: Plain, budget: Budget) -> bool | None:
    """Tell if ``plain``, of XOR strides, has a value of ``other``; None if that takes too long.

    All values of ``other`` are tested at once against the span of the columns; the extents of
    ``plain`` decide the remaining ones.
    """
    (layout, constant), (values, start) = plain, other
    if arithmetic(layout) is not Arithmetic.XOR or whole("overlaps", values.size()) > TABLE:
        return None
    if not values._plain and arithmetic(values) is not Arithmetic.XOR:
        return None
    image = XorImage(layout)
    up = start - constant
    reach = 0
    for s, d in values._leaves:
        reach += abs(int(d)) << (s - 1).bit_length()
    width = max(image.bits, reach.bit_length(), abs(up).bit_length()) + 2
    if width > _WIDTH:
        return None
    planes = planes_of(values, up, width)
    try:
        for i in scattered_bits(in_span(planes, int(values.size()), image.span)):
            if image.first(int(values(i)) + up, budget) is not None:
                return True
    except LayoutBudgetError:
        return None
    return False


def _remainder(plain: Plain) -> tuple[int, int] | None:
    """Return a modulus and the remainder of all values; modulus 0 if there is only one value."""
    layout, constant = plain
    if arithmetic(layout) is Arithmetic.XOR:
        bits = 0
        for leaf in XorImage(layout).columns:
            for column in leaf:
                bits |= column
        return bits & -bits, constant
    if layout._plain:
        return gcd(*[d for s, d in layout._leaves if s > 1]), constant
    return None


def _member(plain: Plain, budget: Budget) -> Callable[[int], bool] | None:
    """Return a test whether a layout has a value; None if only a table can tell."""
    layout, constant = plain
    if type(constant) is not int:
        return None
    if arithmetic(layout) is Arithmetic.COORDINATE:
        return lambda value: bool(value == constant)  # the only integer among its values
    if layout._plain:
        return lambda value: solution(value - constant, layout._leaves, budget) is not None
    if arithmetic(layout) is Arithmetic.XOR:
        image = XorImage(layout)
        return lambda value: value >= constant and image.first(value - constant, budget) is not None
    return None


def _mask(plain: Plain) -> tuple[int, int] | None:
    """Return the image as an integer, and the value of its bit 0; None if it has too many bits."""
    layout, constant = plain
    if arithmetic(layout) is Arithmetic.XOR:
        image = XorImage(layout)
        return (image.mask(), constant) if image.bits <= MASK_BITS else None
    if not layout._plain or sum((s - 1) * abs(d) for s, d in layout._leaves) >> MASK_BITS:
        return None
    low = sum((s - 1) * d for s, d in layout._leaves if d < 0)
    return mask_of_sums([(s, abs(d)) for s, d in layout._leaves]), constant + low
