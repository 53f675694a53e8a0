"""Vectors from one type to another: to nearest even, saturating where the type has no infinity."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float8E4M3FN, Float8E5M2, Float32, Int8, Int16, Int32
from cutlass._mlir.dialects import llvm

_FP8 = {Float8E4M3FN: "e4m3x2", Float8E5M2: "e5m2x2"}


def converted(x: Any, dtype: Any) -> Any:
    """A vector of floats or of int32 as one of ``dtype``."""
    kind = x.element_type
    if kind is dtype:
        return x
    if dtype in _FP8:
        return _pairs(x.to(Float32), dtype)
    if dtype is Int8:
        return _each(x, Int8, "cvt.sat.s8.s32" if kind is Int32 else "cvt.rni.sat.s8.f32")
    if dtype is Int32:
        return _each(x, Int32, "cvt.rni.s32.f32")  # which saturates by definition
    return x.to(dtype)


def _each(x: Any, dtype: Any, instruction: str) -> Any:
    values, out = _held(x), cute.make_rmem_tensor(x.shape, dtype)
    letter = "r" if x.element_type is Int32 else "f"
    for i in range(cute.size(out)):
        out[i] = dtype(Int32(_asm(Int32, instruction, f"=r,{letter}", values[i])))
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
