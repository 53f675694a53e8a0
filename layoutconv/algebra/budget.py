"""How much work an operation may do before it says that it cannot tell.

Most answers take a few steps per mode. The rest are searches, and every search spends from a
budget, so that no operation takes longer than about 100 ms or more than 100 MB.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutBudgetError, text, whole

STEPS = 60_000  # of a search; one takes 0.3 to 1 us
EVALUATIONS = 30_000  # of a function that nothing is known of; one takes 1 to 3 us
TABLE = 1 << 20  # entries of a table that somebody asks for


class Budget:
    """Steps that are left to one operation.

    >>> budget = Budget("is_injective", ("(4,4):(1,3)",), steps=2)
    >>> budget.spend(2)
    >>> budget.spend()
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutBudgetError: is_injective((4,4):(1,3)): no answer in 2 steps
    """

    __slots__ = ("left", "operands", "operation", "steps")

    def __init__(self, operation: str, operands: tuple[Any, ...], steps: int = STEPS) -> None:
        self.operation = operation
        self.operands = operands
        self.steps = self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Take ``steps`` from what is left; :class:`LayoutBudgetError` if it is too little."""
        self.left -= steps
        if self.left < 0:
            shown = ", ".join(map(text, self.operands))
            raise LayoutBudgetError(
                f"{self.operation}({shown}): no answer in {self.steps} steps",
                operation=self.operation,
                operands=self.operands,
            )


def table_size(operation: str, operand: Any, size: Any) -> int:
    """``size`` as the length of a table that is going to be made, or an error if it is too long."""
    size = whole(operation, size)
    if size > TABLE:
        raise LayoutBudgetError(
            f"{operation}({operand}): a table of {size} entries is longer than {TABLE}; evaluate "
            "parts of it, with arrays of coordinates",
            operation=operation,
            operands=(operand,),
        )
    return size
