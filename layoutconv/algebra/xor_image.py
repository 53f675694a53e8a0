"""The image of an XOR layout without its table: which values it has, and where they come first.

Values are XORs of columns, one for each bit of each coordinate. A coordinate below 5 has three bits
but not all of their eight combinations, so the columns alone do not decide which values exist. Of
the choices that give a value, the first with coordinates inside the shape is searched.
"""

from __future__ import annotations

from math import gcd

from .budget import Budget
from .f2_span import Columns, Span
from .layout import Layout

MASK_BITS = 23  # most bits of values whose image becomes one integer, of 2^23 bits: <= 50 ms


class XorImage:
    """The values of an XOR layout, and the first position of each.

    >>> from layoutconv.algebra import F2
    >>> image = XorImage(Layout((3, 5), (F2(1), F2(3))))
    >>> [image.first(value, Budget("", ())) for value in range(8)]
    [0, 1, 2, 3, 8, 9, 6, 7]
    >>> bin(image.mask())
    '0b111000011111111'
    """

    __slots__ = ("bits", "columns", "extents", "span", "turns")

    extents: list[int]
    columns: list[Columns]  # of each leaf, the lowest bit of its coordinate first
    bits: int  # enough for every value
    span: Span
    turns: list[int]  # entry i: the XOR of the first i + 1 choices of columns that give 0

    def __init__(self, layout: Layout) -> None:
        self.extents = [s for s, _ in layout._leaves]
        self.columns = [
            tuple([int(d) << k for k in range((s - 1).bit_length())]) for s, d in layout._leaves
        ]
        flat = tuple([column for leaf in self.columns for column in leaf])
        self.bits = max(flat, default=0).bit_length()
        self.span = Span(flat)
        self.turns = []
        for choice in self.span.kernel:
            self.turns.append(choice ^ (self.turns[-1] if self.turns else 0))

    def first(self, value: int, budget: Budget) -> int | None:
        """Return the first position that has ``value``; None if none does.

        The span prefers columns of low bits, so its first answer is the smallest of all choices,
        and counting through the kernel visits the others in ascending order.
        """
        rest, choice = self.span.reduced(value)
        budget.spend(2)
        if rest:
            return None
        for count in range(1 << len(self.turns)):
            budget.spend(2)
            if count:
                choice ^= self.turns[(count & -count).bit_length() - 1]
            position = self._position(choice)
            if position is not None:
                return position
        return None

    def _position(self, choice: int) -> int | None:
        """Return the position of a choice of columns; None outside the shape."""
        position, weight = 0, 1
        for s, leaf in zip(self.extents, self.columns, strict=True):
            c = choice & ((1 << len(leaf)) - 1)
            if c >= s:
                return None
            position += c * weight
            weight *= s
            choice >>= len(leaf)
        return position

    def block(self) -> int:
        """Return a power of two such that the image consists of aligned blocks of that size.

        The bits below the lowest 1 of an extent are free in every coordinate, and reach all values
        of a block.
        """
        free = [c for s, leaf in self._pairs() for c in leaf[: (s & -s).bit_length() - 1]]
        span, block = Span(tuple(free)), 1
        while block.bit_length() <= self.bits and not span.reduced(block)[0]:
            block *= 2
        return block

    def mask(self) -> int:
        """Return the image as an integer, bit v for value v: for values of few bits."""
        return _mask(self._pairs(), self.bits)

    def _pairs(self) -> list[tuple[int, Columns]]:
        return [(s, x) for s, x in zip(self.extents, self.columns, strict=True) if any(x)]


def _mask(leaves: list[tuple[int, Columns]], bits: int) -> int:
    """Return the XORs of columns at coordinates below the extents, as an integer of bits."""
    low = [1]  # entry j: the places whose bit j is 0
    for j in range(1, bits):
        low = [x | x << (1 << j) for x in low]
        low.append((1 << (1 << j)) - 1)

    def moved(values: int, by: int) -> int:
        """Return the values, each XOR ``by``."""
        for j, zeros in enumerate(low):
            if by >> j & 1:
                values = (values & zeros) << (1 << j) | values >> (1 << j) & zeros
        return values

    image = 1
    for s, leaf in leaves:
        block, result = image, 0  # block: the values with coordinates below 1 << k
        for k in range(s.bit_length()):
            if s >> k & 1:
                start = 0
                for i in range(k + 1, len(leaf)):
                    start ^= leaf[i] if s >> i & 1 else 0
                result |= moved(block, start)
            if k < len(leaf):
                block |= moved(block, leaf[k])
        image = result
    return image


