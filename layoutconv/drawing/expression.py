"""Expressions of the algebra as users type them: ``zipped_divide((4,8):(8,1), (2,4))``.

The parser below and that of the notation read them. Only the operations named here are ever called:
typed text is not Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from .. import algebra
from ..algebra import (
    ComposedLayout,
    Layout,
    LayoutBudgetError,
    LayoutError,
    LayoutValueError,
    Swizzle,
    Tensor,
)
from ..algebra.errors import text
from ..algebra.notation import MOST_BITS, pointed
from .budget import Exhausted
from .grammar import Call, read

# The kinds of operands: a layout (L; a shape is a compact one), a layout, shape or tiler as typed
# (T), or an integer (N). The function itself limits the number of operands.
_OPERANDS = {
    "composition": "LT", "complement": "LT",
    "logical_divide": "LT", "zipped_divide": "LT", "tiled_divide": "LT", "flat_divide": "LT",
    "logical_product": "LT", "zipped_product": "LT", "tiled_product": "LT", "flat_product": "LT",
    "blocked_product": "LL", "raked_product": "LL", "tile_to_shape": "LTT",
    "coalesce": "LT", "filter": "LT", "flatten": "L", "flatten_layout": "L", "group_modes": "LNN",
    "right_inverse": "L", "left_inverse": "L", "nullspace": "L", "max_common_layout": "LL",
    "make_ordered_layout": "TT", "make_identity_layout": "T", "make_layout_like": "L",
    "make_layout": "T*", "layout_add": "LL",
    "upcast": "LN", "downcast": "LN", "recast": "LNN",
    "Layout": "TT", "Swizzle": "NNN",
}  # fmt: skip


@dataclass(frozen=True)
class Applied:
    """An operation applied to operands: its result, or the error that explains the failure."""

    name: str
    operands: tuple[Any, ...]
    result: Any = None
    error: LayoutError | None = None


def operations() -> dict[str, Callable[..., Any]]:
    """Return the operations that an expression may name.

    >>> operations()["coalesce"].__name__
    'coalesce'
    """
    return {name: getattr(algebra, name) for name in _OPERANDS}


def evaluate(expression: str, applied: list[Applied] | None = None) -> Any:
    """Evaluate an expression to a layout, a composed layout or a swizzle.

    Args:
        expression: text that :func:`~layoutconv.parse` reads, ``A @ B`` for a composition, an
            operation by name, and parentheses. A tiler is a layout, an integer or a tuple of these,
            in which ``_`` leaves a mode as it is.
        applied: gets each operation once its operands are known, innermost first, also one that
            fails.

    Raises :class:`~layoutconv.LayoutError`: one that points at the first unexpected character, or
    that of the operation without a result. In a worker it may also point at an operation that takes
    too long.

    >>> print(evaluate("zipped_divide((4,8):(8,1), (2,4))"))
    ((2,4),(2,2)):((8,1),(16,4))
    >>> print(evaluate("S<2,0,2> @ ((4,4):(1,4) @ (4,4):(4,1))"))
    S<2,0,2> o 0 o (4,4):(4,1)
    >>> evaluate("(4,8) @ complemnt(4:2, 24)")
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: expected an operation (complement?), found 'complemnt'
    (4,8) @ complemnt(4:2, 24)
            ^
    """  # noqa: E501
    evaluation = _Evaluation(expression, [] if applied is None else applied)
    return evaluation.as_layout(evaluation.of(read(expression, _OPERANDS)), 0)


@dataclass(frozen=True)
class _Evaluation:
    """Calls a tree of operations, and adds each to ``applied``."""

    expression: str
    applied: list[Applied]

    def of(self, node: Any) -> Any:
        """Return the value of a node."""
        if isinstance(node, tuple):
            return tuple([self.of(part) for part in node])
        if not isinstance(node, Call):
            return node
        operands = [self.of(operand) for operand in node.operands]
        function = operations()[node.name]
        kinds = _OPERANDS[node.name].replace("T*", "T" * len(operands))
        try:
            inspect.signature(function).bind(*operands)
        except TypeError:
            wanted = ", ".join(inspect.signature(function).parameters)
            self.fail(
                node.at, f"{node.name}: expected the operands ({wanted}), got {len(operands)}"
            )
        pairs = zip(kinds, operands, strict=False)
        operands = [self.operand(node, kind, operand) for kind, operand in pairs]
        if node.name == "composition" and isinstance(operands[0], Swizzle):
            # A swizzle has no modes for the entries of a tuple.
            operands[1] = self.as_layout(operands[1], node.at)
        result = self.call(node, function, tuple(operands))
        self.applied.append(Applied(node.name, tuple(operands), result))
        return result

    def call(self, node: Call, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        try:
            return function(*operands)
        except LayoutError as error:
            self.applied.append(Applied(node.name, operands, error=error))
            raise
        except (Exhausted, MemoryError) as spent:
            why = f"{node.name}: this operation takes {_more_than(spent)}"
            raise LayoutBudgetError(pointed(why, self.expression, node.at)) from None
        except Exception as error:
            # Deep in a tuple, an operand has a kind that the operation did not expect.
            written = ", ".join(map(text, operands))
            raise LayoutValueError(f"{node.name}({written}): {error}") from error

    def operand(self, node: Call, kind: str, value: Any) -> Any:
        """Convert an operand for the operation."""
        if kind == "L":
            return self.as_layout(value, node.at)
        if kind == "N":
            if not isinstance(value, int):
                self.fail(node.at, f"{node.name}: expected an integer, got {text(value)}")
            if node.name == "Swizzle" and abs(value) > MOST_BITS:
                self.fail(
                    node.at, f"Swizzle: expected integers of at most {MOST_BITS}, got {value}"
                )
        return value

    def as_layout(self, value: Any, at: int) -> Any:
        """Return a layout, also for a shape; ``at`` is the position for an error."""
        known = Layout | ComposedLayout | Swizzle | Tensor
        if isinstance(value, known):
            return value
        if isinstance(value, tuple):
            # A tuple of integers is a shape; layouts side by side are not a layout.
            for part in value:
                if isinstance(part, known) or part is None:
                    self.fail(at, f"expected a layout, got the tiler {text(value)}")
        if value is None:
            self.fail(at, "expected a layout, got _")
        return Layout(value)

    def fail(self, at: int, why: str) -> NoReturn:
        raise LayoutValueError(pointed(why, self.expression, at))


def _more_than(spent: BaseException) -> str:
    if isinstance(spent, MemoryError):
        return "more memory than an expression may have"
    return str(spent)
