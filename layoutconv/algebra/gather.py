"""Strides that apply a function to the coordinate first, such as index buffers.

CUTLASS: gather_tensor.hpp of example 59.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import gcd
from typing import Any

from .arrays import in_int64, is_array, product_of
from .basis import lifted, stride_text
from .errors import LayoutTypeError, LayoutValueError, shortly, wrong_argument
from .int_tuple import sum_of
from .late import late
from .listed import of_integers
from .numbers import is_no_integer, plain_numbers
from .protocol import (
    Bounds,
    Path,
    Stride,
    Terms,
    bounds,
    can_merge,
    divisor,
    is_integer,
    is_zero,
    map_integers,
    plus,
    scale,
    terms,
    times,
    xor,
    zero_of,
)
from .symbols import Symbolic
from .values import Immutable

_SET = object.__setattr__


class CustomStride(Stride):
    """A stride that applies ``func`` to the coordinate: ``c * CustomStride(f, d) == f(c) * d``.

    ``func`` may tell operations more by optional methods: ``step()``, the integer s if
    ``func(c) == c * s``; ``bounds(low, high)``, the extremes of its values at these coordinates;
    and ``values(count)``, its first values.

    >>> 2 * CustomStride(IndexedGather([7, 5, 3]), 10)
    30
    """

    __slots__ = ("func", "stride")

    func: Any
    stride: Any

    def __init__(self, func: Any, stride: Any = 1) -> None:
        if not callable(func):
            raise LayoutTypeError(f"CustomStride: expected a callable func, got {shortly(func)}")
        if type(stride) is not int:
            stride = plain_numbers("CustomStride", "stride", stride)
        _SET(self, "func", func)
        _SET(self, "stride", stride)

    def __reduce__(self) -> Any:
        return CustomStride, (self.func, self.stride)

    def at(self, c: Any) -> Any:
        """Return ``func(c) * stride``; an array gets a type that holds the product."""
        value = self.func(c)
        if type(value) is not int:
            value = late("plain")(value)
        return product_of(value, self.stride) if is_array(value) else value * self.stride

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CustomStride):
            return NotImplemented
        return bool(self.func == other.func and self.stride == other.stride)

    def __hash__(self) -> int:
        return hash((self.func, self.stride))

    def __repr__(self) -> str:
        return f"CustomStride({self.func!r}, {self.stride!r})"

    def __str__(self) -> str:
        # A function's repr has its address; `f*2` would read as twice an integer named f.
        name = getattr(self.func, "__name__", None)
        shown = stride_text(self.stride)
        if any(sign in shown[1:] for sign in "+-"):
            shown = f"({shown})"
        return f"{name}(c)*{shown}" if name else f"{self.func}*{shown}"

    def _additive(self) -> Any:
        """Return the equivalent plain stride if ``func`` is a multiple; None otherwise."""
        step = getattr(self.func, "step", None)
        factor = step() if callable(step) else None
        return times(factor, self.stride) if factor is not None and is_integer(factor) else None

    def zero(self) -> Any:
        """Return the zero of the stride."""
        return zero_of(self.stride)

    def is_zero(self) -> bool:
        """Tell if the stride is 0, or ``func`` always is."""
        return is_zero(self.stride) or (self._additive() is not None and is_zero(self._additive()))

    def can_merge(self, extent: Any, following: Any) -> bool:
        """Tell if modes ``extent:self`` and ``n:following`` merge into one mode of this stride."""
        mine = self._additive()
        if mine is None:
            return self.is_zero() and is_zero(following)
        other = following._additive() if isinstance(following, CustomStride) else following
        return other is not None and can_merge(extent, mine, other)

    def scale(self, n: Any) -> Any:
        """Return the stride of every n-th coordinate, if ``func`` is a multiple."""
        if self._additive() is None:
            return self if self.is_zero() else None
        return CustomStride(self.func, scale(n, self.stride))

    def times(self, n: Any) -> Any:
        """Return the stride whose values are n times as large."""
        return CustomStride(self.func, times(n, self.stride))

    def plus(self, other: Any) -> Any:
        """Return the sum with a stride: one stride for equal functions or two multiples."""
        if isinstance(other, CustomStride) and self.func == other.func:
            both = plus(self.stride, other.stride)
            return None if both is None else CustomStride(self.func, both)
        mine = self._additive()
        theirs = other._additive() if isinstance(other, CustomStride) else other
        if mine is None or theirs is None:
            return SummedStride((self, other)) if xor(other) is None else None
        return plus(mine, theirs)

    def terms(self) -> Terms | None:
        """Return the components, if ``func`` is a multiple."""
        mine = self._additive()
        if mine is None:
            return () if self.is_zero() else None
        return terms(mine)

    def xor(self) -> int | None:
        """Return 0 for the zero stride, None otherwise."""
        return 0 if self.is_zero() else None

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the extremes of the values, if those of ``func`` are known."""
        ask = getattr(self.func, "bounds", None)
        found = ask(low, high) if callable(ask) else None
        return None if found is None else bounds(self.stride, *found)

    def values(self, count: int) -> Any:
        """Return the first ``count`` values, if those of ``func`` are known at once."""
        ask = getattr(self.func, "values", None)
        found = ask(count) if callable(ask) and type(self.stride) is int else None
        values = None if found is None else of_integers(found)
        return None if values is None else values.times(self.stride)

    def divisor(self) -> int:
        """Return a positive integer that divides all values: a divisor of the stride."""
        mine = self._additive()
        return divisor(self.stride if mine is None else mine)

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate."""
        inner = lifted(self.stride, path)
        return None if inner is None else CustomStride(self.func, inner)

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the same function, with ``fn`` applied to the stride."""
        return CustomStride(self.func, map_integers(fn, self.stride))


