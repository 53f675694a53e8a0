"""Tensor memory and TMA: who has which lane and column, and where a swizzled box lands."""

from __future__ import annotations

import re
from itertools import product
from math import prod

import numpy as np
import pytest

from layoutconv.algebra import (
    LayoutValueError,
    Swizzle,
    copy_atom,
    copy_names,
    is_injective,
    parse,
    smem_atom,
    tcgen05_atom,
    tile_to_shape,
    tma_atom,
    tmem_accumulator,
)

from .tables import table

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
        for bit in (0, 1, 2, 4, 8, 16, 31):
            assert registers(thread, 32 * register + bit) == 32 * (column + columns * lane) + bit
        found.add((lane, column))
    assert found == set(product(range(lanes), range(columns)))
    assert load.source[0].stride == 0  # a lane is of no thread: all see the whole block
    assert [load.source(5, v) for v in range(0, 1024, 37)] == list(range(0, 1024, 37))


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
    values = np.arange(128 * bits)
    landed, read = (layout(0, values) for layout in (atom.destination, atom.source))
    at = dict(zip(landed.tolist(), read.tolist(), strict=True))
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
    for n in (8, 16, 24, 48, 256):
        if ctas == 2 and n % 16:
            continue
        atom = tcgen05_atom(m, n, bits, cta_group=ctas)
        assert atom.shape == (m, n, 256 // bits)
        for operand in "ABC":
            rows, columns = atom.extents(operand)
            fragment = atom.fragment(operand)
            assert fragment[0].size() == ctas
            values = np.arange(fragment[1].size())
            held = np.array([fragment(t, values) for t in range(ctas)])
            assert np.array_equal(np.sort(held, axis=None), np.arange(rows * columns))
            # A CTA has neighbouring rows of the operand.
            assert (held % rows * ctas // rows == np.arange(ctas)[:, None]).all()


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
    for n in (64, 128, 256) if stationary else range(8 * ctas, 257, 8 * ctas):
        layout = tmem_accumulator(m, n, cta_group=ctas, weight_stationary=stationary)
        assert layout.size() == m * n
        columns = {0, 1, n // 4 - 1, n // 4, n // 2 - 1, n // 2, n - 1} if n % 64 else range(n)
        i, j = np.meshgrid(np.arange(m), sorted(columns), indexing="ij")
        place = (*layout(i, j), 0 * i, 0 * i)[:3]
        for found, wanted in zip(place, expected(i, j, n), strict=True):
            assert (found == wanted).all()


# PTX ISA, "Swizzling Modes": the unit of 16 bytes of the box that is at each place of a line of
# 128 bytes, line after line, until the pattern is the same again.
LINES = {
    "INTER": "01234567",
    "SW32": "01234567 10325476",
    "SW64": "01234567 10325476 23016745 32107654",
    "SW128": "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210",
    "SW128_32B": "01234567 23016745 45670123 67452301",
    "SW128_64B": "01234567 45670123",
}
WIDTH = {"SW32": 32, "SW64": 64}


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("swizzle", LINES)
def test_every_byte_of_a_box_lands_as_the_isa_draws_it(swizzle, bits):
    lines = LINES[swizzle].split()
    row = WIDTH.get(swizzle, 128)
    for rows in ((1,), (16,), (5,), (3, 4), (2, 3, 5)):
        atom = tma_atom((8 * row // bits, *rows), bits, swizzle=swizzle)
        size = row * prod(rows)
        assert atom.source.size() == atom.destination.size() == 8 * size
        assert (atom.threads, atom.row_bits, atom.element_bits) == (1, 8 * row, bits)
        for byte in range(size):
            line, within = divmod(byte, 128)
            pattern = lines[line % len(lines)]
            unit = pattern.index(str(within // 16))  # where this unit of the line is found
            landed = 128 * line + 16 * unit + within % 16
            for bit in (8 * byte, 8 * byte + 7):
                assert atom.source(0, bit) == bit
                assert atom.destination(0, bit) == 8 * landed + bit % 8


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


@pytest.mark.parametrize("box", [(8,), (8, 24), (24, 3, 8), (40, 16), (56, 24), (32, 1)])
@pytest.mark.parametrize("swizzle", ["SW32", "SW64", "SW128"])
def test_short_rows_of_a_box_lie_as_far_apart_as_wide_ones(box, swizzle):
    """As copies on an H200 left them: 16 to 112 bytes to a row, boxes of two and three modes."""
    width = {"SW32": 16, "SW64": 32, "SW128": 64}[swizzle]  # elements
    if box[0] > width:
        return
    short, wide = (tma_atom((row, *box[1:]), 16, swizzle=swizzle) for row in (box[0], width))
    assert short.source.size() == short.destination.size() == 16 * prod(box)
    assert is_injective(short.destination)
    for row, bit in product(range(prod(box[1:])), range(16 * box[0])):
        landed = short.destination(0, 16 * box[0] * row + bit)
        assert landed == wide.destination(0, 16 * width * row + bit)


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128", "SW128_32B"])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_tiles_of_shared_memory_are_the_canonical_layouts(major, swizzle, bits):
    """PTX ISA, "Canonical Layouts": K ((8,m),(T,units,k)), MN ((T,units,m),(8,k)), then a XOR.

    T elements are 16 bytes. Tiles follow one another along MN, then along K.
    """
    if swizzle == "SW128_32B" and major == "K":
        return
    t, units = 128 // bits, {"INTER": 1, "SW32": 2, "SW64": 4}.get(swizzle, 8)
    run, tile = t * units, 8 * t * units
    atom = smem_atom(f"{major}_{swizzle}", bits)
    rows, columns = (8, run) if major == "K" else (run, 8)
    assert [int(mode.size()) for mode in atom.inner] == [rows, columns]
    layout = tile_to_shape(atom, (2 * rows, 3 * columns))
    lines = LINES[swizzle].split()
    for i, j in product(range(2 * rows), range(3 * columns)):
        along, across = (j, i) if major == "K" else (i, j)  # the contiguous mode, and the other
        # Whole tiles before this one, then the place in the tile, as elements.
        before = i // rows + 2 * (j // columns)
        place = tile * before + run * (across % 8) + along % run
        unit, element = divmod(place, t)
        line, within = divmod(unit, 8)
        landed = lines[line % len(lines)].index(str(within))
        assert layout(i, j) == t * (8 * line + landed) + element


@pytest.mark.parametrize(
    ("name", "bits", "extents", "exact"),
    [  # the examples of the PTX ISA beside its table of canonical layouts
        ("K_INTER", 32, (16, 16), "((8,2),(4,4)):((4,32),(1,64))"),
        ("MN_INTER", 16, (16, 16), "((8,1,2),(8,2)):((1,8,64),(8,128))"),
        ("MN_SW32", 16, (32, 16), "((8,2,2),(8,2)):((1,8,128),(16,256))"),
        ("MN_SW64", 16, (64, 16), "((8,4,2),(8,2)):((1,8,256),(32,512))"),
    ],
)
def test_tiles_are_the_examples_of_the_isa(name, bits, extents, exact):
    tiles, exact = tile_to_shape(smem_atom(name, bits), extents).inner, parse(exact)
    assert table(tiles) == table(exact)


def test_what_there_is_none_of_is_refused():
    for m, n, bits, ctas in (
        (32, 16, 16, 1),
        (256, 16, 16, 1),
        (64, 16, 16, 2),
        (128, 4, 16, 1),
        (128, 8, 16, 2),
        (256, 24, 16, 2),
        (128, 272, 16, 1),
        (64, 16, 4, 1),
        (128, 16, 64, 1),
    ):
        with pytest.raises(LayoutValueError, match="expected"):
            tcgen05_atom(m, n, bits, cta_group=ctas)
    for m, n, ctas, stationary in (
        (32, 16, 1, False),
        (128, 12, 1, False),
        (64, 64, 2, True),
        (64, 16, 1, True),
        (32, 192, 1, True),
        (128, 24, 2, False),
    ):
        with pytest.raises(LayoutValueError, match="expected"):
            tmem_accumulator(m, n, cta_group=ctas, weight_stationary=stationary)
    for box, swizzle in (((7, 8), "INTER"), ((64, 512), "SW128"), ((64, 8), "SW32"), ((), "SW32")):
        with pytest.raises(LayoutValueError, match="expected"):
            tma_atom(box, swizzle=swizzle)
    with pytest.raises(LayoutValueError, match="16 bytes, at most 64 for SW64, got 128"):
        tma_atom((64, 8), swizzle="SW64")
    for swizzle in ("SW128_32B", "SW128_64B"):
        with pytest.raises(LayoutValueError, match="rows of 128 bytes, got 64"):
            tma_atom((32, 8), swizzle=swizzle)
    for bits in (0, 3, 6, 128, -16, True, 16.5):
        with pytest.raises(LayoutValueError, match="elements of"):
            tma_atom((128, 8), bits)
    with pytest.raises(LayoutValueError, match="expected one of the swizzles "):
        tma_atom((64, 8), swizzle="SW256")
    assert smem_atom("MN_SW128_32B", 32).outer == Swizzle(2, 3, 2)
