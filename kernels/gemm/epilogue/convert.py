"""Convert vectors between types: to nearest even; integers and 8-bit floats saturate."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int8, Int16, Int32

from ...common.walk import select
from .instructions import assembly, in_registers, relu

_PAIRS = {  # of the cvt that converts two floats: rounding, target, register
    cutlass.Float16: ("rn", "f16x2", Int32),
    cutlass.BFloat16: ("rn", "bf16x2", Int32),
    cutlass.Float8E4M3FN: ("rn.satfinite", "e4m3x2", Int16),
    cutlass.Float8E5M2: ("rn.satfinite", "e5m2x2", Int16),
}
_INTEGERS = {Int8: "sat.s8", Int32: "s32"}  # cvt of a float to s32 always saturates
_REGISTERS = {Int32: "r", Float32: "f", Float64: "d"}
_LETTERS = {Int16: "h", Int32: "r"}


def converted(x: Any, dtype: Any, *, positive: bool = False) -> Any:
    """Convert a vector of floats or int32 to ``dtype``. ``positive`` adds a ReLU, which costs
    nothing where pairs are converted.
    """
    kind = x.element_type
    narrow = dtype.width == 8 and dtype.is_float
    if narrow or (positive and dtype in _PAIRS and kind is Float32):
        return _pairs(x.to(Float32), dtype, ".relu" * positive)
    if positive:
        x = relu(x)
    if kind is dtype:
        return x
    if dtype is Int8 and kind is Int32:
        return _each(x, Int8, "cvt.sat.s8.s32")
    if dtype is Int8 or dtype is Int32:
        return _each(x, dtype, f"cvt.rni.{_INTEGERS[dtype]}.f{kind.width}")
    return x.to(dtype)


def _each(x: Any, dtype: Any, instruction: str) -> Any:
    values, out = in_registers(x), cute.make_rmem_tensor(x.shape, dtype)
    register = _REGISTERS[x.element_type]
    for i in range(cute.size(out)):
        value = values[i]
        if x.element_type is Float64:  # cvt turns an fp64 NaN into the least integer, fp32's into 0
            value = select(value == value, value, Float64(0.0))
        of = f"{instruction} $0, $1;", f"=r,{register}"
        out[i] = dtype(Int32(assembly(Int32, *of, value)))
    return out.load()


def _pairs(x: Any, dtype: Any, relu: str) -> Any:
    """Convert two at a time. 8-bit types saturate to their largest finite number; NaN stays NaN."""
    rounding, name, word = _PAIRS[dtype]
    count = cute.size(x.shape)
    values = in_registers(x)
    words = cute.make_rmem_tensor((-(-count // 2),), word)
    of = f"cvt.{rounding}{relu}.{name}.f32 $0, $1, $2;", f"={_LETTERS[word]},f,f"
    for i in range(0, count, 2):
        upper = values[i + 1] if i + 1 < count else Float32(0.0)
        words[i // 2] = word(assembly(word, *of, upper, values[i]))
    out = cute.recast_tensor(words, dtype)
    return cute.make_tensor(out.iterator, cute.make_layout(x.shape)).load()
