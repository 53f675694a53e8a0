"""Values as bit planes: one integer for each of their bits; its bit i belongs to value i.

A sum, a quotient or a comparison of 2^20 values is then a few operations on integers of 2^20 bits
for each bit of the values, in pure Python: a thousand times as fast as one value after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, zip_longest

from .budget import MARKS, SET, Budget

Planes = list[int]  # entry j: bit i is bit j of value i
_LOOKS = 24  # values to look for one by one
_FEW = 4096  # leading values, which usually show duplicates
_WORD = 62  # bits of values that are listed together
_SWAPS = ((4, 0x0F), (2, 0x33), (1, 0x55))  # blocks of bits that a transposition swaps


class Values:
    """``count`` values: bit i of ``planes[j]`` is bit j of value i minus ``low``.

    >>> values = Values([0b0101, 0b0011], 4, -1)
    >>> list(values.listed()), values.extremes(), values.at(1)
    ([2, 1, 0, -1], (-1, 2), 1)
    """

    __slots__ = ("count", "low", "planes")

    def __init__(self, planes: Planes, count: int, low: int) -> None:
        self.planes, self.count, self.low = planes, count, low

    def above(self, low: int) -> Planes:
        """Return the planes of the values minus ``low``, which is at most :attr:`low`."""
        more, ones = self.low - low, (1 << self.count) - 1
        addend = [ones if more >> j & 1 else 0 for j in range(more.bit_length())]
        return plus(self.planes, addend) if more else self.planes

    def at(self, i: int) -> int:
        """Return value i."""
        return self.low + sum([(plane >> i & 1) << j for j, plane in enumerate(self.planes)])

    def place_of(self, value: int) -> int | None:
        """Return the first place of a value; None if there is none."""
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
        return compress(self.listed(), bytes_of([mask], self.count))

    def multiples(self, modulus: int, remainder: int) -> int:
        """Return a bit per value: is it ``remainder`` mod ``modulus``? Modulus 0 means equality."""
        ones = (1 << self.count) - 1
        if modulus == 0:
            return self.at_least(remainder) & ~self.at_least(remainder + 1)
        _, rest = divided(self.above(self.low - (self.low - remainder) % modulus), modulus, ones)
        for plane in rest:
            ones &= ~plane
        return ones

    def beside(self, modulus: int) -> int:
        """Return a bit per value: is it no multiple of ``modulus``?"""
        return self.multiples(modulus, 0) ^ (1 << self.count) - 1

    def at_least(self, bound: int) -> int:
        """Return a bit per value: is it ``bound`` or more?"""
        ones, borrow, less = (1 << self.count) - 1, 0, bound - self.low
        if less <= 0:
            return ones
        for j in range(max(len(self.planes), less.bit_length())):
            x = self.planes[j] if j < len(self.planes) else 0
            borrow = borrow | x ^ ones if less >> j & 1 else borrow & (x ^ ones)
        return borrow ^ ones

    def xor(self, other: Values) -> Values:
        """Return the XOR with other values of the same count; none is below 0."""
        both = zip_longest(self.above(0), other.above(0), fillvalue=0)
        return Values([x ^ y for x, y in both], self.count, 0)

    def moved(self, by: int) -> Values:
        """Return the values with ``by`` added to each."""
        return Values(self.planes, self.count, self.low + by)

    def times(self, n: int) -> Values:
        """Return the values, each multiplied by ``n``."""
        planes, low = self.planes, self.low * n
        if n < 0:  # count down from the largest
            ones = (1 << self.count) - 1
            planes, low = [p ^ ones for p in planes], low + ((1 << len(planes)) - 1) * n
        return Values(with_product([], planes, abs(n)), self.count, low)

    def first_difference(self, other: Values) -> int | None:
        """Return the first place at which two lists of one length differ; None if none does."""
        low = min(self.low, other.low)
        differ = 0
        for one, two in zip_longest(self.above(low), other.above(low), fillvalue=0):
            differ |= one ^ two
        return (differ & -differ).bit_length() - 1 if differ else None

    def step(self) -> int | None:
        """Return the step if the values, in some order, are an arithmetic progression; else None.

        >>> Values([0b0101, 0b0011], 4, -1).times(5).step()
        5
        """
        low, high = self.extremes()
        step, left = divmod(high - low, max(self.count - 1, 1))
        if left or high == low:
            return None
        above = added(self.planes, self.count, self.low - low)
        places, rest = divided(above, step, (1 << self.count) - 1)
        if any(rest):
            return None
        found = Values(places, self.count, 0).marks(range(self.count))
        return step if found.count(1) == self.count else None

    def extremes(self) -> tuple[int, int]:
        """Return the smallest and the largest value."""
        least = most = (1 << self.count) - 1  # the values that may still be it
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
        """Tell if the values include all integers of a range: try some first, then all."""
        if any(self.place_of(x) is None for x in wanted[:: len(wanted) // _LOOKS + 1]):
            return False
        if len(wanted) > MARKS:
            budget.give_up()
        return self.marks(wanted).count(1) == len(wanted)

    def marks(self, span: range) -> bytearray:
        """Return a byte for each integer of a range: 1 if it is among the values."""
        found = bytearray(len(span))
        mask = self.at_least(span.start) & ~self.at_least(span.stop)
        above = self.moved(-span.start)
        for x in above.listed() if mask.bit_count() == self.count else above.among(mask):
            found[x] = 1
        return found

    def differ(self, budget: Budget) -> bool:
        """Tell if all values differ; give up if that needs a set of too many of them."""
        low, high = self.extremes()
        if high - low + 1 < self.count:
            return False
        values = self.listed()
        few = values[:_FEW]
        if len(set(few)) < len(few):
            return False
        if high - low < MARKS:
            return self.marks(range(low, high + 1)).count(1) == self.count
        if self.count > SET:
            budget.give_up()
        return len(set(values)) == len(values)

    def apart_along(self, steps: range, budget: Budget) -> bool:
        """Tell if all sums of a value and a term of a progression differ.

        Values collide if they agree modulo the step and are fewer steps apart than there are terms.
        So values that agree fall into blocks of steps with one value each, and only values of
        nearby blocks are compared.

        >>> values = Values([0b0101, 0b0011], 4, 0)  # 3, 2, 1, 0
        >>> [values.apart_along(range(0, 8, step), Budget("", ())) for step in (4, 2)]
        [True, False]
        """
        terms = (steps[-1] - steps[0]) // steps.step + 1  # len() may overflow
        low, high = self.extremes()
        if high - low + 1 + abs(steps[-1] - steps[0]) < self.count * terms:
            return False
        if self.count > SET // 2:
            budget.give_up()
        quotients, alike = divided(self.above(low), abs(steps.step), (1 << self.count) - 1)
        bits = terms.bit_length() - 1  # a block has 2^bits steps, no more than there are terms
        block = Values([*quotients[bits:], 0, 0, *alike], self.count, 0)  # with room for two more
        if self.count > _FEW:
            few = Values([x & (1 << _FEW) - 1 for x in block.planes], _FEW, 0).listed()
            if len(set(few)) < _FEW:
                return False
        places = Values(quotients[:bits], self.count, 0)
        held = dict(zip(block.listed(), places.listed(), strict=True))
        if len(held) < self.count:
            return False
        for further in (1, 2) if terms > (1 << bits) + 1 else (1,):
            next_blocks = block.moved(further).listed()
            for key in held.keys() & next_blocks:
                if (further << bits) + held[key] - held[key - further] < terms:
                    return False
        return True

    def listed(self) -> memoryview | list[int]:
        """Return the values as integers, in order."""
        if len(self.planes) > _WORD or not -(1 << _WORD) <= self.low < 1 << _WORD:
            words = [
                Values(self.planes[k : k + _WORD], self.count, 0).listed()
                for k in range(0, len(self.planes), _WORD)
            ] or [memoryview(bytes(self.count))]
            low = [self.low + x for x in words[0]]
            for k, word in enumerate(words[1:], 1):
                low = [x + (y << k * _WORD) for x, y in zip(low, word, strict=True)]
            return low
        narrow = self.low >= -(1 << 31) and self.low + (1 << len(self.planes)) <= 1 << 31
        size = 4 if narrow else 8
        planes = added(self.planes + [0] * (8 * size - len(self.planes)), self.count, self.low)
        wide = bytearray(size * self.count)
        for k in range(size):
            wide[k::size] = bytes_of(planes[8 * k : 8 * k + 8], self.count)
        return memoryview(wide).cast("i" if narrow else "q")


def trimmed(planes: Planes, count: int, low: int) -> Values:
    """Return values in as few planes as possible: drop upper planes that are constant.

    >>> values = trimmed([0b01, 0b10, 0b11, 0], 2, 0)
    >>> values.planes, values.low
    ([2], 5)
    """
    planes, ones = list(planes), (1 << count) - 1
    while planes:
        top = planes.pop()
        place = 1 << len(planes)
        if top == ones:
            low += place
        elif top and planes and top == ones ^ planes[-1]:  # a sign bit
            planes[-1] = top
            low += place >> 1
        elif top:
            return Values([*planes, top], count, low)
    return Values(planes, count, low)


def planes_of_bytes(column: bytes | bytearray) -> Planes:
    """Return the eight planes of one-byte values.

    >>> planes_of_bytes(bytes([1, 3, 128]))
    [3, 2, 0, 0, 0, 0, 0, 4]
    """
    if column.count(column[:1]) == len(column):
        ones = (1 << len(column)) - 1
        return [ones if column and column[0] >> j & 1 else 0 for j in range(8)]
    padded = bytes(column) + bytes(-len(column) % 8)
    rows = [int.from_bytes(padded[i::8], "little") for i in range(8)]
    return _transposed(rows, len(padded) // 8)


def bytes_of(planes: Planes, count: int) -> bytes | bytearray:
    """Return values of at most eight planes, one byte each.

    >>> list(bytes_of([3, 2], 3))
    [1, 3, 0]
    """
    if not any(planes):
        return bytes(count)
    length = -(-count // 8)
    rows = _transposed(planes + [0] * (8 - len(planes)), length)
    result = bytearray(8 * length)
    for i, row in enumerate(rows):
        result[i::8] = row.to_bytes(length, "little")
    del result[count:]
    return result


def _transposed(rows: Planes, length: int) -> Planes:
    """Transpose eight rows of ``length`` bytes, whose bytes k form an 8 x 8 matrix of bits each."""
    rows = list(rows)
    for shift, block in _SWAPS:
        mask = int.from_bytes(bytes([block]) * length, "little")
        for i in range(8):
            if not i & shift:
                differ = (rows[i] >> shift ^ rows[i + shift]) & mask
                rows[i + shift] ^= differ
                rows[i] ^= differ << shift
    return rows


def added(planes: Planes, count: int, by: int, *, by_xor: bool = False) -> Planes:
    """Add ``by`` to each of ``count`` values, modulo ``2 ** len(planes)``.

    >>> added([0b11, 0b01], 2, 1)  # 3 and 1
    [0, 2]
    """
    if not by:
        return list(planes)
    ones, carry, result = (1 << count) - 1, 0, []
    for j, plane in enumerate(planes):
        if by >> j & 1:
            result.append(plane ^ ones ^ carry)
            carry = 0 if by_xor else plane | carry
        else:
            result.append(plane ^ carry)
            carry &= plane
    return result


def plus(one: Planes, two: Planes, shift: int = 0) -> Planes:
    """Add the values of two lists of planes, those of the second times ``2 ** shift``.

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


def with_product(total: Planes, digit: Planes, by: int) -> Planes:
    """Add ``by`` times the values of some planes to ``total``, in as few additions as possible."""
    bits = [j for j in range(by.bit_length()) if by >> j & 1]
    if len(bits) <= len(digit):
        for j in bits:
            total = plus(total, digit, j)
        return total
    for k, plane in enumerate(digit):
        total = plus(total, [plane if by >> j & 1 else 0 for j in range(by.bit_length())], k)
    return total


def divided(planes: Planes, by: int, ones: int) -> tuple[Planes, Planes]:
    """Return quotients and remainders of the values in planes, by long division.

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
