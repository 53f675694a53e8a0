"""Sums along one run whose length is an argument: one kernel of every tile for all of them."""

from __future__ import annotations

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout, SymInt
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.view.gemm_view import GemmView, OperandLayout

from .launcher import Case, check_exact, compiled_view, half_line, run_case, spec_of


def product(runs: int, unit: int, stored: int = 0) -> GemmView:
    """A product of (40, k) and (24, k), of k = unit * J, in lines of as many or of ``stored``."""
    J = SymInt(runs, "J")
    line = SymInt(stored, "L") if stored else unit * J

    def operand(rows: int) -> OperandLayout:
        run = Layout((rows, (unit, J)), (E(0), (E(1), unit * E(1))))
        return ComposedLayout(Layout((rows, line), (line, 1)), 0, run)

    d = Layout((40, 24), (E(0), E(1)))
    return GemmView(operand(40), operand(24), ComposedLayout(Layout((40, 24), (24, 1)), 0, d))


@pytest.mark.parametrize("unit", [8, 32])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.chessboard
def test_a_kernel_serves_every_length(arch: str, unit: int) -> None:
    """Shorter ones than its stages, and those that end within a k-tile."""
    dtype = torch.float32 if unit == 8 else torch.float16
    tile = TileConfig((64, 64, half_line(dtype)), (4, 2), 3)
    if arch == "sm_90a":
        tile = specialized((64, 64, 2 * half_line(dtype)), (4, 1), 3)
    kernels = set()
    for runs in (9, 1, 30):
        case = Case.of(product(runs, unit), dtype)
        compiled = compiled_view(case.view, dtype, tile, arch)
        check_exact(case, run_case(case, compiled))
        kernels.add(compiled.ptx)
    assert len(kernels) == 1


@pytest.mark.parametrize(("unit", "by_tma"), [(16, False), (64, True)])
def test_a_kernel_reads_no_further_than_the_run(unit: int, by_tma: bool) -> None:
    """Lines of memory go on behind it: TMA brings whole k-tiles, for every length or for none."""
    tile = specialized((64, 64, 64), (4, 1), 3)
    whole, less = product(4, unit, 320), product(3, unit, 320)
    compiled = compiled_view(whole, torch.float16, tile, "sm_90a")
    assert compiled_view(less, torch.float16, tile, "sm_90a") is compiled
    assert ("cp.async.bulk" in compiled.ptx) == by_tma
    for view in (less, whole):
        case = Case.of(view, torch.float16)
        check_exact(case, run_case(case, compiled))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_empty_sums_are_a_kernel_of_their_own(dtype: torch.dtype) -> None:
    """It writes zeros, and reads nothing: whatever the vectors of the others are."""
    keys = set()
    for runs in (0, 5, 7):
        view = product(runs, 3)
        out = torch.int32 if dtype == torch.int8 else dtype
        spec = spec_of(view, dtype, TileConfig((64, 64, 64)), out=out)
        keys.add((signature(view, spec.along), spec))
    assert len(keys) == 2
