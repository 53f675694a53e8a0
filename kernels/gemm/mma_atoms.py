"""MMA atoms: the instruction that multiplies each data type, and its register fragments.

To add a type, add a row to ``MULTIPLY``. Tensor cores take k-blocks of 32 bytes per row, whatever
the type; 8-bit data use the fragments of 16-bit data, two numbers per element. An element of 4-bit
data is a byte, a pair of numbers along k: only the MMA instruction sees the pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import (
    BFloat16,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Float64,
    Int8,
    Int32,
    TFloat32,
    Uint8,
    select_,
)
from cutlass._mlir import dialects
from cutlass.cute.nvgpu import MmaUniversalOp, warp

from layoutconv.planning.tile import TileConfig

llvm: Any = dialects.llvm


@dataclass(frozen=True)
class Data:
    """A type that kernels multiply.

    Args:
        element: the type in global and shared memory.
        memory: the type of the tensor argument, if it differs (fp8 arrives as bytes).
        accumulator: the type of the accumulators.
        instruction: the warp's MMA in PTX; "" for CuTe's own atom, or the CUDA cores for fp64.
    """

    name: str
    element: Any
    accumulator: Any
    memory: Any = None
    instruction: str = ""

    @property
    def argument(self) -> Any:
        return self.memory or self.element

    @property
    def bytes(self) -> int:
        width: int = self.element.width
        return width // 8


_MMA_8_BIT = "mma.sync.aligned.m16n8k32.row.col."
_MMA_4_BIT = "mma.sync.aligned.m16n8k64.row.col."
MULTIPLY = {
    data.name: data
    for data in (
        Data("float16", Float16, Float32),
        Data("bfloat16", BFloat16, Float32),
        Data("tfloat32", TFloat32, Float32, memory=Float32),
        Data("float32", TFloat32, Float32, memory=Float32),  # three tf32 products
        Data("float64", Float64, Float64),
        Data("int8", Int8, Int32, instruction=_MMA_8_BIT + "s32.s8.s8.s32"),
        Data("int4", Int8, Int32, instruction=_MMA_4_BIT + "s32.s4.s4.s32"),
        Data("float8_e4m3fn", Float8E4M3FN, Float32, Uint8, _MMA_8_BIT + "f32.e4m3.e4m3.f32"),
        Data("float8_e5m2", Float8E5M2, Float32, Uint8, _MMA_8_BIT + "f32.e5m2.e5m2.f32"),
    )
}


@dataclass(frozen=True)
class StoredType:
    """A type that results are stored in."""

    element: Any
    memory: Any = None  # the type of the tensor argument, if it differs

    @property
    def argument(self) -> Any:
        return self.memory or self.element


OUTPUT = {
    "float16": StoredType(Float16),
    "bfloat16": StoredType(BFloat16),
    "float32": StoredType(Float32),
    "float64": StoredType(Float64),
    "int32": StoredType(Int32),
    "int8": StoredType(Int8),
    "float8_e4m3fn": StoredType(Float8E4M3FN, Uint8),
    "float8_e5m2": StoredType(Float8E5M2, Uint8),
}


def rows_in_pairs(warps: int) -> Any:
    """Return the order of 16 rows per warp in which a lane's two rows of an MMA atom are adjacent.

    Without it they are 8 apart. Words that ``ldmatrix`` cannot transpose are then read as pairs,
    which lie in A's registers as they are read. Pairs of B would be parts of two fragments.
    """
    return cute.make_layout((8, 2, warps), stride=(2, 1, 16))


class Multiplier:
    """The tiled MMA of a CTA for a data type, and the rounding of fragments in front of it.

    ``along``: the contiguous modes of A and B in shared memory.
    """

    def __init__(self, data: Data, tile: TileConfig, along: tuple[int, int], arch: int) -> None:
        self.data, self.arch = data, arch
        # The element of a fragment; 8-bit data go as pairs of 16 bits.
        self.unit = Float16 if data.bytes == 1 else data.element
        if data.element is Float64:
            op: Any = MmaUniversalOp(Float64)
            atoms, permutation, self.k = (16, tile.mma_threads // 16, 1), None, 1
        else:
            self.k = 32 // data.bytes
            if data.element is TFloat32:
                op = warp.MmaTF32Op((16, 8, 8))
            else:
                op = warp.MmaF16BF16Op(self.unit, Float32, (16, 8, 16))
            atoms = (tile.warps[0], tile.warps[1], 1)
            # Two n8 atoms side by side, so that one ldmatrix.x4 fills B's fragments of both; a tile
            # of 8 columns has one.
            columns = min(16 * tile.warps[1], tile.n)
            pairs = self.read(along[0]) == "words"
            rows = rows_in_pairs(tile.warps[0]) if pairs else 16 * tile.warps[0]
            permutation = rows, columns, op.shape_mnk[2]
        self.mma = cute.make_tiled_mma(op, cute.make_layout(atoms), permutation_mnk=permutation)

    def read(self, along: int) -> str:
        """Return how fragments of an operand contiguous along a mode are read from smem."""
        if self.data.element is Float64:
            return "rows" if along == 1 else "lines"
        return "words" if along == 0 and self.data.bytes == 4 else "matrices"

    def accumulators(self, tile: TileConfig) -> Any:
        shape = self.mma.partition_shape_C((tile.m, tile.n))
        return cute.make_rmem_tensor_like(self.mma.make_fragment_C(shape), self.data.accumulator)

    def __call__(self, acc: Any, a: Any, b: Any) -> None:
        """``acc += a * b`` for the fragments of one k-block."""
        if self.data.instruction:
            self._by_instruction(acc, a, b)
        elif self.data.name == "float32":
            self._in_three_products(acc, a, b)
        else:
            if self.data.name == "tfloat32":
                self._round(a)
                self._round(b)
            cute.gemm(self.mma, acc, a, b, acc)

    def _round(self, block: Any) -> None:
        """Round fp32 data to the nearest tf32: the tensor cores would truncate."""
        as_float, as_bits = cute.recast_tensor(block, Float32), cute.recast_tensor(block, Int32)
        for i in range(cute.size(block)):
            as_bits[i] = round_to_tf32(as_float[i], self.arch)

    def _in_three_products(self, acc: Any, a: Any, b: Any) -> None:
        """Multiply fp32 data as two tf32 numbers each, without the smallest of the four products.

        Tensor cores truncate sums instead of rounding them, which over a long sum adds up to 30
        times the error of fp32. So they sum one k-block only, and the CUDA cores, which round, add
        that to the accumulators. Infinity times a remainder of 0 would be NaN where the sum is
        infinite, so remainders multiply finite parts only.
        """
        (finite_a, rest_a), (finite_b, rest_b) = _split(a, self.arch), _split(b, self.arch)
        for n in range(cute.size(acc, mode=[2])):
            sums = _one(acc[None, None, n])
            part = cute.make_fragment_like(sums)
            part.fill(0.0)
            for left, right in ((rest_a, finite_b), (finite_a, rest_b), (a, b)):
                cute.gemm(self.mma, part, left, _one(right[None, n]), part)
            sums.store(sums.load() + part.load())

    def _by_instruction(self, acc: Any, a: Any, b: Any) -> None:
        rows, columns = (cute.size(acc, mode=[mode]) for mode in (1, 2))
        for n in range(columns):
            right = _registers(b[None, n], Int32)
            for m in range(rows):
                left = _registers(a[None, m], Int32)
                sums = acc[None, m, n]
                before = [sums[i] for i in range(4)]
                kind, instruction = self.data.accumulator, self.data.instruction
                for i, value in enumerate(_multiply(instruction, kind, before, left, right)):
                    sums[i] = value


def multiply_16_bit(dtype: Any, a: list[Any], b: list[Any], sums: list[Any]) -> list[Any]:
    """Return ``sums + a * b`` of one warp's 16 x 8 x 16 fp16 or bf16 fragments, as registers."""
    return multiply_words(dtype, a, b, sums)


