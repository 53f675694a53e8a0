"""ldmatrix, stmatrix and mma.sync (PTX ISA 9.7.14): matrices spread over the lanes of a warp.

A fragment of 32-bit registers holds ``e = 32 / bits`` elements in each, of 4 bits too, the first in
the lowest. With g = lane // 4 and t = lane % 4, element j of register i is, for all shapes here,

    A (16 x K)   row g + 8 (i % 2)     column  e t + j + 4 e (i // 2)
    B (K x 8)    row e t + j + 4 e i   column  g
    C (16 x 8)   row g + 8 (i // 2)    column  2 t + i % 2        one 32-bit element a register
    C (16 x 8)   row g + 8 i           column  2 t + j            two 16-bit elements a register

Products and sums are exact (float64) and rounded once at the end; a GPU keeps fewer bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .. import formats
from ..operation import Operation, Read, Run, Write, instruction
from ..team import WARP, Team

_LANE = np.arange(WARP)
_G, _T = _LANE // 4, _LANE % 4

# Bits of an operand's element, by its type.
_BITS = {
    "tf32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4,
}  # fmt: skip
_SHAPES = {
    "tf32": (4, 8),
    "f16": (8, 16),
    "bf16": (8, 16),
    "s8": (16, 32),
    "u8": (16, 32),
    "e4m3": (16, 32),
    "e5m2": (16, 32),
    "s4": (32, 64),
    "u4": (32, 64),
}
_INTEGERS = ("s8", "u8", "s4", "u4")

# An index of arrays of shape (warps, rows, columns).
_Places = tuple[slice, NDArray, NDArray]
_ALL = slice(None)


@cache
def _a_places(registers: int, elements: int) -> _Places:
    """Where the elements of A are: row and column, each of shape (registers, lanes, elements)."""
    i, j = np.arange(registers)[:, None, None], np.arange(elements)
    return _ALL, _G[:, None] + 8 * (i % 2), elements * _T[:, None] + j + 4 * elements * (i // 2)


@cache
def _b_places(registers: int, elements: int) -> _Places:
    """Where the elements of B are."""
    i, j = np.arange(registers)[:, None, None], np.arange(elements)
    return _ALL, elements * _T[:, None] + j + 4 * elements * i, _G[:, None]


@cache
def _c_places(elements: int) -> _Places:
    """Where the elements of C are."""
    i, j = np.arange(4 // elements)[:, None, None], np.arange(elements)
    if elements == 2:
        return _ALL, _G[:, None] + 8 * i, 2 * _T[:, None] + j
    return _ALL, _G[:, None] + 8 * (i // 2), 2 * _T[:, None] + i % 2


def _values(codes: NDArray[np.uint32], name: str) -> NDArray:
    """The elements of registers: shape (..., elements), as float64."""
    if name == "f32":
        return codes.view(np.float32)[..., None].astype(np.float64)
    if name == "s32":
        return codes.view(np.int32)[..., None].astype(np.float64)
    if _BITS[name] == 4:
        nibbles = codes[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
        signed = nibbles.astype(np.float64)
        return signed - 16 * (signed > 7) if name == "s4" else signed
    part = {32: "u4", 16: "u2", 8: "u1"}[_BITS[name]]
    elements = codes[..., None].view(part)
    if name in ("s8", "u8"):
        return elements.view("i1" if name == "s8" else "u1").astype(np.float64)
    # tf32: the hardware ignores the 13 low bits, and so does this.
    return formats.decode(elements, name).astype(np.float64)


def _gather(reads: list[Read], t: Team) -> NDArray[np.uint32]:
    """Registers as an array of shape (warps, registers, lanes of a warp)."""
    rows = np.empty((t.warps, len(reads), WARP), np.uint32)
    for i, read in enumerate(reads):
        rows[:, i] = read(t).reshape(-1, WARP)
    return rows


def _scatter(writes: list[Write], registers: NDArray[np.uint32], t: Team) -> None:
    """The opposite of :func:`_gather`."""
    for i, write in enumerate(writes):
        write(t, np.ascontiguousarray(registers[:, i]).reshape(-1))


@instruction("mma.sync.aligned")
def multiply_accumulate(op: Operation) -> Run:
    shape = op.modifiers.pop(0)
    op.one_of("row")
    op.one_of("col")
    satfinite = op.flag("satfinite")
    d_type, a_type, b_type, c_type = op.modifiers
    op.modifiers.clear()
    depth = int(shape.removeprefix("m16n8k")) if shape.startswith("m16n8k") else 0
    if a_type not in _BITS or _BITS[a_type] != _BITS.get(b_type) or depth not in _SHAPES[a_type]:
        raise op.unsupported("this mma is not implemented")
    accumulators = ("s32",) if a_type in _INTEGERS else ("f32", "f16")
    if d_type != c_type or d_type not in accumulators:
        raise op.unsupported("these accumulators are not implemented")
    op.collective()
    elements = 32 // _BITS[a_type]
    c_elements = 2 if c_type == "f16" else 1
    reads = [[op.reader(r, np.dtype(np.uint32)) for r in op.items(i)] for i in (1, 2, 3)]
    writes = [op.writer(r, np.dtype(np.uint32)) for r in op.items(0)]
    counts = [16 * depth // WARP // elements, 8 * depth // WARP // elements, 4 // c_elements]
    if [len(r) for r in reads] != counts or len(writes) != counts[2]:
        raise op.unsupported("wrong number of registers")
    a_places, b_places = _a_places(counts[0], elements), _b_places(counts[1], elements)
    c_places = _c_places(c_elements)

    def run(t: Team) -> None:
        a = np.empty((t.warps, 16, depth))
        b = np.empty((t.warps, depth, 8))
        c = np.empty((t.warps, 16, 8))
        a[a_places] = _values(_gather(reads[0], t), a_type)
        b[b_places] = _values(_gather(reads[1], t), b_type)
        c[c_places] = _values(_gather(reads[2], t), c_type)
        d = (a @ b + c)[c_places]
        _scatter(writes, _accumulators(d, d_type, satfinite), t)

    return run


def _accumulators(d: NDArray[np.float64], name: str, satfinite: bool) -> NDArray[np.uint32]:
    """Results of shape (warps, registers, lanes, elements) as the bits of registers."""
    if name == "f32":
        return d.astype(np.float32).view(np.uint32)[..., 0]
    if name == "f16":
        return np.ascontiguousarray(formats.encode(d, "f16").astype(np.uint16)).view(np.uint32)[
            ..., 0
        ]
    if satfinite:
        d = np.clip(d, -(2.0**31), 2.0**31 - 1)
    return d.astype(np.int64).astype(np.uint32)[..., 0]


def _matrices(op: Operation) -> tuple[int, bool]:
    """Return the number of 8 x 8 matrices of 16-bit elements, and True if transposed."""
    op.one_of("m8n8")
    count = int(op.one_of("x1", "x2", "x4")[1:])
    transposed = op.flag("trans")
    op.one_of("shared", "shared::cta", default="")
    op.one_of("b16")
    op.collective()
    return count, transposed


def _row_lanes(count: int, t: Team) -> NDArray[np.intp]:
    """The lanes that hold the addresses of the matrices' rows, 8 a matrix, warp by warp."""
    return t.numbers.reshape(-1, WARP)[:, : 8 * count].reshape(-1)


