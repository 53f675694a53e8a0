"""Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5): f32, f64, f16, bf16 and their packed pairs.

Operations that PTX defines to the bit (add, mul, fma, IEEE division and square root) are exact. The
``.approx`` functions are computed in float64 and rounded; a GPU's differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .. import formats
from ..operation import Operation, Read, Run, Write, instruction, numpy_dtype
from ..team import Team


class Packed:
    """Reads and writes the operands of one floating-point type as numbers.

    f16, bf16 and f32 are computed in float32, f64 in float64; a packed pair has shape (lanes, 2).
    """

    def __init__(self, op: Operation, name: str) -> None:
        self.op, self.name = op, name
        self.element = name.removesuffix("x2")
        self.pair = name.endswith("x2")
        if self.element not in ("f16", "bf16", "f32", "f64"):
            raise op.unsupported(f"type {name} is not implemented here")

    def read(self, position: int) -> Read:
        """A function that returns a source operand's values."""
        if self.element in ("f32", "f64"):
            return self.op.read(position, numpy_dtype(self.element))
        codes = self.op.read(position, "u4" if self.pair else "u2")
        element, shape = self.element, (-1, 2) if self.pair else (-1,)
        return lambda t: formats.decode(codes(t).view(np.uint16).reshape(shape), element)

    def write(self, position: int) -> Write:
        """A function that rounds values to the type and writes them."""
        if self.element in ("f32", "f64"):
            dtype = numpy_dtype(self.element)
            plain = self.op.write(position, dtype)
            return lambda t, value: plain(t, value.astype(dtype))
        codes = self.op.write(position, "u4" if self.pair else "u2")
        whole = np.uint32 if self.pair else np.uint16

        def write(t: Team, value: NDArray) -> None:
            bits = formats.encode(value, self.element).astype(np.uint16)
            codes(t, np.ascontiguousarray(bits).view(whole).reshape(-1))

        return write


def flush(value: NDArray) -> NDArray:
    """Subnormal float32 values become zero of the same sign (``.ftz``)."""
    if value.dtype != np.float32:
        return value
    tiny = np.abs(value) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), value), value)


def arithmetic(op: Operation, count: int, function: Callable[..., NDArray]) -> Run:
    """``function`` of ``count`` operands, with the modifiers that all arithmetic shares."""
    ftz, sat, relu = op.flag("ftz"), op.flag("sat"), op.flag("relu")
    name = op.type()
    floats = Packed(op, name)
    reads = [floats.read(1 + i) for i in range(count)]
    write = floats.write(0)
    if not (ftz or sat or relu):
        if count == 2:
            a, b = reads
            return lambda t: write(t, function(a(t), b(t)))
        return lambda t: write(t, function(*[read(t) for read in reads]))

    def run(t: Team) -> None:
        values = [read(t) for read in reads]
        if ftz:
            values = [flush(value) for value in values]
        result = function(*values)
        if ftz and floats.element == "f32":
            result = flush(result.astype(np.float32))
        if sat:
            result = np.where(np.isnan(result), 0.0, np.clip(result, 0.0, 1.0))
        if relu:
            result = np.where(result < 0, np.zeros_like(result), result)
        write(t, result)

    return run


def _nearest_only(op: Operation) -> None:
    op.flag("rn")
    if {"rz", "rm", "rp"} & set(op.modifiers):
        raise op.unsupported("only rounding to nearest is implemented")


def add(op: Operation) -> Run:
    _nearest_only(op)
    return arithmetic(op, 2, np.add if op.stem == "add" else np.subtract)


def multiply(op: Operation) -> Run:
    _nearest_only(op)
    return arithmetic(op, 2, np.multiply)


@instruction("fma")
def fused_multiply_add(op: Operation) -> Run:
    _nearest_only(op)
    if op.modifiers[-1] == "f64":
        return arithmetic(op, 3, formats.fused_multiply_add_64)
    return arithmetic(op, 3, formats.fused_multiply_add)


def divide(op: Operation) -> Run:
    op.one_of("rn", "full", "approx")
    return arithmetic(op, 2, lambda a, b: a.astype(np.float64) / b)


def extremum(op: Operation) -> Run:
    # Without .NaN the operand that is a number wins.
    keeps_nan = op.flag("NaN")
    if op.stem == "min":
        return arithmetic(op, 2, np.minimum if keeps_nan else np.fmin)
    return arithmetic(op, 2, np.maximum if keeps_nan else np.fmax)


def sign(op: Operation) -> Run:
    return arithmetic(op, 1, np.negative if op.stem == "neg" else np.abs)


@instruction("copysign")
def copy_sign(op: Operation) -> Run:
    return arithmetic(op, 2, lambda a, b: np.copysign(b, a))


def _wide(function: Callable[[NDArray], NDArray]) -> Callable[[NDArray], NDArray]:
    return lambda x: function(x.astype(np.float64))


_FUNCTIONS = {
    "rcp": _wide(np.reciprocal),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1.0 / np.sqrt(x)),
    "ex2": _wide(np.exp2),
    "lg2": _wide(np.log2),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
}


@instruction(*_FUNCTIONS)
def function(op: Operation) -> Run:
    op.one_of("approx", "rn")
    return arithmetic(op, 1, _FUNCTIONS[op.stem])


@instruction("testp")
def test_property(op: Operation) -> Run:
    kind = op.one_of("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    floats = Packed(op, op.type())
    read, write = floats.read(1), op.write(0, np.bool_)
    tiny = np.finfo(np.float32 if floats.element == "f32" else np.float64).tiny
    tests: dict[str, Callable[[NDArray], NDArray]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < tiny),
    }
    return lambda t: write(t, tests[kind](read(t)))
