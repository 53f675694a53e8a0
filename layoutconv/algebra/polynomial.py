"""Polynomials with integer coefficients as dictionaries, the values of symbolic integers.

A monomial is a sorted tuple of ``(atom, power)``. An atom is a :class:`Name`, or the quotient or
the remainder of an inexact division.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

from .errors import LayoutBudgetError

Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"
Poly: TypeAlias = "dict[Monomial, int]"
Frozen: TypeAlias = "tuple[tuple[Monomial, int], ...]"


class Name(NamedTuple):
    """A symbol, and the smallest integer that it may stand for; None if there is none."""

    name: str
    minimum: int | None


class Quotient(NamedTuple):
    """``floor(numerator / denominator)``."""

    numerator: Frozen
    denominator: Frozen
    sign: str = "//"  # keeps it different from a remainder: tuples compare by their items


class Remainder(NamedTuple):
    """``numerator - denominator * floor(numerator / denominator)``."""

    numerator: Frozen
    denominator: Frozen
    sign: str = "%"  # keeps it different from a quotient


Atom: TypeAlias = "Name | Quotient | Remainder"


def constant(n: int) -> Poly:
    """Return the polynomial of an integer."""
    return {(): n} if n else {}


def of_atom(atom: Atom) -> Poly:
    """Return the polynomial of one atom."""
    return {((atom, 1),): 1}


_LONGEST = 24  # most terms of an expression: those of layouts have one to four
_DEEPEST = 6  # most nested divisions: those of layouts have one to three


def freeze(p: Poly) -> Frozen:
    """Return ``p`` as a hashable value, equal for equal polynomials.

    Raises :class:`LayoutBudgetError` for an expression too long to read.
    """
    if len(p) > _LONGEST:
        raise LayoutBudgetError(f"an expression of {len(p)} terms", operation="expression")
    return tuple(sorted(p.items(), key=lambda term: _place(term[0])))


def check_nesting(*parts: Poly) -> None:
    """Raise :class:`LayoutBudgetError` for too many nested divisions."""
    if max(map(_nesting, parts)) >= _DEEPEST:
        raise LayoutBudgetError(
            f"an expression of more than {_DEEPEST} nested divisions",
            operation="expression",
        )


def _nesting(p: Poly) -> int:
    inner = [part for a in atoms_of(p) if not isinstance(a, Name) for part in a[:2]]
    return 1 + max(_nesting(dict(part)) for part in inner) if inner else 0


def is_constant(p: Poly) -> bool:
    """Tell if ``p`` is an integer."""
    return not p or (len(p) == 1 and () in p)


def add(a: Poly, b: Poly, factor: int = 1) -> Poly:
    """Return ``a + factor * b``."""
    result = dict(a)
    for monomial, coefficient in b.items():
        _add_term(result, monomial, factor * coefficient)
    return result


def multiply(a: Poly, b: Poly) -> Poly:
    """Return ``a * b``.

    >>> H, W = (of_atom(Name(name, 1)) for name in "HW")
    >>> show(multiply(add(H, constant(1)), W))
    'H*W+W'
    """
    result: Poly = {}
    for x, m in a.items():
        for y, n in b.items():
            _add_term(result, _join(x, y), m * n)
    return result


def _add_term(p: Poly, monomial: Monomial, coefficient: int) -> None:
    """Add a term to ``p``, and drop it if its coefficient becomes 0."""
    total = p.get(monomial, 0) + coefficient
    if total:
        p[monomial] = total
    else:
        p.pop(monomial, None)


def _join(x: Monomial, y: Monomial) -> Monomial:
    if not x or not y:
        return x or y
    powers = dict(x)
    for atom, power in y:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: _rank(item[0])))


def exact_quotient(a: Poly, b: Poly) -> Poly | None:
    """Return the polynomial ``q`` with ``q * b == a``, or None.

    >>> H, W = (of_atom(Name(name, 1)) for name in "HW")
    >>> product = multiply(add(H, W), add(H, W, -1))
    >>> show(exact_quotient(product, add(H, W))), exact_quotient(H, W)
    ('H-W', None)
    """
    if not b or (len(a) == 1 and len(b) > 1):  # a product of several terms has several terms
        return None
    quotient: Poly = {}
    lead = _leading(b)
    rest = a
    while rest:
        head = _leading(rest)
        monomial = _divided(head, lead)
        factor, left = divmod(rest[head], b[lead])
        if monomial is None or left:
            return None
        step = {monomial: factor}
        quotient = add(quotient, step)
        rest = add(rest, multiply(step, b), -1)
    return quotient


def _divided(x: Monomial, y: Monomial) -> Monomial | None:
    powers = dict(x)
    for atom, power in y:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            del powers[atom]
    return tuple(sorted(powers.items(), key=lambda item: _rank(item[0])))


def _leading(p: Poly) -> Monomial:
    """Return the largest monomial of ``p``: by degree, then lexicographic."""
    if len(p) == 1:
        return next(iter(p))
    atoms = sorted({atom for monomial in p for atom, _ in monomial}, key=_rank)

    def order(monomial: Monomial) -> tuple[int, list[int]]:
        powers = dict(monomial)
        return sum(powers.values()), [powers.get(atom, 0) for atom in atoms]

    return max(p, key=order)


@lru_cache(maxsize=2048)
def _rank(atom: Atom) -> tuple[int, str]:
    """Return the sort key of an atom: names first, each kind by its text."""
    return (0, atom.name) if isinstance(atom, Name) else (1, show_atom(atom))


def _place(monomial: Monomial) -> tuple[int, list[tuple[tuple[int, str], int]]]:
    return -sum(power for _, power in monomial), [(_rank(a), p) for a, p in monomial]


def atoms_of(p: Poly) -> set[Atom]:
    """Return the atoms in ``p``."""
    return {atom for monomial in p for atom, _ in monomial}


def evaluate(p: Poly, values: dict[str, int]) -> int:
    """Evaluate ``p`` at these values of its names.

    >>> evaluate(add(of_atom(Name("H", 1)), constant(2)), {"H": 5})
    7
    """
    total = 0
    for monomial, coefficient in p.items():
        for atom, power in monomial:
            coefficient *= _value(atom, values) ** power
        total += coefficient
    return total


def _value(atom: Atom, values: dict[str, int]) -> int:
    if isinstance(atom, Name):
        return values[atom.name]
    numerator = evaluate(dict(atom.numerator), values)
    denominator = evaluate(dict(atom.denominator), values)
    whole, rest = divmod(numerator, denominator)
    return whole if isinstance(atom, Quotient) else rest


def names_of(p: Poly) -> dict[str, Name]:
    """Return the names in ``p``, those in quotients and remainders included."""
    found: dict[str, Name] = {}
    for atom in atoms_of(p):
        if isinstance(atom, Name):
            found[atom.name] = atom
        else:
            found |= names_of(dict(atom.numerator)) | names_of(dict(atom.denominator))
    return found


def show(p: Poly) -> str:
    """Return ``p`` as text that Python evaluates to the same: ``2*H*W+W//8-1``, ``-(W//8)``."""
    if not p:
        return "0"
    result = ""
    for monomial, coefficient in freeze(p):
        factors = [
            show_atom(atom) if isinstance(atom, Name) or monomial == ((atom, 1),) else
            f"({show_atom(atom)})"
            for atom, power in monomial
            for _ in range(power)
        ]  # fmt: skip
        scaled = abs(coefficient) != 1 or not factors
        lone = len(factors) == 1 and not isinstance(monomial[0][0], Name)
        if lone and (scaled or (coefficient < 0 and not result)):  # as -W//8 is (-W)//8
            factors = [f"({factors[0]})"]
        if scaled:
            factors.insert(0, str(abs(coefficient)))
        result += ("-" if coefficient < 0 else "+" if result else "") + "*".join(factors)
    return result


def show_atom(atom: Atom) -> str:
    """Return the text of an atom: ``H``, ``W//8``, ``W%8``."""
    if isinstance(atom, Name):
        return atom.name
    numerator = _operand(dict(atom.numerator), right=False)
    denominator = _operand(dict(atom.denominator), right=True)
    return f"{numerator}{'//' if isinstance(atom, Quotient) else '%'}{denominator}"


def _operand(p: Poly, *, right: bool) -> str:
    text = show(p)
    simple = text.replace("_", "").isalnum() or (not right and set("+-/%").isdisjoint(text))
    return text if simple else f"({text})"
