"""Moves, packing and unpacking, address conversion, selection (PTX ISA 9.7.6 and 9.7.9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import layout
from ..operation import Operation, Run, instruction, numpy_dtype
from ..ptx import TYPE_BITS, Vector
from ..team import Team


@instruction("mov")
def move(op: Operation) -> Run:
    name = op.type()
    if isinstance(op.operand(0), Vector):
        return _unpack(op, TYPE_BITS[name])
    if isinstance(op.operand(1), Vector):
        return _pack(op, TYPE_BITS[name])
    dtype = numpy_dtype(name)
    read, write = op.read(1, dtype), op.write(0, dtype)
    return lambda t: write(t, read(t))


def _unpack(op: Operation, bits: int) -> Run:
    parts = op.items(0)
    part = np.dtype(f"u{bits // 8 // len(parts)}")
    read = op.read(1, "V16" if bits == 128 else f"u{bits // 8}")
    writes = [op.writer(item, part) for item in parts]

    def run(t: Team) -> None:
        columns = read(t).view(part).reshape(-1, len(parts))
        for i, write in enumerate(writes):
            write(t, np.ascontiguousarray(columns[:, i]))

    return run


def _pack(op: Operation, bits: int) -> Run:
    parts = op.items(1)
    part = np.dtype(f"u{bits // 8 // len(parts)}")
    whole = np.dtype("V16" if bits == 128 else f"u{bits // 8}")
    reads = [op.reader(item, part) for item in parts]
    write = op.write(0, whole)

    def run(t: Team) -> None:
        write(t, stack([read(t) for read in reads], t).view(whole).reshape(-1))

    return run


def stack(columns: list[NDArray], team: Team) -> NDArray:
    """Values side by side: shape (lanes, values)."""
    out = np.empty((team.numbers.size, len(columns)), columns[0].dtype)
    for i, column in enumerate(columns):
        out[:, i] = column
    return out


@instruction("cvta")
def convert_address(op: Operation) -> Run:
    # cvta.to.SPACE takes a generic address apart; cvta.SPACE makes one.
    sign = -1 if op.flag("to") else 1
    space = op.one_of(
        "global", "shared", "shared::cta", "shared::cluster", "local", "param", "const"
    )
    offset = np.uint64(sign * layout.GENERIC_WINDOW.get(space.split("::")[0], 0) % (1 << 64))
    dtype = op.dtype("u")
    if dtype != np.uint64:
        raise op.unsupported("addresses have 64 bits")
    read, write = op.read(1, dtype), op.write(0, dtype)
    return lambda t: write(t, read(t) + offset)


@instruction("mapa")
def map_address(op: Operation) -> Run:
    op.one_of("shared::cluster", default="")
    dtype = op.dtype("u")
    read, rank, write = op.read(1, dtype), op.read(2, "u4"), op.write(0, dtype)
    return lambda t: write(t, t.cta.cluster.address(read(t), rank(t)))


@instruction("selp")
def select(op: Operation) -> Run:
    dtype = numpy_dtype(op.type())
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    predicate = op.read(3, np.bool_)
    return lambda t: write(t, np.where(predicate(t), a(t), b(t)))


@instruction("slct")
def select_by_sign(op: Operation) -> Run:
    op.flag("ftz")
    condition = numpy_dtype(op.type())
    dtype = numpy_dtype(op.type())
    a, b, write = op.read(1, dtype), op.read(2, dtype), op.write(0, dtype)
    c = op.read(3, condition)
    return lambda t: write(t, np.where(c(t) >= 0, a(t), b(t)))
