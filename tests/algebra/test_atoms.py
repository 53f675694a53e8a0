"""The fragments of the instructions, against the formulas of the PTX ISA."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from layoutconv.algebra import (
    LayoutValueError,
    copy_atom,
    copy_names,
    is_injective,
    mfma_atom,
    mfma_names,
    mma_atom,
    mma_names,
    smem_atom,
    wgmma_atom,
)


@pytest.mark.parametrize("name", mma_names() + mfma_names())
def test_every_element_is_held_once(name):
    atom = mfma_atom(name) if name.startswith("mfma") else mma_atom(name)
    for operand in "ABC":
        fragment, (rows, columns) = atom.fragment(operand), atom.extents(operand)
        assert fragment[0].size() == atom.threads == atom.thr_id.size()
        assert sorted(fragment(i) for i in range(fragment.size())) == list(range(rows * columns))


NEWS = """
    m8n8k4.f16.nt m8n8k16.s8.u8 m16n8k8.f16 m16n8k16.bf16 m16n8k8.tf32 m8n8k4.f64 m16n8k64.s4.u4
    m16n8k256.b1 m16n8k32.e4m3.e5m2 m16n8k16.e5m2 m16n8k16.f64 m16n8k32.e2m1.e3m2 m16n8k64.e2m1
    sp.m16n8k32.f16 sp.m16n8k16.tf32 sp.m16n8k64.u8.s8 sp.m16n8k128.s4 sp.m16n8k64.e5m2.e4m3
    sp.m16n8k128.e2m1 m1n1k1.fma m1n1k4.dp4a
