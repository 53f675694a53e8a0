"""Trace a user's function of a result into a straight-line program of operations.

A program is compiled into kernels, and torch runs it on a CPU: both do the same operations in the
same order, in fp32 (fp64 for float64). The text determines the program, so it is part of a kernel's
key: a function is traced whenever it is passed, and compiled if its text is new.

Operands of an instruction are named by a letter and a number:

    x              the value before this step
    row, column    integers: m and n of the result in the view, groups' columns side by side
    c0, r0, s0     the element there of the first tensor per column, per row, or like D
    n0             the first number
    v0             the result of the first instruction
    0.5, 3         constants

Branch on values with :func:`where`; a function sees only one result at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError

NUMBER, INTEGER, CONDITION = "number", "integer", "condition"

_ARITHMETIC = ("add", "sub", "mul", "minimum", "maximum")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_FUNCTIONS = ("div", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "floor")
OPERATIONS = (*_ARITHMETIC, *_COMPARISONS, *_FUNCTIONS, "floordiv", "mod", "neg", "abs", "and",
              "or", "not", "where", "float", "same")  # fmt: skip


@dataclass(frozen=True)
class PointwiseProgram:
    """Instructions, each an operation and its operands; the last one computes the result.

    Attributes:
        columns, rows, sources: the dtypes of the tensors that it reads.
        numbers: how many numbers it takes.

    >>> program = trace(lambda x, low: where(x < low, low, x), columns={"low": "float32"})
    >>> print(program.text)
    float32||||lt,x,c0;where,v0,c0,x
    >>> PointwiseProgram.parse(program.text) == program
    True
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    sources: tuple[str, ...]
    numbers: int
    instructions: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The whole program as text, without spaces."""
        tensors = [",".join(dtypes) for dtypes in (self.columns, self.rows, self.sources)]
        steps = ";".join(map(",".join, self.instructions))
        return "|".join([*tensors, str(self.numbers or ""), steps])

    @classmethod
    def parse(cls, text: str) -> PointwiseProgram:
        """Parse a program from its text."""
        *tensors, numbers, steps = text.split("|")
        columns, rows, sources = (tuple(filter(None, part.split(","))) for part in tensors)
        instructions = tuple(tuple(step.split(",")) for step in steps.split(";"))
        return cls(columns, rows, sources, int(numbers or 0), instructions)

    @property
    def by_row(self) -> bool:
        """Return whether it needs more than the column of a result: its row, or a tensor like D."""
        return bool(self.sources) or self.counts_rows

    @property
    def counts_rows(self) -> bool:
        """Return whether it needs the row number of a result."""
        return bool(self.rows) or self.reads("row")

    def reads(self, operand: str) -> bool:
        """Return whether an instruction has an operand."""
        return any(operand in step[1:] for step in self.instructions)

    def run(self, operands: Callable[[str], Any], operations: Any) -> Any:
        """Compute the result from ``operands(name)`` by ``operations[name](*values)``."""
        found: list[Any] = []
        for operation, *names in self.instructions:
            values = [
                found[int(name[1:])] if name.startswith("v") else operands(name) for name in names
            ]
            found.append(operations[operation](*values))
        return found[-1]


class Traced:
    """A stand-in for a number, an integer or a condition of every result, during tracing.

    Numbers support ``+ - * /``, ``abs``, comparisons and small integer powers; integers also ``//``
    and ``%`` by a positive constant; conditions ``& | ~``. A condition cannot be used in an ``if``:

    >>> trace(lambda x: x if x > 0 else 0.1 * x)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `function`: expected where(condition, x, y) in \
