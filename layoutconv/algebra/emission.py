"""Emit layouts as index expressions of other languages: CUDA C++, Triton, NumPy, sympy.

An expression splits each coordinate into the digits of its mode, and adds up the strides at them.
``spelling.py`` knows how each language spells that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from .basis import ScaledBasis
from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError, wrong_argument
from .gather import CustomStride, IndexedGather, SummedStride
from .int_tuple import flatten
from .layout import Layout, as_like
from .normal import Arithmetic, arithmetic
from .polynomial import names_of
from .protocol import is_integer, terms, xor
from .spelling import ATOM, LANGUAGES, LOOSE, Spelling, Term, number
from .swizzle import Swizzle
from .symbols import poly_of, symbolic_of
from .symint import SymInt
from .tensor import Tensor
from .xor import F2

Path = tuple[int, ...]


def emit(
    layout: Any,
    language: str,
    names: str | tuple[str, ...] | None = None,
    index: str | tuple[str, ...] = "index",
) -> str:
    """Emit the offset of a coordinate as an expression: for cuda, triton, numpy or sympy.

    Args:
        layout: a layout, composed layout or tensor; its offset is added. Strides may be integers
            and symbols, scaled bases (the expression is then a coordinate), XOR strides, index
            buffers, or of a class that defines :meth:`~layoutconv.Stride.expression`.
        language: one of cuda, triton, numpy and sympy.
        names: the variables, one for each mode, or one for the linear coordinate; by default
            ``i``, ``j``, ``k``, ``l`` and so on by mode. They hold coordinates in bounds, in a
            signed type that holds the offsets.
        index: the name of the index buffer; several names for several buffers, in their order.

    Raises :class:`LayoutTypeError` if the language cannot express it: functions without an
    expression, and bit operations in sympy.

    >>> print(emit(Layout((4, (2, 3)), (1, (4, 8))), "triton"))
    i + (j % 2) * 4 + (j // 2) * 8
    >>> print(emit("S<3,3,3> o 0 o (8,64):(64,1)", "cuda", ("row", "column")))
    (row * 64 + column) ^ (((row * 64 + column) & 448) >> 3)
    >>> print(emit(Layout((4, 8), (8, 1)), "sympy", "n"))
    Mod(n, 4) * 8 + floor(n/4)
    >>> rows = Layout((4, 8), (CustomStride(IndexedGather([7, 5, 3, 1]), 64), 1))
    >>> print(emit(rows, "cuda", index="rows"))
    rows[i] * 64 + j
    """
    if language not in LANGUAGES:
        raise LayoutValueError(
            f"emit: expected one of the languages {', '.join(LANGUAGES)}, got {language!r}"
        )
    indices = (index,) if isinstance(index, str) else index
    if not isinstance(indices, tuple) or not all(isinstance(name, str) for name in indices):
        raise wrong_argument("emit", "index", "a str or a tuple of them", index)
    like = as_like("emit", layout)
    walk = _Walk(Spelling(language), index)
    coordinate = _variables(like, names)
    found = walk.value(like, coordinate)
    _check_names(like, coordinate, walk.named)
    return walk.text(found)


def _variables(like: Any, names: Any) -> Any:
    """Return a term for each mode, or one for the linear coordinate."""
    shape = like.shape
    modes = shape if isinstance(shape, tuple) else (shape,)
    if isinstance(names, str):
        return _variable(names, shape)
    if names is None:
        few = len(modes) <= len("ijklmnpq")
        names = tuple("ijklmnpq") if few else tuple([f"c{i}" for i in range(len(modes))])
        names = names[: len(modes)]
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise LayoutTypeError(f"emit: expected names as a str, or one str per mode, got {names!r}")
    if len(names) != len(modes):
        raise LayoutValueError(f"emit: {len(names)} names for the {len(modes)} modes of {like}")
    found = tuple([_variable(name, s) for name, s in zip(names, modes, strict=True)])
    return found if isinstance(shape, tuple) else found[0]


def _variable(name: str, shape: Any) -> Term:
    size = 1
    for s in flatten(shape):
        size = size * s if type(s) is int and size else 0
    alone = re.fullmatch(r"[\w.]+(\[\w+\]|\(\w*\))*", name)
    return Term(name, ATOM if alone else LOOSE, 0, size - 1 if size else None)


def _check_names(like: Any, coordinate: Any, named: dict[Any, str]) -> None:
    """Refuse a variable that also names an extent or an index buffer."""
    variables = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    used = [variable.text for variable in variables] + list(named.values())
    found: set[str] = set()

    def look(x: Any) -> Any:
        if is_integer(x):
            found.update(names_of(poly_of(symbolic_of(x) if isinstance(x, SymInt) else x)))
        return x

    like.map_integers(look)
    twice = next((name for name in used if name in found or used.count(name) > 1), None)
    if twice is not None:
        raise LayoutValueError(f"emit: {twice!r} stands for two things in {like}; give names")


class _Walk:
    """Evaluates a layout to terms of a language: one, or a tuple of them for a coordinate."""

    def __init__(self, spelling: Spelling, index: str | tuple[str, ...]) -> None:
        self.spelling = spelling
        self.index = index
        self.named: dict[IndexedGather, str] = {}

    def text(self, value: Any) -> str:
        if isinstance(value, tuple):
            return self.spelling.coordinate(list(map(self.text, value)))
        return str(value.text)

    def value(self, like: Any, coordinate: Any) -> Any:
        """Return the value of ``like`` at a coordinate."""
        if isinstance(like, Tensor):
            return self._shifted(self.value(like.layout, coordinate), like.offset)
        if isinstance(like, Layout):
            return self._sum(like, self._digits(coordinate, like.shape))
        if not isinstance(like, ComposedLayout):
            raise LayoutTypeError(f"emit: {like} is a function without an expression")
        inner = self._shifted(self.value(like.inner, coordinate), like.offset)
        if isinstance(like.outer, Swizzle):
            if isinstance(inner, tuple):
                raise LayoutTypeError(f"emit: {like.outer} has no coordinate to swizzle")
            return self.spelling.swizzled(inner, like.outer)
        return self.value(like.outer, inner)

    def _shifted(self, value: Any, offset: Any) -> Any:
        if isinstance(offset, tuple):
            parts = value if isinstance(value, tuple) else (number(0),) * len(offset)
            length = max(len(parts), len(offset))
            parts = (*parts, *[number(0)] * (length - len(parts)))
            offsets = (*offset, *[0] * (length - len(offset)))
            return tuple([self._shifted(v, o) for v, o in zip(parts, offsets, strict=True)])
        if isinstance(value, tuple):
            if type(offset) is int and offset == 0:
                return value
            raise LayoutTypeError(f"emit: the offset {offset} cannot be added to a coordinate")
        return self.spelling.plus([value, self.spelling.integer(offset)])

    def _digits(self, coordinate: Any, shape: Any) -> list[Term]:
        """Return the digits of a coordinate in the leaves of a shape, the last one unbounded."""
        if isinstance(coordinate, tuple):
            if not isinstance(shape, tuple) or len(shape) < len(coordinate):
                raise LayoutValueError(
                    f"emit: {self.text(coordinate)} is not a coordinate of {shape}"
                )
            absent = [number(0)] * (len(shape) - len(coordinate))  # sums of bases may be shorter
            pairs = zip([*coordinate, *absent], shape, strict=True)
            return [digit for c, s in pairs for digit in self._digits(c, s)]
        extents = flatten(shape)
        result, place = [], number(1)
        for i, extent in enumerate(extents):
            s = self.spelling.integer(extent)
            rest = self.spelling.quotient(coordinate, place)
            result.append(self.spelling.remainder(rest, s) if i < len(extents) - 1 else rest)
            place = self.spelling.times(place, s)
        return result

    def _sum(self, layout: Layout, digits: list[Term]) -> Any:
        strides = [d for _, d in layout._leaves]
        kind = arithmetic(layout)
        if kind is Arithmetic.TRACED:
            raise LayoutTypeError(
                f"emit: {layout} has values that a kernel computes, which are not known here"
            )
        if kind is Arithmetic.XOR:
            pairs = zip(digits, strides, strict=True)
            return self.spelling.xor([self.spelling.carryless(c, xor(d) or 0) for c, d in pairs])
        components: dict[Path, list[Term]] = defaultdict(list)
        by_xor: dict[Path, list[Term]] = defaultdict(list)
        for digit, d in zip(digits, strides, strict=True):
            if isinstance(d, ScaledBasis) and isinstance(d.value, F2):
                by_xor[d.path].append(self.spelling.carryless(digit, xor(d.value) or 0))
                continue
            for path, term in self._of_stride(digit, d):
                components[path].append(term)
        sums = {path: self.spelling.plus(found) for path, found in components.items()}
        for path, found in by_xor.items():
            if not sums.get(path, number(0)).is_number(0):
                raise LayoutTypeError(f"emit: {layout} adds integers to XOR strides of a mode")
            sums[path] = self.spelling.xor(found)
        return _nested(layout, sums)

    def _of_stride(self, digit: Term, d: Any) -> list[tuple[Path, Term]]:
        """Return the components of a stride's value at a digit."""
        found = terms(d)
        if found is not None:
            spell = self.spelling
            return [(path, spell.times(digit, spell.integer(value))) for path, value in found]
        if isinstance(d, SummedStride):
            return [part for addend in d.addends for part in self._of_stride(digit, addend)]
        if isinstance(d, CustomStride) and isinstance(d.func, IndexedGather):
            return self._of_stride(self.spelling.item(self._buffer(d.func), digit), d.stride)
        source = d.func if isinstance(d, CustomStride) else d
        ask = getattr(source, "expression", None)
        text = ask(digit.within(ATOM), self.spelling.language) if callable(ask) else None
        if text is None:
            raise LayoutTypeError(f"emit: the stride {d} has no expression")
        term = Term(f"({text})")
        return self._of_stride(term, d.stride) if isinstance(d, CustomStride) else [((), term)]

    def _buffer(self, gather: IndexedGather) -> str:
        """Return the name of an index buffer."""
        if gather not in self.named:
            names = (self.index,) if isinstance(self.index, str) else self.index
            if len(self.named) == len(names):
                raise LayoutValueError(
                    f"emit: there are more index buffers than the {len(names)} names "
                    f"{', '.join(names)}; name each: index=('first', 'second')"
                )
            self.named[gather] = names[len(self.named)]
        return self.named[gather]


def _nested(layout: Layout, sums: dict[Path, Term]) -> Any:
    """Return the components of a value as one term, or as a tuple of them."""
    if set(sums) <= {()}:
        return sums.get((), number(0))
    if any(not sums[path].is_number(0) for path in sums if path == ()):
        raise LayoutTypeError(
            f"emit: {layout} gives integers and coordinates, which cannot be added"
        )
    sums = {path: term for path, term in sums.items() if path}
    parts = []
    for i in range(1 + max(path[0] for path in sums)):
        parts.append(_nested(layout, {p[1:]: term for p, term in sums.items() if p[0] == i}))
    return tuple(parts)