def multiply_words(dtype: Any, a: list[Any], b: list[Any], sums: list[Any]) -> list[Any]:
    """Return ``sums + a * b`` of one warp's 16 x 8 fragments, as registers; k is 32 bytes with four
    registers of A, 16 bytes with two."""
    name = _WORDS[dtype]
    k = 8 * len(a) * 8 // dtype.width
    return _multiply(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{name}.{name}.f32", Float32, sums, a, b
    )


_WORDS = {Float16: "f16", BFloat16: "bf16", TFloat32: "tf32"}


def load_matrices(address: Any, count: int = 4, *, transposed: bool = True) -> list[Any]:
    """Load ``count`` 8 x 8 matrices of 16-bit elements: each lane's address is that of a row."""
    names = ", ".join(f"${i}" for i in range(count))
    words = llvm.StructType.get_literal([Int32.mlir_type] * count)
    found = llvm.inline_asm(
        words if count > 1 else Int32.mlir_type,
        [Int32(address).ir_value()],
        f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 "
        f"{{{names}}}, [${count}];",
        ",".join(["=r"] * count + ["r"]),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if count == 1:
        return [Int32(found)]
    return [Int32(llvm.extractvalue(Int32.mlir_type, found, [i])) for i in range(count)]


def _multiply(
    instruction: str, kind: Any, sums: list[Any], a: list[Any], b: list[Any]
) -> list[Any]:
    """Issue one MMA instruction on registers."""
    letter = "r" if kind is Int32 else "f"
    counts, operands, first = (4, len(a), len(b), 4), [], 0
    for count in counts:
        operands.append(", ".join(f"${i}" for i in range(first, first + count)))
        first += count
    text = f"{instruction} " + ", ".join(f"{{{o}}}" for o in operands) + ";"
    found = llvm.inline_asm(
        llvm.StructType.get_literal([kind.mlir_type] * 4),
        [x.ir_value() for x in (*a, *b, *sums)],
        text,
        ",".join([f"={letter}"] * 4 + ["r"] * (len(a) + len(b)) + [letter] * 4),
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return [kind(llvm.extractvalue(kind.mlir_type, found, [i])) for i in range(4)]


def _registers(fragment: Any, kind: Any) -> list[Any]:
    words = cute.recast_tensor(fragment, kind)
    return [words[i] for i in range(cute.size(words))]


def _one(tensor: Any) -> Any:
    """Append a mode of extent 1 to a tensor."""
    layout = cute.append(tensor.layout, cute.make_layout(1, stride=0))
    return cute.make_tensor(tensor.iterator, layout)


def _split(block: Any, arch: int) -> tuple[Any, Any]:
    """Return fp32 data, and the remainder that the tensor cores lose as they truncate its last 13
    bits, rounded to tf32. In place of infinities and NaNs both have zeros.
    """
    finite, rest = cute.make_fragment_like(block), cute.make_fragment_like(block)
    as_float, as_bits = cute.recast_tensor(block, Float32), cute.recast_tensor(block, Int32)
    cut = cute.make_rmem_tensor((1,), Int32)
    cut_float, rest_bits = cute.recast_tensor(cut, Float32), cute.recast_tensor(rest, Int32)
    finite_float = cute.recast_tensor(finite, Float32)
    for i in range(cute.size(block)):
        cut[0] = as_bits[i] & -(1 << 13)
        left = as_float[i] - cut_float[0]
        is_finite = left == left  # NaN is not equal to itself
        finite_float[i] = select_(is_finite, as_float[i], Float32(0.0))
        rest_bits[i] = round_to_tf32(select_(is_finite, left, Float32(0.0)), arch)
    return finite, rest


def round_to_tf32(x: Any, arch: int) -> Int32:
    """Round ``x``, an fp32 number or its bits, to tf32 and return the bits: one instruction on
    Hopper, which has ``.rn``; else two."""
    mode = "rn" if arch >= 90 else "rna"
    bits = llvm.inline_asm(
        Int32.mlir_type,
        [x.ir_value()],
        f"cvt.{mode}.tf32.f32 $0, $1;",
        "=r,r" if isinstance(x, Int32) else "=r,f",
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return Int32(bits)