place of `if`, `and`, `or`, `not`, min and max, got a decision by a condition, which differs from \
result to result
    """

    __slots__ = ("kind", "name", "steps")
    __array_ufunc__ = None  # NumPy defers to this class's operators

    def __init__(self, steps: list[tuple[str, ...]], name: str, kind: str) -> None:
        self.steps, self.name, self.kind = steps, name, kind

    def __bool__(self) -> bool:
        expected = "where(condition, x, y) in place of `if`, `and`, `or`, `not`, min and max"
        got = f"a decision by {_said(self)}, which differs from result to result"
        raise ArgumentTypeError("function", expected, got)

    def __float__(self) -> float:
        expected = "functions of layoutconv.pointwise, such as exp, tanh and where"
        raise ArgumentTypeError("function", expected, f"{_said(self)} converted to a Python number")

    __index__ = __int__ = __float__
    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Traced:
        return _arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return _arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return _arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return _arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return _arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return _arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return _of_numbers("div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return _of_numbers("div", other, self)

    def __floordiv__(self, other: Any) -> Traced:
        return _of_integer("floordiv", self, other)

    def __mod__(self, other: Any) -> Traced:
        return _of_integer("mod", self, other)

    def __pow__(self, exponent: Any) -> Traced:
        if type(exponent) is not int or not 1 <= exponent <= 8:
            raise ArgumentTypeError("function", "a power of 1 to 8", f"** {exponent!r}")
        power = self
        for bit in bin(exponent)[3:]:
            power = power * power
            power = power * self if bit == "1" else power
        return power

    def __pos__(self) -> Traced:
        return self

    def __neg__(self) -> Traced:
        return _arithmetic("neg", self)

    def __abs__(self) -> Traced:
        return _arithmetic("abs", self)

    def __lt__(self, other: Any) -> Traced:
        return _compare("lt", self, other)

    def __le__(self, other: Any) -> Traced:
        return _compare("le", self, other)

    def __gt__(self, other: Any) -> Traced:
        return _compare("gt", self, other)

    def __ge__(self, other: Any) -> Traced:
        return _compare("ge", self, other)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return _compare("ne", self, other)

    def __and__(self, other: Any) -> Traced:
        return _of_conditions("and", self, other)

    def __or__(self, other: Any) -> Traced:
        return _of_conditions("or", self, other)

    def __invert__(self) -> Traced:
        return _of_conditions("not", self)

    __rand__, __ror__ = __and__, __or__


# -- functions for users ---------------------------------------------------------------------------


def where(condition: Any, x: Any, y: Any) -> Traced:
    """Return ``x`` where a condition holds, else ``y``: both numbers, or both integers.

    >>> trace(lambda x: where((x > 1) & (x < 2), x, 0.0)).instructions[-1]
    ('where', 'v2', 'x', '0.0')
    """
    if not isinstance(condition, Traced) or condition.kind != CONDITION:
        raise ArgumentTypeError("condition", "a comparison of traced values", _said(condition))
    (x, y), kind = _together("where", x, y)
    return _step(condition, "where", [condition, x, y], kind)


def minimum(x: Any, y: Any) -> Traced:
    """Return the lesser; NaN if either is, like ``torch.minimum``."""
    return _arithmetic("minimum", x, y)


def maximum(x: Any, y: Any) -> Traced:
    """Return the greater; NaN if either is, like ``torch.maximum``."""
    return _arithmetic("maximum", x, y)


def exp(x: Any) -> Traced:
    """Return e to the power of ``x``."""
    return _of_numbers("exp", x)


def log(x: Any) -> Traced:
    """Return the natural logarithm."""
    return _of_numbers("log", x)


def sqrt(x: Any) -> Traced:
    """Return the square root."""
    return _of_numbers("sqrt", x)


def rsqrt(x: Any) -> Traced:
    """Return one over the square root."""
    return _of_numbers("rsqrt", x)


def tanh(x: Any) -> Traced:
    """Return the hyperbolic tangent."""
    return _of_numbers("tanh", x)


def sigmoid(x: Any) -> Traced:
    """Return ``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + exp(-1.0 * x))


def erf(x: Any) -> Traced:
    """Return the error function."""
    return _of_numbers("erf", x)


