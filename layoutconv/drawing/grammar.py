"""The grammar of expressions: text to a tree of calls, whose leaves are values of the algebra.

Nothing is evaluated here. Errors point at the first unexpected character.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from ..algebra import LayoutLeft, LayoutRight, LayoutValueError
from ..algebra.errors import DEEPEST
from ..algebra.notation import parse_part, pointed
from ..algebra.printed import as_calls

LONGEST = 2000  # characters of an expression
MOST_CALLS = 64  # operations in an expression, which also bounds the depth of the tree

_CALL = re.compile(r"([A-Za-z][A-Za-z0-9_]+)\s*\(")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]+")
_PRINTED = re.compile(r"(?:raw_ptr|ArithTuple(?:Iter)?|strided)\b")  # notation, not a call
_TUPLES = ("make_shape", "make_stride", "make_coord", "make_tile", "make_tuple")
_ORDER = re.compile(r"(?:Layout(Left|Right)|Gen(Col|Row)Major)(?:\{\})?(?![A-Za-z0-9_(])")
_STATIC = re.compile(r"(?:Int|C)<(-?[0-9]+)>(?:\{\})?|_(-?[0-9]+)\{\}")
_BLANK = re.compile(r"(None|_)(?![A-Za-z0-9_(-])")
_AFTER_SHAPE = re.compile(r"\s*(:|[oO∘](?!\w))")  # a stride, or the offset of a composed layout
_INTEGER = re.compile("_?(-?[0-9]+)(?:_c)?")


@dataclass(frozen=True)
class Call:
    """An operation and its operands, which are expressions; ``at`` is the position of its name."""

    name: str
    operands: tuple[Any, ...]
    at: int


def read(expression: str, names: Collection[str]) -> Any:
    """Parse an expression to a :class:`Call`, a value, None for ``_``, or a tuple of these.

    Args:
        expression: at most 2,000 characters, with at most 64 operations and 64 levels of
            parentheses.
        names: the operations that it may name.

    Raises :class:`~layoutconv.LayoutValueError` that points at the first unexpected character.

    >>> read("coalesce((4,2) @ 8)", ["coalesce"]).operands[0].name
    'composition'
    """
    if len(expression) > LONGEST:
        raise LayoutValueError(f"expected at most {LONGEST} characters, found {len(expression)}")
    return _ExpressionParser(expression, names).whole()


class _ExpressionParser:
    """Recursive descent over operators, calls, groups and tuples; the rest is notation."""

    def __init__(self, expression: str, names: Collection[str]) -> None:
        self.written, self.expression = expression, as_calls(expression)
        self.names = names
        self.at = 0
        self.calls = 0
        self.depth = 0
        self.closes = _closing(self.expression)

    def whole(self) -> Any:
        result = self.composed()
        if self.next():
            self.fail("the end")
        return result

    def composed(self) -> Any:
        result = self.operand()
        while self.next() == "@":
            operator = self.at
            self.count_call()
            self.at += 1
            result = Call("composition", (result, self.operand()), operator)
        return result

    def operand(self) -> Any:
        self.next()
        start = self.at
        if (name := _CALL.match(self.expression, start)) and not _PRINTED.match(name[0]):
            if name[1] in _TUPLES:
                self.at = name.end() - 1
                return self.items()[0]
            if name[1] not in self.names:
                self.fail(f"an operation{self.suggestion(name[1], '?')}", repr(name[1]))
            self.count_call()
            self.at = name.end() - 1
            return Call(name[1], self.items()[0], start)
        if order := _ORDER.match(self.expression, start):
            self.at = order.end()
            return LayoutRight if "Right" in order[0] or "Row" in order[0] else LayoutLeft
        if blank := _BLANK.match(self.expression, start):
            self.at = blank.end()
            return None
        if self.next() == "(" and not self.is_notation():
            items, comma = self.items()
            grouped = len(items) == 1 and not comma and not isinstance(items[0], int | tuple)
            return items[0] if grouped else items
        return self.notation()

    def items(self) -> tuple[tuple[Any, ...], bool]:
        """Read expressions in parentheses; return them, and whether a comma ends the list."""
        if self.depth == DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses")
        self.depth += 1
        self.at += 1
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
        self.depth -= 1
        return tuple(result), comma

    def is_notation(self) -> bool:
        """Tell if a shape, or the offset of a composed layout, begins at this parenthesis."""
        if self.at not in self.closes:
            self.at = len(self.expression)
            self.fail("',' or ')'")
        return bool(_AFTER_SHAPE.match(self.expression, self.closes[self.at] + 1))

    def notation(self) -> Any:
        """Read notation, as ``parse`` does, up to a comma, a closing parenthesis or the operator
        ``@``.
        """
        start = self.at
        depth = 0
        while self.at < len(self.expression):
            c = self.expression[self.at]
            if depth == 0 and (c in ",)" or (c == "@" and not self.in_basis())):
                break
            depth += (c in "(<") - (c in ")>")
            self.at += 1
        stop = start + len(self.expression[start : self.at].rstrip())
        if stop == start:
            self.fail("a layout")
        if number := _INTEGER.fullmatch(self.expression, start, stop):
            return int(number[1])
        if static := _STATIC.fullmatch(self.expression, start, stop):
            return int(static[1] or static[2])
        name = _NAME.match(self.expression, start, stop)
        if name and self.expression[name.end() : name.end() + 1] not in ("<", "[", "("):
            self.at = start
            self.fail(f"a layout{self.suggestion(name[0], '(...)?')}", repr(name[0][:40]))
        return parse_part(self.written, start, stop)

    def in_basis(self) -> bool:
        """Tell if this ``@`` stands between digits, as in ``2@0``, where it names a mode."""
        around = self.expression[max(0, self.at - 1) : self.at + 2]
        return re.fullmatch("[0-9]@[0-9]", around) is not None

    def suggestion(self, name: str, end: str) -> str:
        """Suggest the operation that the user may have meant."""
        close = get_close_matches(name[:40], self.names, 1)
        return f" ({close[0]}{end})" if close else ""

    def count_call(self) -> None:
        if self.calls == MOST_CALLS:
            self.fail(f"at most {MOST_CALLS} operations")
        self.calls += 1

    def next(self) -> str:
        """Skip blanks and return the next character; "" at the end."""
        while self.expression[self.at : self.at + 1].isspace():
            self.at += 1
        return self.expression[self.at : self.at + 1]

    def fail(self, expected: str, found: str = "") -> NoReturn:
        here = self.next()
        found = (found or repr(here)) if here else "the end"
        why = f"expected {expected}, found {found}"
        raise LayoutValueError(pointed(why, self.written, self.at))


def _closing(expression: str) -> dict[int, int]:
    """Map each opening parenthesis to its closing one, if it has one."""
    found: dict[int, int] = {}
    opened = []
    for at, character in enumerate(expression):
        if character == "(":
            opened.append(at)
        elif character == ")" and opened:
            found[opened.pop()] = at
    return found