class SummedStride(Stride):
    """The sum of strides of different kinds at one coordinate.

    >>> 2 * SummedStride((CustomStride(IndexedGather([7, 5, 3]), 10), 100))
    230
    """

    __slots__ = ("addends",)

    addends: tuple[Any, ...]

    def __init__(self, addends: tuple[Any, ...]) -> None:
        _SET(self, "addends", addends)

    def __reduce__(self) -> Any:
        return SummedStride, (self.addends,)

    def at(self, c: Any) -> Any:
        """Return the sum of the values of the addends."""
        return sum_of([c * d for d in self.addends])

    def __eq__(self, other: object) -> bool:
        return self.addends == other.addends if isinstance(other, SummedStride) else NotImplemented

    def __hash__(self) -> int:
        return hash((SummedStride, self.addends))

    def __repr__(self) -> str:
        return f"SummedStride({self.addends!r})"

    def __str__(self) -> str:
        return "+".join(map(stride_text, self.addends))

    def times(self, n: Any) -> Any:
        """Return the stride whose values are n times as large."""
        parts = tuple([times(n, d) for d in self.addends])
        return None if any(part is None for part in parts) else SummedStride(parts)

    def plus(self, other: Any) -> Any:
        """Return the sum with one more stride."""
        return SummedStride((*self.addends, other)) if xor(other) is None else None

    def divisor(self) -> int:
        """Return a common divisor of the addends' divisors."""
        return gcd(*map(divisor, self.addends))

    def lifted(self, path: Path) -> Any:
        """Return the same values as mode ``path`` of a coordinate."""
        parts = tuple([lifted(d, path) for d in self.addends])
        return None if any(part is None for part in parts) else SummedStride(parts)

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the sum of the addends with ``fn`` applied to their integers."""
        return SummedStride(tuple([map_integers(fn, d) for d in self.addends]))


class IndexedGather(Immutable):
    """The function ``i -> index[i]`` of an index buffer.

    ``index`` is a sequence, a NumPy or torch array, or a kernel's pointer. An integer position
    outside a buffer of known length is refused (Python would wrap a negative one around); arrays
    of positions follow the rules of their library.

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
        if not hasattr(index, "__getitem__") or isinstance(index, type | dict):
            raise wrong_argument("IndexedGather", "index", "an index buffer", index)
        if isinstance(index, list | tuple):
            for entry in index:
                if type(entry) is not int and (isinstance(entry, tuple) or is_no_integer(entry)):
                    shown = f"integers, but {shortly(entry)} is not an integer"
                    raise wrong_argument("IndexedGather", "index", shown, index)
        if isinstance(index, str | bytes) or (is_array(index) and index.ndim != 1):
            got = f"one of shape {tuple(index.shape)}" if is_array(index) else repr(index)
            raise LayoutTypeError(f"IndexedGather: expected a flat buffer of integers, got {got}")
        _SET(self, "index", tuple(index) if type(index) is list else index)

    def __reduce__(self) -> Any:
        return IndexedGather, (self.index,)

    def __call__(self, i: Any) -> Any:
        if isinstance(i, int):
            if hasattr(self.index, "__len__") and not 0 <= i < len(self.index):
                raise LayoutValueError(
                    f"IndexedGather: position {i} is outside an index of {len(self.index)}"
                )
            value = self.index[i]
            return value.item() if is_array(value) and value.ndim == 0 else value
        if isinstance(i, Symbolic):
            raise LayoutTypeError(f"IndexedGather: the position {i} has no value")
        if not is_array(i):
            return self.index[i]
        i, index = in_int64(i), self.index  # torch would take bytes for a mask
        if 0 not in i.shape and hasattr(index, "__len__"):
            low, high = int(i.min()), int(i.max())
            if low < 0 or high >= len(index):
                wrong = low if low < 0 else high
                raise LayoutValueError(
                    f"IndexedGather: position {wrong} is outside an index of {len(index)}"
                )
        home = type(i).__module__.partition(".")[0]
        if type(index).__module__.partition(".")[0] != home:
            index = sys.modules[home].asarray(index)
        return index[i]

    def bounds(self, low: Any, high: Any) -> tuple[int, int] | None:
        """Return the smallest and the largest entry from position ``low`` to ``high``."""
        if not hasattr(self.index, "__len__") or not 0 <= low <= high < len(self.index):
            return None
        part = self.index[low : high + 1]
        if is_array(part):
            ends = part.min().item(), part.max().item()
            return ends if type(ends[0]) is int else None
        values = of_integers(part)
        return None if values is None else values.extremes()

    def values(self, count: int) -> Any:
        """Return the entries at the first ``count`` positions; None if the buffer is shorter."""
        if not hasattr(self.index, "__len__") or count > len(self.index):
            return None
        return self.index[:count]

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
    """The function ``i -> i * stride``, like an ``IndexedGather`` of a regular index.

    >>> 3 * CustomStride(StridedGather(4), 10)
    120
    """

    __slots__ = ("stride",)

    stride: Any

    def __init__(self, stride: Any) -> None:
        if type(stride) is not int and (isinstance(stride, tuple) or is_no_integer(stride)):
            raise wrong_argument("StridedGather", "stride", "an integer", stride)
        _SET(self, "stride", late("plain")(stride))

    def __reduce__(self) -> Any:
        return StridedGather, (self.stride,)

    def __call__(self, i: Any) -> Any:
        i = i if type(i) is int else late("plain")(i)
        return product_of(i, self.stride) if is_array(i) else i * self.stride

    def step(self) -> Any:
        """Return the factor of a coordinate."""
        return self.stride

    def bounds(self, low: Any, high: Any) -> tuple[Any, Any] | None:
        """Return the smallest and the largest multiple of the coordinates ``low`` to ``high``."""
        found = bounds(self.stride, low, high)
        return None if found is None else found.get(())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StridedGather):
            return NotImplemented
        return bool(self.stride == other.stride)

    def __hash__(self) -> int:
        return hash((StridedGather, self.stride))

    def __repr__(self) -> str:
        return f"StridedGather({self.stride!r})"

    def __str__(self) -> str:
        return f"strided({self.stride})"
