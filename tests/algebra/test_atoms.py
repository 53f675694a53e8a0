"""The fragments of the instructions, against the formulas of the PTX ISA."""

from __future__ import annotations

import pytest

from layoutconv.algebra import (
    LayoutValueError,
    copy_atom,
    copy_names,
    is_injective,
    mma_atom,
    mma_names,
    wgmma_atom,
)


@pytest.mark.parametrize("name", mma_names())
def test_every_element_is_held_once(name):
    atom = mma_atom(name)
    m, n, k = atom.shape
    for fragment, size in ((atom.a, m * k), (atom.b, n * k), (atom.c, m * n)):
        values = [fragment(i) for i in range(fragment.size())]
        assert fragment[0].size() == atom.threads
        assert sorted(values) == list(range(size))


@pytest.mark.parametrize(
    ("name", "per_register"),
    [
        ("m16n8k16.f16", 2),
        ("m16n8k8.f16", 2),
        ("m16n8k32.s8", 4),
        ("m16n8k16.s8", 4),
        ("m16n8k8.tf32", 1),
        ("m16n8k4.tf32", 1),
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


@pytest.mark.parametrize("name", copy_names())
def test_ldmatrix_hands_out_every_bit_of_the_rows(name):
    atom = copy_atom(name)
    matrices = int(name.split(".")[1][1:])
    bits = 8 * 8 * 16 * matrices
    assert sorted(atom.destination(i) for i in range(atom.destination.size())) == list(range(bits))
    assert {atom.source(i) for i in range(atom.source.size())} == set(range(bits))
    for lane in range(32):
        for matrix in range(matrices):
            # Row lane / 4 and columns 2 (lane % 4) + {0, 1} of each matrix, or transposed.
            for i in range(2):
                row, column = lane // 4, 2 * (lane % 4) + i
                if name.endswith("trans"):
                    row, column = column, row
                value = 16 * i + 32 * matrix
                assert atom.destination(lane, value) == 1024 * matrix + 128 * row + 16 * column


def test_unknown_names_are_answered_with_the_known():
    for lookup, name in ((mma_atom, "m16n8k16.f64"), (mma_atom, "m16n8k16.e4m3"), (copy_atom, "x")):
        with pytest.raises(LayoutValueError, match="there are"):
            lookup(name)
    for n in (0, 12, 264):
        with pytest.raises(LayoutValueError):
            wgmma_atom(n)
    with pytest.raises(LayoutValueError):
        wgmma_atom(64, 64)
