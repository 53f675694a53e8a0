"""``substitute``: give values to the names in a symbolic layout."""

from __future__ import annotations

from operator import index
from typing import Any

from .checks import plain
from .errors import LayoutTypeError, LayoutValueError
from .layout import as_like
from .like import LayoutLike
from .operands import expect_entries
from .polynomial import evaluate, names_of
from .protocol import is_stride, map_integers
from .relations import Relation, holds
from .symbols import Symbolic, value_at


def substitute(x: Any, **values: int) -> Any:
    """Replace every name in ``x`` by its value: in a layout, a shape, an expression.

    Raises :class:`~layoutconv.LayoutValueError` for a name without a value, for a value below the
    minimum of its name, and for values that violate the assumptions of ``x``.

    >>> from layoutconv.algebra import Layout, assuming, logical_divide, symbols
    >>> H, W = symbols("H W")
    >>> print(substitute(Layout((H, W), (W, 1)), H=6, W=8))
    (6,8):(8,1)
    >>> with assuming(W % 8 == 0):
    ...     tiles = logical_divide(Layout(W), 8)
    >>> substitute(tiles, W=12)
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: substitute: (8,W//8):(1,8) holds where W % 8 == 0, \
and not at W=12
    """
    expect_entries("substitute", "x", x)
    x = as_like("substitute", x) if isinstance(x, str) else plain(x)
    return _substituted(x, {name: _integer(name, value) for name, value in values.items()})


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return index(value)
    raise LayoutTypeError(f"substitute: {name} is {value!r}, which is not an integer")


def _substituted(x: Any, values: dict[str, int]) -> Any:
    def fn(integer: Any) -> Any:
        if isinstance(integer, Symbolic):
            _check_minima(integer, values)
        return value_at(integer, values)

    if isinstance(x, LayoutLike):
        for relation in getattr(x, "assumptions", ()):
            _check_assumption(x, relation, values)
        return x.map_integers(fn)
    if isinstance(x, tuple) and not is_stride(x):
        return tuple([_substituted(part, values) for part in x])
    return map_integers(fn, x)


def _check_minima(x: Symbolic, values: dict[str, int]) -> None:
    for name, (_, minimum) in names_of(dict(x.terms)).items():
        if minimum is not None and values.get(name, minimum) < minimum:
            raise LayoutValueError(
                f"substitute: {name} stands for integers from {minimum} on, not for {values[name]}"
            )


def _check_assumption(x: LayoutLike, relation: Relation, values: dict[str, int]) -> None:
    sides = dict(relation.left), dict(relation.right)
    names = {**names_of(sides[0]), **names_of(sides[1])}
    if not set(names) <= set(values):
        return
    left, right = (evaluate(side, values) for side in sides)
    if not holds(relation.sign, left - right):
        at = ", ".join(f"{name}={values[name]}" for name in sorted(names))
        raise LayoutValueError(f"substitute: {x} holds where {relation}, and not at {at}")
