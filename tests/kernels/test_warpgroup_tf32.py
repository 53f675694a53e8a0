"""tf32 by Hopper's instructions: B rounded by those who copy it, A by those who multiply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import cutlass.cute as cute
import pytest
import torch
from cutlass import Float32, Int32

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.kernels.gemm import consumer, tf32_rounding, wgmma
from layoutconv.kernels.gemm.mainloop_sm90 import MainloopSm90
from layoutconv.kernels.gemm.wgmma import KTileOperands
from layoutconv.planning import tma_tiled
from layoutconv.planning.cost_model import Problem, choose, shortlist
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view
from layoutconv.sparse.views import kernel_map_dgrad_view
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    check_epilogue,
    check_view_runs,
    compile_view,
    compiled_apart,
    compiled_view,
    reference,
    run_case,
    spec_of,
)
from .mutations import Patch, check_fault, put
from .test_skip import kernel_map
from .test_template import grid
from .tiles import retiled

# (m, n, k, warps_m, warps_n, stages)
LINES, HALF_LINES = specialized((64, 64, 32), (4, 1), 3), specialized((128, 32, 16), (4, 1), 4)
WIDE = specialized((128, 64, 32), (8, 1), 2)
SIDE_BY_SIDE = specialized((64, 64, 16), (4, 2), 2)


def rounded_by_maps(patch: Patch, *, maps: bool) -> None:
    """Let TMA round, or threads, as they do what no TMA descriptor describes."""
    put(tma_tiled, "MAPS_ROUND", maps)(patch)


@pytest.fixture(autouse=True)
def without_maps(monkeypatch: Patch) -> Iterator[None]:
    rounded_by_maps(monkeypatch, maps=False)
    with compiled_apart():
        yield


def check(view: GemmView, tile: TileConfig, **options: Any) -> Any:
    return check_view_runs(view, torch.float32, tile, arch="sm_90a", **options)


STRIDED = ConvProblem((2, 7, 5, 32), (23, 2, 3), stride=(1, 2), padding=1)


@pytest.mark.parametrize(
    ("view", "tile"),
    [
        (fprop_view(ConvProblem((1, 37, 32), (40, 3), padding=1)), WIDE),
        (dgrad_views(STRIDED)[-1], LINES),
        (dgrad_views(ConvProblem((1, 3, 4, 3, 16), (40, 1, 1, 3), padding=0))[0], HALF_LINES),
        (fprop_view(ConvProblem((1, 5, 6, 24), (40, 1, 3))), SIDE_BY_SIDE),
        (fprop_view(ConvProblem((1, 7, 5, 5), (27, 2, 3), padding=1)), HALF_LINES),
        (dgrad_views(ConvProblem((1, 7, 5, 6), (24, 1, 3)))[0], SIDE_BY_SIDE),
        (k_major_view(dgrad_views(ConvProblem((1, 7, 5, 20), (32, 2, 3), (1, 2)))[0]), LINES),
    ],
    ids=[
        "lines", "filter along n, rows of 23", "filter along n, half lines", "k-tiles of two taps",
        "vectors of 4 bytes", "filter along n, vectors of 8 bytes",
        "filter that was turned",
    ],
)  # fmt: skip
def test_passes_whose_a_runs_along_k(view: GemmView, tile: TileConfig) -> None:
    check(view, tile)


def test_a_cluster_shares_sums_of_gathered_rows_without_the_taps_that_tiles_lack() -> None:
    index = kernel_map(100, 27, 0.1)
    index[-70:] = -1
    view, tile = kernel_map_view(index, 16, 40, kernel_size=(3, 3, 3)), replace(LINES, cluster_k=2)
    check_view_runs(view, torch.float32, tile, arch="sm_90a", skip=True)


ROWS_192 = specialized((192, 128, 32), (12, 1), 4)


@pytest.mark.parametrize("C", [32, 24], ids=["lines", "k-tiles of two taps"])
@pytest.mark.parametrize("maps", [True, False], ids=["B by maps", "B by threads"])
@pytest.mark.chessboard
def test_three_warpgroups_multiply_gathered_rows(C: int, maps: bool, monkeypatch: Patch) -> None:
    """Two tiles of rows and of columns, the last of them not full; results are scattered."""
    rounded_by_maps(monkeypatch, maps=maps)
    tile = ROWS_192 if C == 32 else retiled(ROWS_192, k=16)
    view = grid(ConvProblem((1, 19, 13, C), (140, 2, 3), padding=1), True, True)
    ran = check(view, tile)
    assert ran.launch.grid == (4, 1, 1)
    assert ran.launch.shared_bytes == tile.smem_bytes(4, 4)
    compiled = compiled_view(view, torch.float32, tile, "sm_90a")
    assert ("cp.async.bulk.tensor" in compiled.ptx) == maps
    assert ("fence.proxy.async" in compiled.ptx) != maps


def test_three_warpgroups_with_parts_of_a_sum_or_taps_left_out() -> None:
    view = grid(ConvProblem((1, 15, 13, 32), (100, 2, 3), padding=1), True, False)
    check(view, replace(ROWS_192, cluster_k=2, stages=2))
    index = kernel_map(200, 9, 0.1)
    view = kernel_map_view(index, 32, 40, kernel_size=(3, 3))
    assert spec_of(view, torch.float32, ROWS_192, "sm_90a", skip=True).kept
    check_view_runs(view, torch.float32, ROWS_192, arch="sm_90a", skip=True)


def test_sums_are_converted_behind_the_wait_for_products() -> None:
    """The last block of the loop ends in the wait, and the epilogue's first instructions follow."""
    view = kernel_map_view(kernel_map(5, 12, 0.4), 128, 128, kernel_size=(3, 2, 2), groups=2)
    tile, out = replace(LINES, stages=4), torch.bfloat16
    check_view_runs(view, torch.float32, tile, arch="sm_90a", out=out, skip=True)


