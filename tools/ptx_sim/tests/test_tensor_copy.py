"""Copies by the tensor memory accelerator: every box, what they refuse, who must wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from .. import (
    DataRace,
    Deadlock,
    Fault,
    InFlight,
    Memory,
    Misaligned,
    OutOfBounds,
    Unfenced,
    Uninitialised,
    parse,
    run,
)
from ..boxes import elements
from ..tensor_map import Im2col, TensorMap, decode
from .tensor_cases import (
    FENCE,
    IM2COL,
    STORED,
    TILED,
    WAIT,
    BoxCase,
    expected,
    load_module,
    store_module,
    stored,
    tensor,
)

PLAIN, LARGE = TILED[3], TILED[8]


def load_box(case: BoxCase, ptx: str | None = None, **options: Any) -> tuple[np.ndarray, ...]:
    """Return what the kernel finds in shared memory, and the reference."""
    memory, source, out = Memory(), tensor(case), np.zeros(case.bytes, np.uint8)
    address = memory.add(source, "tensor", writable=False)
    raw = replace(case.map, address=address + case.map.address).encode()
    at = memory.add(np.frombuffer(raw, np.uint8).copy(), "map", writable=False)
    result = memory.add(out, "result", output=True)
    run(parse(ptx or load_module(case)), memory, [at, result], **options)
    return out, expected(case, source)


@pytest.mark.parametrize("case", TILED + IM2COL, ids=str)
def test_a_box_is_loaded(case: BoxCase) -> None:
    got, want = load_box(case)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("options", [{"late": False}, {"independent": False}, {"seed": 3}], ids=str)
def test_a_box_is_loaded_whenever_it_lands(options: dict[str, Any]) -> None:
    got, want = load_box(PLAIN, **options)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("what", "with_", "fault"),
    [
        ("[%r0], 128;", "[%r0], 112;", Deadlock),
        ("[%r0], 128;", "[%r0], 144;", Deadlock),
        ("arrive.expect_tx.shared.b64 _, [%r0], 128;", "arrive.shared.b64 _, [%r0];", Fault),
        (WAIT, "", (InFlight, Uninitialised)),
        ("[%r0], 0, 10000000", "[%r0], 1, 10000000", (InFlight, Uninitialised)),
        ("add.u32 %r1, %r0, 1024;", "add.u32 %r1, %r0, 1040;", Misaligned),
        ("{%c0, %c1}", "{%c0}", ValueError),
        (".2d.", ".3d.", ValueError),
        ("[%rd0, ", "[%rd0+16, ", Misaligned),
    ],
)
def test_faults_of_a_copy(what: str, with_: str, fault: type[Exception]) -> None:
    ptx = load_module(PLAIN)
    assert ptx.count(what) == 1
    with pytest.raises(fault):
        load_box(PLAIN, ptx.replace(what, with_))


@pytest.mark.parametrize(
    ("change", "fault", "says"),
    [
        ({"address": 8}, Fault, "16 does not divide"),
        ({"box": (4, 4)}, Fault, "8 bytes in mode 0"),
        ({"swizzle": 32, "box": (32, 4)}, Fault, "64 bytes in a swizzle of 32"),
        ({"shape": (24, 10, 1), "strides": (64, 640), "box": (16, 4, 1)}, Fault, "3 modes"),
        ({"shape": (24, 12)}, OutOfBounds, "tensor"),
        ({"swizzle": 64}, Fault, "narrower than its swizzle"),
        ({"im2col": Im2col((-1,), (1,), 16, 4)}, Fault, "three to five modes"),
        ({"element_strides": (1, 2)}, Deadlock, "64 bytes are pending"),
    ],
)
def test_faults_of_a_map(change: dict[str, Any], fault: type[Exception], says: str) -> None:
    broken = replace(PLAIN, map=replace(PLAIN.map, **change))
    if change.get("shape") == (24, 12):
        broken = replace(broken, corner=(0, 8))
    source = tensor(PLAIN)
    memory = Memory()
    address = memory.add(source, "tensor", writable=False)
    raw = replace(broken.map, address=address + broken.map.address).encode()
    at = memory.add(np.frombuffer(raw, np.uint8).copy(), "map", writable=False)
    result = memory.add(np.zeros(4096, np.uint8), "result")
    kernel = parse(load_module(replace(PLAIN, corner=broken.corner), expects=128))
    with pytest.raises(fault, match=says):
        run(kernel, memory, [at, result])


def test_a_store_by_a_map_that_rounds_is_refused() -> None:
    rounding = next(case for case in TILED if case.map.type == "tf32")
    with pytest.raises(Fault, match="a store that makes tf32"):
        store_box(rounding)


def test_a_box_that_starts_within_16_bytes_is_refused() -> None:
    with pytest.raises(Fault, match="starts at element 7 of mode 0"):
        elements(TILED[1].map, (7,))


def test_bytes_that_are_no_map_are_refused() -> None:
    good = PLAIN.map.encode()
    assert decode(good) == PLAIN.map
    with pytest.raises(Fault, match="these 128 bytes are no tensor map"):
        decode(bytes(len(good)))
    for at, value in (
        (8, 0x52),
        (9, 0x0F),
        (9, good[9] | 8),
        (9, good[9] | 128),
        (10, good[10] | 1),
    ):
        with pytest.raises(Fault, match="map"):
            decode(good[:at] + bytes([value]) + good[at + 1 :])


@pytest.mark.parametrize("of", [c.map for c in TILED + IM2COL], ids=map(str, TILED + IM2COL))
def test_a_map_says_what_it_was_made_of(of: TensorMap) -> None:
    assert decode(of.encode()) == of


def test_a_map_has_room_for_the_largest_numbers() -> None:
    large = TensorMap(
        0x7FFF_FFFF_FFF0, "u8", (2**32, 2, 2**31, 1, 7), (2**40 - 16, 16, 2**36, 2**39),
        box=(256, 1, 255, 2, 3), element_strides=(8, 7, 6, 5, 1),
    )  # fmt: skip
    assert decode(large.encode()) == large
    for rank, bits in ((3, 16), (4, 8), (5, 5)):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        corner = (low, high, -1)[: rank - 2]
        column = Im2col(corner, corner[::-1], 256 // 2, 1024)
        shape, strides = (64, 9, 8, 7, 6)[:rank], (128, 2048, 2**14, 2**18)[: rank - 1]
        folded = TensorMap(0, "f16", shape, strides, element_strides=(1,) * rank, im2col=column)
        assert decode(folded.encode()) == folded


def store_box(case: BoxCase, ptx: str | None = None, **options: Any) -> tuple[np.ndarray, ...]:
    """The tensor after the kernel, as it should be, and which of its bytes were written."""
    memory, target = Memory(), tensor(case)
    box = np.random.default_rng(1).integers(1, 256, case.bytes).astype(np.uint8)
    want = stored(case, box, target)
    address = memory.add(target, "tensor", output=True)
    raw = replace(case.map, address=address + case.map.address).encode()
    at = memory.add(np.frombuffer(raw, np.uint8).copy(), "map", writable=False)
    source = memory.add(box, "box", writable=False)
    run(parse(ptx or store_module(case)), memory, [at, source], **options)
    return target, want, memory.written(address)


@pytest.mark.parametrize("case", STORED, ids=str)
def test_a_box_is_stored(case: BoxCase) -> None:
    before = tensor(case)
    got, want, written = store_box(case)
    np.testing.assert_array_equal(got, want)
    # The bytes outside the box were not written, even with what they were.
    assert not (written < (before != want)).any()
    assert written.sum() == (stored(case, np.zeros(case.bytes, np.uint8), before) == 0).sum()


@pytest.mark.parametrize("options", [{"late": False}, {"independent": False}], ids=str)
def test_a_box_is_stored_whenever_it_lands(options: dict[str, Any]) -> None:
    got, want, _ = store_box(PLAIN, **options)
    np.testing.assert_array_equal(got, want)


AFTER = "st.shared.u32 [%r1+4], %t;"
BACK = "@%p0 ld.u64 %rd3, [%rd0]; @%p0 ld.global.u32 %r5, [%rd3+2304];"
OTHER = "setp.eq.u32 %p2, %t, 64; @%p2 st.shared.u32 [%r1+512], %t;"


@pytest.mark.parametrize(
    ("what", "with_", "fault", "says"),
    [
        (FENCE, "", Unfenced, "fence.proxy.async"),
        ("bar.sync 0;\n    @%p0 cp", "@%p0 cp", (DataRace, Uninitialised), ""),
        ("cp.async.bulk.commit_group;", AFTER, InFlight, "a bulk store reads"),
        ("wait_group.read 0;", "wait_group.read 1;", InFlight, "the CTA ends"),
        ("@%p0 cp.async.bulk.wait_group.read 0;", "", InFlight, "the CTA ends"),
        ("wait_group.read 0;", "wait_group.read 0;" + BACK, Uninitialised, "tensor"),
        ("wait_group.read 0;", "wait_group.read 0;" + OTHER, (InFlight, DataRace), ""),
        ("[%r1];", "[%r1+64];", Misaligned, "128 bytes"),
        (".tile.", ".im2col.", ValueError, "im2col"),
    ],
)
def test_faults_of_a_store(what: str, with_: str, fault: type[Exception], says: str) -> None:
    ptx = store_module(LARGE)
    assert ptx.count(what) == 1
    with pytest.raises(fault, match=says or "."):
        store_box(LARGE, ptx.replace(what, with_))


@pytest.mark.parametrize(
    "with_",
    [
        "wait_group 0;" + BACK,
        "wait_group.read 0; @%p0 " + AFTER,
        "wait_group.read 0; bar.sync 0;" + OTHER,
    ],
)
def test_what_may_follow_a_wait_for_a_store(with_: str) -> None:
    got, want, _ = store_box(LARGE, store_module(LARGE).replace("wait_group.read 0;", with_))
    np.testing.assert_array_equal(got, want)


def test_a_newer_group_may_still_read() -> None:
    ptx = store_module(PLAIN)
    at = ptx.index("@%p0 cp.async.bulk.tensor")
    store = ptx[at : ptx.index("@%p0 cp.async.bulk.wait")]
    # Two groups, of which the older one was waited for, and then what it read is overwritten.
    second = store.replace("[%r1]", "[%r5]")
    more = "mov.u32 %r5, %r1;" + second + "@%p0 cp.async.bulk.wait_group.read 1; @%p0 " + AFTER
    with pytest.raises(InFlight, match="a bulk store reads"):
        store_box(PLAIN, ptx[:at] + store + more + ptx[at + len(store) :])
