"""Operands of another kind than a function takes: the error names the argument, and what it got."""

from __future__ import annotations

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout

GATE = lc.mma_atom("m16n8k16.f16")
LOAD = lc.copy_atom("ldmatrix.x4")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: lc.size(Layout((4, 8)), mode=lc.E(0)), "size: argument `mode`: expected an index"),
        (lambda: lc.select((4, 8), lc.F2(1)), "select: argument `mode`: expected an index"),
        (lambda: lc.basis_get(Layout(4), (4, 8)), "basis_get: expected a scaled basis, got 4:1"),
        (lambda: lc.make_tiled_mma("m16n8k16"), "make_tiled_mma: expected an mma atom"),
        (lambda: lc.copy_unit(GATE), "copy_unit: expected a copy atom"),
        (
            lambda: lc.make_tiled_copy_A(lc.universal_copy(4), GATE),
            "make_tiled_copy_A: expected a TiledMma",
        ),
        (
            lambda: lc.make_tiled_copy_C_atom(GATE, lc.make_tiled_mma(GATE)),
            "make_tiled_copy_C_atom: expected a CopyUnit",
        ),
        (
            lambda: lc.make_tiled_copy_S(lc.universal_copy(4), GATE),
            "make_tiled_copy_S: expected a TiledCopy",
        ),
        (
            lambda: lc.make_tiled_copy_S(lc.universal_copy(4), None),
            "argument `copy`: expected a Til",
        ),
        (
            lambda: lc.make_tiled_copy_A(lc.universal_copy(4), 3),
            "argument `mma`: expected a TiledMma",
        ),
        (lambda: lc.make_tiled_mma("m16n8k16"), "argument `atom`: expected an MmaAtom, got 'm16n"),
        (lambda: lc.copy_unit("x"), "argument `atom`: expected a CopyAtom, got 'x'"),
        (lambda: lc.copy_unit(LOAD, 0), "copy_unit: argument `element_bits`: expected an int >= 1"),
        (lambda: lc.copy_unit(LOAD, "8"), "argument `element_bits`: expected an int >= 1, got '8'"),
        (lambda: lc.evenly_divides((4, 8), 0), "0 does not divide"),
        (lambda: lc.idx2crd(8, (0, 1)), "an extent of 0 has no coordinates"),
        (lambda: lc.IndexedGather([1, 2])(lc.symbols("H")), "position H has no value"),
        (lambda: lc.smem_atom(Layout(8)), "smem_atom: expected the name of a layout"),
        (lambda: lc.tma_atom(64), "tma_atom: expected the extents of a box"),
        (lambda: lc.from_f2(4), "from_f2: expected a sequence of columns"),
        (lambda: lc.bank_conflicts(Layout(32), "fp16"), "bank_conflicts: expected element_bits"),
        (
            lambda: lc.logical_product(Layout((4, 8), (lc.F2(1), lc.F2(4))), lc.symbols("H")),
            "is not an integer with a known value",
        ),
    ],
)
def test_an_operand_of_another_kind_is_named(call, why):
    with pytest.raises(lc.LayoutError, match=why):
        call()
