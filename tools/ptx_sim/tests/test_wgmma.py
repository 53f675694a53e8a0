"""wgmma against plain matrices, laid out in shared memory as the canonical layouts say."""

from __future__ import annotations

import numpy as np
import pytest

from .. import Divergent, Fault, InFlight, Memory, Unfenced
from ..formats import decode
from .snippets import launch
from .test_tensor_core import A_PLACE, BITS, SAME, numbers, random_codes, registers

SIZE, B_AT = 32768, 16384
SHARED = f".shared .align 1024 .b8 sm[{SIZE}];"
STAGE = (
    "mov.u32 %r20, sm; mad.lo.u32 %r21, %t, 16, %r20; mad.wide.u32 %rd6, %t, 16, %rd0;"
    + "".join(
        f"ld.global.v4.b32 {{%r8, %r9, %r10, %r11}}, [%rd6+{at}];"
        f"st.shared.v4.b32 [%r21+{at}], {{%r8, %r9, %r10, %r11}};"
        for at in range(0, SIZE, 128 * 16)
    )
)
FENCES = "fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;"
DONE = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def image(codes: np.ndarray, major: str, swizzle: int, skip: int) -> tuple[np.ndarray, int]:
    """A matrix (rows along M or N, columns along K) in memory, and its descriptor at address 0.

    The canonical layouts as shapes and strides: CUTLASS, include/cute/arch/mma_sm90_desc.hpp.
    """
    size, (rows, columns) = codes.itemsize, codes.shape
    unit, wide = 16 // size, swizzle // 16
    r, c = np.indices((rows, columns))
    if major == "K":
        leading, stride = (128, 256) if wide == 1 else (16, 8 * swizzle)
        far = leading if wide == 1 else 16
        at = r % 8 * swizzle + r // 8 * stride + c % unit * size + c // unit * far
    elif wide == 1:
        leading, stride = 128, 256
        at = r % unit * size + r // unit * stride + c % 8 * 16 + c // 8 * leading
    else:
        leading, stride = 16 * swizzle, 8 * swizzle
        at = r % unit * size + r // unit % wide * 16 + r // unit // wide * leading
        at += c % 8 * swizzle + c // 8 * stride
    at += skip
    at ^= (at & (wide - 1) << 7) >> 3
    memory = np.random.default_rng(0).integers(0, 256, B_AT).astype(np.uint8)
    memory.view(codes.dtype)[at // size] = codes
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return memory, mode << 62 | stride >> 4 << 32 | leading >> 4 << 16 | skip >> 4


def multiply(
    kinds: tuple[str, str, str],
    a: np.ndarray,
    b: np.ndarray,
    layout_a: tuple[str, int, int] | None,
    layout_b: tuple[str, int, int],
    rest: str,
    times: int = 1,
) -> np.ndarray:
    """D = A B^T by one warpgroup, accumulated ``times`` times: shape (64, N), as bits."""
    d_type, a_type, b_type = kinds
    n, k = b.shape
    count = n // 4 if d_type == "f16" else n // 2
    result = np.zeros((128, count), np.uint32)
    in_b, code_b = image(b, *layout_b)
    in_a, code_a = image(a, *layout_a) if layout_a else (np.zeros(B_AT, np.uint8), 0)
    place = A_PLACE[f"m16n8k{k}.{SAME.get(a_type, a_type)}"]
    fragments = np.concatenate([registers(a[16 * w :][:16], place) for w in range(4)])
    d = ", ".join(f"%d{i}" for i in range(count))
    left = "%rd10" if layout_a else "{%a0, %a1, %a2, %a3}"
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d_type}.{a_type}.{b_type}"
    launch(
        STAGE + f".reg .b32 %d<{count}>, %a<4>; mad.wide.u32 %rd7, %t, 16, %rd1;"
        "ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%rd7];"
        "shr.u32 %r1, %r20, 4; cvt.u64.u32 %rd8, %r1;"
        f"add.u64 %rd10, %rd8, {code_a}; add.u64 %rd11, %rd8, {code_b + (B_AT >> 4)};"
        + FENCES
        + "".join(
            f"setp.ne.b32 %p0, {i}, 0; {name} {{{d}}}, {left}, %rd11, %p0{rest};"
            for i in range(times)
        )
        + DONE
        + f"mad.wide.u32 %rd9, %t, {4 * count}, %rd2;"
        + "".join(f"st.global.b32 [%rd9+{4 * i}], %d{i};" for i in range(count)),
        np.concatenate([in_a, in_b]), fragments, result, threads=128, variables=SHARED,
    )  # fmt: skip
    lane = np.arange(128)[:, None]
    row = 16 * (lane // 32) + lane % 32 // 4
    if d_type == "f16":
        found, i = result.view(np.uint16), np.arange(2 * count)
    else:
        found, i = result, np.arange(count)
    out = np.zeros((64, n), found.dtype)
    out[row + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2] = found
    return out


LAYOUTS = [
    (major, swizzle, skip)
    for major in ("K", "MN")
    for swizzle in (16, 32, 64, 128)
    for skip in ((0, 32) if major == "K" and swizzle > 32 else (0,))
]


@pytest.mark.parametrize("layout_a", LAYOUTS, ids=str)
@pytest.mark.parametrize("layout_b", LAYOUTS, ids=str)
def test_both_matrices_in_every_layout(
    layout_a: tuple[str, int, int], layout_b: tuple[str, int, int]
) -> None:
    rng = np.random.default_rng(1)
    a, b = random_codes(rng, "f16", (64, 16)), random_codes(rng, "f16", (72, 16))
    transposed = ", ".join(str(int(x[0] == "MN")) for x in (layout_a, layout_b))
    got = multiply(("f32", "f16", "f16"), a, b, layout_a, layout_b, f", 1, 1, {transposed}")
    want = (numbers(a, "f16") @ numbers(b, "f16").T).astype(np.float32)
    np.testing.assert_array_equal(got.view(np.float32), want)


TYPES = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"), ("s32", "s8", "u8"),
]  # fmt: skip


