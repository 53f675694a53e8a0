"""Integer arithmetic (PTX ISA 9.7.1), modulo two to the width unless it says otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..faults import DivisionByZero
from ..masks import some
from ..operation import Operation, Run, instruction
from ..team import Team
from . import floating


def is_floating(op: Operation) -> bool:
    """Return whether the last modifier names a floating-point type."""
    return "f" in op.modifiers[-1]


def wider(dtype: np.dtype) -> np.dtype:
    """The integer type of twice the width."""
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def high_half(a: NDArray, b: NDArray) -> NDArray:
    """The upper half of the double-width product."""
    dtype = a.dtype
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = wider(dtype)
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(dtype)
    # Schoolbook multiplication in 32-bit limbs, of which the upper ones carry the sign.
    low, shift = dtype.type(0xFFFFFFFF), dtype.type(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    carry = (a0.view("u8") * b0.view("u8") >> np.uint64(32)).view(dtype)
    middle = a1 * b0 + carry
    return a1 * b1 + (middle >> shift) + (((middle & low) + a0 * b1) >> shift)


def saturate(value: NDArray[np.int64]) -> NDArray[np.int32]:
    """Clamp to the range of s32."""
    return np.clip(value, -(2**31), 2**31 - 1).astype(np.int32)


@instruction("add", "sub")
def add(op: Operation) -> Run:
    if is_floating(op):
        return floating.add(op)
    sign = 1 if op.stem == "add" else -1
    saturating = op.flag("sat")
    dtype = op.dtype("su")
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    if saturating:
        if dtype != np.int32:
            raise op.unsupported("saturation of this type is not implemented")
        return lambda t: write(t, saturate(a(t).astype(np.int64) + sign * b(t).astype(np.int64)))
    if sign > 0:
        return lambda t: write(t, a(t) + b(t))
    return lambda t: write(t, a(t) - b(t))


@instruction("mul", "mad")
def multiply(op: Operation) -> Run:
    adds = op.stem == "mad"
    if is_floating(op):
        return floating.fused_multiply_add(op) if adds else floating.multiply(op)
    half = op.one_of("lo", "hi", "wide")
    dtype = op.dtype("su")
    a, b = op.read(1, dtype), op.read(2, dtype)
    out = wider(dtype) if half == "wide" else dtype
    product = {
        "lo": lambda t: a(t) * b(t),
        "hi": lambda t: high_half(a(t), b(t)),
        "wide": lambda t: a(t).astype(out) * b(t).astype(out),
    }[half]
    write = op.write(0, out)
    if not adds:
        return lambda t: write(t, product(t))
    c = op.read(3, out)
    return lambda t: write(t, product(t) + c(t))


@instruction("mul24", "mad24")
def multiply_24(op: Operation) -> Run:
    op.one_of("lo")
    dtype = op.dtype("su")
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    shift = dtype.type(8)

    def product(t: Team) -> NDArray:
        return (a(t) << shift >> shift) * (b(t) << shift >> shift)

    if op.stem == "mul24":
        return lambda t: write(t, product(t))
    c = op.read(3, dtype)
    return lambda t: write(t, product(t) + c(t))


@instruction("div", "rem")
def divide(op: Operation) -> Run:
    if is_floating(op):
        return floating.divide(op)
    remainder = op.stem == "rem"
    dtype = op.dtype("su")
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)

    def run(t: Team) -> None:
        x, y = np.broadcast_arrays(a(t), b(t), t.numbers)[:2]
        zero = t.active & (y == 0)
        if some(zero):
            raise DivisionByZero("integer division by zero", int(zero.argmax()))
        y = np.where(t.active, y, dtype.type(1))
        if dtype.kind == "i":
            # NumPy rounds down; the machine rounds towards zero. min // -1 wraps in both.
            rest = np.fmod(x, y)
            write(t, rest if remainder else (x - rest) // y)
        else:
            write(t, x % y if remainder else x // y)

    return run


@instruction("min", "max")
def extremum(op: Operation) -> Run:
    if is_floating(op):
        return floating.extremum(op)
    relu = op.flag("relu")
    pick = np.minimum if op.stem == "min" else np.maximum
    dtype = op.dtype("su")
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    if relu:
        zero = dtype.type(0)
        return lambda t: write(t, np.maximum(pick(a(t), b(t)), zero))
    return lambda t: write(t, pick(a(t), b(t)))


@instruction("neg", "abs")
def sign(op: Operation) -> Run:
    if is_floating(op):
        return floating.sign(op)
    change = np.negative if op.stem == "neg" else np.abs
    dtype = op.dtype("s")
    a, write = op.read(1, dtype), op.write(0, dtype)
    return lambda t: write(t, change(a(t)))


@instruction("sad")
def sum_of_differences(op: Operation) -> Run:
    dtype = op.dtype("su")
    a, b, c, write = op.read(1, dtype), op.read(2, dtype), op.read(3, dtype), op.write(0, dtype)
    return lambda t: write(t, np.maximum(a(t), b(t)) - np.minimum(a(t), b(t)) + c(t))


@instruction("dp4a", "dp2a")
def dot_product(op: Operation) -> Run:
    """Four numbers of 8 bits times four; dp2a: two of 16 bits times the lower or upper two of 8."""
    half = op.one_of("lo", "hi") if op.stem == "dp2a" else ""
    a_type, b_type = op.modifiers
    op.modifiers.clear()
    c_dtype = np.dtype(np.int32 if "s32" in (a_type, b_type) else np.uint32)
    a, b = op.read(1, "u4"), op.read(2, "u4")
    c, write = op.read(3, c_dtype), op.write(0, c_dtype)
    count, taken = {"": (4, slice(4)), "lo": (2, slice(2)), "hi": (2, slice(2, 4))}[half]

    def numbers(value: NDArray, name: str, count: int) -> NDArray[np.int64]:
        kind = f"{'i' if name == 's32' else 'u'}{4 // count}"
        return value.view(kind).reshape(-1, count).astype(np.int64)

    def run(t: Team) -> None:
        products = numbers(a(t), a_type, count) * numbers(b(t), b_type, 4)[:, taken]
        write(t, (products.sum(axis=1) + c(t)).astype(c_dtype))

    return run