def test_statistics_of_three_warpgroups() -> None:
    view = grid(ConvProblem((1, 19, 13, 32), (100, 3, 1), padding=1), True, False)
    for out in (torch.float32, torch.float16):
        check_epilogue(view, torch.float32, ROWS_192, "statistics", out=out)


def test_a_gradient_over_a_kernel_map_reads_a_filter_that_was_turned() -> None:
    index = kernel_map(100, 9, 0.3)
    view = kernel_map_dgrad_view(index, 24, 16, kernel_size=(3, 3), mirrored=True)
    check(k_major_view(view), HALF_LINES)


def test_parts_of_a_sum_in_memory() -> None:
    view = fprop_view(ConvProblem((1, 7, 5, 64), (24, 1, 3)))
    case = Case.of(view, torch.float32)
    compiled = compiled_view(view, torch.float32, LINES, "sm_90a", split="partial")
    ran = run_case(case, compiled, splits=3)  # of two k-tiles
    assert torch.equal(ran.out.sum(0).double(), reference(case)[0])


def test_rows_that_several_taps_share() -> None:
    problem = ConvProblem((1, 2, 21, 16), (48, 1, 3), padding=(0, 2), dilation=(1, 2))
    wide = widened(dgrad_views(problem)[0])
    assert wide is not None
    check(wide, specialized((64, 64, 16), (4, 1), 3, halo_taps=3))


# -- to nearest ------------------------------------------------------------------------------------


def rounded(x: torch.Tensor) -> torch.Tensor:
    """fp32 to the nearest number of 10 bits behind the point, of two the even one."""
    bits = x.view(torch.int32).long()
    up = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF
    near = torch.where(up >= 1 << 31, up - (1 << 32), up).int().view(torch.float32)
    return torch.where(x.isfinite(), near, x)


