"""Tensor memory and TMA: who has which lane and column, and where a swizzled box lands."""

from __future__ import annotations

import re
from itertools import product

import pytest

from layoutconv.algebra import (
    LayoutValueError,
    Swizzle,
    copy_atom,
    copy_names,
    is_injective,
    smem_atom,
    tcgen05_atom,
    tma_atom,
    tmem_accumulator,
)

MOVES = [name for name in copy_names() if name.startswith("tcgen05.ld")]
SHAPES = [(64, 1), (128, 1), (128, 2), (256, 2)]


def lane_and_column(shape: str, thread: int, register: int, times: int) -> tuple[int, int]:
    """The PTX ISA's figures of tcgen05.ld, as formulas."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, times * (thread // 16) + register
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
    per_row = 1 if shape == "16x128b" else 2  # registers of a thread next to each other
    repetition, within = divmod(register, 2 * per_row)
    half, i = divmod(within, per_row)
    return thread // 4 + 8 * half, 4 * per_row * repetition + per_row * (thread % 4) + i


@pytest.mark.parametrize("name", MOVES)
def test_registers_of_tensor_memory(name):
    shape, times = re.fullmatch(r"tcgen05\.ld\.(\w+)\.x(\d+)", name).groups()
    load, store = copy_atom(name), copy_atom(name.replace("ld", "st", 1))
    registers = load.destination
    assert (store.source, store.destination) == (registers, load.source)
    lanes, columns = int(shape[:2]), load.row_bits // 32
    assert registers.size() == load.source[1].size() == 32 * lanes * columns
    found = set()
    for thread, register in product(range(32), range(registers[1].size() // 32)):
        lane, column = lane_and_column(shape, thread, register, int(times))
        assert registers(thread, 32 * register) == 32 * (column + columns * lane)
        assert registers(thread, 32 * register + 31) == 32 * (column + columns * lane) + 31
        found.add((lane, column))
    assert found == set(product(range(lanes), range(columns)))


@pytest.mark.parametrize(
    ("shape", "row_of_lane"),
    [
        ("128x256b", lambda lane: lane),
        ("128x128b", lambda lane: lane),
        ("64x128b.warpx2::02_13", lambda lane: lane % 64),
        ("64x128b.warpx2::01_23", lambda lane: lane % 32 + 32 * (lane // 64)),
        ("32x128b.warpx4", lambda lane: lane % 32),
    ],
)
def test_copies_from_shared_memory(shape, row_of_lane):
    atom = copy_atom(f"tcgen05.cp.{shape}")
    bits = atom.row_bits
    assert atom.source.size() == atom.destination.size() == 128 * bits
    at = {atom.destination(0, v): atom.source(0, v) for v in range(128 * bits)}
    for lane, bit in product(range(128), range(0, bits, 31)):
        assert at[bits * lane + bit] == bits * row_of_lane(lane) + bit


def test_four_rows_go_to_a_lane_of_each_warp():
    atom = copy_atom("tcgen05.cp.4x256b")
    for v in range(1024):
        assert atom.source(0, v) == v
        assert atom.destination(0, v) == 32 * 256 * (v // 256) + v % 256


@pytest.mark.parametrize(
    ("m", "ctas", "bits"),
    [(*shape, bits) for shape in SHAPES for bits in (4, 8, 16, 32) if (shape[0], bits) != (64, 4)],
)
def test_ctas_share_the_operands_of_tcgen05(m, ctas, bits):
    for n in (16, 48, 256):
        atom = tcgen05_atom(m, n, bits, cta_group=ctas)
        assert atom.shape == (m, n, 256 // bits)
        for operand in "ABC":
            rows, columns = atom.extents(operand)
            fragment = atom.fragment(operand)
            assert fragment[0].size() == ctas
            held = [[fragment(t, v) for v in range(fragment[1].size())] for t in range(ctas)]
            assert sorted(p for positions in held for p in positions) == list(range(rows * columns))
            for t, positions in enumerate(held):  # a CTA has neighbouring rows of the operand
                assert {p % rows * ctas // rows for p in positions} == {t}


@pytest.mark.parametrize(
    ("m", "ctas", "stationary", "expected"),
    [
        (256, 2, False, lambda m, n, N: (m % 128, n, m // 128)),  # PTX: data path layout A
        (128, 2, False, lambda m, n, N: (m % 64 + 64 * (2 * n // N), n % (N // 2), m // 64)),  # B
        (128, 1, False, lambda m, n, N: (m, n, 0)),  # D
        (64, 1, True, lambda m, n, N: (m + 64 * (2 * n // N), n % (N // 2), 0)),  # E
        (64, 1, False, lambda m, n, N: (m % 16 + 32 * (m // 16), n, 0)),  # F
        (32, 1, True, lambda m, n, N: (m + 32 * (4 * n // N), n % (N // 4), 0)),  # G
        (128, 1, True, lambda m, n, N: (m, n, 0)),
    ],
)
def test_accumulators_lie_as_the_data_paths_have_them(m, ctas, stationary, expected):
    for n in (16, 64, 256):
        layout = tmem_accumulator(m, n, cta_group=ctas, weight_stationary=stationary)
        assert layout.size() == m * n
        for i, j in product(range(m), range(n)):
            place = tuple(layout(i, j))
            assert (*place, 0, 0)[:3] == expected(i, j, n)


@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
def test_a_box_lands_as_the_canonical_layout_reads_it(swizzle):
    """TMA with a swizzle writes what wgmma reads through the atom of the same name."""
    rows, units = 16, {"INTER": 8, "SW32": 2, "SW64": 4, "SW128": 8}[swizzle]
    atom = tma_atom((8 * units, rows), 16, swizzle=swizzle)
    assert is_injective(atom.source)
    assert atom.source.size() == 16 * 8 * units * rows
    if swizzle == "INTER":
        assert atom.destination == atom.source
        return
    canonical = smem_atom(f"K_{swizzle}", 16)
    for row, k in product(range(rows), range(8 * units)):
        at = 16 * (8 * units * row + k)
        within = canonical(row % 8, k) + 8 * 8 * units * (row // 8)
        assert atom.destination(0, at) == 16 * within


def test_what_there_is_none_of_is_refused():
    for m, n, bits, ctas in (
        (32, 16, 16, 1),
        (256, 16, 16, 1),
        (64, 16, 16, 2),
        (128, 8, 16, 1),
        (128, 272, 16, 1),
        (64, 16, 4, 1),
        (128, 16, 64, 1),
    ):
        with pytest.raises(LayoutValueError, match="expected"):
            tcgen05_atom(m, n, bits, cta_group=ctas)
    for m, n, ctas, stationary in ((32, 16, 1, False), (128, 12, 1, False), (64, 64, 2, True)):
        with pytest.raises(LayoutValueError, match="expected"):
            tmem_accumulator(m, n, cta_group=ctas, weight_stationary=stationary)
    for box, swizzle in (((7, 8), "INTER"), ((64, 512), "SW128"), ((64, 8), "SW32"), ((), "SW32")):
        with pytest.raises(LayoutValueError, match="expected"):
            tma_atom(box, swizzle=swizzle)
    with pytest.raises(LayoutValueError, match="there are"):
        tma_atom((64, 8), swizzle="SW256")
    assert smem_atom("MN_SW128_32B", 32).outer == Swizzle(2, 3, 2)
