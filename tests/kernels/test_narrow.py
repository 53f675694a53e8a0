"""Tiles of 8 and of 16 columns, of every load and type, and D as one run of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.conv.packed_channels import exchanged
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import legality
from layoutconv.planning.kernel_spec import run_of
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.sparse import kernel_map_view
from layoutconv.view.epilogue import Activation, Bias, Epilogue
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import KINDS, Case, Kind, check_kind_runs, check_view_runs, run_case, spec_of
from .test_epilogue import check
from .test_skip import kernel_map
from .tiles import retiled
from .view_cases import wide

F16, F32 = torch.float16, torch.float32
AMPERE = TileConfig((64, 8, 32), (4, 1), 2)
HOPPER = specialized((128, 8, 32), (4, 1), 3)
ONE_WARP = replace(HOPPER, load=Load.TMA_WARP)
PERSISTENT = persistent((128, 8, 32), (4, 1), 2)


def fprop(K: int, C: int = 32, *, taps: int = 3) -> GemmView:
    return fprop_view(ConvProblem((1, 9, 9, C), (K, taps, taps), padding=taps // 2))


def dgrad(C: int, K: int = 32) -> GemmView:
    return dgrad_views(ConvProblem((1, 9, 9, C), (K, 3, 3), padding=1))[0]


def by_cells(K: int, C: int) -> GemmView:
    problem = exchanged(ConvProblem((2, 9, 9, C), (K, 1, 1)))
    assert problem is not None
    return wgrad_view(problem)


MAP = kernel_map_view(kernel_map(100, 27, 0.1), 32, 3, kernel_size=(3, 3, 3))
LOADS: dict[str, tuple[GemmView, torch.dtype, TileConfig]] = {
    "multistage": (fprop(3), F16, AMPERE),
    "multistage, 16": (fprop(12), F16, retiled(AMPERE, n=16)),
    "multistage, two warps": (fprop(4), F16, TileConfig((64, 8, 32), (2, 1), 3)),
    "B along n": (dgrad(2), F16, AMPERE),
    "B along n, 16": (dgrad(16), F16, retiled(AMPERE, n=16)),
    "both along n": (by_cells(4, 64), F16, retiled(AMPERE, k=64)),
    "a warpgroup copies": (fprop(3, 24), F16, HOPPER),
    "a warpgroup copies, 16": (fprop(12), F16, retiled(HOPPER, n=16, k=64)),
    "TMA": (fprop(5), F16, ONE_WARP),
    "TMA, 16": (fprop(9, 64), F16, retiled(ONE_WARP, n=16, k=64)),
    "one k-tile": (fprop(3, taps=1), F16, replace(ONE_WARP, stages=1)),
    "persistent": (fprop(3), F16, PERSISTENT),
    "persistent, more rows": (fprop(2), F16, persistent((256, 8, 32), (8, 1), 2)),
    "taps share rows": (wide(fprop(3)), F16, replace(ONE_WARP, halo_taps=3)),
    "taps share rows, copied": (wide(fprop(3, 32)), F16, replace(HOPPER, halo_taps=3)),
    "a cluster shares sums": (fprop(4, 64), F16, replace(ONE_WARP, cluster_k=2)),
    "a turned filter": (wide(k_major_view(dgrad(3))), F16, replace(ONE_WARP, halo_taps=3)),
    "tf32 by TMA": (fprop(3), F32, retiled(ONE_WARP, k=16)),
    "tf32, taps share rows": (wide(fprop(3)), F32, retiled(ONE_WARP, k=16, halo_taps=3)),
    "a kernel map": (MAP, F16, HOPPER),
    "a kernel map, multistage": (MAP, F16, AMPERE),
}  # fmt: skip


DEEP = [
    "multistage, 16", "a warpgroup copies, 16", "multistage, two warps", "persistent, more rows",
    "taps share rows, copied", "tf32 by TMA", "a kernel map",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(LOADS, *DEEP))
def test_loads(name: str) -> None:
    view, dtype, tile = LOADS[name]
    check_view_runs(view, dtype, tile, arch="sm_90a" if tile.warp_specialized else "sm_80")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "float64"], ids=str)
def test_types(kind: Kind) -> None:
    tile = TileConfig((64, 8, 64 // kind.dtype.itemsize), (4, 1), 2)
    check_kind_runs(fprop(3, 64, taps=1), kind, tile)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_types_of_warpgroups(dtype: torch.dtype) -> None:
    out = {torch.int8: torch.int32, torch.bfloat16: torch.bfloat16}.get(dtype, F16)
    tile = retiled(ONE_WARP, k=64 // dtype.itemsize)
    check_view_runs(fprop(3, 64), dtype, tile, arch="sm_90a", out=out)


@pytest.mark.parametrize("K", with_deep(range(1, 9), 2, 4, 6, 7))
def test_a_tile_is_one_run(K: int) -> None:
    """A run of 81 rows may end with part of a vector; 8 columns are whole vectors by rows."""
    view, tile = fprop(K, taps=1), PERSISTENT
    spec = spec_of(view, F16, tile, "sm_90a")
    assert spec.run == (0 if K == 8 else 8)
    ran = check_view_runs(view, F16, tile, arch="sm_90a")
    assert ran.launch.grid == (1, 1, 1)


def test_rows_that_do_not_adjoin_are_no_run() -> None:
    strided = dgrad_views(ConvProblem((2, 9, 9, 3), (32, 3, 3), stride=2))[0]
    several = fprop(20, taps=1)
    for view in (strided, several, wide(fprop(3))):
        assert run_of(view, spec_of(view, F16, AMPERE)) == 0
    view = fprop(3)
    assert [run_of(view, spec_of(view, F16, AMPERE), aligned) for aligned in (16, 8)] == [8, 0]


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize(("K", "tile"), [(1, AMPERE), (3, ONE_WARP), (8, PERSISTENT)], ids=str)
def test_epilogues(K: int, tile: TileConfig, statistics: bool) -> None:
    """Steps of columns are applied before a run is stored; sums of columns are of rows."""
    if statistics and tile is PERSISTENT:
        tile = replace(ONE_WARP, stages=1)
    view = fprop(K, taps=1)
    case = Case.of(view, F16, F32)
    steps = Bias(torch.linspace(-1, 1, K)), Activation("sigmoid")
    case.epilogue = Epilogue(steps, statistics=statistics)
    compiled = case.compiled(tile, "sm_90a")
    assert (compiled.spec.run > 0) == (not statistics and K < 4)
    check(case, run_case(case, compiled), rtol=1e-5, atol=1e-6)


def test_what_narrow_tiles_refuse() -> None:
    def reasons(view: GemmView, dtype: torch.dtype, tile: TileConfig, **options: Any) -> str:
        return " ".join(legality.reasons(view, spec_of(view, dtype, tile, "sm_90a", **options)))

    assert "rows of B" in reasons(dgrad(2), F16, HOPPER)
    assert "rows of B" in reasons(by_cells(4, 64), F32, retiled(AMPERE, k=32))
    assert "rounded" in reasons(dgrad(4), F32, retiled(HOPPER, k=16))
    assert "stored at once" in reasons(fprop(8), F16, AMPERE)
    with pytest.raises(ValueError, match="8 columns of all"):
        TileConfig((64, 8, 32), (2, 2))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("taps", [1, 3])
def test_heads_are_given_narrow_tiles(taps: int, arch: str) -> None:
    """Narrow tiles have all columns, at most 16; the gradient of few channels gets them too."""
    views = [fprop_view(ConvProblem((2, 64, 64, 64, 64), (3, taps, taps, taps)))]
    views += dgrad_views(ConvProblem((2, 64, 64, 64, 3), (64, taps, taps, taps)))
    for view in views:
        found = choose_kernel(view, F16, MACHINES[arch])
        assert found.spec.tile.n == 8
        assert found.spec.run == (8 if found.spec.tile.halo_taps == 1 else 0)
