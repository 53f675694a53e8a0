"""The notation of the literature, read: ``((2,2),(4,2)):((1,8),(2,16))``."""

from __future__ import annotations

from typing import Any

from .composed import ComposedLayout
from .errors import LayoutValueError
from .int_tuple import IntTuple
from .layout import Layout
from .packing import sum_of_bases
from .stride import F2, ArithmeticTuple, ScaledBasis
from .swizzle import Swizzle


def parse(notation: str) -> Any:
    """What ``str`` of a layout, a composed layout or a swizzle says; a shape alone is compact.

    Strides are integers, scaled bases ``2@0``, sums of them ``1@0+2@1`` and XOR strides ``f5``.
    CuTe's underscores (``_4``) are read too. Index buffers and symbolic names have no notation.

    Raises :class:`LayoutValueError` that points at the first character that does not fit.

    >>> parse("((2,2),(4,2)):((1,8),(2,16))")
    Layout(((2, 2), (4, 2)), ((1, 8), (2, 16)))
    >>> parse("S<3,3,3> o 0 o (8,64):(64,1)")
    ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    >>> parse("(4,2):(1,4) ]")
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: parse: expected the end, found ']'
    (4,2):(1,4) ]
                ^
    """
    if not isinstance(notation, str):
        raise LayoutValueError(f"parse: expected text, got {notation!r}")
    return _Parser(notation).whole()


def _tokens(notation: str) -> list[tuple[str, int]]:
    """The tokens, each with where it begins; an empty one at the end."""
    result = []
    at = 0
    while at < len(notation):
        end = at + 1
        if notation[at].isspace() or notation[at] == "_":
            at = end
            continue
        if notation[at] == "-" or notation[at].isdigit():
            while notation[end : end + 1].isdigit():
                end += 1
        elif notation[at] == "S":
            end = notation.find("<", at) + 1 or at + 1
        result.append((notation[at:end], at))
        at = end
    return [*result, ("", len(notation))]


class _Parser:
    def __init__(self, notation: str) -> None:
        self.notation = notation
        self.tokens = _tokens(notation)
        self.next = 0

    def whole(self) -> Any:
        result = self.composed()
        if self.peek():
            self.fail("the end")
        return result

    def composed(self) -> Any:
        first = self.part()
        if self.peek() not in ("o", "O", "∘"):
            return self.as_function(first)
        self.take()
        offset = self.part()
        if self.peek() not in ("o", "O", "∘"):
            return ComposedLayout(self.as_function(first), 0, self.as_function(offset))
        self.take()
        if isinstance(offset, tuple) and not isinstance(offset, ArithmeticTuple):
            offset = tuple(offset)
        return ComposedLayout(self.as_function(first), offset, self.composed())

    def part(self) -> Any:
        """A swizzle, a layout, or a lone tuple."""
        if self.peek() in ("S<", "Sw<", "SW<"):
            return self.swizzle()
        shape = self.tree(self.integer)
        if self.peek() != ":":
            return shape
        self.take()
        return Layout(shape, self.tree(self.stride))

    def as_function(self, part: Any) -> Any:
        return part if callable(part) else Layout(part)

    def swizzle(self) -> Swizzle:
        self.take()
        numbers = [self.integer()]
        for _ in range(2):
            self.expect(",")
            numbers.append(self.integer())
        self.expect(">")
        return Swizzle(*numbers)

    def tree(self, leaf: Any) -> IntTuple:
        if self.peek() != "(":
            return leaf()
        self.take()
        modes = []
        while self.peek() != ")":
            modes.append(self.tree(leaf))
            if self.peek() == ",":
                self.take()
            elif self.peek() != ")":
                self.fail("',' or ')'")
        self.take()
        return tuple(modes)

    def stride(self) -> Any:
        if self.peek() == "f":
            self.take()
            return F2(self.integer())
        terms = [self.scaled()]
        while self.peek() == "+":
            self.take()
            terms.append(self.scaled())
        if len(terms) == 1:
            return terms[0]
        if not all(isinstance(term, ScaledBasis) for term in terms):
            self.fail("a sum of scaled bases")
        return sum_of_bases(terms)

    def scaled(self) -> Any:
        value = self.integer()
        path: list[int] = []
        while self.peek() == "@":
            self.take()
            path.insert(0, self.integer())
        return ScaledBasis(value, tuple(path)) if path else value

    def integer(self) -> int:
        if not self.peek().removeprefix("-").isdigit():
            self.fail("an integer")
        return int(self.take())

    def peek(self) -> str:
        return self.tokens[self.next][0]

    def take(self) -> str:
        token = self.peek()
        self.next += 1
        return token

    def expect(self, token: str) -> None:
        if self.peek() != token:
            self.fail(repr(token))
        self.take()

    def fail(self, expected: str) -> Any:
        token, at = self.tokens[self.next]
        found = repr(token) if token else "the end"
        raise LayoutValueError(
            f"parse: expected {expected}, found {found}\n{self.notation}\n{' ' * at}^"
        )
