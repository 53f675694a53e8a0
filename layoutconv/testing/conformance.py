"""The conformance suite: random cases of each operation, on this library or another one.

A library is a module with a class ``Layout(shape, stride)`` and functions by CuTe's names. Each of
its results is checked by the definition. What it refuses is compared with this library, which
refuses only what does not exist.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .. import algebra
from ..algebra import Layout, LayoutError
from . import checks
from .random_layouts import random_layout

_REFUSALS = (AssertionError, ValueError, TypeError, NotImplementedError)


class Operation(NamedTuple):
    """An operation: its names, how many layouts it takes, its check, and if it takes a bound."""

    names: tuple[str, ...]
    layouts: int
    check: Callable[..., None]
    bound: bool = False


OPERATIONS = {
    "coalesce": Operation(("coalesce",), 1, checks.check_coalesce),
    "composition": Operation(("composition", "compose"), 2, checks.check_composition),
    "complement": Operation(("complement",), 1, checks.check_complement, bound=True),
    "logical_divide": Operation(("logical_divide",), 2, checks.check_logical_divide),
    "logical_product": Operation(("logical_product",), 2, checks.check_logical_product),
    "right_inverse": Operation(("right_inverse",), 1, checks.check_right_inverse),
    "left_inverse": Operation(("left_inverse",), 1, checks.check_left_inverse),
}


class Outcome(NamedTuple):
    """Counts of what a library did with the cases of an operation, and its first fault."""

    exact: int
    refused: int
    wrong: int
    over_refused: int
    crashed: int
    first: str


def conformance(library: Any, cases: int = 2000, seed: int = 0) -> dict[str, Outcome]:
    """Return what a library, a module or its name, does with random cases of each operation.

    >>> outcome = conformance("layoutconv", cases=20)["composition"]
    >>> outcome.exact + outcome.refused, outcome.wrong + outcome.over_refused + outcome.crashed
    (20, 0)
    """
    module = import_module(library) if isinstance(library, str) else library
    return {
        name: _play(module, name, operation, cases, seed)
        for name, operation in OPERATIONS.items()
        if _function(module, operation) is not None
    }


def _function(module: Any, operation: Operation) -> Any:
    found = (getattr(module, name, None) for name in operation.names)
    return next((function for function in found if function is not None), None)


def _play(module: Any, name: str, operation: Operation, cases: int, seed: int) -> Outcome:
    counts: Counter[str] = Counter()
    first = ""
    for case in range(cases):
        rng = random.Random(f"{name} {seed} {case}")
        operands: list[Any] = [random_layout(rng, 3, nested=True)]
        operands += [random_layout(rng, 2) for _ in range(operation.layouts - 1)]
        operands += [rng.randint(1, 60)] if operation.bound else []
        outcome, why = _judged(module, operation, operands)
        counts[outcome] += 1
        first = first or why
    kinds = ("exact", "refused", "wrong", "over_refused", "crashed")
    exact, refused, wrong, over_refused, crashed = (counts[kind] for kind in kinds)
    return Outcome(exact, refused, wrong, over_refused, crashed, first)


def _judged(module: Any, operation: Operation, operands: list[Any]) -> tuple[str, str]:
    theirs = [_converted(module, x) for x in operands]
    said = f"{operation.names[0]}({', '.join(map(str, operands))})"
    try:
        result = _function(module, operation)(*theirs)
    except _REFUSALS as error:
        if not _exists(operation, operands):
            return "refused", ""
        return "over_refused", f"{said} is refused: {type(error).__name__}"
    except Exception as error:
        return "crashed", f"{said}: {type(error).__name__}: {error}"
    try:
        operation.check(*operands, result)
    except (checks.WrongResultError, AttributeError, LayoutError, TypeError, ValueError) as error:
        return "wrong", str(error)
    return "exact", ""


def _converted(module: Any, x: Any) -> Any:
    return module.Layout(x.shape, x.stride) if isinstance(x, Layout) else x


def _exists(operation: Operation, operands: list[Any]) -> bool:
    try:
        result = getattr(algebra, operation.names[0])(*operands)
    except LayoutError:
        return False
    operation.check(*operands, result)
    return True


def table(outcomes: dict[str, Outcome]) -> str:
    """The outcomes as a table, and the first fault of each operation below it.

    >>> print(table({"coalesce": Outcome(9, 0, 1, 0, 0, "coalesce(4:1) = 4:2: wrong")}))
    | operation | exact | refused rightly | wrong | refused though exact | crashed |
    | --- | --- | --- | --- | --- | --- |
    | coalesce | 9 | 0 | 1 | 0 | 0 |
    <BLANKLINE>
    coalesce(4:1) = 4:2: wrong
    """
    lines = [
        "| operation | exact | refused rightly | wrong | refused though exact | crashed |",
        "| --- " * 6 + "|",
    ]
    for name, outcome in outcomes.items():
        lines.append(f"| {name} | " + " | ".join(map(str, outcome[:5])) + " |")
    faults = [outcome.first for outcome in outcomes.values() if outcome.first]
    return "\n".join([*lines, *([""] if faults else []), *faults])
