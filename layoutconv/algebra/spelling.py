"""Spelling of integer expressions in CUDA C++, Triton, NumPy and sympy.

A term knows its precedence, and bounds on its value: if a value may be negative, a division that
rounds towards zero is spelled so that it rounds down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import LayoutTypeError
from .polynomial import Name, Poly, Quotient
from .relations import known
from .swizzle import Swizzle
from .symbols import Symbolic, poly_of, symbolic_of
from .symint import SymInt

LANGUAGES = ("cuda", "triton", "numpy", "sympy")
LOOSE, XOR, SUM, PRODUCT, ATOM = range(5)  # precedence, from the loosest to the tightest


@dataclass(frozen=True)
class Term:
    """An expression, its precedence, and its smallest and largest value if known."""

    text: str
    binds: int = ATOM
    low: int | None = None
    high: int | None = None

    def within(self, binds: int) -> str:
        """Return the text, in parentheses if it binds less tightly than ``binds``."""
        return self.text if self.binds >= binds else f"({self.text})"

    def is_number(self, n: int) -> bool:
        """Tell if the value is known to be ``n``."""
        return self.low == n == self.high

    def may_be_negative(self) -> bool:
        """Tell if the value is not known to be 0 or more."""
        return self.low is None or self.low < 0


def number(n: int) -> Term:
    """Return the term of an integer."""
    return Term(str(n), ATOM, n, n)


class Spelling:
    """The operators of one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._divides = "/" if language == "cuda" else "//"
        self._truncates = language in ("cuda", "triton")  # -1 / 2 is 0

    def integer(self, x: Any) -> Term:
        """Return the term of an extent or a stride: an integer, or an expression of symbols."""
        if isinstance(x, SymInt):
            x = symbolic_of(x)
        if not isinstance(x, Symbolic):
            return number(int(x))
        least = 1 if known(x >= 1) else 0 if known(x >= 0) else None
        text = str(x)
        if self._truncates and not set("/%").isdisjoint(text):
            found = self._polynomial(poly_of(x))
            return Term(found.text, found.binds, least)
        binds = PRODUCT if set("+-").isdisjoint(text) else SUM
        return Term(text, ATOM if text.isidentifier() else binds, least)

    def _polynomial(self, p: Poly) -> Term:
        parts = []
        for monomial, coefficient in p.items():
            factors = [self._atom(atom) for atom, power in monomial for _ in range(power)]
            product = number(coefficient) if coefficient != 1 or not factors else factors.pop(0)
            for factor in factors:
                product = self.times(product, factor)
            parts.append(product)
        return self.plus(parts)

    def _atom(self, atom: Any) -> Term:
        if isinstance(atom, Name):
            return Term(atom.name, ATOM, atom.minimum)
        numerator, denominator = (
            self._polynomial(dict(part)) for part in (atom.numerator, atom.denominator)
        )
        way = self.quotient if isinstance(atom, Quotient) else self.remainder
        return way(numerator, denominator)

    def quotient(self, a: Term, b: Term) -> Term:
        """Return ``a / b`` rounded down, for b > 0."""
        if b.is_number(1):
            return a
        small = _below(a, b)
        if small:
            return number(0)
        low, high = _quotient_of(a, b)
        if self.language == "sympy":
            return Term(f"floor({a.within(PRODUCT)}/{b.within(ATOM)})", ATOM, low, high)
        if self._truncates and a.may_be_negative():
            whole = f"({a.within(SUM)} - {self.remainder(a, b).within(PRODUCT)})"
            return Term(f"{whole} {self._divides} {b.within(ATOM)}", PRODUCT, low, high)
        return Term(f"{a.within(PRODUCT)} {self._divides} {b.within(ATOM)}", PRODUCT, low, high)

    def remainder(self, a: Term, b: Term) -> Term:
        """Return the remainder of ``a / b`` rounded down, for b > 0."""
        if b.is_number(1):
            return number(0)
        if _below(a, b):
            return a
        high = None if b.high is None else b.high - 1
        if self.language == "sympy":
            return Term(f"Mod({a.text}, {b.text})", ATOM, 0, high)
        rest = f"{a.within(PRODUCT)} % {b.within(ATOM)}"
        if self._truncates and a.may_be_negative():
            rest = f"({rest} + {b.within(PRODUCT)}) % {b.within(ATOM)}"
        return Term(rest, PRODUCT, 0, high)

    def times(self, a: Term, b: Term) -> Term:
        """Return ``a * b``."""
        if a.is_number(0) or b.is_number(0):
            return number(0)
        if a.is_number(1) or b.is_number(1):
            return b if a.is_number(1) else a
        low, high = _product_of(a, b)
        if low is not None and low == high:
            return number(low)
        return Term(f"{a.within(ATOM)} * {b.within(ATOM)}", PRODUCT, low, high)

    def plus(self, terms: list[Term]) -> Term:
        """Return the sum of terms, without those that are 0."""
        terms = [t for t in terms if not t.is_number(0)] or terms[:1]
        if len(terms) < 2:
            return terms[0] if terms else number(0)
        text = terms[0].within(SUM)
        for t in terms[1:]:
            minus = t.low is not None and t.low == t.high and t.low < 0
            text += f" - {-t.low}" if minus and t.low else f" + {t.within(SUM)}"
        low, high = (_total([getattr(t, end) for t in terms]) for end in ("low", "high"))
        return Term(text, SUM, low, high)

    def xor(self, terms: list[Term]) -> Term:
        """Return the exclusive or of terms, without those that are 0."""
        self._bits("strides that add by XOR")
        terms = [t for t in terms if not t.is_number(0)] or [number(0)]
        if len(terms) == 1:
            return terms[0]
        return Term(" ^ ".join(t.within(PRODUCT) for t in terms), XOR, *_bits_of(terms))

    def carryless(self, a: Term, d: int) -> Term:
        """Return the carry-less product with ``d``: the XOR of ``a`` shifted to each bit of it."""
        return self.xor([self._shifted(a, k) for k in range(d.bit_length()) if d >> k & 1])

    def _shifted(self, a: Term, k: int) -> Term:
        if not k or a.is_number(0):
            return a
        low, high = (None if x is None else x << k for x in (a.low, a.high))
        return Term(f"({a.within(SUM)} << {k})", ATOM, low, high)

    def swizzled(self, a: Term, swizzle: Swizzle) -> Term:
        """Return ``a`` after a swizzle."""
        if not swizzle.bits:
            return a
        self._bits(str(swizzle))
        shift = f">> {swizzle.shift}" if swizzle.shift >= 0 else f"<< {-swizzle.shift}"
        inside = a.within(ATOM)
        reach = Term("", ATOM, 0, swizzle.size() - 1)
        text = f"{inside} ^ (({inside} & {swizzle.mask}) {shift})"
        return Term(text, XOR, *_bits_of([a, reach]))

    def item(self, buffer: str, a: Term) -> Term:
        """Return the entry of an index buffer."""
        if self.language == "triton":
            return Term(f"tl.load({buffer} + {a.within(SUM)})")
        return Term(f"{buffer}[{a.text}]")

    def coordinate(self, parts: list[str]) -> str:
        """Return a coordinate: CuTe's in CUDA, a tuple elsewhere."""
        if self.language == "cuda":
            return f"cute::make_coord({', '.join(parts)})"
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _bits(self, what: str) -> None:
        if self.language == "sympy":
            raise LayoutTypeError(f"emit: sympy has no bit operations for {what}")


