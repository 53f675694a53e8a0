"""Sums that CTAs of a cluster share: each has a part, and each finishes some of the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.kernels.gemm.k_tiles import KTiles
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view
from tools.ptx_sim import Fault, parse

from .launcher import (
    Case,
    check_epilogue,
    check_exact,
    check_view_runs,
    compile_view,
    compiled_view,
    run_case,
)
from .mutations import replace as mutated
from .test_skip import kernel_map
from .test_template import grid
from .tiles import retiled

WARPGROUPS = specialized((64, 64, 64), (4, 1), 3, cluster_k=2)
WARPS = TileConfig((64, 32, 32), stages=2, cluster_k=2)
FOUR = retiled(WARPGROUPS, m=128, warps_m=8, cluster_k=4)
PROBLEM = ConvProblem((2, 7, 5, 40), (72, 2, 3), stride=(1, 2), padding=1)


@pytest.mark.parametrize(
    ("tile", "which"), [(WARPGROUPS, 0), (WARPGROUPS, 1), (retiled(FOUR, k=32), 2), (WARPS, 1)]
)
def test_passes(tile: TileConfig, which: int) -> None:
    view: Any = [fprop_view(PROBLEM), wgrad_view(PROBLEM), dgrad_views(PROBLEM)[1]][which]
    out = torch.float32 if which == 1 else torch.float16
    ran = check_view_runs(view, torch.float16, tile, arch="sm_90a", out=out)
    assert ran.launch.cluster == (1, tile.cluster_k, 1)
    assert ran.launch.grid[1] == tile.cluster_k


@pytest.mark.parametrize(
    ("dtype", "kind", "out"),
    [(torch.float32, "tfloat32", torch.float32), (torch.int8, "int8", torch.int32)],
)
def test_other_types(dtype: torch.dtype, kind: str, out: torch.dtype) -> None:
    """Integers beyond what fp32 holds stay exact: parts are of the accumulators' type."""
    tile = retiled(WARPS, k=64 // dtype.itemsize)
    view = fprop_view(ConvProblem((1, 6, 7, 48), (40, 3, 3), padding=1))
    check_view_runs(view, dtype, tile, arch="sm_90a", out=out, kind=kind)


def test_gathered_and_scattered() -> None:
    problem = ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=((0, 1), 1))
    for tile in (WARPGROUPS, WARPS):
        check_view_runs(grid(problem, True, True), torch.float16, tile, arch="sm_90a")


def test_taps_that_share_rows() -> None:
    view = widened(fprop_view(ConvProblem((1, 9, 11, 64), (72, 3, 3), padding=1)))
    assert view is not None
    tile = specialized((128, 64, 32), (8, 1), 2, halo_taps=3, cluster_k=2)
    check_view_runs(view, torch.float16, tile, arch="sm_90a")


@pytest.mark.parametrize(
    ("tile", "channels", "there"),
    [
        (WARPGROUPS, 16, 0.1),
        pytest.param(WARPS, 64, 0.1, marks=pytest.mark.deep),
        pytest.param(FOUR, 32, 0.002, marks=pytest.mark.deep),
        (WARPS, 32, 0.002),
    ],
)
def test_taps_that_tiles_lack(tile: TileConfig, channels: int, there: float) -> None:
    """Some parts of some tiles have nothing to sum."""
    index = kernel_map(150, 27, there)
    index[-70:] = -1
    view = kernel_map_view(index, channels, 40, kernel_size=(3, 3, 3))
    check_view_runs(view, torch.float16, tile, arch="sm_90a", skip=True)


def test_fewer_k_tiles_than_parts() -> None:
    view = fprop_view(ConvProblem((1, 9, 11, 64), (72, 1, 3), padding=(0, 1)))
    check_view_runs(view, torch.float16, FOUR, arch="sm_90a")


@pytest.mark.parametrize(("tile", "residual"), [(WARPGROUPS, True), (WARPS, False)])
def test_what_follows_sums_comes_after_all_parts(tile: TileConfig, residual: bool) -> None:
    """A ReLU of a part would be another result."""
    view = fprop_view(ConvProblem((1, 9, 11, 64), (72, 3, 3), padding=1))
    steps = "bias residual relu" if residual else "bias relu"
    check_epilogue(view, torch.float16, tile, steps, out=torch.float32)


def test_refused() -> None:
    view = fprop_view(PROBLEM)
    narrow = retiled(WARPGROUPS, m=128, n=32, warps_m=8, cluster_k=4)
    with pytest.raises(ValueError, match="multiple of 64 rows"):
        compile_view(view, torch.float16, narrow, "sm_90a")
    for rest in ({"split": "partial"}, {"epilogue": "statistics"}):
        with pytest.raises(ValueError, match="whole sums"):
            compile_view(view, torch.float16, WARPS, "sm_90a", torch.float32, **rest)
    for parts in (0, 3, 16):
        with pytest.raises(ValueError, match="a cluster of 1, 2, 4 or 8 CTAs"):
            replace(WARPS, cluster_k=parts)


def test_a_part_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    view = fprop_view(ConvProblem((1, 9, 11, 64), (72, 1, 3), padding=(0, 1)))
    case = Case.of(view, torch.float16)
    first = mutated(KTiles, "of_part", lambda own: lambda self, parts, part: own(self, parts, 0))
    with monkeypatch.context() as patched:
        first(patched)
        ran = run_case(case, compile_view(view, torch.float16, WARPS, "sm_90a"))
    with pytest.raises(AssertionError):
        check_exact(case, ran)


@pytest.mark.parametrize("which", [0, 1])
def test_the_barriers_of_the_cluster_are_needed(which: int) -> None:
    """One that parts are there, and one that nobody leaves while others read what he has."""
    view = fprop_view(ConvProblem((1, 9, 11, 64), (72, 1, 3), padding=(0, 1)))
    case = Case.of(view, torch.float16)
    compiled = compiled_view(view, torch.float16, WARPGROUPS, "sm_90a")
    lines = compiled.ptx.splitlines()
    barriers = [i for i, line in enumerate(lines) if "barrier.cluster" in line]
    assert len(barriers) == 4
    for i in barriers[2 * which : 2 * which + 2]:
        lines[i] = ""
    program = parse("\n".join(lines))
    with pytest.raises((Fault, AssertionError)):
        check_exact(case, run_case(case, replace(compiled, program=program)))
