"""ldmatrix, stmatrix and mma.sync against plain matrices, with the ISA's own fragment formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from .. import Uninitialised
from ..formats import decode, encode
from .snippets import launch

Place = Callable[[int, int, int], tuple[int, int]]

# Element number i of a lane's fragment, g = lane // 4, t = lane % 4 -> (row, column), as the ISA
# writes it for each shape (9.7.14.5).
A_PLACE: dict[str, Place] = {
    "m16n8k4.tf32": lambda i, g, t: (g if i == 0 else g + 8, t),
    "m16n8k8.tf32": lambda i, g, t: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    "m16n8k8.f16": lambda i, g, t: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    "m16n8k16.f16": lambda i, g, t: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) + (8 if i >= 4 else 0),
    ),
    "m16n8k16.s8": lambda i, g, t: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    "m16n8k32.s8": lambda i, g, t: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (16 if i >= 8 else 0),
    ),
    "m16n8k32.s4": lambda i, g, t: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    "m16n8k64.s4": lambda i, g, t: (
        g if i < 8 or 16 <= i < 24 else g + 8,
        t * 8 + (i & 7) + (32 if i >= 16 else 0),
    ),
}
B_PLACE: dict[str, Place] = {
    "m16n8k4.tf32": lambda i, g, t: (t, g),
    "m16n8k8.tf32": lambda i, g, t: (t + 4 * i, g),
    "m16n8k8.f16": lambda i, g, t: (t * 2 + i, g),
    "m16n8k16.f16": lambda i, g, t: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
    "m16n8k16.s8": lambda i, g, t: (t * 4 + i, g),
    "m16n8k32.s8": lambda i, g, t: (t * 4 + (i & 3) + (16 if i >= 4 else 0), g),
    "m16n8k32.s4": lambda i, g, t: (t * 8 + (i & 7), g),
    "m16n8k64.s4": lambda i, g, t: (t * 8 + (i & 7) + (32 if i >= 8 else 0), g),
}
C_PLACE: Place = lambda i, g, t: (g if i < 2 else g + 8, t * 2 + (i & 1))  # noqa: E731
SAME = {"bf16": "f16", "u8": "s8", "e4m3": "s8", "e5m2": "s8", "u4": "s4"}
BITS = {"tf32": 32, "f16": 16, "bf16": 16, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
NIBBLES = ("s4", "u4")


def fragment(matrix: np.ndarray, place: Place) -> np.ndarray:
    """Each lane's elements, in order: shape (32, elements)."""
    count = matrix.size // 32
    return np.array(
        [[matrix[place(i, lane // 4, lane % 4)] for i in range(count)] for lane in range(32)]
    )


def registers(matrix: np.ndarray, place: Place, *, nibbles: bool = False) -> np.ndarray:
    """Fragments as 32-bit registers: shape (32, registers). ``nibbles`` go two to a byte."""
    elements = np.ascontiguousarray(fragment(matrix, place))
    if nibbles:
        elements = elements[:, ::2] | elements[:, 1::2] << 4
    return np.ascontiguousarray(elements).view(np.uint32)


def random_codes(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> np.ndarray:
    """Bits of random elements of a type."""
    if name in ("s8", "u8"):
        return rng.integers(0, 256, shape).astype(np.uint8)
    if name in NIBBLES:
        return rng.integers(0, 16, shape).astype(np.uint8)
    codes = encode(rng.standard_normal(shape), name)
    if name == "tf32":
        # The hardware does not look at the low bits.
        codes = codes | rng.integers(0, 1 << 13, shape).astype(np.uint32)
    return codes.astype(f"u{BITS[name] // 8}")


def numbers(codes: np.ndarray, name: str) -> np.ndarray:
    if name == "s8":
        return codes.view(np.int8).astype(np.float64)
    if name == "s4":
        return np.where(codes < 8, codes, codes - 16.0)
    unsigned = name in ("u8", "u4")
    return codes.astype(np.float64) if unsigned else decode(codes, name).astype(np.float64)


CASES = [
    ("m16n8k4", "tf32", "tf32", "f32"),
    ("m16n8k8", "tf32", "tf32", "f32"),
    ("m16n8k8", "f16", "f16", "f32"),
    ("m16n8k8", "bf16", "bf16", "f32"),
    ("m16n8k16", "f16", "f16", "f32"),
    ("m16n8k16", "bf16", "bf16", "f32"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k16", "s8", "s8", "s32"),
    ("m16n8k32", "s8", "s8", "s32"),
    ("m16n8k32", "u8", "s8", "s32"),
    ("m16n8k32", "e4m3", "e4m3", "f32"),
    ("m16n8k32", "e4m3", "e5m2", "f32"),
    ("m16n8k32", "s4", "s4", "s32"),
    ("m16n8k64", "s4", "s4", "s32"),
    ("m16n8k64", "u4", "s4", "s32"),
]


@pytest.mark.parametrize(("shape", "a_type", "b_type", "acc"), CASES)
def test_mma_is_a_matrix_product(shape: str, a_type: str, b_type: str, acc: str) -> None:
    rng = np.random.default_rng(0)
    depth = int(shape.split("k")[1])
    a, b = random_codes(rng, a_type, (16, depth)), random_codes(rng, b_type, (depth, 8))
    key = f"{shape}.{SAME.get(a_type, a_type)}"
    a_regs = registers(a, A_PLACE[key], nibbles=a_type in NIBBLES)
    b_regs = registers(b, B_PLACE[key], nibbles=b_type in NIBBLES)
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[acc]
    c = (10 * rng.standard_normal((16, 8))).astype(dtype)
    c_regs = registers(c, C_PLACE)
    d_regs = np.zeros_like(c_regs)

    def move(op: str, pointer: int, first: int, count: int) -> str:
        """Load or store ``count`` registers of this lane."""
        text = f"mul.wide.u32 %rd9, %t, {4 * count}; add.u64 %rd10, %rd{pointer}, %rd9;"
        for i in range(count):
            operands = (
                f"%r{first + i}, [%rd10+{4 * i}]"
                if op == "ld"
                else f"[%rd10+{4 * i}], %r{first + i}"
            )
            text += f"{op}.global.b32 {operands};"
        return text

    def names(first: int, count: int) -> str:
        return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"

    na, nb, nc = a_regs.shape[1], b_regs.shape[1], c_regs.shape[1]
    launch(
        move("ld", 0, 0, na) + move("ld", 1, 8, nb) + move("ld", 2, 16, nc)
        + f"mma.sync.aligned.{shape}.row.col.{acc}.{a_type}.{b_type}.{acc}"
        f" {names(24, nc)}, {names(0, na)}, {names(8, nb)}, {names(16, nc)};"
        + move("st", 3, 24, nc),
        a_regs, b_regs, c_regs, d_regs,
    )  # fmt: skip
    exact = numbers(a, a_type) @ numbers(b, b_type) + c.astype(np.float64)
    np.testing.assert_array_equal(d_regs.view(dtype), fragment(exact, C_PLACE).astype(dtype))


MATRICES = np.random.default_rng(1).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
STAGE = """
    mov.u32 %r20, sm; mad.lo.u32 %r21, %t, 16, %r20; mul.wide.u32 %rd5, %t, 16;
    add.u64 %rd6, %rd0, %rd5; add.u64 %rd7, %rd1, %rd5;
"""
SHARED = ".shared .align 128 .b8 sm[512];"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, transposed: bool) -> None:
    """Lane l gets elements (l // 4, 2 (l % 4)) and the next of each matrix, or its transpose."""
    result = np.zeros((32, 4), np.uint32)
    names = ", ".join(f"%r{i}" for i in range(count))
    trans = ".trans" if transposed else ""
    launch(
        STAGE + "mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;"
        "ld.global.v4.b32 {%r8, %r9, %r10, %r11}, [%rd6];"
        "st.shared.v4.b32 [%r21], {%r8, %r9, %r10, %r11}; bar.sync 0;"
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%r21];"
        "st.global.v4.b32 [%rd7], {%r0, %r1, %r2, %r3};",
        MATRICES, result, variables=SHARED,
    )  # fmt: skip
    for lane in range(32):
        for i in range(count):
            matrix = MATRICES[i].T if transposed else MATRICES[i]
            row, column = lane // 4, 2 * (lane % 4)
            low, high = int(matrix[row, column]), int(matrix[row, column + 1])
            assert result[lane, i] == low | high << 16


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_undoes_ldmatrix(transposed: bool) -> None:
    result = np.zeros_like(MATRICES)
    trans = ".trans" if transposed else ""
    launch(
        STAGE + "ld.global.v4.b32 {%r8, %r9, %r10, %r11}, [%rd6];"
        "st.shared.v4.b32 [%r21], {%r8, %r9, %r10, %r11}; bar.sync 0;"
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r21];"
        f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r21], {{%r0, %r1, %r2, %r3}};"
        "ld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%r21];"
        "st.global.v4.b32 [%rd7], {%r8, %r9, %r10, %r11};",
        MATRICES, result, variables=SHARED,
    )  # fmt: skip
    np.testing.assert_array_equal(result, MATRICES)


def test_movmatrix_transposes() -> None:
    source, result = MATRICES[0].reshape(-1).view(np.uint32), np.zeros(32, np.uint32)
    launch(
        "mul.wide.u32 %rd5, %t, 4; add.u64 %rd6, %rd0, %rd5; add.u64 %rd7, %rd1, %rd5;"
        "ld.global.b32 %r0, [%rd6]; movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r0;"
        "st.global.b32 [%rd7], %r1;",
        source, result,
    )  # fmt: skip
    np.testing.assert_array_equal(result.view(np.uint16).reshape(8, 8), MATRICES[0].T)


def test_ldmatrix_of_unwritten_rows_names_the_lane_that_gave_the_address() -> None:
    with pytest.raises(Uninitialised) as caught:
        launch(
            "mov.u32 %r20, sm; mad.lo.u32 %r21, %t, 16, %r20; setp.ne.u32 %p0, %t, 5;"
            "@%p0 st.shared.v4.b32 [%r21], {%t, %t, %t, %t}; bar.sync 0;"
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r21];",
            variables=SHARED,
        )
    assert caught.value.thread == 5
