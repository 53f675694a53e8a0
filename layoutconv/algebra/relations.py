"""Relations between symbols: questions, assumptions, and the record of assumptions used.

It also multiplies and divides polynomials: ``8 * (W // 8)`` is ``W`` if ``W % 8 == 0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import LayoutValueError
from .facts import (
    NONE,
    Question,
    active,
    answer,
    divides,
    division,
    fails,
    follows,
    holding,
)
from .late import late
from .polynomial import (
    Frozen,
    Poly,
    Quotient,
    Remainder,
    add,
    check_nesting,
    constant,
    exact_quotient,
    freeze,
    is_constant,
    multiply,
    of_atom,
    show,
)
from .values import Immutable

_SET = object.__setattr__
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class Relation(Immutable):
    """A relation of two expressions, to assume or to ask: ``W % 8 == 0``.

    >>> from layoutconv.algebra import symbols
    >>> H, W = symbols("H W")
    >>> W % 8 == 0, H > W
    (W % 8 == 0, H > W)
    """

    __slots__ = ("left", "order", "right", "sign")

    sign: str
    left: Frozen
    right: Frozen
    order: int | None  # left - right at the present values of a kernel's integers, if they have any

    def __init__(self, sign: str, left: Frozen, right: Frozen, order: int | None = None) -> None:
        _SET(self, "sign", sign)
        _SET(self, "left", left)
        _SET(self, "right", right)
        _SET(self, "order", order)

    def __reduce__(self) -> Any:
        return Relation, (self.sign, self.left, self.right, self.order)

    def __bool__(self) -> bool:
        return decide(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Relation):
            return NotImplemented
        mine, theirs = (self.sign, self.left, self.right), (other.sign, other.left, other.right)
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.sign, self.left, self.right))

    def __str__(self) -> str:
        left, right = show(dict(self.left)), show(dict(self.right))
        if division(dict(self.left)) is not None:
            left = left.replace("%", " % ", 1)
        return f"{left} {self.sign} {right}"

    __repr__ = __str__

    def opposite(self) -> Relation:
        """Return the relation that holds exactly where this one does not."""
        return Relation(_OPPOSITE[self.sign], self.left, self.right, self.order)

    def question(self) -> tuple[Question, bool]:
        """Return the question to ask, and the answer that makes this relation true."""
        left, right = dict(self.left), dict(self.right)
        if self.sign in ("==", "!="):
            return Question("==", add(left, right, -1)), self.sign == "=="
        if self.sign in (">=", "<"):
            return Question(">=", add(left, right, -1)), self.sign == ">="
        return Question(">=", add(right, left, -1)), self.sign == "<="

    def holds_now(self) -> bool | None:
        """Return the answer at the present values of a kernel's integers; None without values."""
        return None if self.order is None else holds(self.sign, self.order)


def holds(sign: str, order: int) -> bool:
    """Tell if a comparison holds for numbers that differ by ``order``.

    >>> holds("<=", 0), holds(">", -3)
    (True, False)
    """
    if sign in ("==", "!="):
        return (order == 0) == (sign == "==")
    if sign in (">=", "<"):
        return (order >= 0) == (sign == ">=")
    return (order <= 0) == (sign == "<=")


def assuming(*relations: Relation | bool) -> AbstractContextManager[None]:
    """Assume relations between symbols inside a ``with`` block.

    Results that need one of them list it in ``result.assumptions``. Relations of sympy work too:
    ``sympy.Eq(w % 8, 0)``, since ``w % 8 == 0`` is False there. A relation that always holds is
    accepted; one that never holds is refused with :class:`~layoutconv.LayoutValueError`.

    >>> from layoutconv.algebra import Layout, logical_divide, symbols
    >>> W = symbols("W")
    >>> with assuming(W % 8 == 0):
    ...     tiles = logical_divide(Layout(W), 8)
    >>> print(tiles, tiles.assumptions)
    (8,W//8):(1,8) (W % 8 == 0,)
    """
    facts = active()
    for relation in relations:
        if relation is True:
            continue
        if hasattr(relation, "rel_op"):
            relation = late("relation_of_sympy")(relation)
        if not isinstance(relation, Relation):
            raise LayoutValueError(f"assuming: expected relations that can hold, got {relation!r}")
        question, wanted = relation.question()
        disproved = fails if wanted else follows  # do not ask for the other answer
        if disproved(question, facts):
            raise LayoutValueError(f"assuming: {relation} cannot hold")
        facts = facts.with_fact(_as_fact(question, wanted))
    return holding(facts)


def granted(relations: Iterable[Relation]) -> AbstractContextManager[None]:
    """Assume the assumptions of one result, which cannot contradict each other."""
    facts = active()
    if facts is not NONE:
        return assuming(*relations)
    for relation in relations:
        facts = facts.with_fact(_as_fact(*relation.question()))
    return holding(facts)


def _as_fact(question: Question, wanted: bool) -> Question:
    """Return a question whose answer is yes exactly if the answer to ``question`` is ``wanted``."""
    if wanted:
        return question
    if question.kind == "==":
        return Question("!=", question.polynomial)
    return Question(">=", add(constant(-1), question.polynomial, -1))


