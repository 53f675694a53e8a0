"""Lower bounds of polynomials, which decide inequalities between symbols.

A polynomial is rewritten in the amounts by which its atoms exceed their minima. If all coefficients
but the constant are then >= 0, the constant is a lower bound. A product of k names then has 2^k
terms, so this comes last, within the effort of the proof.
"""

from __future__ import annotations

from math import prod

from .budget import Effort
from .polynomial import (
    Atom,
    Monomial,
    Name,
    Poly,
    Quotient,
    Remainder,
    add,
    atoms_of,
    constant,
    exact_quotient,
    is_constant,
    multiply,
    of_atom,
)

Minima = dict[Atom, int]


def least(p: Poly, effort: Effort | None = None) -> int | None:
    """Return a lower bound of ``p``; None if none is known or found within the effort.

    >>> W = of_atom(Name("W", 2))
    >>> least(add(multiply(constant(3), W), constant(-1)))
    5
    """
    effort = effort or Effort()
    p = _without_products_of_quotients(p, effort)
    if is_constant(p):
        return p.get((), 0)
    minima: Minima = {}
    for atom in atoms_of(p):
        minimum = _minimum(atom, effort)
        if minimum is None:
            return None
        minima[atom] = minimum
    if not effort.take(len(p)):
        return None
    if any(minimum < 0 for minimum in minima.values()):
        return _written_out(p, minima, effort)
    common = _common_factor(p)
    if not common:
        return _of_nonnegative(p, minima, effort)
    low = _of_nonnegative({_without(m, common): c for m, c in p.items()}, minima, effort)
    return None if low is None or low < 0 else low * _at_minima(common, minima)


def _of_nonnegative(p: Poly, minima: Minima, effort: Effort) -> int | None:
    """Return the :func:`least` of a polynomial whose atoms are all >= 0."""
    negative = [m for m, c in p.items() if m and c < 0]
    if negative:
        others = {m: dict(m) for m, c in p.items() if c > 0}
        if not effort.take(len(negative) * len(others)):
            return None
        above = {m: [big for big in others if _divides(m, others[big])] for m in negative}
        if not all(above.values()):
            return None  # nothing grows as fast as that term
        if not _covered(p, above, minima):
            return _written_out(p, minima, effort)
    return sum(c * _at_minima(m, minima) for m, c in p.items())


def _covered(p: Poly, above: dict[Monomial, list[Monomial]], minima: Minima) -> bool:
    """Tell if every negative term has positive multiples that compensate for it."""
    left = {m: c for m, c in p.items() if c > 0}
    for small, multiples in above.items():
        missing = -p[small]
        for big in multiples:
            ratio = _at_minima(_without(big, small), minima)
            if ratio and left[big]:
                taken = min(left[big], -(-missing // ratio))
                left[big] -= taken
                missing -= taken * ratio
            if missing <= 0:
                break
        if missing > 0:
            return False
    return True


def _written_out(p: Poly, minima: Minima, effort: Effort) -> int | None:
    """Return the :func:`least` by all coefficients, if the effort allows for that many."""
    terms = sum(prod(power + 1 for _, power in monomial) for monomial in p)
    if not effort.take(terms):
        return None
    result: Poly = {}
    for monomial, coefficient in p.items():
        term = constant(coefficient)
        for atom, power in monomial:
            for _ in range(power):
                term = multiply(term, add(of_atom(atom), constant(minima[atom])))
        result = add(result, term)
    if any(c < 0 for monomial, c in result.items() if monomial):
        return None
    return result.get((), 0)


def _common_factor(p: Poly) -> Monomial:
    """Return the largest monomial that divides all terms."""
    first, *rest = p
    common = dict(first)
    for monomial in rest:
        if not common:
            return ()
        powers = dict(monomial)
        common = {a: min(n, powers[a]) for a, n in common.items() if a in powers}
    return tuple(common.items())


def _without(monomial: Monomial, factor: Monomial) -> Monomial:
    if not factor:
        return monomial
    taken = dict(factor)
    return tuple([(a, n - taken.get(a, 0)) for a, n in monomial if n > taken.get(a, 0)])


def _divides(monomial: Monomial, powers: dict[Atom, int]) -> bool:
    return all(powers.get(a, 0) >= n for a, n in monomial)


def _at_minima(monomial: Monomial, minima: Minima) -> int:
    return prod(minima[a] ** n for a, n in monomial)


def _minimum(atom: Atom, effort: Effort) -> int | None:
    if isinstance(atom, Name):
        return atom.minimum
    if isinstance(atom, Remainder):
        return 0
    numerator, denominator = dict(atom.numerator), dict(atom.denominator)
    low, by = least(numerator, effort), least(denominator, effort)
    if low is None or by is None or by < 1:
        return None
    if is_constant(denominator):
        return low // by
    return 0 if low >= 0 else None


def _without_products_of_quotients(p: Poly, effort: Effort) -> Poly:
    """Return a polynomial that is never above ``p``, with ``d * (n // d)`` replaced by a bound."""
    if all(isinstance(atom, Name) for atom in atoms_of(p)):
        return p
    result: Poly = {}
    for monomial, coefficient in p.items():
        term: Poly = {monomial: coefficient}
        for atom, power in monomial:
            if not isinstance(atom, Quotient) or power != 1:
                continue
            numerator, denominator = dict(atom.numerator), dict(atom.denominator)
            others = {tuple(item for item in monomial if item[0] != atom): coefficient}
            factor = exact_quotient(others, denominator)
            if factor is None or (least(denominator, effort) or 0) < 1:
                continue
            low = least(factor, effort)
            high = least(multiply(factor, constant(-1)), effort)
            if low is not None and low >= 0:  # d * (n // d) >= n - d + 1
                bound = add(add(numerator, denominator, -1), constant(1))
            elif high is not None and high >= 0:  # d * (n // d) <= n
                bound = numerator
            else:
                continue
            term = multiply(factor, bound)
            break
        result = add(result, term)
    return result
