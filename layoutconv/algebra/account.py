"""``explain``: a step-by-step account of an operation, in text."""

from __future__ import annotations

from typing import Any

from .budget import Budget
from .carry import split
from .coalesce import coalesce_x
from .complement import complement
from .composition import compose, composition
from .divide import as_tile, logical_divide
from .errors import LayoutError, LayoutValueError, wrong_argument
from .exact import Function
from .layout import Layout, as_layout, make
from .normal import normal_form
from .products import logical_product
from .stride import stride_text

_OPERATIONS = {
    "composition": composition,
    "logical_divide": logical_divide,
    "logical_product": logical_product,
}


def explain(operation: Any, a: Any, b: Any = None) -> str:
    """Explain line by line how ``operation(a, b)`` comes about, or why it fails.

    ``operation`` is ``composition``, ``logical_divide`` or ``logical_product``, or its name; ``b``
    is a layout, an integer or a tuple of them. The last line is the result, or the error's reason.

    >>> print(explain("composition", Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    composition (6,2):(8,2) o (4,3):(3,1)
      in normal form the left-hand side is (6,2):(8,2)
      mode 4:3 steps through offsets 0, 3, 6, .. of it
        2:3 -> 2:24
        2:6 -> 2:2
      mode 3:1 steps through offsets 0, 1, 2 of it
        3:1 -> 3:8
      no sum of modes carries: the strides add up
      = ((2,2),3):((24,2),8)
    """
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", "?")
    accounts = {
        "composition": _composition,
        "logical_divide": _divide,
        "logical_product": _product,
    }
    if name not in accounts:
        raise LayoutValueError(f"explain: expected one of {', '.join(accounts)}, got {name!r}")
    if b is None:
        raise wrong_argument("explain", "b", "a layout, an integer or a tuple of them", b)
    a = as_layout("explain", a)
    if isinstance(b, tuple):
        result = _OPERATIONS[name](a, b)
        modes = [explain(name, m, t) for m, t in zip(a, b, strict=False) if t is not None]
        return "\n".join([f"{name} {a} by mode", *modes, f"= {result}"])
    tile = as_tile("explain", b)
    return "\n".join(accounts[name](a, tile))


def _composition(a: Layout, b: Layout) -> list[str]:
    return [f"composition {a} o {b}", *_composition_steps(a, b), _result(composition, a, b)]


def _divide(a: Layout, tile: Layout) -> list[str]:
    lines = [f"logical_divide {a} / {tile}"]
    try:
        rest = complement(tile, a.size())
    except LayoutError as error:
        return [*lines, f"  {error}"]
    both = make((tile.shape, rest.shape), (tile.stride, rest.stride))
    lines += [
        f"  the tile skips what its complement in {a.size()} steps through: {rest}",
        f"  so compose with the tile and its complement, {both}:",
        *_composition_steps(a, both),
    ]
    return [*lines, _result(logical_divide, a, tile)]


def _product(a: Layout, tile: Layout) -> list[str]:
    bound = a.size() * tile.cosize()
    lines = [f"logical_product {a} x {tile}"]
    try:
        rest = complement(a, bound)
    except LayoutError as error:
        return [*lines, f"  {error}"]
    lines += [
        f"  there is room for {tile.cosize()} copies of {a.size()} elements: {bound}",
        f"  the copies start where the complement of {a} in {bound} says: {rest}",
        f"  so compose {rest} with {tile}:",
        *_composition_steps(rest, tile),
    ]
    return [*lines, _result(logical_product, a, tile)]


def _composition_steps(a: Layout, b: Layout) -> list[str]:
    if not (a._plain and b._plain):
        return [f"  (the steps of {a} o {b} are shown for integer strides only)"]
    lines = [f"  in normal form the left-hand side is {coalesce_x(a)}"]
    function = Function(a, b)
    for s, d in b._leaves:
        shown = ", ".join(str(i * d) for i in range(min(s, 3))) + (", .." if s > 3 else "")
        lines.append(f"  mode {s}:{d} steps through offsets {shown} of it")
        parts = split(function.carries, (d,), s, Budget("explain", (a, b)))
        lines += [
            f"    {e}:{step[0]} -> {e}:{stride_text(function.stride(step))}"
            for e, step in parts.modes
        ]
    try:
        compose(a, b)
    except LayoutError as error:
        return [*lines, f"  at {error.witness} this goes wrong: {error.exact} is right"]
    carry_free = len(normal_form(a)) < 2 or "no sum of modes carries: the strides add up"
    return [*lines, f"  {carry_free if isinstance(carry_free, str) else 'one mode: it is linear'}"]


def _result(operation: Any, a: Layout, b: Layout) -> str:
    try:
        return f"  = {operation(a, b)}"
    except LayoutError as error:
        return f"  no layout: {error}"
