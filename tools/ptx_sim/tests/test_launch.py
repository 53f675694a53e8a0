"""From text and arguments to a launch: what is parsed, packed and refused."""

from __future__ import annotations

import numpy as np
import pytest

from .. import Memory, ParseError, c_struct, pack, parse, run
from .snippets import module

PTX = module(
    "",
    ".param .u64 .ptr .global .align 16 p, .param .u32 n, .param .align 8 .b8 s[24], .param .f32 x",
)


def test_parameters_have_the_layout_of_a_c_struct() -> None:
    params = parse(PTX).params
    assert [(p.name, p.size, p.offset) for p in params] == [
        ("p", 8, 0), ("n", 4, 8), ("s", 24, 16), ("x", 4, 40),
    ]  # fmt: skip
    assert [p.is_struct for p in params] == [False, False, True, False]


def test_arguments_become_their_bytes() -> None:
    fields = (np.uint64(1 << 40), np.int32(-2), np.int64(3))
    block = pack(parse(PTX), [0x1234, -1, fields, 0.5])
    assert block[:8] == (0x1234).to_bytes(8, "little")
    assert block[8:16] == b"\xff" * 4 + bytes(4)
    assert (
        block[16:40]
        == c_struct(*fields)
        == bytes(5) + b"\1\0\0\xfe\xff\xff\xff" + bytes(4) + b"\3" + bytes(7)
    )
    assert block[40:] == np.float32(0.5).tobytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([0, 0, bytes(24)], "takes 4 arguments"),
        ([0, 1 << 32, bytes(24), 0.0], "does not fit the 4 bytes of n"),
        ([0, -(1 << 31) - 1, bytes(24), 0.0], "does not fit the 4 bytes of n"),
        ([0, 0, bytes(20), 0.0], "s has 24 bytes, got 20"),
        ([0, 0, 7, 0.0], "s is a struct of 24 bytes"),
        ([0, np.int64(0), bytes(24), 0.0], "n has 4 bytes, got 8"),
    ],
)
def test_wrong_arguments_are_named(arguments: list, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        pack(parse(PTX), arguments)


def test_an_entry_is_chosen_by_a_part_of_its_name() -> None:
    two = PTX + PTX.split(".address_size 64")[1].replace("snippet", "other")
    assert parse(two, "other").name == "other"
    with pytest.raises(ParseError, match=r"snippet.*other"):
        parse(two)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grid": (0,)}, "grid must be"),
        ({"grid": (1, 1, 1, 1)}, "grid must be"),
        ({"block": (64,)}, "not the kernel's .reqntid"),
        ({"shared_bytes": 4}, "no dynamic shared memory"),
    ],
)
def test_impossible_launches_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run(parse(module("")), Memory(), [], **options)


def test_dynamic_shared_memory_lies_behind_the_static() -> None:
    ptx = module(
        ".reg .b32 %a, %b; .reg .b64 %p; mov.u32 %a, fixed; mov.u32 %b, __dynamic_shmem__0;"
        "ld.param.u64 %p, [p]; st.global.v2.u32 [%p], {%a, %b};"
        "st.shared.u32 [__dynamic_shmem__0+60], %a; ld.shared.u32 %a, [__dynamic_shmem__0+60];",
        ".param .u64 p",
        threads=1,
        variables=".shared .align 4 .b8 fixed[40];"
        ".extern .shared .align 128 .b8 __dynamic_shmem__0[];",
    )
    memory = Memory()
    places = np.zeros(2, np.uint32)
    run(parse(ptx), memory, [memory.add(places)], shared_bytes=64)
    assert places[1] % 128 == 0
    assert places[1] >= places[0] + 40
    with pytest.raises(Exception, match="out of bounds"):
        run(parse(ptx), memory, [memory.add(places)], shared_bytes=63)


def test_one_cta_of_a_grid() -> None:
    ptx = module(
        ".reg .b32 %a; .reg .b64 %p, %o; mov.u32 %a, %ctaid.x; ld.param.u64 %p, [p];"
        "mad.wide.u32 %o, %a, 4, %p; st.global.u32 [%o], %a;",
        ".param .u64 p",
        threads=1,
    )
    memory = Memory()
    seen = np.full(4, 9, np.uint32)
    run(parse(ptx), memory, [memory.add(seen)], (4,), ctas=[(2, 0, 0)])
    assert seen.tolist() == [9, 9, 2, 9]
