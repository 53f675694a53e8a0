"""Traced functions: a program computes what its function says, and bad functions are refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv import Pointwise
from layoutconv import pointwise as pw
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.tensors.traced_in_torch import run_program
from layoutconv.view.epilogue import Epilogue, counts_rows, is_by_row, programs_of
from layoutconv.view.traced import OPERATIONS, PointwiseProgram, trace


def of_one_name(ours: Any, *names: str) -> dict[str, tuple[Any, Any]]:
    """Functions of a module that torch has by the same names."""
    return {name: (getattr(ours, name), getattr(torch, name)) for name in names}


NUMBERS = of_one_name(operator, "add", "sub", "mul") | of_one_name(pw, "minimum", "maximum")
NUMBERS["div"] = operator.truediv, torch.div
FUNCTIONS = of_one_name(operator, "neg", "abs")
FUNCTIONS |= of_one_name(pw, "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "floor")
FUNCTIONS["square"] = lambda x: x**2, lambda x: x * x
COMPARED: dict[str, Any] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
LEAVES = ("x", "bias", "weight", "skip", "by")

expressions = st.recursive(
    st.sampled_from(LEAVES) | st.sampled_from([0.0, -1.5, 3, float("inf")]) | st.just("row"),
    lambda inner: (
        st.tuples(st.sampled_from([*NUMBERS]), inner, inner)
        | st.tuples(st.sampled_from([*FUNCTIONS]), inner)
        | st.tuples(st.just("where"), st.sampled_from([*COMPARED]), inner, inner, inner, inner)
        | st.tuples(st.sampled_from(["floordiv", "mod"]), st.integers(1, 9))
    ),
    max_leaves=8,
)


def evaluated(expression: Any, named: dict[str, Any], which: int) -> Any:
    """An expression of stand-ins (0), or of tensors, which broadcast (1)."""
    if isinstance(expression, str):
        return named[expression]
    if not isinstance(expression, tuple):
        return torch.tensor(float(expression)).double() if which else expression
    name, *parts = expression
    if name in ("floordiv", "mod"):
        rows, by = named["row"] if which == 0 else named["row"].long(), parts[0]
        found = rows // by if name == "floordiv" else rows % by
        return found.double() if which else found
    if name == "where":
        compare, x, y, p, q = parts[0], *(evaluated(part, named, which) for part in parts[1:])
        if not which and not any(hasattr(v, "steps") for v in (x, y)):
            x = named["x"] * 0 + x  # Python compares numbers of its own
        condition = COMPARED[compare](x, y)
        return pw.where(condition, p, q) if not which else torch.where(condition, p, q)
    values = [evaluated(part, named, which) for part in parts]
    if not which and not any(hasattr(v, "steps") for v in values):
        values[0] = named["x"] * 0 + values[0]
    return {**NUMBERS, **FUNCTIONS}[name][which](*values)


@settings(max_examples=150, deadline=None)
@given(expressions)
def test_a_program_computes_what_its_function_says(expression: Any) -> None:
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    named = {"x": some(4, 3), "bias": some(3), "weight": some(4, 1), "skip": some(4, 3), "by": 0.75}
    rows, columns = torch.arange(40, 44)[:, None], torch.arange(3)

    def function(x: Any, bias: Any, weight: Any, skip: Any, by: Any, row: Any) -> Any:
        given = {"x": x, "bias": bias, "weight": weight, "skip": skip, "by": by, "row": row}
        return evaluated(expression, given, 0)

    program = trace(
        function, {"bias": "float64"}, {"weight": "float64"}, {"skip": "float64"}, ["by"]
    )
    assert PointwiseProgram.parse(program.text) == program
    tensors = [named["bias"], named["weight"], named["skip"]]
    got = run_program(program, named["x"], tensors, (0.75,), (rows, columns))
    by = torch.tensor(0.75, dtype=torch.float64)
    want = evaluated(expression, {**named, "row": rows.double(), "by": by}, 1)
    zero = 0 * named["x"]  # of which infinite constants make no difference elsewhere
    torch.testing.assert_close(got, want + zero, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_every_operation_has_a_definition_in_torch() -> None:
    from layoutconv.tensors import traced_in_torch

    assert set(traced_in_torch._OPERATIONS) | {"float"} == set(OPERATIONS)


def test_what_is_computed_twice_is_one_instruction() -> None:
    program = trace(lambda x: pw.exp(x * 2) / (1 + pw.exp(x * 2)))
    assert [step[0] for step in program.instructions] == ["mul", "exp", "add", "div"]


def test_structure() -> None:
    column, row = np.ones(4, np.float32), np.ones(6, np.float16)
    plain = Pointwise(lambda x, c: x * c, {"c": column})
    by_row = Pointwise(lambda x, r, c: x * r + c, {"c": column}, {"r": row}, values={})
    epilogue = Epilogue((plain, by_row))
    assert [p.columns for p in programs_of(epilogue.structure)] == [("float32",)] * 2
    assert [id(t) for t in epilogue.vectors] == [id(column), id(column), id(row)]
    assert (is_by_row(plain.structure), counts_rows(plain.structure)) == (False, False)
    assert (is_by_row(by_row.structure), counts_rows(by_row.structure)) == (True, True)


def constant(x: Any) -> Any:
    return 3


def test_a_constant() -> None:
    assert trace(constant).instructions == (("same", "3.0"),)


def branches(x: Any) -> Any:
    return x if x > 0 else -x


REFUSED: dict[str, tuple[Any, str]] = {
    "a branch": (branches, r"where\(condition, x, y\) in place of `if`"),
    "python's max": (lambda x: max(x, 0.0), "in place of `if`"),
    "a chain of comparisons": (lambda x: pw.where(0 < x < 1, x, 0), "in place of `if`"),
    "math": (lambda x: __import__("math").exp(x), "functions of layoutconv.pointwise"),
    "numpy": (lambda x: np.exp(x), r"layoutconv.pointwise, .* does not support ufuncs"),
    "torch": (
        lambda x: __import__("torch").relu(x),
        r"layoutconv.pointwise, .* relu\(\): argument",
    ),
    "a method of tensors": (lambda x: x.clamp(min=0), r"layoutconv.pointwise, .* 'clamp'"),
    "a power of a number": (lambda x: 2**x, r"layoutconv.pointwise, .* operand type"),
    "a condition": (lambda x: x > 0, "a number for every result"),
    "nothing": (lambda x: None, "a number for every result.*, got NoneType"),
    "two results": (lambda x: (x, x), "a number for every result.*, got tuple"),
    "a string": (lambda x: x + "1", "numbers for `add`.* got str: '1'"),
    "nan": (lambda x: x + float("nan"), "numbers for `add`.* got float: nan"),
    "sums of conditions": (lambda x: (x > 0) + (x < 0), "numbers for `add`.* got a condition"),
    "a condition of numbers": (lambda x: pw.where(True, x, 0), "a comparison of traced values"),
    "integer division of numbers": (lambda x: x // 2, "floordiv of an integer"),
    "a divisor that is none": (lambda x, row: x + row % 0, "by a positive int"),
    "a high power": (lambda x: x**0.5, r"a power of 1 to 8, got \*\* 0.5"),
    "a name that nobody gives": (
        lambda x, bias: x + bias,
        "expected a function of a value, got one of a value, bias",
    ),
    "no function": (3, "a Python function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ArgumentTypeError, match=message):
        Pointwise(function)


def test_arguments_that_are_refused() -> None:
    column = np.ones(4, np.float32)
    with pytest.raises(
        ArgumentTypeError, match="expected a function of a value, bias, got one of a value"
    ):
        Pointwise(lambda x: x, {"bias": column})
    with pytest.raises(
        ArgumentTypeError, match="expected a function of a value, bias, got one of a value, low"
    ):
        Pointwise(lambda x, low: x + low, {"bias": column})
    with pytest.raises(AttributeError, match="'NoneType' object has no"):  # a mistake of its own
        Pointwise(lambda x: None.low + x)  # type: ignore[attr-defined]
    with pytest.raises(ArgumentTypeError, match="`columns`: expected a dict"):
        Pointwise(lambda x, bias: x, [column])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`bias`: expected a tensor"):
        Pointwise(lambda x, bias: x, {"bias": 3.0})
    with pytest.raises(ArgumentTypeError, match="`by`: expected a number"):
        Pointwise(lambda x, by: x, values={"by": "1"})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="a different name for each tensor and number"):
        Pointwise(lambda x, by: x, {"by": column}, values={"by": 1.0})
    with pytest.raises(
        ArgumentError, match="`row`: expected no value of this name, which stands for a"
    ):
        Pointwise(lambda x, row: x, {"row": column})
    with pytest.raises(ArgumentTypeError, match="`backward`: expected a function"):
        Pointwise(lambda x: x, backward=1)  # type: ignore[arg-type]


def test_a_backward_function_takes_what_it_is_given() -> None:
    """It would be told in the first backward pass, by the interpreter."""
    low = {"low": np.ones(4, np.float32)}

    def clamped(x: Any, low: Any, by: Any) -> Any:
        return pw.maximum(x, low) * by

    wrong: list[tuple[Callable[..., Any], str]] = [
        (lambda grad, result: {}, "got one of a gradient, the result .*'low'"),
        (lambda grad, result, low: {}, "got one of a gradient, the result, low .*'by'"),
        (lambda grad, *, low, by: {}, "got one of .*too many positional"),
        (lambda grad, result, low, by, up: {}, "got one of .* low, by, up .*missing.*'up'"),
    ]
    for backward, message in wrong:
        expected = "`backward`: expected a function of a gradient, the result, low, by, "
        with pytest.raises(ArgumentTypeError, match=expected + message):
            Pointwise(clamped, low, values={"by": 2.0}, backward=backward)
    for right in (lambda *_, **__: {}, lambda grad, result, by, low: {}):
        Pointwise(clamped, low, values={"by": 2.0}, backward=right)


def test_values_of_another_call_are_refused() -> None:
    """A name of theirs would be that of another value."""
    kept: list[Any] = []

    def leaking(x: Any) -> Any:
        kept.append(x + 7.0)
        return +x * kept[0]

    assert trace(leaking).text == "||||add,x,7.0;mul,x,v0"
    with pytest.raises(ArgumentError, match="`function`: expected values of this call only, got"):
        trace(leaking)


def test_integers_past_all_floats_are_refused_by_name() -> None:
    past = 10**400
    with pytest.raises(
        ArgumentError, match="`v`: expected a number that fits in a float, got an in"
    ):
        Pointwise(lambda x, v: x + v, values={"v": past})
    with pytest.raises(ArgumentError, match="`function`: expected numbers that fit in a float"):
        Pointwise(lambda x: x + past)
