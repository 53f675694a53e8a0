"""A parser of integer expressions with names: ``(W+7)//8``, ``2*H*W``, ``-(W//8)``."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

from .errors import DEEPEST
from .symbols import symbols


class Expressions:
    """The part of a parser that reads ``+ - * // %`` of names and numbers, like Python."""

    tokens: list[tuple[str, int]]
    next: int

    def peek(self) -> str:
        """Return the text of the next token."""
        raise NotImplementedError

    def take(self) -> None:
        """Advance to the token after it."""
        raise NotImplementedError

    def expect(self, token: str) -> None:
        """Take this token, or fail."""
        raise NotImplementedError

    def fail(self, expected: str) -> NoReturn:
        """Raise the error that something else was expected."""
        raise NotImplementedError

    def integer(self, least: int | None = None, most: int | None = None) -> Any:
        """Read a number."""
        raise NotImplementedError

    def is_symbol(self, token: str) -> bool:
        """Tell if a token is a name."""
        raise NotImplementedError

    def is_operand(self) -> bool:
        """Tell if an operator follows the group in parentheses that comes next."""
        closing = self.closings.get(self.next)
        following = "" if closing is None else self.tokens[closing + 1][0]
        return following in ("+", "*", "//", "%", "@") or following[:1] == "-"

    @cached_property
    def closings(self) -> dict[int, int]:
        """The place of each closing parenthesis, by the place of the one that it closes."""
        opened, found = list[int](), dict[int, int]()
        for at, (token, _) in enumerate(self.tokens):
            if token == "(":
                opened.append(at)
            elif token == ")" and opened:
                found[opened.pop()] = at
        return found

    def extent(self) -> Any:
        """Read an expression with a name in it, or a number.

        Before ``@``, a sum is in parentheses, as in printed text.
        """
        start = self.next
        if not self.has_name():
            return self.integer()
        value = self.product()
        if not self.is_sign():
            return value
        value = self.sum_from(value)
        if self.peek() == "@":
            self.next = start
            self.fail("parentheses around a sum")
        return value

    def has_name(self) -> bool:
        """Tell if the next leaf contains a name."""
        opened = 0
        for token, _ in self.tokens[self.next :]:
            opened += {"(": 1, ")": -1}.get(token, 0)
            if opened < 0 or (not opened and token in (",", ":", "@", "o", "O", "∘")):
                return False
            if self.is_symbol(token):
                return True
        return False

    def sum_from(self, value: Any, depth: int = 0) -> Any:
        """Read the terms that follow, and add them to ``value``."""
        while self.is_sign():
            token, at = self.tokens[self.next]
            if len(token) == 1:
                self.take()
            else:  # the sign of a number is an operator here
                self.tokens[self.next] = token[1:], at + 1
            term = self.product(depth)
            value = value - term if token[0] == "-" else value + term
        return value

    def is_sign(self) -> bool:
        """Tell if another term of the same sum follows."""
        return self.peek() == "+" or self.peek()[:1] == "-"

    def product(self, depth: int = 0) -> Any:
        """Read a term: factors, quotients and remainders, from left to right."""
        value = self.factor(depth)
        while self.peek() in ("*", "//", "%"):
            sign, at = self.peek(), self.next
            self.take()
            by = self.factor(depth)
            if sign == "*":
                value = value * by
                continue
            if type(by) is int and not by:
                self.next = at + 1
                self.fail("a divisor that is not 0")
            value = value // by if sign == "//" else value % by
        return value

    def factor(self, depth: int) -> Any:
        """Read a number, a name, or an expression in parentheses."""
        if depth == DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses")
        if self.peek() == "-":
            self.take()
            return -self.factor(depth + 1)
        if self.peek() == "(":
            self.take()
            value = self.sum_from(self.product(depth + 1), depth + 1)
            self.expect(")")
            return value
        if not self.is_symbol(self.peek()):
            return self.integer()
        self.take()
        return symbols(self.tokens[self.next - 1][0])
