"""The atoms against the CuTe DSL, which traces them without a GPU: the same text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dsl_atoms import N_TCGEN05, N_WGMMA, text

import layoutconv.algebra as lc

from .tables import table


def traced(arch, body):
    """Return what the DSL says of the atoms that ``body`` of dsl_atoms.py makes for ``arch``."""
    pytest.importorskip("cutlass")
    command = [sys.executable, str(Path(__file__).with_name("dsl_atoms.py")), arch, body]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not said:  # no compiler for the host, or no such arch
        pytest.skip(f"the CuTe DSL does not trace here: {done.stderr[-2000:]}")
    return json.loads(said[0])


def ours(atom):
    return [text(x) for x in (atom.thr_id, atom.shape, atom.a, atom.b, atom.c)]


def test_warp_products():
    said = traced("sm_120a", "warp_products")
    assert len(said) == 12
    assert said == {name: ours(lc.mma_atom(name)) for name in said}


def test_warpgroup_products_and_their_shared_memory():
    said = traced("sm_90a", "warpgroup_products")
    assert len(said) == 6 * len(N_WGMMA) + 24 + 3
    for name, values in said.items():
        if name.startswith("smem"):
            assert values == our_smem(name)
            continue
        if name.startswith("tiled"):
            atoms = (*map(int, name.split()[1:]), 1)
            tiled = lc.make_tiled_mma(lc.wgmma_atom(64, a_in_registers=True), atoms)
            assert values == our_tiles(tiled, 77)
            continue
        n, bits, where, *_ = name.split()
        atom = lc.wgmma_atom(int(n), int(bits), a_in_registers=where == "RMEM")
        assert values == ours(atom), name


def our_tiles(tiled, thread):
    parts = []
    for operand, extents in (("A", (256, 64)), ("B", (128, 64)), ("C", (256, 128))):
        part = tiled.get_slice(thread).partition(operand, lc.make_identity_tensor(extents))
        offset = ",".join(map(str, part.offset if isinstance(part.offset, tuple) else (0, 0)))
        parts.append(f"tensor<({offset})o{part.layout}>")
    return [text(tiled.thr_layout_vmnk), *[text(tiled.layout_tv(x)) for x in "ABC"], *parts]


def our_smem(name):
    _, kind, bits = name.split()
    atom = lc.smem_atom(kind, int(bits))
    swizzle = atom.outer
    base = swizzle.base + int(bits).bit_length() - 1 - 3
    return [text(lc.Swizzle(swizzle.bits, base, swizzle.shift)), text(atom.inner)]


def test_products_of_sm_100_and_their_accumulators():
    said = traced("sm_100a", "products_of_sm_100")
    assert len(said) == 4 * (2 * len(N_TCGEN05) + 2) + 3 + 27 + 4
    for name, values in said.items():
        if name.startswith("smem"):
            assert values == our_smem(name)
            continue
        if name.startswith("D"):
            m, n, ctas = map(int, name.split()[1:])
            assert same_places(lc.parse(values[0]), lc.tmem_accumulator(m, n, cta_group=ctas), ctas)
            continue
        if name.startswith("tiled"):
            m, n, ctas = map(int, name.split()[1:])
            tiled = lc.make_tiled_mma(lc.tcgen05_atom(m, n, cta_group=ctas))
            assert values == our_tiles(tiled, ctas - 1)
            continue
        m, n, bits, ctas = map(int, name.split())
        assert values == ours(lc.tcgen05_atom(m, n, bits, cta_group=ctas)), name


def same_places(theirs, accumulator, ctas):
    """Their addresses of one CTA: 65536 for a lane, 1 for a column of 32 bits."""
    m, n = (int(mode.size()) for mode in accumulator)
    rows = m // ctas
    found = [theirs(i) for i in range(rows * n)]
    places = [tuple(accumulator(i % rows, i // rows)) for i in range(rows * n)]
    return found == [65536 * place[0] + place[1] for place in places]


def test_copies():
    said = traced("sm_100a", "copies")
    assert len(said) == 18 + 2 + 6 + 2 * (3 * 8 + 7 + 6)
    for name, values in said.items():
        bits, _, ours = name.partition(" ")
        unit = lc.copy_unit(lc.copy_atom(ours), int(bits))
        for theirs, side in zip(values, (unit.source, unit.destination), strict=True):
            their = lc.parse(theirs)
            assert (their[0].size(), their[1].size()) == (side[0].size(), side[1].size())
            assert table(their) == table(side)
