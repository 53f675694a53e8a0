"""Layouts as index expressions of other languages: CUDA C++, Triton, NumPy, sympy.

An expression takes each coordinate apart into the digits of its mode, with ``/`` and ``%``, and
adds them up again, each times its stride.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError
from .int_tuple import flatten
from .layout import Layout, as_like
from .normal import Arithmetic, arithmetic, simplified
from .swizzle import Swizzle

LANGUAGES = ("cuda", "triton", "numpy", "sympy")


@dataclass(frozen=True)
class _Term:
    """An expression, and how tightly it binds: -1 as ``^``, 0 as ``+``, 1 as ``*``, 2 an atom."""

    text: str
    binds: int = 2

    def within(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


class _Language:
    """The spelling of the few operations that an offset takes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def quotient(self, a: _Term, b: str) -> _Term:
        if self.name == "sympy":
            return _Term(f"floor({a.within(1)}/{b})")
        return _Term(f"{a.within(1)} {'/' if self.name == 'cuda' else '//'} {b}", 1)

    def remainder(self, a: _Term, b: str) -> _Term:
        if self.name == "sympy":
            return _Term(f"Mod({a.text}, {b})")
        return _Term(f"{a.within(1)} % {b}", 1)

    def times(self, a: _Term, b: str) -> _Term:
        return a if b == "1" else _Term(f"{a.within(2)} * {b}", 1)

    def plus(self, terms: list[_Term]) -> _Term:
        if len(terms) == 1:
            return terms[0]
        return _Term(" + ".join(t.within(0) for t in terms), 0) if terms else _Term("0")

    def swizzled(self, a: _Term, swizzle: Swizzle) -> _Term:
        if self.name == "sympy":
            raise LayoutTypeError(f"emit: sympy has no bit operations for {swizzle}")
        shift = f">> {swizzle.shift}" if swizzle.shift >= 0 else f"<< {-swizzle.shift}"
        inside = a.within(2)
        return _Term(f"{inside} ^ (({inside} & {swizzle.mask}) {shift})", -1)


def emit(layout: Any, language: str, names: str | tuple[str, ...] | None = None) -> str:
    """The offset of a coordinate as an expression of ``language``: cuda, triton, numpy or sympy.

    Args:
        layout: of integer strides, symbolic ones too; swizzled, offset, or a layout after another.
        language: one of cuda, triton, numpy and sympy.
        names: the variables, one for each mode, or one for the linear coordinate; by default
            ``i``, ``j``, ``k``, ``l`` and so on by mode. They hold coordinates that are inside.

    C++ divides towards zero, so its expression holds for coordinates that are not negative.

    Raises :class:`LayoutTypeError` for strides that are no integers: index buffers are yours to
    load, and XOR strides of shapes that no swizzle is for have no short expression.

    >>> print(emit(Layout((4, (2, 3)), (1, (4, 8))), "triton"))
    i + (j % 2) * 4 + (j // 2) * 8
    >>> print(emit("S<3,3,3> o 0 o (8,64):(64,1)", "cuda", ("row", "column")))
    (row * 64 + column) ^ (((row * 64 + column) & 448) >> 3)
    >>> print(emit(Layout((4, 8), (8, 1)), "sympy", "n"))
    Mod(n, 4) * 8 + floor(n/4)
    """
    if language not in LANGUAGES:
        raise LayoutValueError(f"emit: no {language!r}; there are {', '.join(LANGUAGES)}")
    like = as_like("emit", layout)
    like = like.layout if not isinstance(like, Layout | ComposedLayout) else like
    spelling = _Language(language)
    modes = _variables(like, names)
    return _offset(like, modes, spelling).text


def _variables(like: Any, names: Any) -> list[tuple[_Term, Any]]:
    """Each variable and the shape of what it runs over."""
    shape = like.shape
    if isinstance(names, str) or not isinstance(shape, tuple):
        name = names if isinstance(names, str) else names[0] if names else "i"
        return [(_Term(name), shape)]
    chosen = names if names is not None else tuple("ijklmnpq"[: len(shape)])
    if len(chosen) != len(shape):
        raise LayoutValueError(f"emit: {len(chosen)} names for the {len(shape)} modes of {like}")
    return [(_Term(name), s) for name, s in zip(chosen, shape, strict=True)]


def _offset(like: Any, variables: list[tuple[_Term, Any]], spelling: _Language) -> _Term:
    digits = [t for name, shape in variables for t in _digits(name, flatten(shape), spelling)]
    return _of_digits(like, digits, spelling)


def _of_digits(like: Any, digits: list[_Term], spelling: _Language) -> _Term:
    if isinstance(like, Layout):
        return spelling.plus(_terms(like, digits, spelling))
    if not isinstance(like.offset, int):
        raise LayoutTypeError(f"emit: the offset of {like} is no integer")
    inner = _of_digits(like.inner, digits, spelling)
    if like.offset:
        inner = spelling.plus([inner, _Term(str(like.offset), 0 if like.offset < 0 else 2)])
    if isinstance(like.outer, Swizzle):
        return spelling.swizzled(inner, like.outer) if like.outer.bits else inner
    if not isinstance(like.outer, Layout | ComposedLayout):
        raise LayoutTypeError(f"emit: {like.outer} is a function that has no text")
    return _offset(like.outer, [(inner, like.outer.shape)], spelling)


def _terms(layout: Layout, digits: list[_Term], spelling: _Language) -> list[_Term]:
    if arithmetic(layout) is not Arithmetic.INTEGER:
        raise LayoutTypeError(f"emit: the strides of {layout} are no integers")
    result = []
    for digit, (s, d) in zip(digits, simplified(layout)._leaves, strict=True):
        if (type(d) is int and d == 0) or (type(s) is int and s == 1 and digit.text == "0"):
            continue
        factor = _Term(str(d), 2 if type(d) is int or str(d).isidentifier() else 0)
        result.append(spelling.times(digit, factor.within(2)))
    return result


def _digits(name: _Term, extents: tuple[Any, ...], spelling: _Language) -> list[_Term]:
    """The digits of a variable in extents, the last one unbounded."""
    result = []
    place: Any = 1
    for i, s in enumerate(extents):
        rest = name if _is_one(place) else spelling.quotient(name, _shown(place))
        if i == len(extents) - 1:
            result.append(rest)
        else:
            result.append(_Term("0") if _is_one(s) else spelling.remainder(rest, _shown(s)))
        place = place * s
    return result


def _is_one(x: Any) -> bool:
    return type(x) is int and x == 1


def _shown(x: Any) -> str:
    text = str(x)
    return text if text.isidentifier() or text.isdigit() else f"({text})"
