"""The stride protocol: the questions that operations ask of a stride of any kind.

A layout is the sum of its strides at the digits of a coordinate. An operation never tests for a
class; it asks, and an unknown answer is None or "no", never "as if it were an integer". This
module answers for plain and symbolic integers; every other kind is a :class:`Stride`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .relations import known
from .symbols import Symbolic
from .values import Immutable

Path = tuple[int, ...]
Terms = tuple[tuple[Path, Any], ...]  # the components of a vector: an integer has the path ()
Bounds = dict[Path, tuple[Any, Any]]  # the smallest and the largest component at each path


class Stride(Immutable):
    """A stride that is not an integer; subclass it to define your own.

    ``c * stride`` is ``stride.at(c)``, whose value must add up with the values of the layout's
    other strides. You need to define nothing else: an undefined answer counts as unknown, and
    operations leave such a stride alone or refuse it. Each answer that you define enables
    operations, and must be true for all coordinates.

    >>> from layoutconv.algebra import Layout, coalesce, composition, cosize
    >>> class Cyclic(Stride):
    ...     def __init__(self, period, step):
    ...         object.__setattr__(self, "period", period)
    ...         object.__setattr__(self, "step", step)
    ...     def at(self, c):
    ...         return c % self.period * self.step
    ...     def bounds(self, low, high):
    ...         return {(): (0, (self.period - 1) * self.step)}
    ...     def __str__(self):
    ...         return f"cyclic({self.period},{self.step})"
    >>> ring = Layout((8, 2), (Cyclic(3, 10), 1))
    >>> [ring(i, 0) for i in range(5)], cosize(ring)
    ([0, 10, 20, 0, 10], 22)
    >>> print(composition(ring, (4, 2)))
    (8,2):(cyclic(3,10),1) o 0 o (4,2):(1@0,1@1)
    """

    __slots__ = ()

    def at(self, c: Any) -> Any:
        """Return the value at ``c``: an integer, an array, a traced value or a coordinate."""
        raise NotImplementedError(f"{type(self).__name__} does not define at")

    def __rmul__(self, c: Any) -> Any:
        return self.at(c)

    def __str__(self) -> str:
        return f"{type(self).__name__}(c)"  # a bare name would read as an integer

    def zero(self) -> Any:
        """Return the zero of the values: 0, or a coordinate of zeros."""
        return 0

    def is_zero(self) -> bool:
        """Tell if the value is 0 at every coordinate."""
        return False

    def can_merge(self, extent: Any, following: Any) -> bool:
        """Tell if modes ``extent:self`` and ``n:following`` merge into one mode of this stride."""
        return False

    def scale(self, n: Any) -> Any:
        """Return the stride ``d`` with ``c * d == (n * c) * self`` for all c; None if unknown."""
        return None

    def times(self, n: Any) -> Any:
        """Return the stride ``d`` with ``c * d == n * (c * self)`` for all c; None if unknown."""
        return None

    def plus(self, other: Any) -> Any:
        """Return the stride ``d`` with ``c * d == c * self + c * other``; None if unknown."""
        return None

    def terms(self) -> Terms | None:
        """Return the components of an additive stride, by path; None if it is not additive.

        ``c * self`` is then ``c`` times the vector of these components for every integer ``c``.
        """
        return None

    def xor(self) -> int | None:
        """Return the integer whose carry-less multiples the values are, if they add by XOR."""
        return None

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the extremes of the values at the coordinates ``low`` to ``high``, by path."""
        return None

    def values(self, count: int) -> Any:
        """Return the values at coordinates 0 to ``count - 1``; None if only calls compute them.

        Return a sequence or an array of integers that is faster than calls, such as a slice of a
        buffer: questions about all values are then answered for up to 2^20 of them, instead of
        30,000.
        """
        return None

    def divisor(self) -> int:
        """Return a positive integer that divides all values; 0 if all are 0."""
        return 1

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate; None if unknown."""
        return None

    def expression(self, c: str, language: str) -> str | None:
        """Return the text of the value at ``c`` for :func:`~layoutconv.emit`, or None."""
        return None

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the same stride with ``fn`` applied to its integers."""
        return self


def is_integer(d: Any) -> bool:
    """Tell if a stride is an integer that operations can reason about."""
    return isinstance(d, int | Symbolic)


def is_stride(d: Any) -> bool:
    """Tell if a leaf answers for itself; any other leaf is an integer, known or traced."""
    return isinstance(d, Stride)


def is_zero(d: Any) -> bool:
    """Tell if a stride is 0 at every coordinate.

    >>> is_zero(0), is_zero(3)
    (True, False)
    """
    if type(d) is int:
        return d == 0
    if is_integer(d):
        return known(d == 0)
    return is_stride(d) and d.is_zero()


def zero_of(d: Any) -> Any:
    """Return the zero of a stride's values."""
    return d.zero() if is_stride(d) else 0


def can_merge(extent: Any, d: Any, following: Any) -> bool:
    """Tell if a mode of stride ``following`` continues ``extent:d``.

    >>> can_merge(4, 2, 8), can_merge(4, 2, 4)
    (True, False)
    """
    if is_integer(d):
        found = terms(following)
        if found is None or any(path != () for path, _ in found):
            return is_zero(d) and is_zero(following)
        return known(extent * d == (found[0][1] if found else 0))
    return is_stride(d) and d.can_merge(extent, following)


def scale(n: Any, d: Any) -> Any:
    """Return the stride of every ``n``-th coordinate; None if unknown."""
    if type(n) is int and n == 1:
        return d
    return d.scale(n) if is_stride(d) else n * d


def times(n: Any, d: Any) -> Any:
    """Return the stride whose values are ``n`` times as large; None if unknown."""
    return d.times(n) if is_stride(d) else n * d


def plus(d: Any, e: Any) -> Any:
    """Return the stride of the sum of two layouts; None if unknown. 0 is the zero of every kind."""
    if is_zero(d) and not (is_stride(d) and is_zero(e)):
        return e
    if is_zero(e):
        return d  # of two zeros, the one with a kind, so that the order does not matter
    if is_stride(d):
        return d.plus(e)
    if is_stride(e):
        return e.plus(d)
    return d + e


def terms(d: Any) -> Terms | None:
    """Return the components of an additive stride: none for 0, path () for any other integer.

    None for a stride that is not additive, and for a traced value, which is unknown.
    """
    if is_integer(d):
        return () if type(d) is int and d == 0 else (((), d),)
    return d.terms() if is_stride(d) else None


def xor(d: Any) -> int | None:
    """Return the integer whose carry-less multiples a stride gives; None for any other stride.

    The integer 0 is also the zero of XOR strides.
    """
    if type(d) is int:
        return 0 if d == 0 else None
    found: int | None = d.xor() if is_stride(d) else None
    return found


def bounds(d: Any, low: Any, high: Any) -> Bounds | None:
    """Return the extremes of ``c * d`` for ``low <= c <= high``, by path; None if unknown."""
    if is_integer(d):
        ends = (low * d, high * d) if d >= 0 else (high * d, low * d)
        return {(): ends}
    found: Bounds | None = d.bounds(low, high) if is_stride(d) else None
    return found


def divisor(d: Any) -> int:
    """Return a positive integer that divides all values of a stride; 0 for the zero stride."""
    if type(d) is int:
        return abs(d)
    return d.divisor() if is_stride(d) else 1


def map_integers(fn: Callable[[Any], Any], d: Any) -> Any:
    """Return the stride with ``fn`` applied to its integers."""
    return d.map_integers(fn) if is_stride(d) else fn(d)
