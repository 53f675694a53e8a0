"""Scaled bases: strides whose values are coordinates, as scaled unit vectors and their sums.

CUTLASS: cute/numeric/arithmetic_tuple.hpp; Cecka, *CuTe Layout Representation and Algebra* (2026),
on integer semimodules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from .errors import DEEPEST, LayoutTypeError, too_deep, wrong_argument
from .late import late
from .numbers import is_no_integer, plain_numbers
from .protocol import Bounds, Path, Stride, Terms, is_integer, is_stride, is_zero, xor, zero_of
from .symbols import Symbolic, same


class Coordinate(Stride):
    """Base class of coordinates: sums, differences, order, and merging of modes.

    The order is colexicographic, like positions in a shape: the last mode decides.

    >>> E(0) < E(1), ArithmeticTuple((5,)) < ArithmeticTuple((0, 1)), 0 < E(2), E(0) - E(0) == 0
    (True, True, True, True)
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return add(self, _term(other))

    def __radd__(self, other: Any) -> Any:
        return add(_term(other), self)

    def __sub__(self, other: Any) -> Any:
        return add(self, negated(_term(other)))

    def __rsub__(self, other: Any) -> Any:
        return add(_term(other), negated(self))

    def __neg__(self) -> Any:
        return negated(self)

    def __lt__(self, other: Any) -> bool:
        return _order(self, other) < 0 if _is_coordinate(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return _order(self, other) <= 0 if _is_coordinate(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return _order(self, other) > 0 if _is_coordinate(other) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return _order(self, other) >= 0 if _is_coordinate(other) else NotImplemented

    def can_merge(self, extent: Any, following: Any) -> bool:
        """Tell if modes ``extent:self`` and ``n:following`` merge into one mode of this stride."""
        return _same_terms(self.times(extent), following)

    def plus(self, other: Any) -> Any:
        """Return the sum with another coordinate stride; None for any other stride."""
        return _sum_of_strides(self, other)

    def terms(self) -> Terms | None:
        """Return the components other than 0, by path; None if one is a traced value."""
        return _terms_of(self)


def is_sequence(x: Any) -> bool:
    """Tell if a value is an ordered iterable of parts, other than characters or bytes."""
    if isinstance(x, set | frozenset | dict | str | bytes) or getattr(x, "ndim", 1) == 0:
        return False
    return isinstance(x, Iterable)


class ArithmeticTuple(Coordinate, tuple[Any, ...]):
    """A coordinate that adds mode by mode, with the shorter operand padded with zeros.

    Trailing zeros do not matter: coordinates that differ only in them are equal, and one of zeros
    alone equals the integer 0, the zero of every kind. Components are integers, arrays of them,
    strides, or tuples of these; others raise :class:`LayoutTypeError`.

    >>> ArithmeticTuple((1, 2)) + ArithmeticTuple((0, 0, 3))
    ArithmeticTuple((1, 2, 3))
    >>> 2 * ArithmeticTuple((1, (2, 3)))
    ArithmeticTuple((2, ArithmeticTuple((4, 6))))
    >>> ArithmeticTuple((1, 0)) == E(0), ArithmeticTuple((1,)) == (1, 0), 0 * E(1) == 0
    (True, True, True)
    """

    __slots__ = ()

    def __new__(cls, components: Iterable[Any] = ()) -> ArithmeticTuple:
        if type(components) is not tuple and not is_sequence(components):
            raise wrong_argument(cls.__name__, "components", "a sequence of them", components)
        return tuple.__new__(
            cls,
            [
                part if type(part) is int else plain_numbers(cls.__name__, "components", part)
                for part in components
            ],
        )

    def __mul__(self, c: Any) -> Any:
        return scaled(c if type(c) is int else _factor(c), self)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ScaledBasis):
            other = other.as_tuple()
        if not isinstance(other, tuple | int):
            return NotImplemented
        return same(_trimmed(self), _trimmed(other))

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return hash(_trimmed(self))

    def __reduce__(self) -> Any:
        return ArithmeticTuple, (tuple(self),)

    def __repr__(self) -> str:
        return f"ArithmeticTuple({tuple.__repr__(self)})"

    def __str__(self) -> str:
        return "(" + ",".join(map(str, self)) + ")"

    def at(self, c: Any) -> Any:
        """Return ``c`` times this coordinate."""
        return scaled(c, self)

    def zero(self) -> Any:
        """Return the coordinate with every component 0."""
        return scaled(0, self)

    def is_zero(self) -> bool:
        """Tell if every component is 0."""
        return not self.terms()

    def times(self, n: Any) -> Any:
        """Return ``n`` times this coordinate."""
        return scaled(n, self)

    scale = times

    def xor(self) -> int | None:
        """Return None: coordinates add with carries."""
        return None

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the extremes of the multiples, by path."""
        return _bounds_of(self.terms() or (), low, high)

    def divisor(self) -> int:
        """Return 1: coordinates are not multiples of an integer."""
        return 1

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate."""
        return sum_of_bases([ScaledBasis(v, path + p) for p, v in self.terms() or ()])

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the coordinate with ``fn`` applied to its components."""
        return coordinate([
            coordinate(x).map_integers(fn) if isinstance(x, tuple) else fn(x) for x in self
        ])  # fmt: skip


def coordinate(components: Iterable[Any]) -> ArithmeticTuple:
    """Make a coordinate of components that are known to be valid: no checks, for results."""
    return tuple.__new__(ArithmeticTuple, components)


def _factor(c: Any) -> Any:
    """Return a valid factor of a coordinate as a plain value; refuse any other."""
    if isinstance(c, tuple) or (not isinstance(c, Stride) and is_no_integer(c)):
        raise wrong_argument("coordinate", "factor", "an integer or an array of them", c)
    return late("plain")(c)


def _term(other: Any) -> Any:
    """Return a valid term to add to a coordinate, with checked components; refuse any other."""
    if type(other) is tuple:
        return plain_numbers("coordinate", "term", other)
    return other


def _trimmed(t: Any) -> Any:
    """Return a tuple without trailing zeros, nested ones included; 0 if only zeros are left."""
    if not isinstance(t, tuple):
        return t
    parts = [_trimmed(part) for part in t]
    while parts and (isinstance(parts[-1], int | Stride) and is_zero(parts[-1])):
        parts.pop()
    return tuple(parts) or 0


def _both_xor(coordinate: Stride, basis: ScaledBasis) -> bool:
    """Tell if a coordinate and a scaled basis both add by XOR: then so does the product."""
    return xor(coordinate) is not None and xor(basis.value) is not None


class ScaledBasis(Coordinate):
    """``value * E(*path)``: the scaled unit vector of one mode, which may be nested.

    ``str`` prints CuTe's notation, from the innermost mode outwards: ``1@1@0`` is mode 1 inside
    mode 0.

    >>> 3 * E(1)
    3*E(1)
    >>> print(3 * E(1), E(0, 1), ScaledBasis(3, 1))
    3@1 1@1@0 3@1
    >>> 2 * E(0) + 5 * E(2)
    ArithmeticTuple((2, 0, 5))
    """

    __slots__ = ("path", "value")

    value: Any
    path: Path

    def __init__(self, value: Any, path: Path | list[int] | int) -> None:
        if type(value) is not int:
            value = plain_numbers("ScaledBasis", "value", value)
        # One mode and a list of them are paths in the CuTe DSL, too.
        modes: Any = path if isinstance(path, tuple | list) else (path,)
        modes = tuple(modes)
        if any(type(mode) is not int for mode in modes):
            modes = late("plain_shape")(modes)
        for mode in modes:
            if type(mode) is not int or mode < 0:
                raise wrong_argument("ScaledBasis", "path", "a tuple of modes, ints >= 0", path)
        if len(modes) > DEEPEST:
            raise too_deep("ScaledBasis")
        _VALUE(self, value)
        _PATH(self, modes)

    def __reduce__(self) -> Any:
        return ScaledBasis, (self.value, self.path)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, tuple) or (isinstance(other, Stride) and not _both_xor(other, self)):
            return NotImplemented
        if type(other) is not int:
            other = _factor(other)
        return ScaledBasis(other * self.value, self.path)

    __rmul__ = __mul__

    def at(self, c: Any) -> Any:
        """Return ``c`` times the stride."""
        return self * c

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple | int):
            return bool(self.as_tuple() == other)
        if not isinstance(other, ScaledBasis):
            return NotImplemented
        if self.path != other.path:
            return self.is_zero() and other.is_zero()
        return same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        if isinstance(self.value, Stride):  # a stride cannot multiply ``E``
            return f"ScaledBasis({self.value!r}, {self.path!r})"
        basis = f"E({', '.join(map(str, self.path))})"
        return basis if type(self.value) is int and self.value == 1 else f"{self.value!r}*{basis}"

    def __str__(self) -> str:
        shown = str(self.value)
        if any(sign in shown[1:] for sign in "+-"):
            shown = f"({shown})"
        return f"{shown}@" + "@".join(map(str, reversed(self.path)))

    def as_tuple(self) -> Any:
        """Return the vector as a tuple: the value in its mode, zeros before it."""
        result = self.value
        for mode in reversed(self.path):
            result = coordinate((0,) * mode + (result,))
        return result

    def zero(self) -> Any:
        """Return the basis scaled by 0."""
        return ScaledBasis(zero_of(self.value), self.path)

    def is_zero(self) -> bool:
        """Tell if the scale is 0."""
        return is_zero(self.value)

    def times(self, n: Any) -> Any:
        """Return the basis with its scale multiplied by ``n``."""
        return ScaledBasis(n * self.value, self.path)

    scale = times

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the extremes of the multiples, at its path."""
        found = self.terms()
        return None if found is None else _bounds_of(found, low, high)

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate."""
        return ScaledBasis(self.value, path + self.path)

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the same basis, with ``fn`` applied to its scale."""
        return ScaledBasis(fn(self.value), self.path)


_VALUE = vars(ScaledBasis)["value"].__set__  # slot descriptors: twice as fast as object.__setattr__
_PATH = vars(ScaledBasis)["path"].__set__


@overload
def E() -> int: ...
@overload
def E(mode: int | Sequence[int], /, *modes: int) -> ScaledBasis: ...
def E(*path: Any) -> Any:
    """Return the unit vector of mode ``path``: ``E(1)`` of mode 1, ``E(0, 1)`` of mode 1 in mode 0.

    A list is also a path, as in the CuTe DSL. Without a mode it is the integer 1, like C++'s
    ``E<>``.

    >>> print(3 * E(1), E(0, 1), E([0, 1]), 3 * E())
    3@1 1@1@0 1@1@0 3
    """
    if len(path) == 1 and isinstance(path[0], list | tuple):
        path = tuple(path[0])
    if any(type(p) is not int for p in path):
        path = late("plain_shape")(path)
    if not all(type(p) is int and p >= 0 for p in path):
        raise LayoutTypeError(f"E: expected modes (ints >= 0), got {path}")
    return ScaledBasis(1, path) if path else 1


def add(a: Any, b: Any) -> Any:
    """Add two coordinates; a plain 0 is the zero of every kind."""
    if isinstance(a, ScaledBasis):
        a = a.as_tuple()
    if isinstance(b, ScaledBasis):
        b = b.as_tuple()
    a_tuple, b_tuple = isinstance(a, tuple), isinstance(b, tuple)
    if a_tuple and b_tuple:
        if len(a) < len(b):
            a, b = b, a
        return coordinate([add(x, y) for x, y in zip(a, b)] + list(a[len(b) :]))  # noqa: B905
    if not a_tuple and not b_tuple:
        return a + b
    zero, other = (b, a) if a_tuple else (a, b)
    if is_zero(zero):
        return other
    kind = "the integer " if is_integer(zero) else ""
    raise LayoutTypeError(f"cannot add {kind}{zero} to the coordinate {other}")


def scaled(c: Any, x: Any) -> Any:
    """Return ``c * x`` for a coordinate ``x``, mode by mode."""
    if isinstance(x, tuple):
        return coordinate([scaled(c, mode) for mode in x])
    return c * x


def negated(x: Any) -> Any:
    """Return ``-x`` for a coordinate ``x``, mode by mode; an XOR value is its own negative."""
    if isinstance(x, ScaledBasis):
        return ScaledBasis(-x.value, x.path)
    return coordinate([negated(mode) for mode in x]) if isinstance(x, tuple) else -x


def _is_coordinate(x: Any) -> bool:
    """Tell if ``x`` compares with coordinates: a coordinate, a tuple, or 0, the zero of all."""
    return isinstance(x, tuple | ScaledBasis) or (isinstance(x, int) and x == 0)


def _order(a: Any, b: Any) -> int:
    """Return -1, 0 or 1: ``a`` is before ``b``, equal to it or after it, colexicographically."""
    a = a.as_tuple() if isinstance(a, ScaledBasis) else a
    b = b.as_tuple() if isinstance(b, ScaledBasis) else b
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        a, b = (x.xor() if isinstance(x, Stride) else x for x in (a, b))
        return 0 if same(a, b) else -1 if a < b else 1
    a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    rank = max(len(a), len(b))
    pairs = zip((*a, *[0] * (rank - len(a))), (*b, *[0] * (rank - len(b))), strict=True)
    return next((sign for x, y in reversed(list(pairs)) if (sign := _order(x, y))), 0)


def basis_terms(d: Any, path: Path = ()) -> list[ScaledBasis]:
    """Return the scaled bases that a stride is the sum of; none for a plain 0.

    >>> basis_terms(ArithmeticTuple((2, 0, (1, 3))))
    [2*E(0), E(2, 0), 3*E(2, 1)]
    """
    if isinstance(d, ScaledBasis):
        return [ScaledBasis(d.value, path + d.path)]
    if isinstance(d, tuple):
        return [term for i, mode in enumerate(d) for term in basis_terms(mode, (*path, i))]
    return [ScaledBasis(d, path)] if path and not (isinstance(d, int) and d == 0) else []


def lifted(d: Any, path: Path) -> Any:
    """Return the stride as mode ``path`` of a coordinate; None if unknown."""
    return d.lifted(path) if is_stride(d) else ScaledBasis(d, path)


def stride_text(d: Any) -> str:
    """Return a stride leaf in CuTe's notation; a sum of scaled bases as a sum.

    >>> stride_text(E(0) + 2 * E(1))
    '1@0+2@1'
    """
    if isinstance(d, ArithmeticTuple):
        return "+".join(map(str, basis_terms(d))) or "0"
    return str(d)


def sum_of_bases(terms: list[ScaledBasis]) -> Any:
    """Return the sum of scaled bases as the simplest kind of stride that holds it."""
    if len(terms) == 1:
        return terms[0]
    total: Any = 0
    for term in terms:
        total = add(total, term)
    return total


def _terms_of(d: Any) -> Terms | None:
    found = basis_terms(d)
    if not all(is_integer(term.value) for term in found):
        return None
    return tuple([
        (term.path, term.value) for term in found
        if isinstance(term.value, Symbolic) or term.value != 0
    ])  # fmt: skip


def _same_terms(d: Any, e: Any) -> bool:
    mine = _terms_of(d)
    theirs = () if isinstance(e, int) and e == 0 else e.terms() if hasattr(e, "terms") else None
    if mine is None or theirs is None or [p for p, _ in mine] != [p for p, _ in theirs]:
        return False
    return all(is_zero(x - y) for (_, x), (_, y) in zip(mine, theirs, strict=True))


def _sum_of_strides(d: Any, e: Any) -> Any:
    theirs = e.terms() if hasattr(e, "terms") else None
    mine = _terms_of(d)
    if mine is None or theirs is None or any(path == () for path, _ in theirs):
        return None
    total = add(d, sum_of_bases([ScaledBasis(v, p) for p, v in theirs]))
    left = [ScaledBasis(v, p) for p, v in _terms_of(total) or ()]
    return sum_of_bases(left)


def _bounds_of(found: Terms, low: Any, high: Any) -> Bounds:
    return {p: (low * v, high * v) if v >= 0 else (high * v, low * v) for p, v in found}
