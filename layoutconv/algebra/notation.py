"""``parse``: read CuTe's notation, such as ``((2,2),(4,2)):((1,8),(2,16))``."""

from __future__ import annotations

import re
from itertools import count
from typing import Any, NoReturn

from .basis import sum_of_bases
from .composed import ComposedLayout
from .errors import DEEPEST, LayoutValueError
from .expressions import Expressions
from .int_tuple import IntTuple
from .layout import Layout, make_layout
from .orders import LayoutLeft, LayoutRight
from .printed import Origin, Pointer, as_calls
from .stride import F2, CustomStride, ScaledBasis, Stride, StridedGather, basis_terms
from .swizzle import Swizzle
from .symbols import is_name, symbols

# Limits of the input. They lie far above what anyone writes, and keep reading within a few ms and
# clear of the interpreter's limits: on recursion, and on the 4,300 digits of a printed integer (a
# product of integers has no more digits than its factors together).
LONGEST = 4000  # characters
MOST_MODES = 64  # modes that a scaled basis may name
MOST_BITS = 64  # of each number of a swizzle

# C++ writes static integers `_4{}` and `Int<4>{}`, and prints a pointer between swizzle and layout.
_STATIC = r"(?:Int|C)<-?[0-9]+>(?:\{\})?|_-?[0-9]+(?!\w)(?:\{\})?|-?[0-9]+_c(?!\w)"
_DYNAMIC = r"\?(?:\{[^{}]*\})?"
_POINTER = (
    r"(?:_?(?:(?:smem|gmem|rmem|tmem)_)?ptr\[[0-9]+b\]\([^()\s]*\)"
    r"|ptr<(?:[^<>]|<[^<>]*>)*>|raw_ptr\([^()]*\))"
)
_NAME = (
    r"(?:make_[a-z]+(?!\w)|(?:Layout(?:Left|Right)|Gen(?:Row|Col)Major)(?!\w)(?:\{\})?"
    r"|Layout(?=\s*\())"
)
_BASIS = r"E<[0-9,\s]*>"
_KNOWN = (
    rf"{_STATIC}|{_DYNAMIC}|{_POINTER}|{_NAME}|{_BASIS}|ArithTuple(?:Iter)?(?!\w)|tensor<"
    r"|strided(?=\s*\()"
    r"|-?[0-9]+|S[wW]?<|Swizzle<"
)
_WORD = r"(?!f[0-9]+(?!\w))[^\W\d]\w*"  # not an XOR stride
_TOKEN = re.compile(rf"{_KNOWN}|\S")
_TOKEN_OR_WORD = re.compile(rf"{_KNOWN}|{_WORD}|//|\S")
_INTEGER = re.compile(rf"(?:{_STATIC}|-?[0-9]+)")
_DIGITS = re.compile(r"-?[0-9]+")
_TUPLES = ("make_shape", "make_stride", "make_coord", "make_tile", "make_tuple")
_AFTER = ("o", "O", "∘")
_WIDTH = 120  # columns of text that an error shows


