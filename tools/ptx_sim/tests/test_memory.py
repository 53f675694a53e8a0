"""Loads, stores, atomics and asynchronous copies, and every fault they can raise."""

from __future__ import annotations

import numpy as np
import pytest

from .. import (
    DataRace,
    InFlight,
    Memory,
    Misaligned,
    OutOfBounds,
    ReadOnly,
    Uninitialised,
)
from .snippets import launch

SHARED = ".shared .align 16 .b8 sm[4096];"
# %r30 is the thread's word of shared memory, %rd14 its word behind %rd0, %rd15 behind %rd1.
PLACES = """
    mov.u32 %r29, sm; shl.b32 %r28, %t, 2; add.u32 %r30, %r29, %r28;
    cvt.u64.u32 %rd13, %r28; add.u64 %rd14, %rd0, %rd13; add.u64 %rd15, %rd1, %rd13;
"""


def buffers(count: int = 32, **output: bool) -> tuple[Memory, np.ndarray, np.ndarray, int, int]:
    memory = Memory()
    x = np.arange(100, 100 + count, dtype=np.uint32)
    y = np.zeros(count, np.uint32)
    return memory, x, y, memory.add(x, "x", writable=False), memory.add(y, "y", output=True)


@pytest.mark.parametrize(
    "shape", ["b8", "b16", "b32", "b64", "v2.b32", "v4.b32", "v2.b64", "v4.b16"]
)
@pytest.mark.parametrize("space", ["global", "shared", "local", "generic"])
def test_what_is_stored_is_loaded(shape: str, space: str) -> None:
    count = int(shape[1]) if shape[0] == "v" else 1
    bits = int(shape.split("b")[-1])
    width = count * bits // 8
    source = np.random.default_rng(0).integers(0, 256, 32 * width).astype(np.uint8)
    result = np.zeros_like(source)
    memory = Memory()
    a, b = memory.add(source, writable=False), memory.add(result, output=True)
    prefix = {8: "h", 16: "h", 32: "r", 64: "rd1"}[bits]
    names = ", ".join(f"%{prefix}{i}" for i in range(count))
    operand = f"{{{names}}}" if count > 1 else names
    # Shared and local memory are reached in a detour.
    detour = {
        "global": "",
        "shared": f"mov.u32 %r20, sm; mad.lo.u32 %r20, %t, {width}, %r20;"
        f"st.shared.{shape} [%r20], {operand}; ld.shared.{shape} {operand}, [%r20];",
        "local": f"st.local.{shape} [loc+16], {operand}; ld.local.{shape} {operand}, [loc+16];",
        "generic": "mov.u64 %rd8, loc; cvta.local.u64 %rd8, %rd8;"
        f"st.{shape} [%rd8], {operand}; ld.{shape} {operand}, [%rd8];",
    }[space]
    launch(
        f".local .align 16 .b8 loc[64]; mul.wide.u32 %rd5, %t, {width};"
        f"add.u64 %rd6, %rd0, %rd5; add.u64 %rd7, %rd1, %rd5;"
        f"ld.global.nc.L1::no_allocate.L2::128B.{shape} {operand}, [%rd6]; {detour}"
        f"st.global.{shape} [%rd7], {operand};",
        a, b, memory=memory, variables=SHARED,
    )  # fmt: skip
    np.testing.assert_array_equal(result, source)


def test_narrow_loads_extend() -> None:
    source = np.array([0x80, 0x7F, 0xFF, 0], np.uint8)
    result = np.zeros(4, np.int32)
    launch(
        "ld.global.s8 %r0, [%rd0]; ld.global.u8 %r1, [%rd0]; ld.global.s16 %r2, [%rd0+2];"
        "ld.global.s8 %r3, [%rd0+1]; st.global.v4.u32 [%rd1], {%r0, %r1, %r2, %r3};",
        source, result, threads=1,
    )  # fmt: skip
    assert result.tolist() == [-128, 128, 255, 127]


