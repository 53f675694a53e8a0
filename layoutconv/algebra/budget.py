"""Budgets: how much work an operation may do before it gives up.

Most answers take a few steps per mode. The rest are searches. Every search spends from a budget, so
that no operation takes longer than about 100 ms or more than 100 MB.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import LayoutBudgetError, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 60_000  # of a search; one takes 0.3 to 1 us
EVALUATIONS = 30_000  # of an unknown function; one takes 1 to 3 us
PROOF = 1_000  # terms inspected to prove one inequality; one takes 1 to 5 us
PROOFS = 8_000  # terms of all proofs of an operation, in the time of a search
RESERVE = 0.25  # share of an operation kept for a search at present values, after its proofs
TABLE = 1 << 20  # most entries of a requested table
SET = 1 << 19  # values of a set that takes the time of an operation
MARKS = 1 << 21  # integers in a range in which the values of a table are marked in that time


class Pool:
    """The work left to all searches and proofs of one operation, as a share of its budget.

    ``known`` are values of strides found so far, each with its stride.
    """

    __slots__ = ("known", "left")

    def __init__(self) -> None:
        self.left = 1.0
        self.known: dict[tuple[int, int], tuple[Any, Any]] = {}


_OPERATION: ContextVar[Pool | None] = ContextVar("operation", default=None)


@contextmanager
def one_operation() -> Iterator[None]:
    """Share one pool among all work in the block; an inner block shares the outer block's pool.

    It decorates operations that consist of several searches.
    """
    if _OPERATION.get() is not None:
        yield
        return
    token = _OPERATION.set(Pool())
    try:
        yield
    finally:
        _OPERATION.reset(token)


def once(x: Any, count: int, find: Callable[[], Any]) -> Any:
    """Compute a result for ``x`` and a number only once per operation."""
    pool = _OPERATION.get()
    if pool is None:
        return find()
    found = pool.known.get((id(x), count))
    if found is None:
        found = pool.known[id(x), count] = x, find()
    return found[1]


class Budget:
    """The steps left to one search, within the pool of the operation.

    >>> budget = Budget("is_injective", ("(4,4):(1,3)",), steps=2)
    >>> budget.spend(2)
    >>> budget.spend()
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutBudgetError: is_injective((4,4):(1,3)): no answer within 2 steps
    """

    __slots__ = ("left", "operands", "operation", "pool", "steps")

    def __init__(self, operation: str, operands: tuple[Any, ...], steps: int = STEPS) -> None:
        self.operation = operation
        self.operands = operands
        self.steps = self.left = steps
        self.pool = _OPERATION.get()

    def spend(self, steps: int = 1) -> None:
        """Take ``steps`` from the budget; raise :class:`LayoutBudgetError` if too few are left."""
        self.left -= steps
        if self.pool is not None:
            self.pool.left -= steps / self.steps
            if self.pool.left < 0:
                self.left = -1
        if self.left < 0:
            self.give_up()

    def give_up(self) -> NoReturn:
        """Raise :class:`LayoutBudgetError`: the remaining work would exceed the budget."""
        shown = ", ".join(map(text, self.operands))
        raise LayoutBudgetError(
            f"{self.operation}({shown}): no answer within {self.steps} steps",
            operation=self.operation,
            operands=self.operands,
        )


class Effort:
    """The work left to one proof, within the pool of the operation.

    A proof that takes more is abandoned: its claim is then unknown, which is not an error.

    >>> effort = Effort(10)
    >>> effort.take(8), effort.take(8)
    (True, False)
    """

    __slots__ = ("left", "pool")

    def __init__(self, terms: int = PROOF) -> None:
        self.left = terms
        self.pool = _OPERATION.get()

    def take(self, terms: int) -> bool:
        """Take ``terms`` from the effort; return False, then and later, if too few are left."""
        self.left -= terms
        if self.left < 0:
            return False
        if self.pool is not None:
            self.pool.left -= terms / PROOFS
            return self.pool.left >= RESERVE
        return True


def charge(terms: int) -> None:
    """Take the work of symbolic computation from the pool of the operation.

    Raises :class:`LayoutBudgetError` about an expression if too little is left.
    """
    pool = _OPERATION.get()
    if pool is not None:
        pool.left -= terms / PROOFS
        if pool.left < RESERVE:
            raise LayoutBudgetError(
                "the expressions of symbolic integers are too large", operation="expression"
            )


def table_size(operation: str, operand: Any, size: Any) -> int:
    """Return ``size`` as the length of a table to make; raise if it is too long."""
    length = whole(operation, size)
    if length > TABLE:
        raise LayoutBudgetError(
            f"{operation}({operand}): a table of {length} entries is longer than {TABLE}; evaluate "
            "parts of it, with arrays of coordinates",
            operation=operation,
            operands=(operand,),
        )
    return length
