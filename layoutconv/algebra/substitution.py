"""Values for names: what a symbolic layout is for them."""

from __future__ import annotations

from typing import Any

from .like import LayoutLike
from .protocol import is_stride, map_integers
from .symbols import value_at


def substitute(x: Any, **values: int) -> Any:
    """``x`` with every name replaced by its value: a layout, a shape, an expression.

    Raises :class:`~layoutconv.LayoutValueError` for a name that has no value.

    >>> from layoutconv.algebra import Layout, symbols
    >>> H, W = symbols("H W")
    >>> print(substitute(Layout((H, W), (W, 1)), H=6, W=8))
    (6,8):(8,1)
    """

    def fn(integer: Any) -> Any:
        return value_at(integer, values)

    if isinstance(x, LayoutLike):
        return x.map_integers(fn)
    if isinstance(x, tuple) and not is_stride(x):
        return tuple([substitute(part, **values) for part in x])
    return map_integers(fn, x)