def test_constants_and_parameters() -> None:
    result = np.zeros(2, np.uint32)
    launch(
        "ld.const.u32 %r0, [table+4]; mov.u32 %r1, %ntid.x; st.global.v2.u32 [%rd0], {%r0, %r1};",
        result, threads=1, variables=".const .align 4 .b32 table[3] = {7, 8, 9};",
    )  # fmt: skip
    assert result.tolist() == [8, 1]


@pytest.mark.parametrize(
    ("access", "fault"),
    [
        ("ld.global.u32 %r0, [%rd0+128];", OutOfBounds),
        ("ld.global.u32 %r0, [%rd0+-4];", OutOfBounds),
        ("ld.global.v2.u32 {%r0, %r1}, [%rd0+124];", Misaligned),
        ("ld.global.u32 %r0, [%rd0+2];", Misaligned),
        ("cvt.u32.u64 %r0, %rd0; cvt.u64.u32 %rd2, %r0; ld.global.u32 %r0, [%rd2];", OutOfBounds),
        ("mov.u64 %rd2, 0; st.global.u32 [%rd2], %t;", OutOfBounds),
        ("st.global.u32 [%rd0], %t;", ReadOnly),
        ("ld.global.u32 %r0, [%rd1];", Uninitialised),
        (
            "setp.eq.u32 %p0, %t, 0; @%p0 st.global.u16 [%rd1], 1; ld.global.u32 %r0, [%rd1];",
            Uninitialised,
        ),
        ("st.global.u32 [%rd1], 1;", DataRace),
        ("mov.u32 %r1, sm; ld.shared.u32 %r0, [%r1];", Uninitialised),
        ("mov.u32 %r1, sm; st.shared.u32 [%r1+4096], %t;", OutOfBounds),
        ("mov.u32 %r1, 0; st.shared.u32 [%r1], %t;", OutOfBounds),
        ("mov.u32 %r1, sm; st.shared.v4.u32 [%r1+8], {%t, %t, %t, %t};", Misaligned),
        (".local .b8 loc[16]; ld.local.u8 %h0, [loc];", Uninitialised),
        (".local .b8 loc[16]; st.local.u8 [loc+16], 0;", OutOfBounds),
        ("mov.u32 %r1, sm; cp.async.ca.shared.global [%r1+2], [%rd0], 4;", Misaligned),
        ("mov.u32 %r1, sm; cp.async.cg.shared.global [%r1], [%rd0+4], 16;", Misaligned),
        ("mov.u32 %r1, sm; cp.async.cg.shared.global [%r1], [%rd0+128], 16;", OutOfBounds),
    ],
)
def test_faults(access: str, fault: type[Exception]) -> None:
    memory, _, _, a, b = buffers()
    with pytest.raises(fault) as caught:
        launch(access, a, b, memory=memory, variables=SHARED)
    assert caught.value.thread is not None  # type: ignore[attr-defined]
    assert caught.value.instruction in access  # type: ignore[attr-defined]


def test_a_fault_names_kernel_instruction_thread_and_address() -> None:
    memory, _, _, a, b = buffers(count=31)
    with pytest.raises(OutOfBounds) as caught:
        launch(PLACES + "ld.global.u32 %r0, [%rd14];", a, b, memory=memory, variables=SHARED)
    fault = caught.value
    assert (fault.kernel, fault.thread, fault.address) == ("snippet", 31, a + 124)
    assert fault.instruction == "ld.global.u32 %r0, [%rd14]"
    assert "byte 124 of x (124 bytes)" in str(fault)


def test_a_lane_that_is_predicated_off_touches_nothing() -> None:
    memory, x, y, a, b = buffers(count=31)
    launch(
        PLACES + "setp.lt.u32 %p0, %t, 31; @%p0 ld.global.u32 %r0, [%rd14];"
        "@%p0 st.global.u32 [%rd15], %r0;",
        a, b, memory=memory, variables=SHARED,
    )  # fmt: skip
    np.testing.assert_array_equal(y, x)
    assert memory.written(b).all()