def numbers(shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers of many magnitudes; every third is halfway between two numbers of tf32."""
    generator = torch.Generator().manual_seed(1)
    exponents = torch.randint(-30, 30, shape, generator=generator)
    x = torch.randn(shape, generator=generator) * 2.0**exponents
    bits = x.view(-1).view(torch.int32)
    bits[::3] = (bits[::3] & ~0x1FFF) | 0x1000
    return x


def check_rounding(kind: str) -> None:
    """Some rows of each operand are 1 once: there, results are numbers of the other."""
    C = 32
    problem = (
        ConvProblem((1, 2 * C, C), (2 * C, 1))
        if kind == "fprop"
        else (ConvProblem((1, 2 * C, 2 * C), (C, 1)))
    )
    view = fprop_view(problem) if kind == "fprop" else dgrad_views(problem)[0]
    case, one = Case.of(view, torch.float32), torch.eye(C)
    a, b = torch.cat([one, numbers((C, C))]), torch.cat([numbers((C, C)), one])
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).max])
    a[range(C, C + 4), range(4)] = special  # the greatest number rounds to infinity
    case.a, stored = a.view(case.a.shape), b if kind == "fprop" else b.T.contiguous()
    case.b = stored.view(case.b.shape)
    ran = run_case(case, compile_view(view, torch.float32, LINES, "sm_90a"))
    want = rounded(a).double() @ rounded(b).double().T
    want[C:, :C] = ran.out[0, C:, :C]  # sums of many numbers
    torch.testing.assert_close(ran.out[0].double(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
def test_numbers_are_rounded_to_nearest(kind: str) -> None:
    check_rounding(kind)


def bits(x: Any, arch: int) -> Any:
    held = cute.make_rmem_tensor(1, Float32)
    held[0] = x
    return cute.recast_tensor(held, Int32)[0]


@pytest.mark.parametrize(("room", "kind"), [(wgmma, "fprop"), (tf32_rounding, "dgrad")])
def test_what_is_not_rounded_shows(room: Any, kind: str, monkeypatch: Patch) -> None:
    put(room, "round_to_tf32", bits)(monkeypatch)
    with pytest.raises(AssertionError):
        check_rounding(kind)


# -- which problems -------------------------------------------------------------------------------


ALONG_ROWS = {
    "taps": (ConvProblem((2, 9, 11, 72), (72, 3, 3), stride=2, padding=1), (128, 128, 32), (8, 1)),
    "one tap": (ConvProblem((3, 9, 11, 136), (200, 1, 1)), (128, 256, 32), (8, 1)),
    "three warpgroups": (ConvProblem((1, 9, 17, 136), (200, 1, 1)), (192, 128, 32), (12, 1)),
    "half lines": (ConvProblem((1, 9, 11, 136), (72, 1, 1)), (64, 64, 16), (4, 1)),
}


@pytest.mark.parametrize("name", with_deep(ALONG_ROWS, "one tap"))
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.chessboard
def test_an_a_along_rows_is_turned_by_those_who_read_it(name: str, cluster: int) -> None:
    problem, mma, warps = ALONG_ROWS[name]
    tile = specialized(mma, warps, 3, cluster_k=cluster)
    check_view_runs(wgrad_view(problem), torch.float32, tile, arch="sm_90a")


def test_what_the_model_offers() -> None:
    problem = Problem(10**6, 128, 1728, 64, "tfloat32", 4)
    machine = MACHINES["sm_90a"]
    for more in ({}, {"n": 64, "halo_taps": 3}):  # rows that taps share
        offered = [t for t, _ in shortlist(replace(problem, **more), machine)]
        assert any(t.warp_specialized and t.halo_taps == more.get("halo_taps", 1) for t in offered)
        none = shortlist(replace(problem, wgmma=False, **more), machine)
        assert not any(t.warp_specialized for t, _ in none)
    gathered = replace(problem, gathered=True)  # three warpgroups
    for of, there in ((gathered, True), (replace(gathered, skips_taps=True), False)):
        assert (ROWS_192 in [tile for tile, _ in shortlist(of, machine)]) == there
    assert choose(gathered, machine) == (ROWS_192, 1)
    exact = shortlist(replace(problem, dtype="float32"), machine)
    assert not any(t.warp_specialized for t, _ in exact)


# -- every guard is needed ------------------------------------------------------------------------


FAULTS = {
    "fragments that are overwritten too early": put(
        KTileOperands, "in_flight", property(lambda self: self.sets)
    ),
    "fragments that nobody fences": put(consumer.warpgroup, "fence", lambda: None),
    "nobody fences what threads rounded": put(MainloopSm90, "fences", False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    view = fprop_view(ConvProblem((1, 60, 32), (24, 5), padding=2))
    check_fault(FAULTS[name], view, torch.float32, LINES, "sm_90a")
