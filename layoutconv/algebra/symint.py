"""Symbolic integers that know their expression: exact in computations, letters when printed."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from .errors import whole, wrong_argument


def both_ways(name: str, combine: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the methods of an operation: ``__add__`` for "add", and ``__radd__``, which swaps the
    operands.
    """

    def reflected(self: Any, other: Any) -> Any:
        return combine(other, self)

    combine.__name__, reflected.__name__ = f"__{name}__", f"__r{name}__"
    return combine, reflected


class SymInt(int):
    """An ``int`` with the expression that it came from.

    ``runtime`` says if a compiled kernel takes it as an argument rather than a constant; an
    expression is runtime if any part of it is.

    >>> D, H = SymInt(6, "D"), SymInt(4, "H")
    >>> D * H, str(D * H), int(D * H)
    (D*H, 'D*H', 24)
    >>> (D + 2 * H).runtime, (D * H) == 24
    (True, True)
    >>> SymInt(64, "C", runtime=False) * 1
    C
    """

    expr: str
    runtime: bool

    def __new__(cls, value: int, expr: str, runtime: bool = True) -> SymInt:
        if type(expr) is not str:
            raise wrong_argument("SymInt", "expr", "a str", expr)
        if type(runtime) is not bool:
            raise wrong_argument("SymInt", "runtime", "a bool", runtime)
        self = super().__new__(
            cls, value if type(value) is int else whole("SymInt: `value`", value)
        )
        self.expr = expr
        self.runtime = runtime
        return self

    def __repr__(self) -> str:
        return self.expr

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return SymInt, (int(self), self.expr, self.runtime)

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    __add__, __radd__ = both_ways("add", lambda a, b: _combine(a, b, "+", int.__add__))
    __sub__, __rsub__ = both_ways("sub", lambda a, b: _combine(a, b, "-", int.__sub__))
    __mul__, __rmul__ = both_ways("mul", lambda a, b: _combine(a, b, "*", int.__mul__))

    def __floordiv__(self, other: Any) -> Any:
        return _combine(self, other, "//", int.__floordiv__)

    def __rfloordiv__(self, other: Any) -> Any:
        return other // int(self)  # a coordinate divided by an extent: a number without a name

    def __mod__(self, other: Any) -> Any:
        return _combine(self, other, "%", int.__mod__)

    def __rmod__(self, other: Any) -> Any:
        return other % int(self)

    def __neg__(self) -> Any:
        return SymInt(-int(self), f"-{_atom(self, tight=True)}", self.runtime)


def _combine(a: Any, b: Any, op: str, fn: Callable[[int, int], int]) -> Any:
    if not (isinstance(a, int) and isinstance(b, int)):
        if not (isinstance(a, Integral) and isinstance(b, Integral)):
            return NotImplemented
        a, b = (x if isinstance(x, int) else int(x) for x in (a, b))
    value = fn(int(a), int(b))
    if op == "*" and (_plain(a, 1) or _plain(b, 1)):
        return b if _plain(a, 1) else a
    if op == "*" and (_plain(a, 0) or _plain(b, 0)):
        return 0
    if op in "+-" and _plain(b, 0):
        return a
    if op == "+" and _plain(a, 0):
        return b
    tight = op != "+"
    left = _atom(a, tight=op not in "+-")
    return SymInt(
        value,
        f"{left}{op}{_atom(b, tight=tight, right=op in '-//%')}",
        is_runtime(a) or is_runtime(b),
    )


def _plain(x: int, value: int) -> bool:
    return not isinstance(x, SymInt) and x == value


def _atom(x: int, *, tight: bool, right: bool = False) -> str:
    text = str(x)
    if text.isidentifier():  # a single name, as most are
        return text
    loose = "+" in text or "-" in text[1:] or (tight and text[0] == "-")
    split = right and ("*" in text or "/" in text or "%" in text)
    return f"({text})" if (tight and loose) or split else text


def is_runtime(x: Any) -> bool:
    """Return whether a leaf is an argument of a compiled kernel rather than a constant in it."""
    return isinstance(x, SymInt) and x.runtime
