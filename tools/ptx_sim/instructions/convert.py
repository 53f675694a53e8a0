"""Conversion between types (PTX ISA 9.7.9.21, ``cvt``, and 9.7.9.22, ``cvt.pack``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .. import formats
from ..operation import Operation, Read, Run, Write, instruction, numpy_dtype
from ..ptx import TYPE_BITS
from ..team import Team
from .floating import flush

_TO_INTEGRAL: dict[str, Callable[[NDArray], NDArray]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_ROUNDINGS = ("rn", "rna", "rz", "rm", "rp")
_FLOATS = ("f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2")


@instruction("cvt")
def convert(op: Operation) -> Run:
    *_, target, source = op.modifiers
    del op.modifiers[-2:]
    if target.endswith("x2"):
        return _convert_pair(op, target.removesuffix("x2"), source)
    to_float, from_float = target in _FLOATS, source in _FLOATS
    if from_float and to_float:
        return _float_to_float(op, target, source)
    if from_float:
        return _float_to_integer(op, target, source)
    if to_float:
        return _integer_to_float(op, target, source)
    return _integer_to_integer(op, target, source)


def clamp(value: NDArray, dtype: np.dtype) -> NDArray:
    """Integers clamped to the range of ``dtype``."""
    info, have = np.iinfo(dtype), np.iinfo(value.dtype)
    return np.clip(value, max(info.min, have.min), min(info.max, have.max)).astype(dtype)


def _integer_to_integer(op: Operation, target: str, source: str) -> Run:
    if not {target, source} <= TYPE_BITS.keys():
        raise op.unsupported("conversion is not implemented")
    sat = op.flag("sat")
    have, want = numpy_dtype(source), numpy_dtype(target)
    read, write = op.read(1, have), op.write(0, want)
    if sat:
        return lambda t: write(t, clamp(read(t), want))
    return lambda t: write(t, read(t).astype(want))


def _read_float(op: Operation, position: int, name: str) -> Read:
    """The values of an operand of a scalar floating-point type, float64 for f64, else float32."""
    if name in ("f32", "f64"):
        return op.read(position, numpy_dtype(name))
    if name not in ("f16", "bf16"):
        raise op.unsupported(f"conversion from {name} is not implemented")
    codes = op.read(position, "u2")
    return lambda t: formats.decode(codes(t), name)


def _float_writer(op: Operation, name: str, rounding: str, satfinite: bool) -> Write:
    if name == "f64" or (name == "f32" and rounding == "rn"):
        dtype = numpy_dtype(name)
        plain = op.write(0, dtype)
        return lambda t, value: plain(t, value.astype(dtype))
    bits = np.dtype(np.uint32 if name in ("f32", "tf32") else np.uint16)
    write = op.write(0, bits)
    return lambda t, value: write(
        t, formats.encode(value, name, rounding, satfinite=satfinite).astype(bits)
    )


def _float_to_float(op: Operation, target: str, source: str) -> Run:
    integral = _TO_INTEGRAL.get(op.one_of(*_TO_INTEGRAL, default=""))
    rounding = op.one_of(*_ROUNDINGS, default="rn")
    satfinite, relu, ftz, sat = (op.flag(f) for f in ("satfinite", "relu", "ftz", "sat"))
    read = _read_float(op, 1, source)
    write = _float_writer(op, target, rounding, satfinite)

    def run(t: Team) -> None:
        value = read(t)
        if ftz:
            value = flush(value)
        if integral is not None:
            value = integral(value)
        if sat:
            value = np.where(np.isnan(value), value.dtype.type(0), np.clip(value, 0, 1))
        if relu:
            value = np.where(value < 0, value.dtype.type(0), value)
        write(t, value)

    return run


def _float_to_integer(op: Operation, target: str, source: str) -> Run:
    integral = _TO_INTEGRAL[op.one_of(*_TO_INTEGRAL)]
    ftz = op.flag("ftz")
    op.flag("sat")  # the result is clamped either way
    want = numpy_dtype(target)
    bits = TYPE_BITS[target]
    read, write = _read_float(op, 1, source), op.write(0, want)
    info = np.iinfo(want)
    # NaN becomes zero, but the middle of the unsigned range where either side has 64 bits.
    nan = (1 << bits - 1) if 64 in (bits, TYPE_BITS[source]) else 0
    nan_value = np.array([nan], f"u{want.itemsize}").view(want)
    top = float(info.max) + (0 if bits < 64 else 1)

    def run(t: Team) -> None:
        value = flush(read(t)) if ftz else read(t)
        whole = integral(value.astype(np.float64))
        inside = np.where((whole >= info.min) & (whole < top), whole, 0).astype(want)
        result = np.where(whole >= top, info.max, np.where(whole < info.min, info.min, inside))
        write(t, np.where(np.isnan(value), nan_value, result.astype(want)))

    return run


def _integer_to_float(op: Operation, target: str, source: str) -> Run:
    rounding = op.one_of(*_ROUNDINGS)
    op.flag("ftz")  # an integer is never subnormal
    if op.flag("sat") or (TYPE_BITS[source] == 64 and (rounding, target) not in _EXACT_64):
        raise op.unsupported("conversion is not implemented")
    read = op.read(1, numpy_dtype(source))
    write = _float_writer(op, target, rounding, False)
    return lambda t: write(t, read(t))


# float64 does not hold every 64-bit integer, so only NumPy's own conversions round those once.
_EXACT_64 = {("rn", "f32"), ("rn", "f64")}


def _convert_pair(op: Operation, target: str, source: str) -> Run:
    """Two values into one register (the first operand on top), or a packed pair into another."""
    rounding = op.one_of(*_ROUNDINGS)
    satfinite, relu = op.flag("satfinite"), op.flag("relu")
    narrow = np.dtype(np.uint8 if target in ("e4m3", "e5m2") else np.uint16)
    whole = np.dtype(f"u{2 * narrow.itemsize}")
    write = op.write(0, whole)
    if target not in _FLOATS:
        raise op.unsupported(f"conversion to {target}x2 is not implemented")
    if source == "f32":
        upper, lower = op.read(1, "f4"), op.read(2, "f4")

        def values(t: Team) -> NDArray:
            return np.stack(np.broadcast_arrays(lower(t), upper(t)), axis=-1)

    elif source in ("e4m3x2", "e5m2x2", "f16x2", "bf16x2"):
        element = source.removesuffix("x2")
        part = np.dtype(np.uint8 if element[0] == "e" else np.uint16)
        codes = op.read(1, f"u{2 * part.itemsize}")

        def values(t: Team) -> NDArray:
            return formats.decode(codes(t).view(part).reshape(-1, 2), element)

    else:
        raise op.unsupported(f"conversion from {source} is not implemented")

    def run(t: Team) -> None:
        value = values(t)
        if relu:
            value = np.where(value < 0, value.dtype.type(0), value)
        bits = formats.encode(value, target, rounding, satfinite=satfinite).astype(narrow)
        write(t, np.ascontiguousarray(bits).view(whole).reshape(-1))

    return run


@instruction("cvt.pack.sat")
def convert_pack(op: Operation) -> Run:
    target, source, *rest = op.modifiers
    op.modifiers.clear()
    if source != "s32" or target not in ("s8", "u8", "s16", "u16"):
        raise op.unsupported("conversion is not implemented")
    want = numpy_dtype(target)
    upper, lower, write = op.read(1, "i4"), op.read(2, "i4"), op.write(0, "u4")
    bits = np.uint32(TYPE_BITS[target])
    carried = op.read(3, "u4") if rest else None
    unsigned = np.dtype(f"u{want.itemsize}")

    def run(t: Team) -> None:
        high, low = (
            clamp(read(t), want).view(unsigned).astype(np.uint32) for read in (upper, lower)
        )
        result = high << bits | low
        if carried is not None:
            result = result | carried(t) << (bits + bits)
        write(t, result)

    return run