class AssumptionRecord:
    """The assumptions of an operation, and which names are arguments of a kernel."""

    __slots__ = ("relations", "runtime")

    def __init__(self, runtime: dict[str, bool]) -> None:
        self.relations: list[Relation] = []
        self.runtime = runtime

    def note(self, relation: Relation) -> None:
        """Record a relation, once."""
        if relation not in self.relations:
            self.relations.append(relation)


def record() -> AssumptionRecord | None:
    """Return the current record, or None."""
    return _RECORD.get()


_RECORD: ContextVar[AssumptionRecord | None] = ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[AssumptionRecord]:
    """Record the assumptions made inside the block, also in the record of the block around it."""
    outer = _RECORD.get()
    record = AssumptionRecord(outer.runtime if outer else {})
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)
        if outer:
            for relation in record.relations:
                outer.note(relation)


def decide(relation: Relation) -> bool:
    """Decide a relation: by proof, or by the present values of a kernel's integers.

    Raises :class:`~layoutconv.LayoutValueError` if neither decides; ``unknown`` is the relation.
    """
    result = _proved(relation)
    if result is None:
        result = relation.holds_now()
        if result is None:
            raise LayoutValueError(
                f"it is unknown if {relation}; where it holds, say so: assuming({relation})",
                unknown=relation,
            )
        _note(relation if result else relation.opposite())
    return result


def known(relation: Any) -> bool:
    """Tell if a relation is proved; an unproved one is not known. A bool is its own answer."""
    if not isinstance(relation, Relation):
        return bool(relation)
    question, wanted = relation.question()
    proved = follows if wanted else fails  # do not ask for the other answer
    if proved(question, NONE):
        return True
    facts = active()
    if facts is NONE or not proved(question, facts):
        return False
    _note(relation)
    return True


def _proved(relation: Relation) -> bool | None:
    question, wanted = relation.question()
    result = answer(question, NONE)
    if result is None:
        facts = active()
        if facts is NONE:
            return None
        result = answer(question, facts)
        if result is None:
            return None
        _note(relation if result == wanted else relation.opposite())
    return result == wanted


def _note(relation: Relation) -> None:
    record = _RECORD.get()
    if record is not None:
        record.note(relation)


def product(a: Poly, b: Poly) -> Poly:
    """Return ``a * b``, with exact divisions cancelled."""
    result: Poly = {}
    for monomial, coefficient in multiply(a, b).items():
        result = add(result, _even(monomial, coefficient))
    return result


def _even(monomial: Any, coefficient: int) -> Poly:
    """Return a term with ``d * (n // d)`` made ``n`` if the division is known to be exact."""
    for atom, power in monomial:
        if isinstance(atom, Quotient) and power == 1:
            rest = {tuple(item for item in monomial if item[0] != atom): coefficient}
            denominator, numerator = dict(atom.denominator), dict(atom.numerator)
            factor = exact_quotient(rest, denominator)
            if factor is not None and is_divided(denominator, numerator):
                return product(factor, numerator)
    return {monomial: coefficient}


def is_divided(divisor: Poly, p: Poly) -> bool:
    """Tell if ``p`` is known to be a multiple of ``divisor``."""
    if divides(divisor, p, NONE):
        return True
    facts = active()
    if facts is not NONE and divides(divisor, p, facts):
        _note(Relation("==", freeze(_remainder_atom(p, divisor)), ()))
        return True
    return False


def _remainder_atom(a: Poly, b: Poly) -> Poly:
    check_nesting(a, b)
    return of_atom(Remainder(freeze(a), freeze(b)))


def _split(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Split ``a`` into ``whole * b + rest``, with as much in ``whole`` as its terms show."""
    if not b:
        raise LayoutValueError(f"{show(a)} is divided by 0")
    even = exact_quotient(a, b)
    if even is not None:
        return even, {}
    whole: Poly = {}
    for monomial, coefficient in a.items():
        term = exact_quotient({monomial: coefficient}, b) if len(b) == 1 else None
        if term is None and not monomial and is_constant(b):
            term = constant(coefficient // b[()])
        whole = add(whole, term or {})
    return whole, add(a, multiply(whole, b), -1)


def _is_below(rest: Poly, b: Poly) -> bool:
    """Tell if ``0 <= rest < b`` is proved."""
    questions = Question(">=", rest), Question(">=", add(add(b, rest, -1), constant(-1)))
    return all(follows(q, NONE) for q in questions)


def quotient(a: Poly, b: Poly) -> Poly:
    """Return ``a // b``."""
    whole, rest = _split(a, b)
    if not rest or _is_below(rest, b):
        return whole
    check_nesting(rest, b)
    return add(whole, of_atom(Quotient(freeze(rest), freeze(b))))


def remainder(a: Poly, b: Poly) -> Poly:
    """Return ``a % b``."""
    _, rest = _split(a, b)
    if not rest or _is_below(rest, b):
        return rest
    return {} if is_divided(b, rest) else _remainder_atom(rest, b)
