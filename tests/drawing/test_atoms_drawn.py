"""Every atom has its picture: thread and value in every cell, in every format."""

from __future__ import annotations

import re

import pytest

import layoutconv as lc
from layoutconv.drawing.api import draw
from layoutconv.drawing.named import atom as named

from .figures import fact, grids, placed

WGMMA = [lc.wgmma_atom(n, 16, a_in_registers=n == 64, sparse=n == 16) for n in (8, 16, 64, 256)]
TCGEN05 = [
    lc.tcgen05_atom(m, n, cta_group=ctas)
    for m, n, ctas in ((64, 8, 1), (128, 64, 1), (128, 16, 2), (256, 256, 2))
]
PRODUCTS = [lc.mma_atom(n) for n in lc.mma_names()] + [lc.mfma_atom(n) for n in lc.mfma_names()]
BOXES = [lc.tma_atom((64, 8), swizzle="SW128"), lc.tma_atom((16, 4, 4), 8)]
COPIES = [lc.copy_atom(n) for n in lc.copy_names()] + BOXES


def holder(cell):
    """The thread, the value and how many more have it, as they are written in a cell."""
    if written := re.fullmatch(r"V(\d+)(?:\+(\d+))?", cell.label):
        return 0, int(written[1]), int(written[2] or 0)
    thread, more, value = re.fullmatch(r"T(\d+)(?:\+(\d+))?\nV(\d+)", cell.label).groups()
    return int(thread), int(value), int(more or 0)


@pytest.mark.parametrize("atom", PRODUCTS + WGMMA + TCGEN05, ids=lambda atom: atom.name)
def test_every_element_of_a_product_names_its_thread_and_value(atom):
    b, a, c = grids(draw(atom, limit=16))
    for operand, grid in (("A", a), ("B", b), ("C", c)):
        fragment, (rows, columns) = atom.fragment(operand), atom.extents(operand)
        seen = 0
        for i, j, cell in placed(grid):
            row, column = (j, i) if operand == "B" else (i, j)
            position = row + rows * column
            seen += 1
            if cell.label.startswith("all"):
                assert fragment(0, int(cell.label[5:])) == position
                assert fact(cell, "held by").startswith("every thread")
                continue
            thread, value, more = holder(cell)
            assert (fragment(thread, value), more) == (position, 0)
        assert seen >= min(rows, 15) * min(columns, 15)


@pytest.mark.parametrize("atom", COPIES, ids=lambda atom: atom.name)
def test_every_unit_of_a_copy_names_its_thread_and_value(atom):
    drawn = {grid.title.partition(":")[0]: grid for grid in grids(draw(atom, limit=16))}
    tensor_memory = "ld" if ".ld." in atom.name else "st" if ".st." in atom.name else None
    hidden = {"ld": "source", "st": "destination", None: None}[tensor_memory]
    assert set(drawn) == {"source", "destination"} - {hidden}
    columns = atom.row_bits // atom.element_bits
    for side, grid in drawn.items():
        bits = getattr(atom, side)
        for i, j, cell in placed(grid):
            if not cell.label:
                assert atom.name == "tcgen05.cp.4x256b"
                continue
            thread, value, _ = holder(cell)
            place = atom.element_bits * (columns * i + j)
            assert bits(thread, atom.element_bits * value) == place


@pytest.mark.parametrize("format", ["text", "svg", "tikz", "html"])
@pytest.mark.parametrize(
    "name", ["m16n8k16.f16", "ldmatrix.x4.trans", "mfma.4x4x1.16b.f32", "tcgen05.ld.16x128b.x1"]
)
def test_in_every_format(name, format, tmp_path):
    atom = named(name)
    suffix = {"text": "txt", "tikz": "tex"}.get(format, format)
    figure = atom.draw(tmp_path / f"atom.{suffix}")
    written = (tmp_path / f"atom.{suffix}").read_text(encoding="utf-8")
    assert written == figure.render(format)
    assert name in written
    assert "T31" in re.sub(r"\\\\|<[^>]*>|\s", "", written)


@pytest.mark.parametrize(
    ("cute", "ours"),
    [
        ("SM70_8x8x4_F32F16F16F32_NT", "m8n8k4.f16.nt"),
        ("SM70_8x8x4_F16F16F16F16_TN", "m8n8k4.f16.acc16"),
        ("SM75_8x8x16_S32S8S8S32_TN", "m8n8k16.s8"),
        ("SM80_16x8x32_S32S8U8S32_TN_SATURATE", "m16n8k32.s8.u8"),
        ("SM80_16x8x256_S32U1U1S32_TN_XORPOPC", "m16n8k256.b1"),
        ("SM80_8x8x4_F64F64F64F64_TN", "m8n8k4.f64"),
        ("SM89_16x8x32_F32E4M3E5M2F32_TN", "m16n8k32.e4m3.e5m2"),
        ("MMA_16x8x16_F64F64F64F64_TN", "m16n8k16.f64"),
        ("SM61_DP4A", "m1n1k4.dp4a"),
        ("SM75_U32x4_LDSM_N", "ldmatrix.x4"),
        ("SM90_U16x4_STSM_T", "stmatrix.x2.trans"),
        ("SM100_TMEM_LOAD_16dp256b4x", "tcgen05.ld.16x256b.x4"),
        ("SM100_TMEM_STORE_32dp32b128x", "tcgen05.st.32x32b.x128"),
    ],
)
def test_names_of_cute(cute, ours):
    assert named(cute) == named(ours)
    assert named(cute).name == ours