def floor(x: Any) -> Traced:
    """Return the greatest integer that is not greater, as a number."""
    return _of_numbers("floor", x)


# -- tracing --------------------------------------------------------------------------------------


def trace(
    function: Callable[..., Any],
    columns: dict[str, str] | None = None,
    rows: dict[str, str] | None = None,
    sources: dict[str, str] | None = None,
    numbers: Sequence[str] = (),
) -> PointwiseProgram:
    """Trace a function of a value and of named arguments, in any order, into a program.

    ``columns``, ``rows`` and ``sources`` map parameter names to dtypes of tensors. A function may
    have parameters ``row`` and ``column``, too.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for a function with a parameter that is not
    given, or that branches on a value, and for a result that is no number.

    >>> def checkered(x, row, column):
    ...     return where((row + column) % 2 == 0, x, 0.0)
    >>> trace(checkered).instructions
    (('add', 'row', 'column'), ('mod', 'v0', '2'), ('eq', 'v1', '0'), ('where', 'v2', 'x', '0.0'))
    """
    columns, rows, sources = columns or {}, rows or {}, sources or {}
    steps: list[tuple[str, ...]] = []
    named = {}
    for letter, names in zip("crsn", (columns, rows, sources, numbers), strict=True):
        named.update({name: Traced(steps, f"{letter}{i}", NUMBER) for i, name in enumerate(names)})
    given = len(columns) + len(rows) + len(sources) + len(numbers)
    if len(named) != given:
        raise ArgumentError(
            "function", "a different name for each tensor and number", "one name for two"
        )
    for coordinate in ("row", "column"):
        if coordinate in named:
            raise ArgumentError(
                coordinate, "no value of this name, which stands for a coordinate", "a value"
            )
        if coordinate in _parameters("function", function)[1:]:
            named[coordinate] = Traced(steps, coordinate, INTEGER)
    value = Traced(steps, "x", NUMBER)
    check_parameters("function", function, ["a value"], list(named))
    try:
        result = function(value, **named)
    except (TypeError, AttributeError) as error:  # torch.relu(x), x.exp(), 2**x
        if Traced.__name__ not in str(error):
            raise
        expected = "arithmetic, and functions of layoutconv.pointwise, such as exp, tanh and where"
        raise ArgumentTypeError("function", expected, str(error)) from error
    if not isinstance(result, Traced) and _is_constant(result):
        result = _arithmetic("same", result, of=value)
    if not isinstance(result, Traced) or result.kind == CONDITION:
        got = "a condition" if isinstance(result, Traced) else type(result).__name__
        expected = "a number for every result, such as where(condition, 1.0, 0.0)"
        raise ArgumentTypeError("function", expected, got)
    if result.kind == INTEGER:
        result = _step(result, "float", [result], NUMBER)
    if not steps or result.name != f"v{len(steps) - 1}":
        _step(result, "same", [result], NUMBER)
    of_columns, of_rows, of_sources = (tuple(of.values()) for of in (columns, rows, sources))
    return PointwiseProgram(of_columns, of_rows, of_sources, len(numbers), tuple(steps))


def _parameters(argument: str, function: Callable[..., Any]) -> list[str]:
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(argument, "a Python function", repr(function)) from error
    return list(signature.parameters)


def check_parameters(
    argument: str, function: Callable[..., Any], first: Sequence[str], names: Sequence[str]
) -> None:
    """Refuse a function that cannot be called so: ``first`` are positional, ``names`` by name.

    >>> check_parameters("backward", lambda grad, result: {}, ["a gradient", "a result"], ["low"])
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `backward`: expected a function of a gradient, \
a result, low, got one of a gradient, a result (got an unexpected keyword argument 'low')
    """
    import inspect

    own = _parameters(argument, function)
    try:
        inspect.signature(function).bind(*first, **dict.fromkeys(names))
    except TypeError as error:
        expected = f"a function of {', '.join([*first, *names])}"
        got = f"one of {', '.join([*first[: len(own)], *own[len(first) :]])} ({error})"
        raise ArgumentTypeError(argument, expected, got) from None