# ---- asynchronous copies

COPY = PLACES + "cp.async.ca.shared.global [%r30], [%rd14], 4;"
READ_BACK = "ld.shared.u32 %r0, [%r30]; st.global.u32 [%rd15], %r0;"


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    "wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"]
)
def test_a_copy_is_there_after_the_wait(wait: str, late: bool) -> None:
    memory, x, y, a, b = buffers()
    launch(COPY + wait + READ_BACK, a, b, memory=memory, variables=SHARED, late=late)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "between",
    [
        "",
        "cp.async.commit_group;",
        "cp.async.commit_group; cp.async.wait_group 1;",
        "cp.async.wait_group 0;",
    ],
)
def test_a_copy_not_waited_for_is_in_flight(between: str) -> None:
    memory, _, _, a, b = buffers()
    overwrite, again = "st.shared.u32 [%r30], %t;", "cp.async.ca.shared.global [%r30], [%rd14], 4;"
    for access in (READ_BACK, overwrite, again):
        with pytest.raises(InFlight):
            launch(COPY + between + access, a, b, memory=memory, variables=SHARED)


def test_wait_group_leaves_the_newest_groups_in_flight() -> None:
    memory, x, y, a, b = buffers()
    two = COPY + "cp.async.commit_group; cp.async.ca.shared.global [%r30+128], [%rd14], 4;"
    two += "cp.async.commit_group; cp.async.wait_group 1;"
    launch(two + READ_BACK, a, b, memory=memory, variables=SHARED)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(InFlight):
        launch(two + "ld.shared.u32 %r0, [%r30+128];", a, b, memory=memory, variables=SHARED)


def test_groups_are_counted_per_thread() -> None:
    # Odd threads commit one more (empty) group, so that for them the copy is older.
    memory, _, _, a, b = buffers()
    body = COPY + "cp.async.commit_group; and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;"
    body += "@%p0 cp.async.commit_group; cp.async.wait_group 1;"
    launch(body + "@%p0 ld.shared.u32 %r0, [%r30];", a, b, memory=memory, variables=SHARED)
    with pytest.raises(InFlight) as caught:
        launch(body + "ld.shared.u32 %r0, [%r30];", a, b, memory=memory, variables=SHARED)
    assert caught.value.thread == 0


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("read", [0, 3, None])
def test_bytes_beyond_the_source_size_are_zero(width: int, read: int | None) -> None:
    source = np.arange(1, 17, dtype=np.uint8)
    result = np.full(width, 255, np.uint8)
    size = width if read is None else read
    move = {4: "b32", 8: "b64", 16: "v2.b64"}[width]
    names = {4: "%r2", 8: "%rd2", 16: "{%rd2, %rd3}"}[width]
    launch(
        f"mov.u32 %r0, sm; mov.u32 %r1, {size};"
        f"cp.async.ca.shared.global [%r0], [%rd0], {width}, %r1;"
        f"cp.async.wait_all; ld.shared.{move} {names}, [%r0]; st.global.{move} [%rd1], {names};",
        source, result, variables=SHARED, threads=1,
    )  # fmt: skip
    np.testing.assert_array_equal(result, np.where(np.arange(width) < size, source[:width], 0))


def test_a_copy_that_reads_nothing_may_point_anywhere() -> None:
    result = np.full(1, 255, np.uint32)
    for ignore in ("mov.u32 %r1, 0;", "setp.eq.u32 %p1, %t, %t;"):
        operand = "%r1" if "r1" in ignore else "%p1"
        launch(
            f"{ignore} mov.u32 %r0, sm; mov.u64 %rd2, 64;"
            f"cp.async.cg.shared.global.L2::128B [%r0], [%rd2], 16, {operand}; cp.async.wait_all;"
            "ld.shared.u32 %r2, [%r0+12]; st.global.u32 [%rd0], %r2;",
            result, variables=SHARED, threads=1,
        )  # fmt: skip
        assert result[0] == 0
        result[0] = 255


