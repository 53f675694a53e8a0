"""Programs of traced functions on vectors of results, in registers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from layoutconv.view.traced import PointwiseProgram

from .instructions import greatest, in_registers, least

Vector = Any  # cute.TensorSSA
_math: Any = cute.math

LOG2_E = 1.4426950408889634


def run_program(program: PointwiseProgram, x: Vector, given: Callable[[str], Any]) -> Vector:
    """Run a program on ``x``. ``given(name)`` is an operand: a vector like ``x`` for tensors and
    coordinates, a scalar for numbers.

    Constants become vectors, too: the compiler folds them.
    """
    kind = x.dtype

    def operand(name: str) -> Vector:
        if name == "x":
            return x
        if name[0] in "crsn" or name == "row":
            value = given(name)
            return cute.full_like(x, value, kind) if name[0] == "n" else value
        if name.lstrip("-").isdigit():
            return cute.full_like(x, Int32(int(name)), Int32)
        return cute.full_like(x, Float32(float(name)).to(kind), kind)

    return program.run(operand, {**_OPERATIONS, "float": lambda v: v.to(kind)})


def _floordiv(x: Vector, by: Vector) -> Vector:
    """Divide, rounding down; ``by`` is positive."""
    cut = _truncated(x, by)
    return cut - (x < cut * by).to(Int32)


def _truncated(x: Vector, by: Vector) -> Vector:
    """Divide element by element, rounding towards zero."""
    values, divisors = in_registers(x), in_registers(by)
    out = cute.make_rmem_tensor(x.shape, Int32)
    for i in range(cute.size(out)):
        out[i] = Int32(values[i]) // Int32(divisors[i])
    return out.load()


_OPERATIONS: dict[str, Callable[..., Vector]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": _floordiv,
    "mod": lambda x, by: x - _floordiv(x, by) * by,
    "neg": operator.neg,
    "abs": lambda x: cute.where(x < 0, -x, x),
    "minimum": least,
    "maximum": greatest,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda x: x == cute.full_like(x, Boolean(False), Boolean),
    "where": cute.where,
    "exp": lambda x: _math.exp2(x * LOG2_E, fastmath=True),
    "log": lambda x: _math.log(x),
    "sqrt": lambda x: _math.sqrt(x),
    "rsqrt": lambda x: _math.rsqrt(x),
    "tanh": lambda x: _math.tanh(x),
    "erf": lambda x: _math.erf(x),
    "floor": lambda x: _math.floor(x),
    "same": lambda x: x,
}
