"""Facts about symbols, and their consequences.

A question is a polynomial with a relation to zero: ``p == 0`` or ``p >= 0``. The answer is True or
False if it follows, else None: nothing is ever guessed. A proof replaces names by known facts (a
multiple of 8 by 8 times another name, a name that is at least 5 by one whose minimum is 5). Exact
quotients then disappear, and a polynomial whose coefficients all have one sign has that sign.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .budget import Effort
from .least import least
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
    from collections.abc import Iterator, Mapping

_DEPTH = 2  # the most facts of order that one proof adds up


class Question(NamedTuple):
    """``polynomial == 0`` or ``polynomial >= 0``: ``kind`` is ``"=="`` or ``">="``."""

    kind: str
    polynomial: Poly


class Facts(NamedTuple):
    """Assumptions about some names.

    ``given`` are the facts as stated, for those that nothing else can use; ``equal`` the names that
    are polynomials of others, ``multiples`` the names with a known divisor, ``minima`` the names
    with a larger minimum than their own, ``orders`` further polynomials that are >= 0, and
    ``divisions`` pairs of a polynomial and its divisor.
    """

    given: frozenset[tuple[str, object]] = frozenset()
    equal: Mapping[Name, Poly] = MappingProxyType({})
    multiples: Mapping[Name, Poly] = MappingProxyType({})
    minima: Mapping[Name, int] = MappingProxyType({})
    orders: tuple[Poly, ...] = ()
    divisions: tuple[tuple[Poly, Poly], ...] = ()

    def with_fact(self, question: Question) -> Facts:
        """Return these facts, plus that the answer to ``question`` is yes."""
        kind, p = question
        changes: dict[str, Any] = {"given": self.given | {(kind, freeze(p))}}
        if kind == "!=":
            return self._replace(**changes)
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
        return self._replace(**changes)


NONE = Facts()
_ACTIVE: ContextVar[Facts] = ContextVar("facts", default=NONE)


def active() -> Facts:
    """Return the active facts."""
    return _ACTIVE.get()


@contextmanager
def holding(facts: Facts) -> Iterator[None]:
    """Make ``facts`` the active ones, in this thread or task."""
    token = _ACTIVE.set(facts)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def answer(question: Question, facts: Facts) -> bool | None:
    """Return the answer to a question; None if it does not follow.

    >>> H, W = (of_atom(Name(name, 1)) for name in "HW")
    >>> answer(Question(">=", add(multiply(H, W), W, -1)), NONE)  # H*W >= W
    True
    >>> answer(Question(">=", add(H, W, -1)), NONE) is None
    True
    """
    if follows(question, facts):
        return True
    return False if fails(question, facts) else None


def follows(question: Question, facts: Facts) -> bool:
    """Tell if the answer to a question is known to be yes."""
    kind, p = question
    if facts.given and (kind, freeze(p)) in facts.given:
        return True
    p = reduced(p, facts)
    return not p if kind == "==" else _is_nonnegative(p, facts)


def fails(question: Question, facts: Facts) -> bool:
    """Tell if the answer to a question is known to be no."""
    kind, p = question
    if kind == "==" and facts.given and ("!=", freeze(p)) in facts.given:
        return True
    p = reduced(p, facts)
    if kind == "==" and not p:
        return False
    if kind == "==" and (_is_never_zero(p) or _is_nonnegative(add(p, constant(-1)), facts)):
        return True
    return _is_nonnegative(add(constant(-1), p, -1), facts)


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
    """Return ``p`` with names replaced by known facts, and exact quotients worked out."""
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
    """Return the polynomial of an atom under the facts; None if it does not change."""
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


def _is_never_zero(p: Poly) -> bool:
    """Tell if the constant term rules out 0: the other terms' common divisor does not divide it."""
    common = gcd(*[c for monomial, c in p.items() if monomial])
    return bool(common and p.get((), 0) % common)


def _is_nonnegative(p: Poly, facts: Facts) -> bool:
    return _proves(p, facts, Effort(), _DEPTH)


def _proves(p: Poly, facts: Facts, effort: Effort, depth: int) -> bool:
    low = least(p, effort)
    if low is not None and low >= 0:
        return True
    if not depth:
        return False
    for fact in facts.orders:
        known = reduced(fact, facts)
        for factor in (constant(1), *map(of_atom, _names_at_least_zero(p))):
            if not effort.take(len(p) + len(known)):
                return False
            if _proves(add(p, multiply(known, factor), -1), facts, effort, depth - 1):
                return True
    return False


def _names_at_least_zero(p: Poly) -> list[Atom]:
    return [a for a in atoms_of(p) if isinstance(a, Name) and (a.minimum or 0) >= 0]


def division(p: Poly) -> tuple[Poly, Poly] | None:
    """Return the numerator and divisor of the remainder that ``p`` is, or None."""
    if len(p) != 1:
        return None
    [(monomial, _)] = p.items()
    if len(monomial) != 1 or not isinstance(monomial[0][0], Remainder):
        return None
    return dict(monomial[0][0].numerator), dict(monomial[0][0].denominator)


def _lone_name(p: Poly) -> Name | None:
    """Return the only name of a linear polynomial in one name, or None."""
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
