"""Expressions of the algebra, as they are typed: ``zipped_divide((4,8):(8,1), (2,4))``.

They are read by the parser below and by that of the notation, and nothing else is ever called than
the operations named here: what a stranger types is not Python.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .. import algebra
from ..algebra import ComposedLayout, Layout, LayoutError, LayoutValueError, Swizzle, Tensor, parse
from ..algebra.errors import text

LONGEST = 2000  # characters of an expression

# What an operand has to be: a layout (L; a shape is a compact one), a layout, shape or tiler as it
# was typed (T), or an integer (N). The function itself says how many operands there may be.
_OPERANDS = {
    "composition": "LT", "complement": "LT",
    "logical_divide": "LT", "zipped_divide": "LT", "tiled_divide": "LT", "flat_divide": "LT",
    "logical_product": "LT", "zipped_product": "LT", "tiled_product": "LT", "flat_product": "LT",
    "blocked_product": "LL", "raked_product": "LL", "tile_to_shape": "LTT",
    "coalesce": "LT", "filter": "LT", "flatten_layout": "L", "group_modes": "LNN",
    "right_inverse": "L", "left_inverse": "L", "nullspace": "L", "max_common_layout": "LL",
    "make_ordered_layout": "TT", "make_identity_layout": "T", "make_layout_like": "L",
    "make_layout": "L*", "layout_add": "LL",
    "upcast": "LN", "downcast": "LN", "recast": "LNN",
    "Layout": "TT", "Swizzle": "NNN",
}  # fmt: skip


@dataclass(frozen=True)
class Applied:
    """An operation on its operands: what it gave, or the error that says why it gave nothing."""

    name: str
    operands: tuple[Any, ...]
    result: Any = None
    error: LayoutError | None = None


@dataclass(frozen=True)
class _Call:
    """An operation and the expressions that it is applied to, not evaluated yet."""

    name: str
    operands: tuple[Any, ...]


def operations() -> dict[str, Callable[..., Any]]:
    """The operations that an expression may name.

    >>> operations()["coalesce"].__name__
    'coalesce'
    """
    return {name: getattr(algebra, name) for name in _OPERANDS}


def evaluate(expression: str, applied: list[Applied] | None = None) -> Any:
    """The layout, composed layout or swizzle that an expression says.

    Args:
        expression: what :func:`~layoutconv.parse` reads, ``A @ B`` for a composition, an operation
            by its name, and parentheses. A tiler is a layout, an integer or a tuple of these, in
            which ``_`` leaves a mode as it is.
        applied: where each operation is added once its operands are known, innermost first, also
            one that fails.

    Raises :class:`~layoutconv.LayoutError`: one that points at the character that does not fit, or
    that of the operation that has no result.

    >>> print(evaluate("zipped_divide((4,8):(8,1), (2,4))"))
    ((2,4),(2,2)):((8,1),(16,4))
    >>> print(evaluate("S<2,0,2> @ ((4,4):(1,4) @ (4,4):(4,1))"))
    S<2,0,2> o 0 o (4,4):(4,1)
    >>> evaluate("(4,8) @ complemnt(4:2, 24)")
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: expected an operation (complement?), found 'complemnt'
    (4,8) @ complemnt(4:2, 24)
            ^
    """  # noqa: E501
    if len(expression) > LONGEST:
        raise LayoutValueError(f"expected at most {LONGEST} characters, found {len(expression)}")
    try:
        value = _value(_Parser(re.sub(r"\s", " ", expression)).whole(), applied)
    except RecursionError:
        raise LayoutValueError("expected an expression that nests less deeply") from None
    return _as_layout(value)


def _value(node: Any, applied: list[Applied] | None) -> Any:
    if isinstance(node, tuple):
        return tuple([_value(part, applied) for part in node])
    if not isinstance(node, _Call):
        return node
    operands = [_value(operand, applied) for operand in node.operands]
    function = operations()[node.name]
    kinds = _OPERANDS[node.name].replace("L*", "L" * len(operands))
    try:
        inspect.signature(function).bind(*operands)
    except TypeError:
        wanted = ", ".join(inspect.signature(function).parameters)
        raise LayoutValueError(
            f"{node.name}: expected the operands ({wanted}), got {len(operands)}"
        ) from None
    operands = [_operand(node.name, kind, o) for kind, o in zip(kinds, operands, strict=False)]
    if node.name == "composition" and isinstance(operands[0], Swizzle):
        operands[1] = _as_layout(operands[1])  # it has no modes that a tuple could be for
    applied = [] if applied is None else applied
    try:
        result = function(*operands)
    except LayoutError as error:
        applied.append(Applied(node.name, tuple(operands), error=error))
        raise
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        # An operand of a kind that the operation did not expect deep in a tuple.
        written = ", ".join(map(text, operands))
        raise LayoutValueError(f"{node.name}({written}): {error}") from error
    applied.append(Applied(node.name, tuple(operands), result))
    return result


def _operand(name: str, kind: str, value: Any) -> Any:
    if kind == "L":
        return _as_layout(value)
    if kind == "N" and not isinstance(value, int):
        raise LayoutValueError(f"{name}: expected an integer, got {text(value)}")
    return value


def _as_layout(value: Any) -> Any:
    known = Layout | ComposedLayout | Swizzle | Tensor
    if isinstance(value, known):
        return value
    if isinstance(value, tuple):
        # By mode: tuples of integers are a shape, and layouts side by side are no layout.
        for part in value:
            if isinstance(part, known) or part is None:
                raise LayoutValueError(f"expected a layout, got the tiler {text(value)}")
    if value is None:
        raise LayoutValueError("expected a layout, got _")
    return Layout(value)


class _Parser:
    """Recursive descent over operators, calls, groups and tuples; the rest is notation."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0

    def whole(self) -> Any:
        result = self.composed()
        if self.next():
            self.fail("the end")
        return result

    def composed(self) -> Any:
        result = self.operand()
        while self.next() == "@":
            self.at += 1
            result = _Call("composition", (result, self.operand()))
        return result

    def operand(self) -> Any:
        self.next()
        if name := re.compile(r"([A-Za-z]\w+)\s*\(").match(self.expression, self.at):
            if name[1] not in _OPERANDS:
                close = get_close_matches(name[1], _OPERANDS, 1)
                self.fail(f"an operation{f' ({close[0]}?)' if close else ''}", repr(name[1]))
            self.at = name.end()
            return _Call(name[1], self.items()[0])
        if blank := re.compile(r"(None|_)(?![\w(])").match(self.expression, self.at):
            self.at = blank.end()
            return None
        if self.next() == "(" and not self.is_notation():
            self.at += 1
            items, comma = self.items()
            grouped = len(items) == 1 and not comma and not isinstance(items[0], int | tuple)
            return items[0] if grouped else items
        return self.notation()

    def items(self) -> tuple[tuple[Any, ...], bool]:
        """Expressions up to the closing parenthesis, and whether a comma stood before it."""
        result = []
        comma = False
        while self.next() != ")":
            result.append(self.composed())
            comma = self.next() == ","
            if comma:
                self.at += 1
            elif self.next() != ")":
                self.fail("',' or ')'")
        self.at += 1
        return tuple(result), comma

    def is_notation(self) -> bool:
        """Whether a shape, or the offset of a composed layout, begins at this parenthesis."""
        depth = 0
        for i in range(self.at, len(self.expression)):
            depth += {"(": 1, ")": -1}.get(self.expression[i], 0)
            if depth == 0:
                return bool(re.compile(r"\s*(:|[oO∘](?!\w))").match(self.expression, i + 1))
        self.at = len(self.expression)
        self.fail("',' or ')'")
        return False

    def notation(self) -> Any:
        """What ``parse`` reads: up to a comma, a parenthesis that closes, or the operator ``@``."""
        start = self.at
        depth = 0
        while self.at < len(self.expression):
            c = self.expression[self.at]
            if depth == 0 and (c in ",)" or (c == "@" and not self.in_basis())):
                break
            depth += (c in "(<") - (c in ")>")
            self.at += 1
        notation = self.expression[start : self.at].rstrip()
        if not notation:
            self.fail("a layout")
        if re.fullmatch(r"_?-?\d+", notation):
            return int(notation.lstrip("_"))
        if name := re.match(r"[A-Za-z]\w+", notation):
            self.at = start
            close = get_close_matches(name[0], _OPERANDS, 1)
            self.fail(f"a layout{f' ({close[0]}(...)?)' if close else ''}", repr(name[0]))
        try:
            return parse(notation)
        except LayoutError as error:
            why, _, caret = str(error).partition(f"\n{notation}\n")
            if not caret:
                raise
            self.at = start + len(caret) - 1
            raise LayoutValueError(f"{why}\n{self.expression}\n{' ' * self.at}^") from None

    def in_basis(self) -> bool:
        """Whether this ``@`` stands between digits, as in ``2@0``: there it names a mode."""
        return self.expression[self.at - 1].isdigit() and (
            self.expression[self.at + 1 : self.at + 2].isdigit()
        )

    def next(self) -> str:
        """The next character that is not blank, to which this moves on; "" at the end."""
        while self.expression[self.at : self.at + 1] == " ":
            self.at += 1
        return self.expression[self.at : self.at + 1]

    def fail(self, expected: str, found: str = "") -> None:
        found = found or repr(self.next())
        if not self.next():
            found = "the end"
        raise LayoutValueError(
            f"expected {expected}, found {found}\n{self.expression}\n{' ' * self.at}^"
        )
