"""Strides beyond integers: whatever answers ``coordinate * stride`` and whose results add up.

``ScaledBasis`` keeps the modes of a coordinate apart, ``ArithmeticTuple`` is what its sums are, ``CustomStride``
applies a function to the coordinate first. CUTLASS: cute/numeric/arithmetic_tuple.hpp, and gather_tensor.hpp of
example 59.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError


class ArithmeticTuple(tuple[Any, ...]):
    """A coordinate that can be added to: by mode, the shorter one padded with zeros.

    >>> ArithmeticTuple((1, 2)) + ArithmeticTuple((0, 0, 3))
    ArithmeticTuple((1, 2, 3))
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:  # type: ignore[override]
        return _add(self, other)

    def __radd__(self, other: Any) -> Any:
        return _add(other, self)

    def __repr__(self) -> str:
        return f"ArithmeticTuple({tuple.__repr__(self)})"

    def __str__(self) -> str:
        return "(" + ",".join(map(str, self)) + ")"


class ScaledBasis:
    """``value * E(*path)``: the unit vector of one (nested) mode, scaled.

    >>> 3 * E(1)
    3*E(1)
    >>> print(3 * E(1), E(0, 1))
    3@1 1@0@1
    >>> 2 * E(0) + 5 * E(2)
    ArithmeticTuple((2, 0, 5))
    """

    __slots__ = ("path", "value")

    value: Any
    path: tuple[int, ...]

    def __init__(self, value: Any, path: tuple[int, ...]) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "path", path)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"ScaledBasis is immutable; cannot set {name}")

    def __reduce__(self) -> Any:
        return ScaledBasis, (self.value, self.path)

    def __mul__(self, other: Any) -> ScaledBasis:
        return ScaledBasis(other * self.value, self.path)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return _add(self, other)

    def __radd__(self, other: Any) -> Any:
        return _add(other, self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledBasis):
            return NotImplemented
        return self.path == other.path and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.value, self.path))

    def __repr__(self) -> str:
        return f"{self.value}*E({', '.join(map(str, self.path))})"

    def __str__(self) -> str:
        return f"{self.value}@" + "@".join(map(str, self.path))

    def as_tuple(self) -> Any:
        """The vector itself: the value in its mode, zeros before it."""
        result = self.value
        for mode in reversed(self.path):
            result = ArithmeticTuple((0,) * mode + (result,))
        return result


def E(*path: int) -> ScaledBasis:
    """The unit vector of mode ``path``: ``E(1)`` of mode 1, ``E(0, 1)`` of mode 1 inside mode 0."""
    if not path or not all(isinstance(p, int) and p >= 0 for p in path):
        raise LayoutTypeError(f"E: expected modes (ints >= 0), got {path}")
    return ScaledBasis(1, path)


class CustomStride:
    """A stride that applies ``func`` to the coordinate: ``c * CustomStride(f, d) == f(c) * d``.

    >>> 2 * CustomStride(IndexedGather([7, 5, 3]), 10)
    30
    >>> 1 * CustomStride(IndexedGather([7, 5, 3]), E(0))
    5*E(0)
    """

    __slots__ = ("func", "stride")

    def __init__(self, func: Any, stride: Any = 1) -> None:
        object.__setattr__(self, "func", func)
        object.__setattr__(self, "stride", stride)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"CustomStride is immutable; cannot set {name}")

    def __reduce__(self) -> Any:
        return CustomStride, (self.func, self.stride)

    def __rmul__(self, c: Any) -> Any:
        return self.func(c) * self.stride

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CustomStride):
            return NotImplemented
        return self.func == other.func and self.stride == other.stride

    def __hash__(self) -> int:
        return hash((self.func, self.stride))

    def __repr__(self) -> str:
        return f"CustomStride({self.func!r}, {self.stride!r})"

    def __str__(self) -> str:
        return f"{self.func}*{self.stride}"


class IndexedGather:
    """The function ``i -> index[i]`` of an index buffer (a list, a NumPy or torch array, a kernel's pointer)."""

    __slots__ = ("index",)

    def __init__(self, index: Any) -> None:
        object.__setattr__(self, "index", index)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"IndexedGather is immutable; cannot set {name}")

    def __reduce__(self) -> Any:
        return IndexedGather, (self.index,)

    def __call__(self, i: Any) -> Any:
        return self.index[i]

    def __eq__(self, other: object) -> bool:
        return self.index is other.index if isinstance(other, IndexedGather) else NotImplemented

    def __hash__(self) -> int:
        return id(self.index)

    def __repr__(self) -> str:
        return f"IndexedGather({self.index!r})"

    def __str__(self) -> str:
        return "gather"


def _add(a: Any, b: Any) -> Any:
    """The sum of two coordinates; a plain 0 is the zero of every kind."""
    if isinstance(a, ScaledBasis):
        a = a.as_tuple()
    if isinstance(b, ScaledBasis):
        b = b.as_tuple()
    a_tuple, b_tuple = isinstance(a, tuple), isinstance(b, tuple)
    if a_tuple and b_tuple:
        if len(a) < len(b):
            a, b = b, a
        return ArithmeticTuple([_add(x, y) for x, y in zip(a, b)] + list(a[len(b) :]))  # noqa: B905
    if not a_tuple and not b_tuple:
        return a + b
    zero, other = (b, a) if a_tuple else (a, b)
    if isinstance(zero, int) and zero == 0:
        return other
    raise LayoutTypeError(f"cannot add the integer {zero} to the coordinate {other}")
