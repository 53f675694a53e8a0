"""Strides beyond integers: whatever answers ``coordinate * stride`` and whose results add up.

``ScaledBasis`` keeps the modes of a coordinate apart, ``ArithmeticTuple`` is what its sums are,
``F2`` adds without carry, which is what a swizzle does, and ``CustomStride`` applies a function
first: an index buffer. CUTLASS: cute/numeric/arithmetic_tuple.hpp, gather_tensor.hpp of example 59;
Cecka, *CuTe Layout Representation and Algebra* (2026), on integer semimodules.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError, LayoutValueError

_SET = object.__setattr__


class Immutable:
    """Attributes are set once, in ``__init__``."""

    __slots__ = ()
    __array_ufunc__ = None  # a NumPy array on the left lets our own operators answer

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name}")


class ArithmeticTuple(tuple[Any, ...]):
    """A coordinate that can be added to: by mode, the shorter one padded with zeros.

    >>> ArithmeticTuple((1, 2)) + ArithmeticTuple((0, 0, 3))
    ArithmeticTuple((1, 2, 3))
    >>> 2 * ArithmeticTuple((1, (2, 3)))
    ArithmeticTuple((2, ArithmeticTuple((4, 6))))
    """

    __slots__ = ()
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Any:  # type: ignore[override]
        return add(self, other)

    def __radd__(self, other: Any) -> Any:
        return add(other, self)

    def __sub__(self, other: Any) -> Any:
        return add(self, scale(-1, other))

    def __rsub__(self, other: Any) -> Any:
        return add(other, scale(-1, self))

    def __neg__(self) -> Any:
        return scale(-1, self)

    def __mul__(self, c: Any) -> Any:  # type: ignore[override]
        return scale(c, self)

    def __rmul__(self, c: Any) -> Any:  # type: ignore[override]
        return scale(c, self)

    def __reduce__(self) -> Any:
        return ArithmeticTuple, (tuple(self),)

    def __repr__(self) -> str:
        return f"ArithmeticTuple({tuple.__repr__(self)})"

    def __str__(self) -> str:
        return "(" + ",".join(map(str, self)) + ")"


class ScaledBasis(Immutable):
    """``value * E(*path)``: the unit vector of one (nested) mode, scaled.

    Its text is CuTe's, which lifts the value from the innermost mode outwards: ``1@1@0`` is mode 1
    inside mode 0.

    >>> 3 * E(1)
    3*E(1)
    >>> print(3 * E(1), E(0, 1))
    3@1 1@1@0
    >>> 2 * E(0) + 5 * E(2)
    ArithmeticTuple((2, 0, 5))
    """

    __slots__ = ("path", "value")

    value: Any
    path: tuple[int, ...]

    def __init__(self, value: Any, path: tuple[int, ...]) -> None:
        _SET(self, "value", value)
        _SET(self, "path", path)

    def __reduce__(self) -> Any:
        return ScaledBasis, (self.value, self.path)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, ScaledBasis | tuple):
            return NotImplemented
        return ScaledBasis(other * self.value, self.path)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return add(self, other)

    def __radd__(self, other: Any) -> Any:
        return add(other, self)

    def __sub__(self, other: Any) -> Any:
        return add(self, scale(-1, other))

    def __rsub__(self, other: Any) -> Any:
        return add(other, scale(-1, self))

    def __neg__(self) -> ScaledBasis:
        return ScaledBasis(-self.value, self.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledBasis):
            return NotImplemented
        return self.path == other.path and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.value, self.path))

    def __repr__(self) -> str:
        basis = f"E({', '.join(map(str, self.path))})"
        return basis if type(self.value) is int and self.value == 1 else f"{self.value!r}*{basis}"

    def __str__(self) -> str:
        return f"{self.value}@" + "@".join(map(str, reversed(self.path)))

    def as_tuple(self) -> Any:
        """The vector itself: the value in its mode, zeros before it."""
        result = self.value
        for mode in reversed(self.path):
            result = ArithmeticTuple((0,) * mode + (result,))
        return result


def E(*path: int) -> ScaledBasis:
    """The unit vector of mode ``path``: ``E(1)`` of mode 1, ``E(0, 1)`` of mode 1 inside mode 0.

    >>> print(3 * E(1), E(0, 1))
    3@1 1@1@0
    """
    if not path or not all(type(p) is int and p >= 0 for p in path):
        raise LayoutTypeError(f"E: expected modes (ints >= 0), got {path}")
    return ScaledBasis(1, path)


class F2(Immutable):
    """A stride whose sums have no carries: ``+`` is XOR and ``c * F2(d)`` the carry-less product.

    Bit ``i`` of ``c`` adds ``d << i``, so a layout of such strides is linear in the bits of its
    coordinate: a swizzle is one. Equal to no integer, for it adds differently.

    >>> row, col = F2(9), F2(1)
    >>> [int(r * row + c * col) for r in range(3) for c in range(3)]
    [0, 1, 2, 9, 8, 11, 18, 19, 16]
    """

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any) -> None:
        if isinstance(value, bool | float | str) or (isinstance(value, int) and value < 0):
            raise LayoutTypeError(f"F2: expected an integer >= 0, got {value!r}")
        _SET(self, "value", value)

    def __reduce__(self) -> Any:
        return F2, (self.value,)

    def __mul__(self, c: Any) -> Any:
        if isinstance(c, F2 | tuple | ScaledBasis):
            return NotImplemented
        c, d = (c, self.value) if isinstance(self.value, int) else (self.value, c)
        if not isinstance(d, int) or d < 0:
            raise LayoutTypeError(f"F2: the carry-less product of {c} and {d} is not defined")
        result: Any = c * 0
        for bit in range(d.bit_length()):
            if d >> bit & 1:
                result = result ^ (c * (1 << bit))
        return F2(result)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        if isinstance(other, F2):
            return F2(self.value ^ other.value)
        if type(other) is int and other == 0:
            return self
        raise LayoutTypeError(f"F2: cannot add {other!r} to {self}; make both F2, or neither")

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, F2) else NotImplemented

    def __hash__(self) -> int:
        return hash((F2, self.value))

    def __index__(self) -> int:
        return self.value

    def __int__(self) -> int:
        return int(self.value)

    def __repr__(self) -> str:
        return f"F2({self.value!r})"

    def __str__(self) -> str:
        return f"f{self.value}"


class CustomStride(Immutable):
    """A stride that applies ``func`` to the coordinate: ``c * CustomStride(f, d) == f(c) * d``.

    >>> 2 * CustomStride(IndexedGather([7, 5, 3]), 10)
    30
    """

    __slots__ = ("func", "stride")

    func: Any
    stride: Any

    def __init__(self, func: Any, stride: Any = 1) -> None:
        if not callable(func):
            raise LayoutTypeError(f"CustomStride: func has to be callable, got {func!r}")
        _SET(self, "func", func)
        _SET(self, "stride", stride)

    def __reduce__(self) -> Any:
        return CustomStride, (self.func, self.stride)

    def __rmul__(self, c: Any) -> Any:
        return self.func(c) * self.stride

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CustomStride):
            return NotImplemented
        return bool(self.func == other.func and self.stride == other.stride)

    def __hash__(self) -> int:
        return hash((self.func, self.stride))

    def __repr__(self) -> str:
        return f"CustomStride({self.func!r}, {self.stride!r})"

    def __str__(self) -> str:
        return f"{self.func}*{self.stride}"


class IndexedGather(Immutable):
    """The function ``i -> index[i]`` of an index buffer.

    ``index`` is a sequence, a NumPy or torch array, or a kernel's pointer. An integer position
    outside a buffer whose length is known is refused, where Python would wrap a negative one
    around; positions that are arrays follow the rules of their library.

    >>> IndexedGather([7, 5, 3])(2)
    3
    >>> IndexedGather([7, 5, 3])(-1)
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: IndexedGather: position -1 is outside an index of 3
    """

    __slots__ = ("index",)

    index: Any

    def __init__(self, index: Any) -> None:
        if not hasattr(index, "__getitem__"):
            raise LayoutTypeError(f"IndexedGather: expected an index buffer, got {index!r}")
        _SET(self, "index", tuple(index) if type(index) is list else index)

    def __reduce__(self) -> Any:
        return IndexedGather, (self.index,)

    def __call__(self, i: Any) -> Any:
        if isinstance(i, int) and hasattr(self.index, "__len__") and not 0 <= i < len(self.index):
            raise LayoutValueError(
                f"IndexedGather: position {i} is outside an index of {len(self.index)}"
            )
        return self.index[i]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexedGather):
            return NotImplemented
        a, b = self.index, other.index
        return a is b or (type(a) is tuple and type(b) is tuple and a == b)

    def __hash__(self) -> int:
        return hash(self.index) if type(self.index) is tuple else id(self.index)

    def __repr__(self) -> str:
        return f"IndexedGather({self.index!r})"

    def __str__(self) -> str:
        return "gather"


class StridedGather(Immutable):
    """The function ``i -> i * stride``: what an ``IndexedGather`` of a regular index would be.

    >>> 3 * CustomStride(StridedGather(4), 10)
    120
    """

    __slots__ = ("stride",)

    stride: Any

    def __init__(self, stride: Any) -> None:
        _SET(self, "stride", stride)

    def __reduce__(self) -> Any:
        return StridedGather, (self.stride,)

    def __call__(self, i: Any) -> Any:
        return i * self.stride

    def __eq__(self, other: object) -> bool:
        return self.stride == other.stride if isinstance(other, StridedGather) else NotImplemented

    def __hash__(self) -> int:
        return hash((StridedGather, self.stride))

    def __repr__(self) -> str:
        return f"StridedGather({self.stride!r})"

    def __str__(self) -> str:
        return f"strided({self.stride})"


def add(a: Any, b: Any) -> Any:
    """The sum of two coordinates; a plain 0 is the zero of every kind."""
    if isinstance(a, ScaledBasis):
        a = a.as_tuple()
    if isinstance(b, ScaledBasis):
        b = b.as_tuple()
    a_tuple, b_tuple = isinstance(a, tuple), isinstance(b, tuple)
    if a_tuple and b_tuple:
        if len(a) < len(b):
            a, b = b, a
        return ArithmeticTuple([add(x, y) for x, y in zip(a, b)] + list(a[len(b) :]))  # noqa: B905
    if not a_tuple and not b_tuple:
        return a + b
    zero, other = (b, a) if a_tuple else (a, b)
    if isinstance(zero, int) and zero == 0:
        return other
    raise LayoutTypeError(f"cannot add the integer {zero} to the coordinate {other}")


def scale(c: Any, x: Any) -> Any:
    """``c * x`` for a coordinate ``x``, by mode."""
    if isinstance(x, tuple):
        return ArithmeticTuple([scale(c, mode) for mode in x])
    return c * x


def stride_text(d: Any) -> str:
    """A stride leaf in the notation of the literature; a sum of scaled bases as such."""
    if isinstance(d, ArithmeticTuple):
        return "+".join(map(str, basis_terms(d))) or "0"
    return str(d)


def basis_terms(d: Any, path: tuple[int, ...] = ()) -> list[ScaledBasis]:
    """The scaled bases that a stride is the sum of; none for a plain 0.

    >>> basis_terms(ArithmeticTuple((2, 0, (1, 3))))
    [2*E(0), E(2, 0), 3*E(2, 1)]
    """
    if isinstance(d, ScaledBasis):
        return [ScaledBasis(d.value, path + d.path)]
    if isinstance(d, tuple):
        return [term for i, mode in enumerate(d) for term in basis_terms(mode, (*path, i))]
    return [ScaledBasis(d, path)] if path and not (isinstance(d, int) and d == 0) else []