def parse(notation: str) -> Any:
    """Read the text of a layout, a composed layout or a swizzle; a shape alone is compact.

    Strides are integers, scaled bases ``2@0``, sums of them ``1@0+2@1``, XOR strides ``f5`` and
    strides after a multiple, ``strided(3)*2``. ``parse`` also reads what CuTe C++ and the CuTe DSL
    print, and C++ source: ``_4``, ``Int<4>{}``, ``make_shape(4, 8)``,
    ``make_layout(shape, stride)``, ``make_layout(shape, LayoutRight{})``,
    ``Layout<Shape<_4,_8>, Stride<_8,_1>>{}``, ``Swizzle<3,3,3>{}`` and ``E<0,1>{}``, also after
    ``cute::``, and the DSL's ``cute.make_layout(shape, stride=stride)``.

    A swizzle before a pointer counts bytes in that text, and elements in the result. A tensor in
    memory gives its layout, a tensor of coordinates itself. A dynamic ``?`` becomes an integer with
    a name d0, d1, ... that the text does not use, and ``?{div=8}`` eight times one. A name that
    :func:`symbols` accepts is such an integer too, at least 1, and may be part of an expression:
    ``(H,(W+7)//8):(W,8)``. Index buffers and functions have no notation: their printed text is
    refused. A text has at most 4,000 characters and 64 levels of parentheses.

    Raises :class:`LayoutValueError` that points at the first unexpected character.

    >>> parse("((2,2),(4,2)):((1,8),(2,16))")
    Layout(((2, 2), (4, 2)), ((1, 8), (2, 16)))
    >>> parse("S<3,3,3> o 0 o (8,64):(64,1)")
    ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1)))
    >>> parse("make_layout(make_shape(_4{}, Int<8>{}), LayoutRight{})")
    Layout((4, 8), (8, 1))
    >>> print(parse("Layout<Shape<_4,_8>, Stride<E<1>,E<0>>>{}"), parse("(?,?{div=8}):(8,1)"))
    (4,8):(1@1,1@0) (d0,8*d1):(8,1)
    >>> print(parse("(H,W):(W,1)").size())
    H*W
    >>> print(parse("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    >>> parse("(4,2):(1,4) ]")
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: parse: expected the end, found ']'
    (4,2):(1,4) ]
                ^
    """
    if not isinstance(notation, str):
        raise LayoutValueError(f"parse: expected text, got {notation!r}")
    if len(notation) > LONGEST:
        found = f"found {len(notation)}"
        raise LayoutValueError(f"parse: expected at most {LONGEST} characters, {found}")
    found = _NotationParser(notation, 0, len(notation), "parse: ", names=True).whole()
    if isinstance(found, Stride):
        raise LayoutValueError(pointed("parse: expected a layout, found a stride", notation, 0))
    return found


def parse_part(whole: str, start: int, stop: int, reader: str = "") -> Any:
    """Parse ``whole[start:stop]`` as :func:`parse`; it may also be a stride ``1@0``.

    Errors point into the whole, after ``reader``.
    """
    return _NotationParser(whole, start, stop, reader).whole()