@instruction("ldmatrix.sync.aligned")
def load_matrix(op: Operation) -> Run:
    count, transposed = _matrices(op)
    writes = [op.writer(item, np.dtype(np.uint32)) for item in op.items(0)]
    if len(writes) != count:
        raise op.unsupported(f"{count} destinations expected")
    address = op.address(1)

    def run(t: Team) -> None:
        lanes = _row_lanes(count, t)
        lanes = lanes if t.full else lanes[t.active[lanes]]
        where = np.broadcast_to(address(t), t.numbers.shape)[lanes]
        rows = t.cta.shared.load_by(where, 16, lanes, t.warp_of[lanes])
        matrices = rows.view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        # Lane l holds elements 2 (l % 4) and the next of row l // 4.
        registers = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
        for i, write in enumerate(writes):
            write(t, t.spread(registers[:, i].reshape(-1), np.dtype(np.uint32)))

    return run


@instruction("stmatrix.sync.aligned")
def store_matrix(op: Operation) -> Run:
    count, transposed = _matrices(op)
    address = op.address(0)
    reads = [op.reader(item, np.dtype(np.uint32)) for item in op.items(1)]
    if len(reads) != count:
        raise op.unsupported(f"{count} sources expected")

    def run(t: Team) -> None:
        lanes = _row_lanes(count, t)
        matrices = _gather(reads, t).view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        rows = np.ascontiguousarray(matrices).reshape(-1, 8).view("V16").reshape(-1)
        chosen = t.active[lanes]
        lanes, rows = lanes[chosen], rows[chosen]
        where = np.broadcast_to(address(t), t.numbers.shape)[lanes]
        t.cta.shared.store_by(where, rows, lanes, t.warp_of[lanes])

    return run


@instruction("movmatrix.sync.aligned.m8n8.trans.b16")
def transpose_matrix(op: Operation) -> Run:
    op.collective()
    read, write = op.read(1, "u4"), op.write(0, "u4")

    def run(t: Team) -> None:
        matrices = np.ascontiguousarray(read(t)).view(np.uint16).reshape(-1, 8, 8)
        write(t, np.ascontiguousarray(matrices.swapaxes(1, 2)).view(np.uint32).reshape(-1))

    return run
