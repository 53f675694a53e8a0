"""Logic, shifts, bit fields and byte permutation (PTX ISA 9.7.1, 9.7.8 and 9.7.9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..operation import Operation, Run, instruction
from ..ptx import Immediate
from ..team import Team

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_SHIFT = {"shl": np.left_shift, "shr": np.right_shift}


@instruction("and", "or", "xor")
def logic(op: Operation) -> Run:
    function = _LOGIC[op.stem]
    dtype = op.dtype("bp")
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    return lambda t: write(t, function(a(t), b(t)))


@instruction("not")
def invert(op: Operation) -> Run:
    dtype = op.dtype("bp")
    a, write = op.read(1, dtype), op.write(0, dtype)
    return lambda t: write(t, ~a(t))


@instruction("cnot")
def logical_not(op: Operation) -> Run:
    dtype = op.dtype("b")
    a, write = op.read(1, dtype), op.write(0, dtype)
    return lambda t: write(t, (a(t) == 0).astype(dtype))


def shift_left(value: NDArray, amount: NDArray) -> NDArray:
    """``value << amount``, where an amount of the width or more leaves zero."""
    width = 8 * value.dtype.itemsize
    shifted = value << np.minimum(amount, width - 1).astype(value.dtype)
    return np.where(amount < width, shifted, value.dtype.type(0))


def shift_right(value: NDArray, amount: NDArray) -> NDArray:
    """``value >> amount``, where an amount of the width or more leaves only the sign."""
    width = 8 * value.dtype.itemsize
    shifted = value >> np.minimum(amount, width - 1).astype(value.dtype)
    if value.dtype.kind == "i":
        return shifted
    return np.where(amount < width, shifted, value.dtype.type(0))


@instruction("shl", "shr")
def shift(op: Operation) -> Run:
    function = shift_left if op.stem == "shl" else shift_right
    dtype = op.dtype()
    a, amount, write = op.read(1, dtype), op.read(2, "u4"), op.write(0, dtype)
    if isinstance(op.operand(2), Immediate) and 0 <= op.constant(2) < 8 * dtype.itemsize:
        plain, by = _SHIFT[op.stem], dtype.type(op.constant(2))
        return lambda t: write(t, plain(a(t), by))
    return lambda t: write(t, function(a(t), amount(t)))


@instruction("shf.l", "shf.r")
def funnel_shift(op: Operation) -> Run:
    left = op.stem == "shf.l"
    wrap = op.one_of("wrap", "clamp") == "wrap"
    if op.type() != "b32":
        raise op.unsupported("a funnel shift has type b32")
    low, high, amount = op.read(1, "u4"), op.read(2, "u4"), op.read(3, "u4")
    write = op.write(0, "u4")

    def run(t: Team) -> None:
        both = high(t).astype(np.uint64) << np.uint64(32) | low(t)
        by = (amount(t) & 31 if wrap else np.minimum(amount(t), 32)).astype(np.uint64)
        shifted = (both << by) >> np.uint64(32) if left else both >> by
        write(t, shifted.astype(np.uint32))

    return run


@instruction("bfe")
def extract_field(op: Operation) -> Run:
    dtype = op.dtype("su")
    a, position, length, write = (
        op.read(1, dtype),
        op.read(2, "u4"),
        op.read(3, "u4"),
        op.write(0, dtype),
    )
    width = 8 * dtype.itemsize

    def run(t: Team) -> None:
        start, count = position(t) & 255, length(t) & 255
        # The field moves to the top, which cuts off what is above it, and back down.
        top = np.minimum(start + count, width)
        kept = top - np.minimum(start, top)
        value = shift_right(shift_left(a(t), width - top), width - kept)
        if dtype.kind == "i":
            # Beyond the top, and in a field that starts there, the sign is that of the last bit.
            value = np.where((kept == 0) & (count > 0), a(t) >> dtype.type(width - 1), value)
            value = np.where(count == 0, dtype.type(0), value)
        write(t, value)

    return run


@instruction("bfi")
def insert_field(op: Operation) -> Run:
    dtype = op.dtype("b")
    field, into = op.read(1, dtype), op.read(2, dtype)
    position, length, write = op.read(3, "u4"), op.read(4, "u4"), op.write(0, dtype)
    one = dtype.type(1)

    def run(t: Team) -> None:
        start, count = position(t) & 255, length(t) & 255
        ones = shift_left(np.full(count.shape, one, dtype), count) - one
        mask = shift_left(ones, start)
        write(t, (shift_left(field(t), start) & mask) | (into(t) & ~mask))

    return run


@instruction("bfind")
def find_leading(op: Operation) -> Run:
    from_top = op.flag("shiftamt")
    dtype = op.dtype("su")
    a, write = op.read(1, dtype), op.write(0, "u4")
    width = 8 * dtype.itemsize

    def run(t: Team) -> None:
        value = a(t)
        if dtype.kind == "i":
            value = np.where(value < 0, ~value, value)
        zeros = leading_zeros(value.view(f"u{dtype.itemsize}"))
        found = zeros if from_top else np.uint32(width - 1) - zeros
        write(t, np.where(zeros == width, np.uint32(0xFFFFFFFF), found))

    return run


def leading_zeros(value: NDArray) -> NDArray[np.uint32]:
    """The number of zero bits above the first one."""
    width = 8 * value.dtype.itemsize
    smeared = value.copy()
    for step in (1, 2, 4, 8, 16, 32):
        if step < width:
            smeared |= smeared >> value.dtype.type(step)
    return (width - np.bitwise_count(smeared)).astype(np.uint32)


@instruction("clz", "popc")
def count_bits(op: Operation) -> Run:
    function = leading_zeros if op.stem == "clz" else np.bitwise_count
    dtype = op.dtype("b")
    a, write = op.read(1, dtype), op.write(0, "u4")
    return lambda t: write(t, function(a(t)).astype(np.uint32))


@instruction("brev")
def reverse_bits(op: Operation) -> Run:
    dtype = op.dtype("b")
    a, write = op.read(1, dtype), op.write(0, dtype)

    def run(t: Team) -> None:
        bits = np.unpackbits(a(t).view(np.uint8).reshape(-1, dtype.itemsize), axis=1)
        # Reversed as a whole, the bytes too, which are stored lowest first.
        write(t, np.packbits(bits[:, ::-1], axis=1).view(dtype).reshape(-1))

    return run


@instruction("lop3")
def three_input_logic(op: Operation) -> Run:
    if op.type() != "b32":
        raise op.unsupported("lop3 has type b32")
    a, b, c, write = op.read(1, "u4"), op.read(2, "u4"), op.read(3, "u4"), op.write(0, "u4")
    table = op.constant(4)

    def run(t: Team) -> None:
        x, y, z = a(t), b(t), c(t)
        result = np.zeros(1, np.uint32)
        for row in range(8):
            if table >> row & 1:
                result = result | (
                    (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
                )
        write(t, result)

    return run


# Byte selectors of prmt's special modes, by the low two bits of the third operand.
_PERMUTATIONS = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}


@instruction("prmt.b32")
def permute_bytes(op: Operation) -> Run:
    mode = op.one_of(*_PERMUTATIONS, default="")
    # Compilers fill bytes that nobody looks at from registers that were never written.
    a, b = op.read(1, "u4", or_noise=True), op.read(2, "u4", or_noise=True)
    selector, write = op.read(3, "u4"), op.write(0, "u4")

    def selectors(t: Team) -> NDArray[np.uint32]:
        if not mode:
            return selector(t)
        packed = [
            sum(byte << 4 * (3 - i) for i, byte in enumerate(row)) for row in _PERMUTATIONS[mode]
        ]
        return np.array(packed, np.uint32)[selector(t) & 3]

    def run(t: Team) -> None:
        both = a(t).astype(np.uint64) | (b(t).astype(np.uint64) << np.uint64(32))
        chosen = selectors(t)
        result = np.zeros(1, np.uint32)
        for i in range(4):
            pick = chosen >> np.uint32(4 * i)
            byte = both >> ((pick & 7) * 8).astype(np.uint64) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            byte = np.where(pick & 8, sign, byte)
            result = result | byte.astype(np.uint32) << np.uint32(8 * i)
        write(t, result)

    return run