def _step(like: Traced, operation: str, operands: Sequence[Any], kind: str) -> Traced:
    """Add an instruction, or return an equal earlier one."""
    if any(isinstance(o, Traced) and o.steps is not like.steps for o in operands):
        expected = "values of this call only"
        raise ArgumentError("function", expected, "a value that an earlier call kept")
    names = [o.name if isinstance(o, Traced) else repr(o) for o in operands]
    instruction = operation, *names
    if instruction in like.steps:
        return Traced(like.steps, f"v{like.steps.index(instruction)}", kind)
    like.steps.append(instruction)
    return Traced(like.steps, f"v{len(like.steps) - 1}", kind)


def _arithmetic(operation: str, *operands: Any, of: Traced | None = None) -> Traced:
    """Apply arithmetic to numbers, or to integers alone."""
    values, kind = _together(operation, *operands)
    like = next((v for v in (*values, of) if isinstance(v, Traced)), None)
    if like is None:
        raise ArgumentTypeError("function", f"{operation} of a traced value", _said(operands[0]))
    return _step(like, operation, values, kind)


def _of_numbers(operation: str, *operands: Any) -> Traced:
    values = [_number(v) for v in _known(operation, *operands)]
    like = next((v for v in values if isinstance(v, Traced)), None)
    if like is None:
        raise ArgumentTypeError("function", f"{operation} of a traced value", _said(operands[0]))
    return _step(like, operation, values, NUMBER)


def _compare(operation: str, *operands: Any) -> Traced:
    values, _ = _together(operation, *operands)
    return _step(operands[0], operation, values, CONDITION)


def _of_integer(operation: str, x: Traced, divisor: Any) -> Traced:
    if x.kind != INTEGER or type(divisor) is not int or divisor < 1:
        expected = f"{operation} of an integer, such as `row`, by a positive int"
        raise ArgumentTypeError("function", expected, f"{_said(x)} and {_said(divisor)}")
    return _step(x, operation, [x, divisor], INTEGER)


def _of_conditions(operation: str, *operands: Any) -> Traced:
    for operand in operands:
        if not isinstance(operand, Traced) or operand.kind != CONDITION:
            raise ArgumentTypeError("function", f"conditions for `{operation}`", _said(operand))
    return _step(operands[0], operation, operands, CONDITION)


def _together(operation: str, *operands: Any) -> tuple[list[Any], str]:
    """Return the operands as integers if all are; else as numbers."""
    values = _known(operation, *operands)
    kinds = {v.kind if isinstance(v, Traced) else type(v) for v in values}
    if INTEGER in kinds and kinds <= {INTEGER, int}:
        return values, INTEGER
    return [_number(v) for v in values], NUMBER


def _known(operation: str, *operands: Any) -> list[Any]:
    for value in operands:
        wrong = value.kind == CONDITION if isinstance(value, Traced) else not _is_constant(value)
        if wrong:
            expected = f"numbers for `{operation}`: traced ones, or Python's own"
            raise ArgumentTypeError("function", expected, _said(value))
    return list(operands)


def _is_constant(value: Any) -> bool:
    return type(value) in (int, float) and not (isinstance(value, float) and isnan(value))


def _number(value: Any) -> Any:
    if isinstance(value, Traced):
        return value if value.kind == NUMBER else _step(value, "float", [value], NUMBER)
    try:
        return float(value)
    except OverflowError:
        expected = "numbers that fit in a float"
        raise ArgumentError("function", expected, "an integer above 1e308") from None


def _said(value: Any) -> str:
    if not isinstance(value, Traced):
        return f"{type(value).__name__}: {value!r}"
    return "an integer" if value.kind == INTEGER else f"a {value.kind}"
