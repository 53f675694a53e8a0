"""``Swizzle``: XOR bits of an offset into lower bits, to avoid bank conflicts in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arrays import computable, in_int64, is_array, type_range
from .display import Drawable
from .errors import LayoutTypeError, LayoutValueError, wrong_argument
from .late import late
from .numbers import is_no_integer
from .symbols import Symbolic

_SET = object.__setattr__


class Swizzle(Drawable):
    """The bijection ``x -> x ^ ((x & Y) >> shift)`` on ``bits`` bits.

    ``base`` is the number of low bits left alone; Y masks the ``bits`` bits from ``base + shift``
    on. A negative shift moves low bits into higher ones. A swizzle is its own inverse, as
    ``|shift| >= bits``. CUTLASS: cute/swizzle.hpp.

    >>> swizzle = Swizzle(3, 0, 3)
    >>> [swizzle(8 + i) for i in range(4)], str(swizzle)
    ([9, 8, 11, 10], 'S<3,0,3>')
    """

    __slots__ = ("base", "bits", "shift")

    bits: int
    base: int
    shift: int

    def __init__(self, bits: int, base: int, shift: int) -> None:
        if not type(bits) is type(base) is type(shift) is int:
            bits, base, shift = late("plain_shape")((bits, base, shift))
            for name, value in (("bits", bits), ("base", base), ("shift", shift)):
                if type(value) is not int:
                    raise wrong_argument("Swizzle", name, "an int", value)
        if bits < 0 or base < 0 or abs(shift) < bits:
            raise LayoutValueError(
                f"Swizzle({bits}, {base}, {shift}): expected bits >= 0, base >= 0, |shift| >= bits"
            )
        _SET(self, "bits", bits)
        _SET(self, "base", base)
        _SET(self, "shift", shift)

    def __reduce__(self) -> Any:
        return Swizzle, (self.bits, self.base, self.shift)

    @property
    def mask(self) -> int:
        """The mask Y of the bits that are XOR-ed into others."""
        return ((1 << self.bits) - 1) << (self.base + max(self.shift, 0))

    def __call__(self, x: Any) -> Any:
        """Return the swizzled offset; ``x`` may be an array. Only ``& ^ // *`` are used."""
        if type(x) is not int:
            if isinstance(x, Symbolic):
                raise LayoutTypeError(f"Swizzle: the bits of {x} are not known")
            if isinstance(x, tuple):
                raise LayoutTypeError(f"Swizzle: the coordinate {x} has no bits")
            if x is None or is_no_integer(x):
                raise LayoutTypeError(f"Swizzle: {x!r} is not an integer")
            if isinstance(late("plain")(x), Symbolic):  # a symbol of sympy
                raise LayoutTypeError(f"Swizzle: the bits of {x} are not known")
        if is_array(x) and not x.ndim and hasattr(x.dtype, "kind"):
            x = int(x)  # a scalar of NumPy
        if is_array(x):
            x = in_int64(x) if type_range(x)[1] < self.size() else computable(x)
        picked = x & self.mask
        if self.shift >= 0:
            return x ^ (picked // (1 << self.shift))
        return x ^ (picked * (1 << -self.shift))

    def of_integers(self) -> Callable[[int], int]:
        """Return the same function for plain integers only, which is faster.

        >>> Swizzle(2, 0, 3).of_integers()(9)
        8
        """
        mask, shift = self.mask, self.shift
        if shift >= 0:
            return lambda x: x ^ ((x & mask) >> shift)
        return lambda x: x ^ ((x & mask) << -shift)

    def size(self) -> int:
        """Return the period: offsets are permuted within blocks of this size."""
        return 1 << (self.bits + self.base + abs(self.shift))

    def cosize(self) -> int:
        """Return :meth:`size`, as a swizzle is a permutation."""
        return self.size()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Swizzle):
            return NotImplemented
        mine, theirs = (self.bits, self.base, self.shift), (other.bits, other.base, other.shift)
        return mine == theirs

    def __hash__(self) -> int:
        return hash((Swizzle, self.bits, self.base, self.shift))

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"

    def __str__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"