def first_missed(layout: Layout, budget: Budget) -> int | None:
    """Return the first integer that copies of an XOR layout at its complement miss; None if none.

    The complement has all bits that lead no value of the span, so copies reach an integer if its
    other bits are those of a value of the layout. The bits below the lowest 1 of an extent are
    free, and reach everything that they span.

    >>> from layoutconv.algebra import F2
    >>> [first_missed(Layout(s, F2(4)), Budget("", ())) for s in (3, 4)]
    [12, None]
    """
    leaves = XorImage(layout)._pairs()
    bounded = [(s // (s & -s), leaf[(s & -s).bit_length() - 1 :]) for s, leaf in leaves]
    bounded = [(s, leaf) for s, leaf in bounded if s > 1]
    if not bounded:
        return None
    free = Span(tuple([c for s, leaf in leaves for c in leaf[: (s & -s).bit_length() - 1]]))
    span = Span(tuple([c for _, leaf in leaves for c in leaf]))
    leads = sorted(set(span.rows) - set(free.rows))
    if len(leads) > MASK_BITS:
        budget.give_up()

    def packed(column: int) -> int:
        rest = free.reduced(column)[0]
        return sum([(rest >> (lead - 1) & 1) << i for i, lead in enumerate(leads)])

    image = _mask([(s, tuple(map(packed, leaf))) for s, leaf in bounded], len(leads))
    first = (~image & (image + 1)).bit_length() - 1
    if first == 1 << len(leads):
        return None
    return sum([(first >> i & 1) << (lead - 1) for i, lead in enumerate(leads)])


class XorPlaces:
    """The first position of each value of an XOR layout, as a function within a budget.

    >>> from layoutconv.algebra import F2
    >>> place = XorPlaces(Layout((4, 5), (F2(1), F2(4))), Budget("", ()))
    >>> place(6), place(99), place.alike(8, 8, 4)
    (6, None, True)
    """

    __slots__ = ("budget", "image")

    def __init__(self, layout: Layout, budget: Budget) -> None:
        self.image, self.budget = XorImage(layout), budget

    def __call__(self, value: int) -> int | None:
        return self.image.first(value, self.budget)

    def alike(self, value: int, position: int, count: int) -> bool:
        """Tell if ``count`` values from ``value`` on clearly lie like the first ``count`` ones.

        They do if the columns of the values share none with those of the first value, and all
        columns together stay inside the shape: the smallest choice for each is then the first.
        """
        image = self.image
        if count & (count - 1) or value % count or self(value) != position:
            return False
        together = image.span.reduced(value)[1]
        for k in range(count.bit_length() - 1):
            rest, choice = image.span.reduced(1 << k)
            if rest or together & choice:
                return False
            together |= choice
        return image._position(together) is not None


def mask_of_sums(modes: list[tuple[int, int]]) -> int:
    """Return the sums of modes of strides >= 0 as an integer: bit v for the sum v.

    >>> bin(mask_of_sums([(3, 1), (2, 5)]))
    '0b11100111'
    """
    image = 1
    for s, d in modes:
        done = 1  # coordinates of the mode in the image so far
        while d and done < s:
            step = min(done, s - done)
            image |= image << step * d
            done += step
    return image


def common_block(mask: int, block: int, start: int = 0) -> int:
    """Return the common divisor of the starts and ends of the runs of 1 in ``mask``.

    ``block`` is known to divide them. Bit i stands for the integer ``start + i``.

    >>> common_block(0b1100_0011_0011, 1), common_block(0b111, 1)
    (2, 3)
    """
    edges = mask ^ mask << 1
    found = 0
    for at, byte in enumerate(edges.to_bytes(edges.bit_length() // 8 + 1, "little")):
        if byte:
            found = gcd(found, *[start + 8 * at + i for i in range(8) if byte >> i & 1])
            if found == block:
                break
    return found