def pointed(why: str, written: str, at: int) -> str:
    """Return an error text: the reason, then the text with a caret under character ``at``.

    A long text is cut around the caret. Characters that no terminal or page should get, such as
    control characters and halves of surrogate pairs, become a replacement character.

    >>> print(pointed("expected an integer", "(4,x)", 3))
    expected an integer
    (4,x)
       ^
    """
    first = max(0, min(at - _WIDTH // 2, len(written) - _WIDTH))
    last = first + _WIDTH
    before, after = "..." * (first > 0), "..." * (last < len(written))
    return (
        f"{why}\n{before}{visible(written[first:last])}{after}\n{' ' * (len(before) + at - first)}^"
    )


def visible_lines(written: str) -> str:
    """Apply :func:`visible` to each line of a text."""
    return "\n".join(map(visible, written.split("\n")))


def visible(written: str) -> str:
    """Return a text in one line, with unprintable characters replaced.

    >>> visible("(4,\\n8) \\x1b[31m")
    '(4, 8) �[31m'
    """
    shown = [" " if c.isspace() else c if c.isprintable() else "�" for c in written]
    return "".join(shown)


class _NotationParser(Expressions):
    def __init__(
        self, written: str, start: int, stop: int, reader: str, *, names: bool = False
    ) -> None:
        self.written = written
        self.reader = reader
        self.names = names  # are integers with names allowed
        words = _TOKEN_OR_WORD if names else _TOKEN
        found = words.finditer(as_calls(written), start, stop)
        self.tokens = [*((token[0], token.start()) for token in found), ("", stop)]
        self.next = 0
        written_names = {token for token, _ in self.tokens}
        unused = (f"d{i}" for i in count())
        self.dynamic = (name for name in unused if name not in written_names)

    def whole(self) -> Any:
        if len(self.tokens) == 2 and self.is_symbol(self.peek()):
            self.fail("a layout")  # a lone word is more often a typo than an extent
        if len({token for token, _ in self.tokens if self.is_symbol(token)}) > MOST_MODES:
            self.fail(f"at most {MOST_MODES} names")
        result = self.composed()
        if self.peek():
            self.fail("the end")
        return result

    def composed(self, of_tensor: bool = False) -> Any:
        """Read composed functions, ``f o offset o g o ...``; an offset of 0 may be left out."""
        parts, places = [self.part()], [0]
        if of_tensor and not isinstance(parts[0], Pointer):
            parts = [Origin(parts[0])]
        while self.peek() in _AFTER or re.fullmatch(rf"(?=_){_POINTER}", self.peek()):
            if len(parts) == 2 * DEEPEST:
                self.fail(f"at most {DEEPEST} maps, one after the other")
            if self.peek() in _AFTER:
                self.take()
            places.append(self.next)
            parts.append(self.part())
        if len(parts) == 1 and isinstance(parts[0], ScaledBasis | CustomStride):
            return parts[0]
        result = self.as_function(parts.pop())
        if len(parts) == 1 and isinstance(parts[0], Pointer | Origin):
            return parts[0].tensor(result)
        while parts:
            # Of the last two parts, f o g, neither is an offset.
            offset = parts.pop() if len(parts) > 1 else 0
            if callable(offset):
                self.next = places[len(parts)]
                self.fail("an offset: an integer or a coordinate")
            outer = self.as_function(parts.pop())
            if isinstance(offset, Pointer):
                outer, offset = offset.of_elements(outer), 0
            result = ComposedLayout(outer, offset, result)
        return result

    def part(self) -> Any:
        """Read a swizzle, a layout, or a lone tuple."""
        if self.peek() in ("S<", "Sw<", "SW<", "Swizzle<"):
            return self.swizzle()
        if self.peek() in ("make_layout", "Layout"):
            return self.make_layout()
        if self.peek() == "tensor<":
            self.take()
            result = self.composed(of_tensor=True)
            self.expect(">")
            return result
        if self.peek().startswith("ArithTuple"):
            self.take()
            return Origin(self.tree(self.integer))
        if self.peek().startswith("E<"):
            return self.scaled()
        if re.fullmatch(_POINTER, self.peek()):
            self.take()
            return Pointer(self.tokens[self.next - 1][0])
        if self.adds_by_xor() or self.is_multiple():  # the offset of an XOR layout, or a stride
            return self.stride()
        shape = self.tree(self.scaled if self.alone() else self.extent)
        if self.peek() != ":":
            return shape
        self.take()
        return Layout(shape, self.tree(self.stride))

    def make_layout(self, depth: int = 0) -> Layout:
        """Read C++'s ``make_layout`` of a shape with strides or an order, or of layouts."""
        if depth == DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses")
        self.take()
        self.expect("(")
        operands: list[Any] = []
        while self.peek() != ")":
            if self.peek() in ("make_layout", "Layout"):
                operands.append(self.make_layout(depth + 1))
            elif self.peek().startswith(("Layout", "Gen")) and len(operands) == 1:
                right = "Right" in self.peek() or "Row" in self.peek()
                operands.append(LayoutRight if right else LayoutLeft)
                self.take()
            else:
                first = not operands or isinstance(operands[0], Layout)
                operands.append(self.part() if first else self.tree(self.stride))
            if self.peek() != ")":
                self.expect(",")
        self.take()
        if not operands or any(isinstance(x, ComposedLayout | Swizzle) for x in operands):
            self.fail("a shape and a stride, or layouts")
        return _made(operands)

    def as_function(self, part: Any) -> Any:
        if isinstance(part, Pointer | Origin | Stride):
            self.fail("a layout")
        return part if callable(part) else Layout(part)

    def swizzle(self) -> Swizzle:
        self.take()
        numbers = [self.integer(0, MOST_BITS)]
        for least in (0, -MOST_BITS):
            self.expect(",")
            numbers.append(self.integer(least, MOST_BITS))
        self.expect(">")
        return Swizzle(*numbers)

    def tree(self, leaf: Any, depth: int = 0) -> IntTuple:
        if self.peek() in _TUPLES:
            self.take()
            if self.peek() != "(":
                self.fail("'('")
        elif self.peek() != "(" or self.is_operand():
            return leaf()
        if depth == DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses")
        self.take()
        modes = []
        while self.peek() != ")":
            modes.append(self.tree(leaf, depth + 1))
            if self.peek() == ",":
                self.take()
            elif self.peek() != ")":
                self.fail("',' or ')'")
        self.take()
        return tuple(modes)

    def stride(self, depth: int = 0) -> Any:
        terms = [self.scaled(depth)]
        while self.peek() == "+":
            self.take()
            terms.append(self.scaled())
        if len(terms) == 1:
            return terms[0]
        if not all(isinstance(term, ScaledBasis) for term in terms):
            self.fail("a sum of scaled bases")
        # A printed sum has no terms that are zero, so drop them here, too.
        left = basis_terms(sum_of_bases(terms))
        return sum_of_bases(left) if left else 0

    def adds_by_xor(self) -> bool:
        """Tell if the next token is an XOR stride, such as ``f8``."""
        after = self.tokens[self.next + 1][0] if self.next + 1 < len(self.tokens) else ""
        return self.peek() == "f" and bool(re.fullmatch("_?[0-9]+", after))

    def alone(self) -> bool:
        """Tell if a scaled basis comes next, outside any layout."""
        return self.next + 1 < len(self.tokens) and self.tokens[self.next + 1][0] == "@"

    def scaled(self, depth: int = 0) -> Any:
        if self.peek().startswith("E<"):
            path = tuple([int(i) for i in _DIGITS.findall(self.peek())])
            if not path or max(path) >= MOST_MODES or len(path) > DEEPEST:
                self.fail(f"a mode from 0 to {MOST_MODES - 1}")
            self.take()
            return ScaledBasis(1, path)
        if self.is_multiple():
            return self.multiple(depth)
        value = self.xor_stride() if self.adds_by_xor() else self.extent()
        modes: list[int] = []
        while self.peek() == "@":
            if len(modes) == DEEPEST:
                self.fail(f"at most {DEEPEST} modes, one inside the other")
            self.take()
            modes.append(self.integer(0, MOST_MODES - 1))
        return ScaledBasis(value, tuple(reversed(modes))) if modes else value

    def xor_stride(self) -> F2:
        self.take()
        return F2(self.integer(0))

    def is_multiple(self) -> bool:
        """Tell if a stride after a multiple of the coordinate comes next: ``strided(3)*2``."""
        return self.peek() == "strided"

    def multiple(self, depth: int) -> CustomStride:
        if depth == DEEPEST:
            self.fail(f"at most {DEEPEST} strides, one after the other")
        self.take()
        self.expect("(")
        func = StridedGather(self.extent())
        self.expect(")")
        self.expect("*")
        if not self.is_grouped():
            return CustomStride(func, self.scaled(depth + 1))
        self.take()
        stride = self.stride(depth + 1)
        self.expect(")")
        return CustomStride(func, stride)

    def is_grouped(self) -> bool:
        """Tell if a stride in parentheses that is not an integer comes next."""
        opened = 0
        for at in range(self.next, len(self.tokens) - 1):
            token = self.tokens[at][0]
            opened += {"(": 1, ")": -1}.get(token, 0)
            if not opened:
                return False
            if token in ("@", "strided"):
                return True
        return False

    def is_operand(self) -> bool:
        return self.names and super().is_operand()

    def extent(self) -> Any:
        return super().extent() if self.names else self.integer()

    def is_symbol(self, token: str) -> bool:
        return self.names and is_name(token)

    def integer(self, least: int | None = None, most: int | None = None) -> Any:
        token = self.peek()
        if token.startswith("?") and least is None and most is None:
            self.take()
            divisor = re.search(r"div=([0-9]{1,18})", token)
            return (int(divisor[1]) if divisor else 1) * symbols(next(self.dynamic))
        if not _INTEGER.fullmatch(token):
            self.fail("an integer")
        value = int(_DIGITS.findall(token)[0])
        low = least is not None and (value < least or (least == 0 and "-" in token))
        if low or (most is not None and value > most):
            bounds = f">= {least}" if most is None else f"from {least} to {most}"
            self.fail(f"an integer {bounds}")
        self.take()
        return value

    def peek(self) -> str:
        return self.tokens[self.next][0]

    def take(self) -> None:
        self.next += 1

    def expect(self, token: str) -> None:
        if self.peek() != token:
            self.fail(repr(token))
        self.take()

    def fail(self, expected: str) -> NoReturn:
        token, at = self.tokens[self.next]
        found = repr(token) if len(token) <= _WIDTH else f"one of {len(token)} characters"
        found = found if token else "the end"
        why = f"{self.reader}expected {expected}, found {found}"
        raise LayoutValueError(pointed(why, self.written, at))


def _made(operands: list[Any]) -> Layout:
    """Call ``make_layout`` on the parsed operands: a shape, a shape and strides, or layouts."""
    if all(isinstance(x, Layout) for x in operands):
        return make_layout(*operands)
    return make_layout(*operands[:2]) if len(operands) < 3 else make_layout(*operands)
