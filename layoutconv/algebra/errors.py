"""The errors of the algebra: each names the operation, its operands, the reason and a witness."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn

_SHOWN = 60  # characters of an operand that an error shows
DEEPEST = 64  # levels of tuples in tuples, and of parentheses


class LayoutError(Exception):
    """An operation has no exact result, or its input is malformed.

    It is raised as one of its subclasses, so ``except ValueError`` and ``except TypeError`` work
    too. If an operation has no exact result, the error carries the proof:

    ``operation``  its name;
    ``operands``   its operands;
    ``witness``    a coordinate at which the definition and ``best`` differ (see each operation);
    ``exact``      the value of the definition there;
    ``best``       the closest layout;
    ``unknown``    the relation between symbols that could not be decided.

    >>> from layoutconv.algebra import Layout, composition
    >>> try:
    ...     composition(Layout((4, 3), (1, 8)), Layout(6, 1))
    ... except LayoutError as error:
    ...     print(error.witness, error.exact, error.best, error.best(error.witness))
    4 8 6:1 4
    """

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        operands: tuple[Any, ...] = (),
        witness: Any = None,
        exact: Any = None,
        best: Any = None,
        unknown: Any = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.operands = operands
        self.witness = witness
        self.exact = exact
        self.best = best
        self.unknown = unknown


class LayoutValueError(LayoutError, ValueError):
    """The input is of the right kind but has a wrong value, or no exact result exists for it.

    >>> from layoutconv.algebra import Layout, logical_product
    >>> try:
    ...     logical_product(Layout(4, 2), 3)
    ... except LayoutValueError as error:
    ...     print(error.operation, isinstance(error, ValueError))
    logical_product True
    """


class LayoutTypeError(LayoutError, TypeError):
    """The input is of the wrong kind: a float extent, a coordinate of the wrong profile, ...

    >>> from layoutconv.algebra import Layout
    >>> Layout((4, 8.0))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: Layout: the extent 8.0 is a float, not an integer
    (4,8.0)
       ^^^
    """


class LayoutBudgetError(LayoutError, RuntimeError):
    """The exact answer would take longer than an operation may: about 100 ms and 100 MB.

    The answer is then unknown. This happens to layouts of many modes, or of millions of elements,
    with irregular strides.

    >>> from layoutconv.algebra import Layout, is_injective
    >>> strides = tuple([7**9 + 1000 * i**5 % 65537 for i in range(32)])
    >>> try:
    ...     is_injective(Layout((3,) * 32, strides))
    ... except LayoutBudgetError as error:
    ...     print(error.operation)
    is_injective
    """


def inexact(operation: str, operands: tuple[Any, ...], condition: str, **proof: Any) -> NoReturn:
    """Raise the error of an operation that has no exact result for its operands."""
    expression = f"{operation}({', '.join(map(str, operands))})"
    raise LayoutValueError(
        f"{expression}: {condition}", operation=operation, operands=operands, **proof
    )


def under(operation: str, operands: tuple[Any, ...], error: LayoutError) -> NoReturn:
    """Raise the error of a step as the error of the operation that took the step."""
    raise type(error)(
        f"{operation}({', '.join(map(text, operands))}): {error}",
        operation=operation,
        operands=operands,
        witness=error.witness,
        exact=error.exact,
        best=error.best,
        unknown=error.unknown,
    ) from None


def text(tree: Any, levels: int = DEEPEST) -> str:
    """Return a shape, stride or coordinate in CuTe's notation: ``(4,(2,3))``.

    It is cut off below ``levels`` levels.

    >>> text((4, (2, None))), text((4, (2, 3)), levels=1)
    ('(4,(2,_))', '(4,...)')
    """
    if type(tree) is tuple:
        if not levels:
            return "..."
        return "(" + ",".join([text(part, levels - 1) for part in tree]) + ")"
    if tree is None:
        return "_"
    try:
        shown = str(tree)
    except RecursionError:  # lists in lists
        return shortly(tree)
    return shown if "\n" not in shown else shortly(tree)  # an array


def point_at(tree: Any, path: tuple[int, ...]) -> str:
    """Return the text of ``tree``, with carets below the part at ``path``.

    >>> print(point_at((4, (2, 0.5)), (1, 1)))
    (4,(2,0.5))
          ^^^
    """
    start, part = 0, tree
    for mode in path:
        start += 1 + sum(len(text(earlier)) + 1 for earlier in part[:mode])
        part = part[mode]
    return f"{text(tree)}\n{' ' * start}{'^' * len(text(part))}"


def expect(name: str, kind: Any, what: str, x: Any) -> None:
    """Refuse an operand of another kind; ``what`` describes the expected one.

    >>> expect("make_tiled_mma", int, "an mma atom", "m16n8k16")
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: make_tiled_mma: expected an mma atom, got 'm16n8k16'
    """
    if not isinstance(x, kind) or (kind is int and isinstance(x, bool)):
        shown = repr(x) if isinstance(x, str) else text(x)
        raise LayoutTypeError(f"{name}: expected {what}, got {shown}")


def wrong_argument(operation: str, argument: str, expected: str, x: Any) -> LayoutTypeError:
    """Return the error that names an argument, what was expected of it and what came.

    >>> print(wrong_argument("append", "rank", "an int", 2.5))
    append: argument `rank`: expected an int, got 2.5
    """
    return LayoutTypeError(
        f"{operation}: argument `{argument}`: expected {expected}, got {shortly(x)}",
        operation=operation,
    )


def too_deep(operation: str) -> LayoutTypeError:
    """Return the error for an operand whose tuples are nested too deeply.

    >>> print(too_deep("rank"))
    rank: an operand is nested too deeply; expected at most 64 levels
    """
    return LayoutTypeError(
        f"{operation}: an operand is nested too deeply; expected at most {DEEPEST} levels",
        operation=operation,
    )


def refuse_deep(operation: str, tree: Any) -> None:
    """Refuse tuples nested more than :data:`DEEPEST` levels deep.

    >>> refuse_deep("rank", (4, (2, 3)))
    """
    level = [tree]
    for _ in range(DEEPEST + 1):
        level = [part for entry in level if type(entry) is tuple for part in entry]
        if not level:
            return
    raise too_deep(operation)


def shortly(x: Any) -> str:
    """Return the repr of any value, cut if it is long.

    >>> shortly((1, "x")), len(shortly("x" * 100))
    ("(1, 'x')", 60)
    """
    try:
        shown = repr(x)
    except Exception:
        shown = f"a {type(x).__name__}"
    shown = " ".join(shown.split()) if "\n" in shown else shown  # of an array
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."


def whole(name: str, x: Any) -> int:
    """Return an integer with a value; refuse symbols, which have none, and coordinates.

    >>> whole("sum", 3)
    3
    """
    try:
        if not isinstance(x, bool):
            return index(x)
    except (TypeError, RuntimeError):  # a tensor without a value
        pass
    raise LayoutTypeError(f"{name}: {text(x)} is not an integer with a known value")