"""


def test_names_cover_what_each_generation_added():
    """sm_70, sm_75, sm_80, sm_89, sm_90 and sm_120, dense and sparse, and the mixes of types."""
    for name in NEWS.split():
        assert mma_atom(name).name == name
    assert len(mma_names()) == len(set(mma_names()))


@pytest.mark.parametrize("name", [name for name in mma_names() if name.startswith("sp.")])
def test_sparse_fragments_are_dense_ones_of_what_is_stored(name):
    """PTX: A is m16n8k(K/2) of the elements that are kept, B is that of a dense K."""
    atom = mma_atom(name)
    bits, (m, n, k) = atom.a_bits, atom.shape
    packed = 32 // bits
    for lane, v in product(range(32), range(atom.b[1].size())):
        group, tid = divmod(lane, 4)
        register, i = divmod(v, packed)
        assert atom.b(lane, v) == group + n * (packed * tid + i + 4 * packed * register)
    for lane, v in product(range(32), range(atom.a[1].size())):
        group, tid = divmod(lane, 4)
        register, i = divmod(v, packed)
        column = packed * tid + i + 4 * packed * (register // 2)
        assert column < k // 2
        assert atom.a(lane, v) == group + 8 * (register % 2) + m * column


@pytest.mark.parametrize(
    ("name", "per_register"),
    [
        ("m16n8k16.f16", 2),
        ("m16n8k8.f16", 2),
        ("m16n8k32.s8", 4),
        ("m16n8k16.s8", 4),
        ("m16n8k8.tf32", 1),
        ("m16n8k4.tf32", 1),
        ("m16n8k8.bf16", 2),
        ("m16n8k32.e4m3", 4),
        ("m16n8k32.s4", 8),
        ("m16n8k64.u4", 8),
        ("m16n8k128.b1", 32),
        ("m16n8k256.b1", 32),
        ("m16n8k4.f64", 1),
        ("m16n8k8.f64", 1),
        ("m16n8k16.f64", 1),
    ],
)
def test_fragments_are_where_the_ptx_isa_says(name, per_register):
    """PTX: lane = 4 * group + tid; the registers of A alternate rows, then step through K."""
    atom = mma_atom(name)
    m, n, _ = atom.shape
    for lane in range(32):
        group, tid = divmod(lane, 4)
        for v in range(atom.a[1].size()):
            register, i = divmod(v, per_register)
            row = group + 8 * (register % 2)
            column = per_register * tid + i + 4 * per_register * (register // 2)
            assert atom.a(lane, v) == row + m * column
        for v in range(atom.b[1].size()):
            register, i = divmod(v, per_register)
            assert atom.b(lane, v) == group + n * (
                per_register * tid + i + 4 * per_register * register
            )
        for v in range(4):
            assert atom.c(lane, v) == group + 8 * (v // 2) + m * (2 * tid + v % 2)


@pytest.mark.parametrize(
    ("name", "packed"), [("m8n8k16.s8", 4), ("m8n8k32.u4", 8), ("m8n8k128.b1", 32)]
)
def test_fragments_of_eight_rows(name, packed):
    atom = mma_atom(name)
    for lane in range(32):
        group, tid = divmod(lane, 4)
        for i in range(packed):
            assert atom.a(lane, i) == atom.b(lane, i) == group + 8 * (packed * tid + i)
        assert [atom.c(lane, v) for v in range(2)] == [group + 8 * (2 * tid + v) for v in range(2)]


def test_quad_pairs():
    """PTX, m8n8k4: lanes 0-3 and 16-19 work together; by rows or by columns."""
    for name in [name for name in mma_names() if name.startswith("m8n8k4.f16")]:
        atom = mma_atom(name)
        assert [atom.thr_id(t) for t in range(8)] == [0, 1, 2, 3, 16, 17, 18, 19]
        for t in range(8):
            lane, high = t % 4, 4 * (t // 4)
            for i in range(4):
                by_k = lane + high + 8 * i
                across = i % 4 + high + 8 * lane
                assert atom.a(t, i) == (across if ".n" in name else by_k)
                assert atom.b(t, i) == (across if ".nt" in name or ".tt" in name else by_k)
            for i in range(8):
                row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
                if name.endswith("acc16"):
                    row, column = lane + high, i
                assert atom.c(t, i) == row + 8 * column


@pytest.mark.parametrize("name", mfma_names())
def test_mfma_fragments(name):
    """By hand from AMD's rules, lane by lane; f64 steps through rows, the others through fours."""
    atom = mfma_atom(name)
    m, n, k = atom.shape
    held, together = k * m * atom.blocks // 64, 1 if atom.a_bits == 64 else 4
    for lane in range(64):
        group, row = divmod(lane, m)
        group, block = divmod(group, atom.blocks)
        for v in range(held):
            assert atom.a(lane, v) == atom.b(lane, v) == row + m * (group * held + v + k * block)
        column, rest = lane % n, lane // n
        halves = min(64 // n, m // together)
        for v in range(m * n * atom.blocks // 64):
            aside = 64 // n // halves
            inner, half = rest % aside, rest // aside
            across, i = divmod(v, together)
            outer, step = divmod(across, m // together // halves)
            x = i + together * (half + halves * step)
            assert atom.c(lane, v) == x + m * column + m * n * (inner + aside * outer)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
def test_shared_memory_atoms_permute_16_byte_units(bits, swizzle):
    """The unit of row r that is at place u of it was unit u ^ r, counted in the swizzle's bits."""
    units = {"INTER": 1, "SW32": 2, "SW64": 4, "SW128": 8}[swizzle]
    unit = 128 // bits
    by_k, by_mn = smem_atom(f"K_{swizzle}", bits), smem_atom(f"MN_{swizzle}", bits)
    rows = {1: 8, 2: 4, 4: 2, 8: 1}[units]  # that share 128 bytes
    for r in range(8):
        for u in range(units):
            for e in range(unit):
                place = unit * units * r + unit * (u ^ (r // rows % units)) + e
                assert by_k(r, unit * u + e) == by_mn(unit * u + e, r) == place


def test_f64_fragments():
    atom = mma_atom("m8n8k4.f64")
    for lane in range(32):
        group, tid = divmod(lane, 4)
        assert atom.a(lane, 0) == atom.b(lane, 0) == group + 8 * tid
        assert [atom.c(lane, v) for v in range(2)] == [group + 8 * (2 * tid + v) for v in range(2)]


@pytest.mark.parametrize("n", [8, 64, 256])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_fragments(n, bits):
    atom = wgmma_atom(n, bits, a_in_registers=True)
    m, _, k = atom.shape
    assert sorted(atom.a(i) for i in range(atom.a.size())) == list(range(m * k))
    assert is_injective(atom.c)
    word = 32 // bits
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        group, tid = divmod(lane, 4)
        for v in range(atom.c[1].size()):
            row = 16 * warp + group + 8 * (v // 2 % 2)
            assert atom.c(thread, v) == row + m * (8 * (v // 4) + 2 * tid + v % 2)
        for v in range(atom.a[1].size()):
            register, i = divmod(v, word)
            row = 16 * warp + group + 8 * (register % 2)
            assert atom.a(thread, v) == row + m * (word * tid + i + 4 * word * (register // 2))
    shared = wgmma_atom(n, bits)
    assert {shared.b(t, 5) for t in range(128)} == {5}


MATRICES = [name for name in copy_names() if "matrix.x" in name]
BYTES = [name for name in copy_names() if "matrix.m" in name]


@pytest.mark.parametrize("name", MATRICES)
def test_ldmatrix_hands_out_every_bit_of_the_rows(name):
    atom = copy_atom(name)
    matrices = int(name.split(".")[1][1:])
    bits = 8 * 8 * 16 * matrices
    registers, rows = atom.destination, atom.source
    if name.startswith("st"):
        registers, rows = rows, registers
    assert sorted(registers(i) for i in range(registers.size())) == list(range(bits))
    assert {rows(i) for i in range(rows.size())} == set(range(bits))
    for lane in range(32):
        for matrix in range(matrices):
            # Row lane / 4 and columns 2 (lane % 4) + {0, 1} of each matrix, or transposed.
            for i in range(2):
                row, column = lane // 4, 2 * (lane % 4) + i
                if name.endswith("trans"):
                    row, column = column, row
                value = 16 * i + 32 * matrix
                assert registers(lane, value) == 1024 * matrix + 128 * row + 16 * column


@pytest.mark.parametrize("name", BYTES)
def test_matrices_of_bytes(name):
    """PTX: m8n16 hands four bytes of a row to each lane; the others four or two of a column."""
    atom = copy_atom(name)
    registers, rows = atom.destination, atom.source
    if name.startswith("st"):
        registers, rows = rows, registers
    shape, times = name.split(".")[1], int(name.split(".")[2][1:])
    height = 16 if shape == "m16n16" else 8
    bits = 128 * height * times
    assert sorted(registers(i) for i in range(registers.size())) == list(range(bits))
    assert [rows(lane, 0) for lane in range(height * times)] == list(range(0, bits, 128))
    for lane, byte in product(range(32), range(bits // 256)):
        matrix, v = divmod(byte, height * 16 // 32)
        if shape == "m8n16":
            row, column = lane // 4, 4 * (lane % 4) + v
        else:
            run = height // 4
            row, column = run * (lane % 4) + v % run, lane // 4 + 8 * (v // run)
        assert registers(lane, 8 * byte) == 128 * (height * matrix + row) + 8 * column


def test_movmatrix_transposes():
    atom = copy_atom("movmatrix.trans")
    place = {atom.source(lane, 16 * i): (lane, i) for lane in range(32) for i in range(2)}
    for lane, i in product(range(32), range(2)):
        row, column = divmod(atom.destination(lane, 16 * i) // 16, 8)
        assert place[128 * row + 16 * column] == (4 * row + column // 2, column % 2)
        assert (column, row) == (lane // 4, 2 * (lane % 4) + i)


@pytest.mark.parametrize(
    ("lookup", "name", "nearest"),
    [
        (mma_atom, "m16n8k16", "m16n8k16.f16"),
        (mma_atom, "SM80_16x8x16_F32F16F16F32_TN", "m16n8k16.f16"),
        (mma_atom, "m16n8k9.f16", "m16n8k8.f16"),
        (copy_atom, "ldmatrix", "ldmatrix.x1"),
        (mfma_atom, "32x32x8.f16", "mfma.32x32x8.f16"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(lookup: Any, name: str, nearest: str):
    with pytest.raises(LayoutValueError) as caught:
        lookup(name)
    message = str(caught.value)
    assert nearest in message.split(" such as ")[1].split(", ")
    assert f"{lookup.__name__[:-4]}names()" in message
    assert len(message) < 200


def test_unknown_names_are_answered_with_the_known():
    for lookup, name in (
        (mma_atom, "m16n8k32.f64"),
        (mma_atom, "m16n8k4.e4m3"),
        (mfma_atom, "mfma.4x4x4.f16"),
        (copy_atom, "x"),
    ):
        with pytest.raises(LayoutValueError, match="is not known; expected one of "):
            lookup(name)
    for name in ("K", "N_SW128", "K_SW256"):
        with pytest.raises(LayoutValueError, match="is not known; expected K_ or MN_ with "):
            smem_atom(name)
    for n in (0, 12, 264):
        with pytest.raises(LayoutValueError):
            wgmma_atom(n)
    with pytest.raises(LayoutValueError):
        wgmma_atom(64, 64)
