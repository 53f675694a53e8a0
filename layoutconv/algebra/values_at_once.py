"""All values of a layout, composed or not, at once: computed on the bits of all of them.

A value is held as what it is above the lowest that there may be, in a plane for each of its bits. A
sum, a digit or a swizzle of 2^20 values is then some hundred operations on integers of 2^20 bits,
and so are comparisons and extremes: 5 to 100 ms, where values one by one take a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress, zip_longest
from math import prod
from typing import Any

from .bit_planes import Planes, planes_of
from .budget import EVALUATIONS, SET, TABLE, Budget
from .composed import ComposedLayout
from .layout import Layout
from .normal import Arithmetic, arithmetic, simplified
from .protocol import xor
from .stride import finished
from .swizzle import Swizzle

_WIDTH = 128  # bits of a value at most
_LOOKS = 24  # values that are looked for one by one
_FEW = 4096  # values, which show most that are the same
_LISTED = 62  # of them are listed together
_BIT = [bytes([48 + (byte >> j & 1) for byte in range(256)]) for j in range(8)]


class Values:
    """``count`` values: bit i of ``planes[j]`` is bit j of value i, less ``low``.

    >>> values = values_at_once(Layout((2, 3), (-1, 4)))
    >>> values.count, values.extremes(), list(values.listed())
    (6, (-1, 8), [0, -1, 4, 3, 8, 7])
    """

    __slots__ = ("count", "low", "planes")

    def __init__(self, planes: Planes, count: int, low: int) -> None:
        self.planes, self.count, self.low = planes, count, low

    def above(self, low: int) -> Planes:
        """The planes of the values less ``low``, which is at most :attr:`low`."""
        more, ones = self.low - low, (1 << self.count) - 1
        addend = [ones if more >> j & 1 else 0 for j in range(more.bit_length())]
        return plus(self.planes, addend) if more else self.planes

    def at(self, i: int) -> int:
        """Value i."""
        return self.low + sum([(plane >> i & 1) << j for j, plane in enumerate(self.planes)])

    def place_of(self, value: int) -> int | None:
        """The first place of a value; None if there is none."""
        wanted = value - self.low
        if wanted < 0 or wanted >> len(self.planes):
            return None
        left = (1 << self.count) - 1
        for j, plane in enumerate(self.planes):
            left &= plane if wanted >> j & 1 else ~plane
            if not left:
                return None
        return (left & -left).bit_length() - 1

    def among(self, mask: int) -> Iterator[int]:
        """Iterate over the values whose bit in ``mask`` is set."""
        chosen = format(mask, f"0{self.count}b").encode().translate(_SPREAD)
        return compress(self.listed(), reversed(chosen))

    def multiples(self, modulus: int, remainder: int) -> int:
        """A bit for each value: does ``modulus`` leave ``remainder`` of it? 0 leaves all."""
        ones = (1 << self.count) - 1
        if modulus == 0:
            return self.at_least(remainder) & ~self.at_least(remainder + 1)
        _, rest = divided(self.above(self.low - (self.low - remainder) % modulus), modulus, ones)
        for plane in rest:
            ones &= ~plane
        return ones

    def at_least(self, bound: int) -> int:
        """A bit for each value: is it ``bound`` or more?"""
        ones, borrow, less = (1 << self.count) - 1, 0, bound - self.low
        if less <= 0:
            return ones
        for j in range(max(len(self.planes), less.bit_length())):
            x = self.planes[j] if j < len(self.planes) else 0
            borrow = borrow | x ^ ones if less >> j & 1 else borrow & (x ^ ones)
        return borrow ^ ones

    def xor(self, other: Values) -> Values:
        """The values, none below 0, each XOR that of another run of one length."""
        both = zip_longest(self.above(0), other.above(0), fillvalue=0)
        return Values([x ^ y for x, y in both], self.count, 0)

    def moved(self, by: int) -> Values:
        """The values, each with ``by`` added."""
        return Values(self.planes, self.count, self.low + by)

    def first_difference(self, other: Values) -> int | None:
        """The first place at which two runs of one length differ; None if they do not."""
        low = min(self.low, other.low)
        differ = 0
        for one, two in zip_longest(self.above(low), other.above(low), fillvalue=0):
            differ |= one ^ two
        return (differ & -differ).bit_length() - 1 if differ else None

    def extremes(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        least = most = (1 << self.count) - 1  # which values may be it
        low = high = 0
        for j in reversed(range(len(self.planes))):
            if without := least & ~self.planes[j]:
                least = without
            else:
                low |= 1 << j
            if having := most & self.planes[j]:
                most, high = having, high | 1 << j
        return self.low + low, self.low + high

    def cover(self, wanted: range, budget: Budget) -> bool:
        """Tell if all integers of a range are among the values: some first, then all of them."""
        if any(self.place_of(x) is None for x in wanted[:: len(wanted) // _LOOKS + 1]):
            return False
        if len(wanted) > SET:
            budget.give_up()
        mask = self.at_least(wanted.start) & ~self.at_least(wanted.stop)
        return len(set(self.among(mask))) == len(wanted)

    def differ(self, budget: Budget) -> bool:
        """Tell if no two values are the same, if more of them than a set is made of need not."""
        low, high = self.extremes()
        if high - low + 1 < self.count:
            return False
        values = self.listed()
        few = values[:_FEW]
        if len(set(few)) < len(few):
            return False
        if self.count > SET:
            budget.give_up()
        return len(set(values)) == len(values)

    def listed(self) -> memoryview | list[int]:
        """The values as integers, in their order."""
        if len(self.planes) > _LISTED:
            low = Values(self.planes[:_LISTED], self.count, self.low).listed()
            high = Values(self.planes[_LISTED:], self.count, 0).listed()
            return [x + (y << _LISTED) for x, y in zip(low, high, strict=True)]
        wide = bytearray(8 * self.count)
        for at in range(0, len(self.planes), 8):
            byte = 0
            for j, plane in enumerate(self.planes[at : at + 8]):
                digits = format(plane, "b").encode().translate(_SPREAD)
                byte |= int.from_bytes(digits, "big") << j
            wide[at // 8 :: 8] = byte.to_bytes(self.count, "little")
        above = memoryview(wide).cast("q")
        return list(map(self.low.__add__, above)) if self.low else above


_SPREAD = bytes([byte & 1 for byte in range(256)])  # from the digits "0" and "1" to 0 and 1


def counted(values: Values, first: int = 0) -> int:
    """The number of values from the first on that are ``first``, ``first + 1``, ....

    >>> counted(values_at_once(Layout((4, 2), (1, 8))))
    4
    """
    count = values.count
    planes = planes_of(Layout(count, 1), 0, count.bit_length())
    end = values.first_difference(Values(planes, count, first))
    return count if end is None else end


def values_at_once(f: Any) -> Values | None:
    """All values of a layout, if they are integers that bits and digits tell, or short tables.

    None for more than 2^20 values, for values of more than 128 bits, for coordinates, and for
    functions that nothing is known of but what they give, one after the other.

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
    """``outer`` at each of the values; None where it is no function of their bits and digits.

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
    if outer._plain:
        return _sums_of_digits(outer, values)
    if arithmetic(outer) is Arithmetic.XOR:
        return _xors_of_digits(outer, values)
    return _looked_up(outer, values)


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
    """The sums of what each leaf gives, where these are integers that add up."""
    if sum([s for s, d in layout._leaves if type(d) is not int]) > EVALUATIONS:
        return None
    planes: Planes = []
    low, place = 0, 1
    for s, d in layout._leaves:
        if xor(d):
            return None
        if type(d) is int:
            found = _of_layout(Layout(s, d), s)
        else:
            found = _of_list([finished(c * d) for c in range(s)])
        if found is None:
            return None
        planes = plus(planes, [_repeated(p, s, place, count) for p in found.planes])
        low += found.low
        place *= s
    return Values(planes, count, low) if len(planes) <= _WIDTH else None


def _of_list(values: list[Any]) -> Values | None:
    if {type(x) for x in values} != {int}:
        return None
    low = min(values)
    width = (max(values) - low).bit_length()
    if width > _WIDTH:
        return None
    wide = array("q", [x - low for x in reversed(values)]).tobytes()
    planes = [int(wide[j // 8 :: 8].translate(_BIT[j % 8]), 2) for j in range(width)]
    return Values(planes, len(values), low)


def _repeated(plane: int, extent: int, times: int, count: int) -> int:
    """A plane of ``extent`` bits with each bit ``times`` times, and that over to ``count`` bits."""
    digits = format(plane, f"0{extent}b").encode()
    if times < extent:
        long = bytearray(extent * times)
        for k in range(times):
            long[k::times] = digits
    else:
        long = bytearray(b"".join([digits[i : i + 1] * times for i in range(extent)]))
    result, length = int(long, 2), extent * times
    while length < count:
        more = min(length, count - length)
        result |= (result & ((1 << more) - 1)) << length
        length += more
    return result


def plus(one: Planes, two: Planes, shift: int = 0) -> Planes:
    """The sums of the values in two lists of planes, those of the second times ``2 ** shift``.

    >>> plus([0b11, 0b01], [0b10], 1)  # 3 and 1, 0 and 2
    [3, 3]
    """
    result, carry = list(one[:shift]), 0
    result += [0] * (shift - len(result))
    for j in range(max(len(one) - shift, len(two))):
        x = one[j + shift] if j + shift < len(one) else 0
        y = two[j] if j < len(two) else 0
        either = x ^ y
        result.append(either ^ carry)
        carry = x & y | carry & either
    return [*result, carry] if carry else result


def _looked_up(outer: Layout, values: Values) -> Values | None:
    """The values of a table, of functions that nothing is known of, at some of its places."""
    low, high = values.extremes()
    if low < 0 or high >= outer.size():
        return None
    table = values_at_once(outer)
    if table is None:
        return None
    return _of_list(list(map(table.listed().__getitem__, values.listed())))


def _swizzled(swizzle: Swizzle, values: Values) -> Values:
    """Blocks of the period of a swizzle stay, so the values count from the start of one."""
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
    low = values.low // place  # of the last digit; the others are the same of what is left
    rest = values.above(low * place)
    total: Planes = []
    least, ones = 0, (1 << values.count) - 1
    for i, (s, d) in enumerate(layout._leaves):
        if i < len(layout._leaves) - 1:
            rest, digit = divided(rest, s, ones)
        else:
            digit, least = rest, least + low * d
        if d < 0:  # count down from the largest digit
            least += ((1 << len(digit)) - 1) * d
            digit = [plane ^ ones for plane in digit]
        total = _with_product(total, digit, abs(d))
        if len(total) > _WIDTH:
            return None
    return Values(total, values.count, least)


def _with_product(total: Planes, digit: Planes, by: int) -> Planes:
    """``total`` and ``by`` times the values of some planes, in as few additions as it takes."""
    bits = [j for j in range(by.bit_length()) if by >> j & 1]
    if len(bits) <= len(digit):
        for j in bits:
            total = plus(total, digit, j)
        return total
    for k, plane in enumerate(digit):
        total = plus(total, [plane if by >> j & 1 else 0 for j in range(by.bit_length())], k)
    return total


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


def divided(planes: Planes, by: int, ones: int) -> tuple[Planes, Planes]:
    """Quotients and remainders of the values in planes, by long division.

    >>> divided([0b10, 0b11], 3, 0b11)  # of 2 and 3
    ([2], [0, 1])
    """
    bits = (by - 1).bit_length()
    if by & (by - 1) == 0:
        return planes[bits:], planes[:bits]
    rest: Planes = planes[len(planes) - bits + 1 :] if len(planes) >= bits else planes
    quotient: Planes = []
    for plane in reversed(planes[: max(0, len(planes) - bits + 1)]):
        rest = [plane, *rest]
        less, borrow = [], 0
        for j, x in enumerate(rest):
            if by >> j & 1:
                less.append(x ^ borrow ^ ones)
                borrow |= x ^ ones
            else:
                less.append(x ^ borrow)
                borrow &= x ^ ones
        if len(rest) < by.bit_length():
            borrow = ones
        reached = borrow ^ ones
        quotient.append(reached)
        rest = [x ^ (x ^ y) & reached for x, y in zip(rest, less, strict=True)][:bits]
    return quotient[::-1], rest
