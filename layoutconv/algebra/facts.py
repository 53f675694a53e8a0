"""Facts about symbols, and what follows from them.

A question is a polynomial with a relation to zero: ``p == 0`` or ``p >= 0``. It is answered with
True or False where that follows, and with None where it does not: nothing is ever guessed. Names
are replaced by what is known of them (a multiple of 8 by 8 times another name, a name that is at
least 5 by one whose minimum is 5), quotients that come out even disappear by that, and a polynomial
whose coefficients all have one sign then has that sign.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from .polynomial import (
    Atom,
    Name,
    Poly,
    Quotient,
    Remainder,
    add,
    atoms_of,
    constant,
    exact_quotient,
    freeze,
    is_constant,
    multiply,
    of_atom,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH = 2  # how many facts of order may be added up in one proof


class Question(NamedTuple):
    """``polynomial == 0`` or ``polynomial >= 0``: ``kind`` is ``"=="`` or ``">="``."""

    kind: str
    polynomial: Poly


@dataclass(frozen=True)
class Facts:
    """What is taken to be true of some names.

    ``given`` are the facts as they were said, for those that nothing else can use; ``equal`` the
    names that are polynomials of others, ``multiples`` those with a known divisor, ``minima`` those
    with another minimum than their own, ``orders`` further polynomials that are >= 0, and
    ``divisions`` pairs of a polynomial and its divisor.
    """

    given: frozenset[tuple[str, object]] = frozenset()
    equal: dict[Name, Poly] = field(default_factory=dict)
    multiples: dict[Name, Poly] = field(default_factory=dict)
    minima: dict[Name, int] = field(default_factory=dict)
    orders: tuple[Poly, ...] = ()
    divisions: tuple[tuple[Poly, Poly], ...] = ()

    def with_fact(self, question: Question) -> Facts:
        """These facts, and that the answer to ``question`` is yes."""
        kind, p = question
        changes: dict[str, object] = {"given": self.given | {(kind, freeze(p))}}
        if kind == "!=":
            return Facts(**{**self.__dict__, **changes})
        divided = division(p) if kind == "==" else None
        name = _lone_name(p)
        if divided is not None:
            numerator, denominator = divided
            lone = _lone_name(numerator)
            if lone is not None and numerator == of_atom(lone):
                both = _common_multiple(self.multiples.get(lone), denominator)
                changes["multiples"] = {**self.multiples, lone: both}
            changes["divisions"] = (*self.divisions, divided)
        elif kind == "==":
            solved = next((n for n in _linear_names(p) if n not in self.equal), None)
            if solved is not None:
                sign = p[((solved, 1),)]
                rest = add(p, of_atom(solved), -sign)
                changes["equal"] = {**self.equal, solved: multiply(rest, constant(-sign))}
        elif name is not None and p[((name, 1),)] > 0:
            bound = -(p.get((), 0) // p[((name, 1),)])
            known = self.minima.get(name, name.minimum)
            better = bound if known is None else max(known, bound)
            changes["minima"] = {**self.minima, name: better}
        else:
            changes["orders"] = (*self.orders, p)
        return Facts(**{**self.__dict__, **changes})  # type: ignore[arg-type]


NONE = Facts()
_ACTIVE: ContextVar[Facts] = ContextVar("facts", default=NONE)


def active() -> Facts:
    """The facts that hold here."""
    return _ACTIVE.get()


@contextmanager
def holding(facts: Facts) -> Iterator[None]:
    """Let ``facts`` be the active ones, in this thread or task."""
    token = _ACTIVE.set(facts)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def answer(question: Question, facts: Facts) -> bool | None:
    """The answer to a question, or None if it does not follow.

    >>> H, W = (of_atom(Name(name, 1)) for name in "HW")
    >>> answer(Question(">=", add(multiply(H, W), W, -1)), NONE)  # H*W >= W
    True
    >>> answer(Question(">=", add(H, W, -1)), NONE) is None
    True
    """
    kind, p = question
    if (kind, freeze(p)) in facts.given:
        return True
    if kind == "==":
        if ("!=", freeze(p)) in facts.given:
            return False
        return _is_zero(reduced(p, facts), facts)
    p = reduced(p, facts)
    if _is_nonnegative(p, facts, _DEPTH):
        return True
    if _is_nonnegative(add(constant(-1), p, -1), facts, _DEPTH):
        return False
    return None


def divides(divisor: Poly, p: Poly, facts: Facts) -> bool | None:
    """Tell if ``p`` is a multiple of ``divisor``; None if it does not follow."""
    whole = reduced(p, facts)
    by = reduced(divisor, facts)
    if exact_quotient(whole, by) is not None:
        return True
    for numerator, denominator in facts.divisions:
        factor = exact_quotient(whole, reduced(numerator, facts))
        if factor is None:
            continue
        if exact_quotient(multiply(factor, reduced(denominator, facts)), by) is not None:
            return True
    if is_constant(by):
        n = abs(by[()])
        if all(c % n == 0 for monomial, c in whole.items() if monomial) and whole.get((), 0) % n:
            return False
    return None


def reduced(p: Poly, facts: Facts) -> Poly:
    """``p`` with its names replaced by what is known of them, and its even quotients worked out."""
    atoms = atoms_of(p)
    replaced: dict[Atom, Poly] = {}
    for atom in atoms:
        new = _known(atom, facts)
        if new is not None:
            replaced[atom] = new
    if not replaced:
        return p
    result: Poly = {}
    for monomial, coefficient in p.items():
        term = constant(coefficient)
        for atom, power in monomial:
            for _ in range(power):
                term = multiply(term, replaced[atom] if atom in replaced else of_atom(atom))
        result = add(result, term)
    return result


def _known(atom: Atom, facts: Facts) -> Poly | None:
    """Return what an atom is, where that differs from itself."""
    if isinstance(atom, Name):
        if atom in facts.equal:
            return reduced(facts.equal[atom], facts)
        minimum = facts.minima.get(atom, atom.minimum)
        multiple = facts.multiples.get(atom)
        if multiple is None:
            return None if minimum == atom.minimum else of_atom(Name(atom.name, minimum))
        by = reduced(multiple, facts)
        least = None
        if minimum is not None and minimum >= 0:
            least = -(-minimum // by[()]) if is_constant(by) else min(minimum, 1)
        return multiply(by, of_atom(Name(f"{atom.name}/{show(by)}", least)))
    numerator = reduced(dict(atom.numerator), facts)
    denominator = reduced(dict(atom.denominator), facts)
    even = exact_quotient(numerator, denominator)
    if isinstance(atom, Remainder):
        if even is not None:
            return {}
        whole = of_atom(Quotient(freeze(numerator), freeze(denominator)))
        return add(numerator, multiply(denominator, whole), -1)
    if even is not None:
        return even
    new = Quotient(freeze(numerator), freeze(denominator))
    return None if new == atom else of_atom(new)


def _is_zero(p: Poly, facts: Facts) -> bool | None:
    if not p:
        return True
    if _is_nonnegative(add(p, constant(-1)), facts, _DEPTH):
        return False
    if _is_nonnegative(add(constant(-1), p, -1), facts, _DEPTH):
        return False
    rest = p.get((), 0)
    common = gcd(*[c for monomial, c in p.items() if monomial])
    return False if common and rest % common else None


def _is_nonnegative(p: Poly, facts: Facts, depth: int) -> bool:
    low = least(p)
    if low is not None and low >= 0:
        return True
    if not depth:
        return False
    for fact in facts.orders:
        known = reduced(fact, facts)
        for factor in (constant(1), *map(of_atom, _names_at_least_zero(p))):
            if _is_nonnegative(add(p, multiply(known, factor), -1), facts, depth - 1):
                return True
    return False


def _names_at_least_zero(p: Poly) -> list[Atom]:
    return [a for a in atoms_of(p) if isinstance(a, Name) and (a.minimum or 0) >= 0]


def least(p: Poly) -> int | None:
    """An integer that ``p`` is never below, or None if none is known.

    >>> least(add(multiply(constant(3), of_atom(Name("W", 2))), constant(-1)))
    5
    """
    p = _without_products_of_quotients(p)
    shifted: dict[Atom, Poly] = {}
    for atom in atoms_of(p):
        minimum = _minimum(atom)
        if minimum is None:
            return None
        shifted[atom] = add(of_atom(atom), constant(minimum))
    result: Poly = {}
    for monomial, coefficient in p.items():
        term = constant(coefficient)
        for atom, power in monomial:
            for _ in range(power):
                term = multiply(term, shifted[atom])
        result = add(result, term)
    if any(c < 0 for monomial, c in result.items() if monomial):
        return None
    return result.get((), 0)


def _minimum(atom: Atom) -> int | None:
    if isinstance(atom, Name):
        return atom.minimum
    if isinstance(atom, Remainder):
        return 0
    numerator, denominator = dict(atom.numerator), dict(atom.denominator)
    low, by = least(numerator), least(denominator)
    if low is None or by is None or by < 1:
        return None
    if is_constant(denominator):
        return low // by
    return 0 if low >= 0 else None


def _without_products_of_quotients(p: Poly) -> Poly:
    """A polynomial that is nowhere above ``p``, with ``d * (n // d)`` replaced by its bound."""
    result: Poly = {}
    for monomial, coefficient in p.items():
        term: Poly = {monomial: coefficient}
        for atom, power in monomial:
            if not isinstance(atom, Quotient) or power != 1:
                continue
            numerator, denominator = dict(atom.numerator), dict(atom.denominator)
            others = {tuple(item for item in monomial if item[0] != atom): coefficient}
            factor = exact_quotient(others, denominator)
            if factor is None or (least(denominator) or 0) < 1:
                continue
            sign = least(factor), least(multiply(factor, constant(-1)))
            if sign[0] is not None and sign[0] >= 0:  # d * (n // d) >= n - d + 1
                bound = add(add(numerator, denominator, -1), constant(1))
            elif sign[1] is not None and sign[1] >= 0:  # d * (n // d) <= n
                bound = numerator
            else:
                continue
            term = multiply(factor, bound)
            break
        result = add(result, term)
    return result


def division(p: Poly) -> tuple[Poly, Poly] | None:
    """The division whose remainder ``p`` is, if it is one."""
    if len(p) != 1:
        return None
    [(monomial, _)] = p.items()
    if len(monomial) != 1 or not isinstance(monomial[0][0], Remainder):
        return None
    return dict(monomial[0][0].numerator), dict(monomial[0][0].denominator)


def _lone_name(p: Poly) -> Name | None:
    """The only name of a linear polynomial in one name."""
    names = _linear_names(p, any_factor=True)
    return names[0] if len(names) == 1 and len([m for m in p if m]) == 1 else None


def _linear_names(p: Poly, *, any_factor: bool = False) -> list[Name]:
    found = []
    for monomial, coefficient in p.items():
        if len(monomial) == 1 and (any_factor or abs(coefficient) == 1):
            atom, power = monomial[0]
            if isinstance(atom, Name) and power == 1:
                others = [m for m in p if m != monomial]
                if all(atom != a for m in others for a, _ in m):
                    found.append(atom)
    return found


def _common_multiple(a: Poly | None, b: Poly) -> Poly:
    if a is None:
        return b
    if is_constant(a) and is_constant(b):
        m, n = abs(a[()]), abs(b[()])
        return constant(m * n // gcd(m, n))
    return a if exact_quotient(a, b) is not None else b
