"""Strides that add without carry: a layout of them is linear in the bits of its coordinate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arrays import is_array, is_negative
from .basis import ScaledBasis
from .errors import LayoutTypeError, wrong_argument
from .late import late
from .numbers import is_no_integer
from .protocol import Bounds, Path, Stride, is_zero, xor
from .symbols import Symbolic

_SET = object.__setattr__


class F2(Stride):
    """A stride whose sums have no carries: ``+`` is XOR and ``c * F2(d)`` the carry-less product.

    Bit ``i`` of ``c`` adds ``d << i``, so a layout of such strides is linear in the bits of its
    coordinate, like a swizzle. An F2 stride never equals an integer, as it adds differently; F2
    strides are ordered by value.

    >>> row, col = F2(9), F2(1)
    >>> [int(r * row + c * col) for r in range(3) for c in range(3)]
    [0, 1, 2, 9, 8, 11, 18, 19, 16]
    >>> F2(3) * F2(3)
    F2(5)
    """

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any) -> None:
        if type(value) is not int or value < 0:
            value = late("plain_shape")(value)
            negative = isinstance(value, int) and value < 0
            if negative or isinstance(value, tuple) or is_no_integer(value):
                raise wrong_argument("F2", "value", "an integer >= 0", value)
        _SET(self, "value", value)

    def __reduce__(self) -> Any:
        return F2, (self.value,)

    def __mul__(self, c: Any) -> Any:
        if isinstance(c, F2):  # a coordinate that was computed by XOR
            c = c.value
        if isinstance(c, Stride | tuple):
            return NotImplemented
        c, d = (c, self.value) if isinstance(self.value, int) else (self.value, c)
        if not isinstance(d, int) or d < 0:
            raise LayoutTypeError(f"F2: the carry-less product of {c} and {d} is not defined")
        if is_array(c) and is_negative(c):
            raise LayoutTypeError("F2: expected integers >= 0, got an array with others")
        return F2(carryless(c, d))

    __rmul__ = __mul__

    def at(self, c: Any) -> Any:
        """Return ``c`` times the stride."""
        return self * c

    def __add__(self, other: Any) -> Any:
        if isinstance(other, F2):
            return F2(self.value ^ other.value)
        if isinstance(other, int) and (other == 0 or self.is_zero()):
            return self if other == 0 else other  # zero belongs to every kind
        if isinstance(other, Symbolic) and self.is_zero():
            return other
        if isinstance(other, Stride) and self.is_zero():
            return NotImplemented  # the other stride defines the sum
        raise LayoutTypeError(f"F2: cannot add {other!r} to {self}; make both F2, or neither")

    __radd__ = __sub__ = __rsub__ = __add__  # each value is its own negative

    def __neg__(self) -> F2:
        return self

    def __lt__(self, other: Any) -> Any:
        return self.value < other.value if isinstance(other, F2) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self.value <= other.value if isinstance(other, F2) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return self.value > other.value if isinstance(other, F2) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self.value >= other.value if isinstance(other, F2) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other.value) if isinstance(other, F2) else NotImplemented

    def __hash__(self) -> int:
        return hash((F2, self.value))

    def __index__(self) -> int:
        return int(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __repr__(self) -> str:
        return f"F2({self.value!r})"

    def __str__(self) -> str:
        return f"f{self.value}"

    def zero(self) -> Any:
        """Return the zero that adds without carry."""
        return F2(0)

    def is_zero(self) -> bool:
        """Tell if the value is 0."""
        return isinstance(self.value, int) and self.value == 0

    def can_merge(self, extent: Any, following: Any) -> bool:
        """Tell if modes ``extent:self`` and ``n:following`` merge into one mode of this stride.

        Only an extent that is a power of two can: for 3, say, the bits of the coordinates are not
        the bits of the position.
        """
        if self.is_zero():
            return is_zero(following)
        value = xor(following)
        if value is None or not isinstance(extent, int) or not isinstance(self.value, int):
            return False
        return extent & (extent - 1) == 0 and extent * self.value == value

    def scale(self, n: Any) -> Any:
        """Return the stride of every n-th coordinate if n is a power of two; None otherwise."""
        if self.is_zero():
            return self
        if isinstance(n, int) and n > 0 and n & (n - 1) == 0 and isinstance(self.value, int):
            return F2(n * self.value)
        return None

    times = scale

    def plus(self, other: Any) -> Any:
        """Return the XOR of both strides if the other is an XOR stride; None otherwise."""
        value = xor(other)
        return None if value is None or self.xor() is None else F2(self.value ^ value)

    def xor(self) -> int | None:
        """Return the value if it is known."""
        return self.value if isinstance(self.value, int) else None

    def terms(self) -> Any:
        """Return nothing for zero, None otherwise: twice a value is not its double."""
        return () if self.is_zero() else None

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the extremes of the values at coordinates that are not negative."""
        d = self.xor()
        if d is None or not isinstance(low, int) or not isinstance(high, int) or low < 0:
            return None
        if low == high:
            return {(): (carryless(low, d), carryless(low, d))}
        top = (1 << (high.bit_length() + d.bit_length() - 1)) - 1 if d else 0
        return {(): (0, top)}

    def divisor(self) -> int:
        """Return the lowest bit of the value."""
        return self.value & -self.value if isinstance(self.value, int) else 1

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate."""
        return ScaledBasis(self, path)

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the stride with ``fn`` applied to its value."""
        return F2(fn(self.value))


def carryless(c: Any, d: int) -> Any:
    """Return the carry-less product: the XOR of ``c << i`` over the bits ``i`` of ``d``.

    >>> carryless(3, 3), carryless(5, 8)
    (5, 40)
    """
    if type(c) is int and 0 <= c < d:
        c, d = d, c
    result: Any = c * 0
    while d:
        low = d & -d
        result = result ^ (c * low)
        d ^= low
    return result