@pytest.mark.parametrize("kinds", TYPES, ids=".".join)
@pytest.mark.parametrize("in_registers", [True, False])
@pytest.mark.parametrize("n", [8, 256])
def test_types_and_a_in_registers(kinds: tuple[str, str, str], in_registers: bool, n: int) -> None:
    rng = np.random.default_rng(2)
    k = 256 // BITS[kinds[1]]
    a, b = random_codes(rng, kinds[1], (64, k)), random_codes(rng, kinds[2], (n, k))
    rest = "" if kinds[0] == "s32" else ", -1, 1"
    if BITS[kinds[1]] == 16:
        rest += ", 0" if in_registers else ", 0, 0"
    layout = ("K", 32, 0)
    got = multiply(kinds, a, b, None if in_registers else layout, layout, rest, times=2)
    product = numbers(a, kinds[1]) @ numbers(b, kinds[2]).T
    if kinds[0] == "s32":
        np.testing.assert_array_equal(got.view(np.int32), 2 * product)
    elif kinds[0] == "f32":
        np.testing.assert_array_equal(got.view(np.float32), -2 * product.astype(np.float32))
    else:
        np.testing.assert_allclose(decode(got, "f16"), -2 * product, rtol=2e-3, atol=1e-2)


DESCRIBE = "shr.u32 %r1, %r20, 4; cvt.u64.u32 %rd8, %r1; add.u64 %rd10, %rd8, {code};"
CODE = 3 << 62 | 256 >> 4 << 32
MULTIPLY = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r2, %r3, %r4, %r5}, %rd10, %rd10,"
    " {adds}, 1, 1, 0, 0;"
)


def faulty(body: str, code: int = CODE, adds: int = 0, seed: int = 0) -> None:
    memory = Memory()
    staged = STAGE + DESCRIBE.format(code=code)
    text = staged + body.replace("MULTIPLY", MULTIPLY.replace("{adds}", str(adds)))
    launch(
        text, memory.add(np.zeros(SIZE, np.uint8)),
        memory=memory, threads=128, variables=SHARED, seed=seed,
    )  # fmt: skip


SET = "".join(f"mov.b32 %r{i}, 0;" for i in range(2, 6))


@pytest.mark.parametrize(
    ("body", "options", "fault"),
    [
        (FENCES + "MULTIPLY add.u32 %r6, %r2, 1;" + DONE, {}, InFlight),
        (FENCES + "MULTIPLY mov.u32 %r2, 1;" + DONE, {}, InFlight),
        (FENCES + "MULTIPLY wgmma.wait_group.sync.aligned 0; mov.u32 %r6, %r2;", {}, InFlight),
        (FENCES + "MULTIPLY st.shared.u32 [%r21], %t;" + DONE, {}, InFlight),
        (FENCES + "MULTIPLY" + DONE + "st.shared.u32 [%r20], %t;", {}, Fault),
        (FENCES + SET + "MULTIPLY" + DONE, {"adds": 1}, Unfenced),
        (FENCES.replace("fence.proxy.async.shared::cta;", "") + "MULTIPLY", {}, Unfenced),
        (FENCES.replace("wgmma.fence.sync.aligned;", "") + "MULTIPLY", {}, Unfenced),
        (FENCES + "MULTIPLY", {"code": CODE | 1 << 49}, Fault),
        (FENCES + "MULTIPLY", {"code": CODE | 1 << 14}, Fault),
        (FENCES + "shr.u32 %r7, %t, 5; cvt.u64.u32 %rd9, %r7; shl.b64 %rd9, %rd9, 1;"
         "add.u64 %rd10, %rd10, %rd9; MULTIPLY", {}, Divergent),
        (FENCES + "cvt.u64.u32 %rd10, %t; MULTIPLY", {}, Divergent),
    ],
)  # fmt: skip
def test_faults_of_wgmma(body: str, options: dict[str, int], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        faulty(body, **options)


def test_what_is_fenced_and_waited_for_is_fine() -> None:
    faulty(SET + FENCES + "MULTIPLY MULTIPLY" + DONE + "mov.u32 %r6, %r2; bar.sync 0;"
           "st.shared.u32 [%r21], %r6;", adds=1)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_fence_is_for_what_its_warp_knows_to_be_written(seed: int) -> None:
    one = "setp.ge.u32 %p0, %t, 96; {barrier} @%p0 fence.proxy.async.shared::cta; bar.sync 0;"
    rest = "wgmma.fence.sync.aligned; MULTIPLY" + DONE
    faulty(one.format(barrier="bar.sync 1;") + rest, seed=seed)
    with pytest.raises(Unfenced):
        faulty(one.format(barrier="") + rest, seed=seed)


def test_a_fence_comes_after_the_wait_for_a_copy() -> None:
    copy = "cp.async.cg.shared.global [%r21], [%rd6], 16;"
    wait, rest = "cp.async.wait_all;", "bar.sync 0; wgmma.fence.sync.aligned; MULTIPLY" + DONE
    fence = "fence.proxy.async.shared::cta;"
    faulty(fence + copy + wait + fence + rest)
    with pytest.raises(Unfenced):
        faulty(fence + copy + fence + wait + rest)
