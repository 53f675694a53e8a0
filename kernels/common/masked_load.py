"""Loads predicated by a bit of a mask: zeros without a branch, one instruction per test."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int16, Int32
from cutlass._mlir import dialects

llvm: Any = dialects.llvm
BITS = 30  # bits used per mask word; the sign bit is not one of them


def masks(conditions: list[Any]) -> list[Any]:
    """Pack conditions into mask words, ``BITS`` per word."""
    words = []
    for start in range(0, len(conditions), BITS):
        word = Int32(0)
        for bit, condition in enumerate(conditions[start : start + BITS]):
            word = word | (Int32(condition) << bit)
        words.append(word)
    return words


def load_masked(
    base: Any, step: Any, count_of_steps: int, vector: int, words: list[Any], bit: int
) -> Any:
    """Load a vector of 2 to 16 bytes of read-only memory to registers; zeros if the bit is not set.

    It starts ``count_of_steps`` times ``step`` (Int32) elements after ``base``; both are whole
    vectors. If the bit is not set, the address need not be valid.
    """
    dtype = base.dtype
    size = vector * dtype.width // 8
    count = max(1, size // 4)
    kind, letter, width = (Int16, "h", 16) if size == 2 else (Int32, "r", 32)
    names = [f"${i}" for i in range(count)]
    shape = f".v{count}" if count > 1 else ""
    target = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    zeros = " ".join(f"mov.b{width} {name}, 0;" for name in names)
    step_bytes = count_of_steps * dtype.width // 8
    text = (  # one multiply-add with a 64-bit sum per address
        f"{{ .reg .pred p; .reg .b64 a; mad.wide.s32 a, ${count + 2}, {step_bytes}, ${count}; "
        f"setp.ne.s32 p, ${count + 1}, 0; {zeros} "
        f"@p ld.global.nc{shape}.b{width} {target}, [a]; }}"
    )
    found = llvm.inline_asm(
        kind.mlir_type if count == 1 else llvm.StructType.get_literal([kind.mlir_type] * count),
        [
            base.toint().ir_value(),
            (words[bit // BITS] & (1 << (bit % BITS))).ir_value(),
            Int32(step).ir_value(),
        ],
        text,
        ",".join([f"=&{letter}"] * count + ["l", "r", "r"]),
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    result = cute.make_rmem_tensor(count, kind)
    for i in range(count):
        value = found if count == 1 else llvm.extractvalue(kind.mlir_type, found, [i])
        result[i] = kind(value)
    return cute.make_tensor(cute.recast_ptr(result.iterator, dtype=dtype), cute.make_layout(vector))