# ---- atomics

ATOMICS = {
    "add.u32": np.add, "min.s32": np.minimum, "max.u32": np.maximum, "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor, "add.f32": np.add, "add.u64": np.add,
    "max.s64": np.maximum, "add.f16": np.add,
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("form", ["atom", "red"])
def test_atomics_see_each_other(name: str, form: str) -> None:
    """32 threads on 3 addresses: the total is that of all, and no two see the same sum before."""
    kind, bits = name.split(".")[1][0], int(name.split(".")[1][1:])
    dtype = np.dtype({"s": "i", "b": "u"}.get(kind, kind) + str(bits // 8))
    rng = np.random.default_rng(1)
    values = rng.integers(0, 30, 32).astype(dtype)
    totals = np.full(3, 5, dtype)
    before = np.zeros(32, dtype)
    width = dtype.itemsize
    register = {16: "%h", 32: "%r", 64: "%rd1"}[bits]
    result = f"{register}1, " if form == "atom" else ""
    store = f"st.global.b{bits} [%rd5], {register}1;" if form == "atom" else ""
    noftz = ".noftz" if name == "add.f16" else ""
    launch(
        f"mul.wide.u32 %rd3, %t, {width}; add.u64 %rd4, %rd0, %rd3; add.u64 %rd5, %rd2, %rd3;"
        f"ld.global.b{bits} {register}2, [%rd4]; rem.u32 %r5, %t, 3;"
        f"mul.wide.u32 %rd6, %r5, {width}; add.u64 %rd7, %rd1, %rd6;"
        f"{form}.relaxed.gpu.global.{name.split('.')[0]}{noftz}.{name.split('.')[1]}"
        f" {result}[%rd7], {register}2; {store}",
        values, totals, before,
    )  # fmt: skip
    for slot in range(3):
        want = ATOMICS[name].reduce(values[slot::3], initial=dtype.type(5))
        assert totals[slot] == want
        if form == "atom" and name == "add.u32":
            # Each thread saw the sum of some of the others: a chain of distinct steps.
            steps = np.sort(before[slot::3])
            assert steps[0] == 5
            assert (before[slot::3] + values[slot::3] <= want).all()


def test_compare_and_swap_lets_one_thread_win() -> None:
    lock, seen = np.zeros(1, np.uint64), np.zeros(64, np.uint64)
    launch(
        "add.u32 %r0, %t, 1; cvt.u64.u32 %rd2, %r0; mov.u64 %rd3, 0;"
        "atom.global.cas.b64 %rd4, [%rd0], %rd3, %rd2; mul.wide.u32 %rd5, %t, 8;"
        "add.u64 %rd6, %rd1, %rd5; st.global.u64 [%rd6], %rd4;",
        lock, seen, threads=64,
    )  # fmt: skip
    assert 1 <= lock[0] <= 64
    assert (seen == 0).sum() == 1
    assert seen[int(lock[0]) - 1] == 0


def test_exchange_inc_dec_and_packed_half() -> None:
    word, half = np.array([3, 0, 7], np.uint32), np.array([1.5, -2.0], np.float16)
    launch(
        "atom.global.inc.u32 %r0, [%rd0], 3; atom.global.dec.u32 %r1, [%rd0+4], 9;"
        "atom.global.exch.b32 %r2, [%rd0+8], %r0; mov.b32 %r3, 0x3C003800;"
        "atom.global.add.noftz.f16x2 %r4, [%rd1], %r3;",
        word, half, threads=1,
    )  # fmt: skip
    assert word.tolist() == [0, 9, 3]
    assert half.tolist() == [2.0, -1.0]


def test_buffers_say_what_is_wrong() -> None:
    memory = Memory()
    with pytest.raises(ValueError, match="x must be C-contiguous"):
        memory.add(np.zeros((4, 4))[:, 1], "x")
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        memory.add(frozen, "x")
    with pytest.raises(ValueError, match="no output starts at"):
        memory.written(memory.add(np.zeros(4)))
