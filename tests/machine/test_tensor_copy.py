"""Copies by the tensor memory accelerator: every box, what they refuse, who must wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from . import Deadlock, Fault, InFlight, Memory, Misaligned, OutOfBounds, Uninitialised, parse, run
from .tensor_cases import TILED, WAIT, BoxCase, expected, load_module, tensor
from .tensor_map import Im2col, TensorMap, decode

PLAIN = TILED[3]


def load_box(case: BoxCase, ptx: str | None = None, **options: Any) -> tuple[np.ndarray, ...]:
    """What the kernel finds in shared memory, and what it should."""
    memory, source, out = Memory(), tensor(case), np.zeros(case.bytes, np.uint8)
    address = memory.add(source, "tensor", writable=False)
    raw = replace(case.map, address=address + case.map.address).encode()
    at = memory.add(np.frombuffer(raw, np.uint8).copy(), "map", writable=False)
    result = memory.add(out, "result", output=True)
    run(parse(ptx or load_module(case)), memory, [at, result], **options)
    return out, expected(case, source)


@pytest.mark.parametrize("case", TILED, ids=str)
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
        ({"type": "u16", "fill_nan": True}, Fault, "with NaN"),
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


def test_bytes_that_are_no_map_are_refused() -> None:
    good = PLAIN.map.encode()
    assert decode(good) == PLAIN.map
    for at, value in ((8, 0), (8, 0x52), (9, 0x0F), (9, good[9] | 8), (10, good[10] | 1)):
        with pytest.raises(Fault, match="map"):
            decode(good[:at] + bytes([value]) + good[at + 1 :])


@pytest.mark.parametrize("of", [c.map for c in TILED], ids=[str(c) for c in TILED])
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
