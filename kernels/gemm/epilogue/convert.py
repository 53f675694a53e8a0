"""Vectors from one type to another: to nearest even, saturating where the type has no infinity."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float8E5M2, Float32, Float64, Int8, Int16, Int32
from cutlass._mlir.dialects import llvm

from ...common.walk import select

_FP8 = {Float8E4M3FN: "e4m3x2", Float8E5M2: "e5m2x2"}
_INTEGERS = {Int8: "sat.s8", Int32: "s32"}  # a float as 32 bits saturates by definition
_REGISTERS = {Int32: "r", Float32: "f", Float64: "d"}


def converted(x: Any, dtype: Any) -> Any:
    """A vector of floats or of int32 as one of ``dtype``."""
    kind = x.element_type
    if kind is dtype:
        return x
    if dtype in _FP8:
        return _pairs(x.to(Float32), dtype)
    if dtype is Int8 and kind is Int32:
        return _each(x, Int8, "cvt.sat.s8.s32")
    if dtype is Int8 or dtype is Int32:
        return _each(x, dtype, f"cvt.rni.{_INTEGERS[dtype]}.f{kind.width}")
    return x.to(dtype)


def _each(x: Any, dtype: Any, instruction: str) -> Any:
    values, out = _held(x), cute.make_rmem_tensor(x.shape, dtype)
    register = _REGISTERS[x.element_type]
    for i in range(cute.size(out)):
        value = values[i]
        if x.element_type is Float64:  # whose NaN is the least integer, that of Float32 is 0
            value = select(value == value, value, Float64(0.0))
        out[i] = dtype(Int32(_asm(Int32, instruction, f"=r,{register}", value)))
    return out.load()


def _pairs(x: Any, dtype: Any) -> Any:
    """To fp8, two at a time: the largest finite number for what is larger, NaN for NaN."""
    count = cute.size(x.shape)
    values = _held(x)
    words = cute.make_rmem_tensor((-(-count // 2),), Int16)
    instruction = f"cvt.rn.satfinite.{_FP8[dtype]}.f32"
    for i in range(0, count, 2):
        upper = values[i + 1] if i + 1 < count else Float32(0.0)
        words[i // 2] = Int16(_asm(Int16, instruction, "=h,f,f", upper, values[i]))
    out = cute.recast_tensor(words, dtype)
    return cute.make_tensor(out.iterator, cute.make_layout(x.shape)).load()


def _held(x: Any) -> Any:
    values = cute.make_rmem_tensor(x.shape, x.element_type)
    values.store(x)
    return values


def _asm(kind: Any, instruction: str, constraints: str, *values: Any) -> Any:
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    return llvm.inline_asm(
        kind.mlir_type,
        [value.ir_value() for value in values],
        f"{instruction} $0, {names};",
        constraints,
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
