"""Rows that leave the bounds by themselves, in views that a user may write: they read zeros."""

from __future__ import annotations

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout, SymInt
from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.view_rules import UnsupportedViewError, check_view
from layoutconv.view.gemm_view import GemmView, through_coordinates
from layoutconv.view.operands import filter_operand, indexed_rows, row_major

from .launcher import Case, compiled_view, reference, run_case

TILE = TileConfig((64, 64, 32))


def shifted_map(rows: int, taps: int, channels: int, shift: int) -> GemmView:
    """A kernel map whose row ``m`` reads entry ``m + shift`` of the map: outside it, nothing."""
    generator = torch.Generator().manual_seed(rows)
    index = torch.randint(-1, rows, (taps * rows,), generator=generator, dtype=torch.int32)
    M = SymInt(rows, "M")
    C, K = SymInt(channels, "C", runtime=False), SymInt(64, "K", runtime=False)
    stored = indexed_rows(index, SymInt(len(index), "L"), SymInt(rows, "in_rows"), C)
    fold = Layout((M, taps, C), (E(0), M * E(0), E(1)))
    domain = Layout((M, (C, taps)), (E(0), (E(2), E(1))))
    return GemmView(
        a=ComposedLayout(ComposedLayout(stored, 0, fold), (shift, 0, 0), domain),
        b=filter_operand(K, (taps,), C),
        d=ComposedLayout(row_major((M, K)), 0, Layout((M, K), (E(0), E(1)))),
    )


def test_rows_outside_the_map_read_zeros() -> None:
    for shift in (-3, 0, 5):
        view = shifted_map(70, 3, 32, shift)
        check_view(view)
        case = Case.of(view, torch.float16)
        ran = run_case(case, compiled_view(view, torch.float16, TILE))
        expected, written = reference(case)
        assert torch.equal(ran.out.double(), expected), shift
        assert torch.equal(ran.written, written), shift


def test_coordinates_beyond_32_bits_are_refused() -> None:
    """The kernel would wrap them, and find them in bounds."""
    near, far = (
        ConvProblem((1, 64, 32), (32, 1), stride=1 << 24, padding=((cells, cells),))
        for cells in (1 << 30, 1 << 32)
    )
    check_view(fprop_view(near))
    check_view(wgrad_view(near), (0, 0))
    with pytest.raises(UnsupportedViewError, match=r"`a` .* mode 1 inside \[-2\^31, 2\^31\)"):
        check_view(fprop_view(far))
    with pytest.raises(UnsupportedViewError, match=r"`b` .* mode 1 inside"):
        check_view(wgrad_view(far), (0, 0))
    rows = Layout((40, 64), ((1 << 26) * E(0), E(0)))  # of memory that is one mode
    a = ComposedLayout(Layout((40 << 26,), (1,)), 0, rows)
    b, d = fprop_view(ConvProblem((40, 1, 64), (64, 1))).b, Layout((40, 64), (64, 1))
    with pytest.raises(UnsupportedViewError, match=r"`a` .* mode 0 inside"):
        check_view(through_coordinates(GemmView(a, b, d)))
