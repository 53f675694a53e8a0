"""PTX instructions that the DSL does not expose, applied to vectors element by element.

On an SM, comparisons, selects and maxima have half the throughput of sums and products. So a
maximum is one instruction instead of a comparison and a select, and a ReLU in front of a conversion
(``convert.py``) is none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass.cute as cute
from cutlass import Float32
from cutlass._mlir.dialects import llvm

Vector = Any  # cute.TensorSSA


def assembly(kind: Any, text: str, constraints: str, *values: Any) -> Any:
    """Run PTX on values ``$1``, ``$2``, ... and return ``$0``, of type ``kind``."""
    return llvm.inline_asm(
        kind.mlir_type,
        [value.ir_value() for value in values],
        text,
        constraints,
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def in_registers(x: Vector) -> Any:
    """Copy a vector to a register tensor, whose elements can be indexed."""
    values = cute.make_rmem_tensor(x.shape, x.element_type)
    values.store(x)
    return values


def least(x: Vector, y: Vector) -> Vector:
    """The elementwise minimum; NaN if either element is."""
    return _either("min", operator.lt, x, y)


def greatest(x: Vector, y: Vector) -> Vector:
    """The elementwise maximum; NaN if either element is."""
    return _either("max", operator.gt, x, y)


def relu(x: Vector) -> Vector:
    """ReLU; NaN stays NaN."""
    return greatest(x, cute.full_like(x, 0.0))


def _either(name: str, before: Callable[[Vector, Vector], Vector], x: Vector, y: Vector) -> Vector:
    if x.element_type is not Float32:
        return cute.where(before(x, y) | (x != x), x, y)
    left, right, out = in_registers(x), in_registers(y), cute.make_rmem_tensor(x.shape, Float32)
    of = f"{name}.NaN.f32 $0, $1, $2;", "=f,f,f"
    for i in range(cute.size(out)):
        out[i] = Float32(assembly(Float32, *of, left[i], right[i]))
    return out.load()