def _below(a: Term, b: Term) -> bool:
    """Tell if 0 <= a < b is known."""
    return not a.may_be_negative() and None not in (a.high, b.low) and a.high < b.low  # type: ignore


def _quotient_of(a: Term, b: Term) -> tuple[int | None, int | None]:
    """Return the bounds of ``a / b``: of an unknown divisor, only its minimum bounds it."""
    if not b.low:
        return None, None
    exact = b.low == b.high
    low = a.low // b.low if exact and a.low is not None else None if a.may_be_negative() else 0
    high = a.high // b.low if a.high is not None and (exact or a.high >= 0) else None
    return low, high


def _product_of(a: Term, b: Term) -> tuple[int | None, int | None]:
    ends = [a.low, a.high, b.low, b.high]
    if None not in ends:
        found = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]  # type: ignore[operator]
        return min(found), max(found)
    return (None if a.may_be_negative() or b.may_be_negative() else a.low * b.low), None  # type: ignore


def _total(ends: list[int | None]) -> int | None:
    return None if None in ends else sum(ends)  # type: ignore[arg-type]


def _bits_of(terms: list[Term]) -> tuple[int | None, int | None]:
    """Return the bounds of an XOR."""
    if any(t.may_be_negative() for t in terms):
        return None, None
    if any(t.high is None for t in terms):
        return 0, None
    return 0, (1 << max(int(t.high or 0).bit_length() for t in terms)) - 1
