"""A budget: how much work an operation may do before it says that it cannot tell.

Most answers take a few steps per mode. The rest are searches, and every search spends from a
budget, so that no operation takes longer than about 100 ms or more than 100 MB.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import LayoutBudgetError, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 60_000  # of a search; one takes 0.3 to 1 us
EVALUATIONS = 30_000  # of a function that nothing is known of; one takes 1 to 3 us
PROOF = 1_000  # terms that are looked at to prove one inequality; one takes 1 to 5 us
PROOFS = 8_000  # of all proofs of an operation, in the time of a search
RESERVE = 0.25  # of an operation, for a search at present values once proofs have taken the rest
TABLE = 1 << 20  # entries of a table that somebody asks for
SET = 1 << 19  # values whose set is made in the time of an operation
MARKS = 1 << 21  # integers, those of a table among which are marked in that time


class Pool:
    """Work that is left to all searches and proofs of one operation: a share of what one may do.

    ``known`` are values of strides that it has found, each with its stride.
    """

    __slots__ = ("known", "left")

    def __init__(self) -> None:
        self.left = 1.0
        self.known: dict[tuple[int, int], tuple[Any, Any]] = {}


_OPERATION: ContextVar[Pool | None] = ContextVar("operation", default=None)


@contextmanager
def one_operation() -> Iterator[None]:
    """Let all work in the block share one pool; inside another such block it shares that.

    Used as a decorator of operations that consist of several searches.
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
    """Find something of ``x`` and a number once in an operation, however often it is asked for."""
    pool = _OPERATION.get()
    if pool is None:
        return find()
    found = pool.known.get((id(x), count))
    if found is None:
        found = pool.known[id(x), count] = x, find()
    return found[1]


class Budget:
    """Steps that are left to one search, within what is left to the operation.

    >>> budget = Budget("is_injective", ("(4,4):(1,3)",), steps=2)
    >>> budget.spend(2)
    >>> budget.spend()
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutBudgetError: is_injective((4,4):(1,3)): no answer in 2 steps
    """

    __slots__ = ("left", "operands", "operation", "pool", "steps")

    def __init__(self, operation: str, operands: tuple[Any, ...], steps: int = STEPS) -> None:
        self.operation = operation
        self.operands = operands
        self.steps = self.left = steps
        self.pool = _OPERATION.get()

    def spend(self, steps: int = 1) -> None:
        """Take ``steps`` from what is left; :class:`LayoutBudgetError` if it is too little."""
        self.left -= steps
        if self.pool is not None:
            self.pool.left -= steps / self.steps
            if self.pool.left < 0:
                self.left = -1
        if self.left < 0:
            self.give_up()

    def give_up(self) -> NoReturn:
        """Raise :class:`LayoutBudgetError`: what is left to do would take more than there is."""
        shown = ", ".join(map(text, self.operands))
        raise LayoutBudgetError(
            f"{self.operation}({shown}): no answer in {self.steps} steps",
            operation=self.operation,
            operands=self.operands,
        )


class Effort:
    """Work that is left to one proof, within what is left to the operation.

    A proof that takes more is given up: what is not proved is unknown, and no error.

    >>> effort = Effort(10)
    >>> effort.take(8), effort.take(8)
    (True, False)
    """

    __slots__ = ("left", "pool")

    def __init__(self, terms: int = PROOF) -> None:
        self.left = terms
        self.pool = _OPERATION.get()

    def take(self, terms: int) -> bool:
        """Take ``terms`` from what is left; False, for good, if that is too little."""
        self.left -= terms
        if self.left < 0:
            return False
        if self.pool is not None:
            self.pool.left -= terms / PROOFS
            return self.pool.left >= RESERVE
        return True


def charge(terms: int) -> None:
    """Take the work of computing with names from what is left to the operation.

    Raises :class:`LayoutBudgetError` of an expression where that is too little.
    """
    pool = _OPERATION.get()
    if pool is not None:
        pool.left -= terms / PROOFS
        if pool.left < RESERVE:
            raise LayoutBudgetError("too much to compute with names", operation="expression")


def table_size(operation: str, operand: Any, size: Any) -> int:
    """``size`` as the length of a table that is going to be made, or an error if it is too long."""
    length = whole(operation, size)
    if length > TABLE:
        raise LayoutBudgetError(
            f"{operation}({operand}): a table of {length} entries is longer than {TABLE}; evaluate "
            "parts of it, with arrays of coordinates",
            operation=operation,
            operands=(operand,),
        )
    return length
