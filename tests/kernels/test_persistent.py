"""Persistent kernels: CTAs that compute several tiles, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass.cute as cute
import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.stride_folding import folded_fprop_view
from layoutconv.kernels.gemm import consumer
from layoutconv.kernels.gemm.consumer import Consumer
from layoutconv.kernels.gemm.epilogue import smem_store
from layoutconv.kernels.gemm.pipeline import Pipeline, PipelineState
from layoutconv.kernels.gemm.tma_im2col_copy import TmaRowsLoad
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import KernelSchedule, Load, TileScheduler
from layoutconv.planning.structural_zeros import k_tile_runs
from layoutconv.planning.tile import REGISTERS, TileConfig, persistent
from layoutconv.view.epilogue import Activation, Epilogue, Scale
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    check_epilogue,
    check_view_runs,
    compile_view,
    run_case,
    spec_of,
    unspilled,
)
from .mutations import check_fault, put
from .mutations import replace as mutated
from .test_epilogue import check
from .test_tma import known
from .tiles import retiled

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = persistent((64, 64, 64), (4, 1), 2)
THREE = retiled(TILE, k=32, stages=3, halo_taps=3)
TWO = retiled(TILE, n=128, k=32, stages=3, halo_taps=2)

PINGPONG = KernelSchedule.PINGPONG
TEAMS = replace(TILE, schedule=PINGPONG)

PLANES = ConvProblem((3, 7, 9, 64), (40, 3, 3), padding=1)
ODD = ConvProblem((3, 7, 9, 64), (36, 3, 3), padding=1)  # rows that no whole vectors store
WIDE = ConvProblem((1, 9, 9, 64), (136, 1, 3), padding=1)
STRIDED = ConvProblem((3, 11, 18, 32), (64, 3, 3), 2, 1)
DEEP = ConvProblem((2, 9, 11, 64), (64, 1, 1))
LINE = ConvProblem((3, 25, 64), (40, 3), padding=1)
TALL = ConvProblem((3, 13, 15, 32), (24, 3, 3), padding=1)
VOLUMES = dgrad_views(
    ConvProblem((2, 5, 12, 18, 32), (64, 3, 3, 3), 2, 1), side_by_side=(1, 2), empty=False
)


def wide(view: GemmView) -> GemmView:
    return known(widened(view))


def gradient(problem: ConvProblem) -> GemmView:
    (view,) = dgrad_views(replace(problem, filter=(64, *problem.filter[1:])))
    return view


# With how many tiles there are, and how many runs of k-tiles.
RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig, int, int]] = {
    "dense": (fprop_view(PLANES), F16, TILE, 3, 0),
    "columns of several tiles": (fprop_view(WIDE), BF16, TILE, 6, 0),
    "a k-tile each": (fprop_view(DEEP), F16, replace(TILE, stages=3), 4, 0),
    "more stages than k-tiles": (fprop_view(DEEP), F16, retiled(TILE, k=32, stages=5), 4, 0),
    "windows": (wide(fprop_view(PLANES)), F16, THREE, 4, 0),
    "windows of two pieces": (
        wide(fprop_view(TALL)), BF16, retiled(THREE, m=256, n=32, warps_m=8, stages=2), 3, 0
    ),
    "a gradient": (wide(gradient(PLANES)), F16, replace(THREE, stages=4), 4, 0),
    "residues beside each other": (VOLUMES[1], F16, retiled(TILE, n=128, stages=3), 4, 4),
    "runs of taps": (wide(VOLUMES[0]), F16, TWO, 6, 2),
    "folded lines": (wide(folded_fprop_view(STRIDED)), F16, retiled(TWO, n=64), 3, 2),
    "B held": (fprop_view(PLANES), F16, replace(TILE, b_resident=9), 3, 0),
    "B held, with windows": (wide(fprop_view(PLANES)), F16, replace(THREE, b_resident=6), 4, 0),
    "B held, of a gradient": (wide(gradient(PLANES)), F16, replace(THREE, b_resident=6), 4, 0),
    "B held, of folded lines": (
        wide(folded_fprop_view(STRIDED)), F16, retiled(TWO, n=64, b_resident=6), 3, 2
    ),
    "B held, residues beside each other": (
        VOLUMES[1], F16, retiled(TILE, n=128, stages=3, b_resident=8), 4, 4
    ),
    "B held, runs of taps": (
        wide(VOLUMES[0]), F16, retiled(TWO, m=128, warps_m=8, b_resident=4), 3, 2
    ),
    "teams": (fprop_view(PLANES), F16, replace(TEAMS, stages=4), 3, 0),
    "teams, more than tiles": (fprop_view(DEEP), BF16, replace(TEAMS, stages=3), 4, 0),
    "teams, windows": (wide(fprop_view(PLANES)), F16, replace(THREE, schedule=PINGPONG), 4, 0),
    "teams, B held": (
        VOLUMES[1], F16, retiled(TEAMS, n=128, stages=3, b_resident=8), 4, 4
    ),
    "teams, B held, runs of taps": (
        wide(VOLUMES[0]), F16, retiled(TWO, schedule=PINGPONG, stages=5, b_resident=4), 6, 2
    ),
    "teams of 128 rows": (
        wide(folded_fprop_view(STRIDED)),
        F16, retiled(TWO, m=128, n=64, schedule=PINGPONG, b_resident=6), 2, 2,
    ),
    "teams, B held, counting": (
        wide(fprop_view(TALL)),
        BF16, retiled(THREE, n=32, schedule=PINGPONG, b_resident=3), 11, 0,
    ),
    "a filter's gradient": (wgrad_view(LINE), F16, retiled(TILE, k=32), 3, 0),
    "tf32": (fprop_view(PLANES), F32, retiled(TILE, k=32), 3, 0),
    "teams, tf32": (fprop_view(PLANES), F32, retiled(TEAMS, k=32, stages=4), 3, 0),
    "teams, windows, tf32": (
        wide(fprop_view(PLANES)), F32, retiled(THREE, k=16, schedule=PINGPONG), 4, 0
    ),
}  # fmt: skip


DEEP = [
    "dense", "windows", "a gradient", "residues beside each other", "runs of taps", "folded lines",
    "B held, with windows", "B held, of folded lines", "B held, residues beside each other",
    "teams, B held, runs of taps", "teams, windows", "teams of 128 rows", "teams, B held, counting",
    "teams, tf32", "teams, windows, tf32",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_what_is_multiplied(name: str) -> None:
    """By two CTAs, of which one may have a tile more."""
    view, dtype, tile, tiles, runs = RUN[name]
    ran = check_view_runs(view, dtype, tile, arch="sm_90a", most=2)
    assert -(-view.m // tile.m) * -(-view.n // tile.n) == tiles
    assert len(k_tile_runs(view, spec_of(view, dtype, tile, "sm_90a"))) == runs
    assert (ran.launch.grid, ran.launch.block) == ((2, 1, 1), (tile.threads, 1, 1))
    assert ran.launch.shared_bytes == tile.smem_bytes(dtype.itemsize, dtype.itemsize)


@pytest.mark.parametrize("name", ["teams", "teams, windows"])
def test_results_wider_than_data(name: str) -> None:
    view, dtype, tile, *_ = RUN[name]
    check_view_runs(view, dtype, tile, out=F32, arch="sm_90a", most=2)


@pytest.mark.parametrize("most", [1, 9])
def test_as_many_ctas_as_there_are_tiles_or_room(most: int) -> None:
    view, dtype, tile, tiles, _ = RUN["windows"]
    ran = check_view_runs(view, dtype, tile, arch="sm_90a", most=most)
    assert ran.launch.grid == (min(most, tiles), 1, 1)


def test_steps_of_an_epilogue() -> None:
    view, dtype, tile, _, _ = RUN["folded lines"]
    check_epilogue(view, dtype, tile, "bias residual relu")


COUNTED = ["teams, windows", "teams of 128 rows", "teams, B held, counting", "teams, windows, tf32"]


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("most", [1, 9])
@pytest.mark.chessboard
def test_statistics_of_teams(name: str, most: int) -> None:
    """Statistics sum what all tiles store; consumer warpgroups without a tile have zeros."""
    view, dtype, tile, *_ = RUN[name]
    case = Case.of(view, dtype)
    case.epilogue = Epilogue((Scale(0.375), Activation("relu")), statistics=True)
    ran = run_case(case, case.compiled(tile, "sm_90a"), most=most)
    check(case, ran)
    ctas = min(most, -(-view.m // tile.m))
    assert ran.statistics is not None
    assert len(ran.statistics) == 8 * ctas


LARGE = [(256, 128, 32, 4, 2), (128, 256, 64, 3, 1)]


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_nothing_spills(shape: tuple[int, ...]) -> None:
    m, n, k, stages, taps = shape
    tile = persistent((m, n, k), (8, 1), stages, halo_taps=taps)
    down = ConvProblem((2, 128, 128, 128, 32), (64, 3, 3, 3), 2, 1)
    view = fprop_view(ConvProblem((1, 9, 9, 256), (256, 3, 3)))
    if taps > 1:
        view = wide(dgrad_views(down, side_by_side=(1, 2))[1])
    compiled = compile_view(view, F16, tile, "sm_90a")
    kernel = unspilled(compiled)
    warps = -(-tile.threads // 32) * compiled.spec.ctas_per_sm  # a quarter of them has a quarter
    assert -(-warps // 4) * 32 * -(-kernel.registers // 8) * 8 <= REGISTERS // 4
    assert kernel.static_shared + compiled.spec.smem_bytes <= MACHINES["sm_90a"].smem_per_cta


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"load": Load.CP_ASYNC_HALF_WARPGROUP},
        {"load": Load.CP_ASYNC_WARPGROUP},
        {"cluster_k": 2},
        {"stages": 1},
    ],
)
def test_tiles_that_cannot_be_persistent(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="2 stages or more, TMA by one warp and no cluster"):
        replace(TILE, **changes)


@pytest.mark.parametrize(
    ("view", "options"),
    [
        (fprop_view(PLANES), {"split": "partial", "out": F32}),
        (fprop_view(PLANES), {"skip": True}),
        (fprop_view(PLANES), {"epilogue": Epilogue(statistics=True).structure}),
        (fprop_view(ConvProblem((1, 9, 9, 128), (32, 3, 3), groups=2)), {}),
    ],
    ids=["parts", "skip", "statistics", "groups"],
)
def test_what_persistent_kernels_do_not_compute(view: GemmView, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected whole sums of every tap, of one group"):
        compile_view(view, F16, TILE, "sm_90a", **options)


# -- every guard is needed -------------------------------------------------------------------------


def the_last_stage_is_not_given_back(multiply: Any) -> Any:
    def once(self: Any, *of: Any) -> Any:
        tile, self.tile = self.tile, replace(self.tile, scheduler=TileScheduler.SINGLE_TILE)
        found = multiply(self, *of)
        self.tile = tile
        return found

    return once


def the_ring_starts_anew(multiply: Any) -> Any:
    def anew(self: Any, *of: Any) -> Any:
        *rest, state, meanwhile = of
        return multiply(self, *rest, PipelineState.of_consumer(state.stages), meanwhile)

    return anew


def rows_of_the_first(start: Any) -> Any:
    first = cute.arch.block_idx
    return lambda self, _, group: start(self, first()[0], group)


FAULTS = {
    "the last stage is not given back": mutated(
        Consumer, "multiply", the_last_stage_is_not_given_back
    ),
    "no waiting for others before a tile turns": put(consumer, "sync", lambda tile: None),
    "no waiting for others after it": put(smem_store, "sync", lambda tile: None),
    "the ring starts anew": mutated(Consumer, "multiply", the_ring_starts_anew),
    "every tile reads the rows of the first": mutated(TmaRowsLoad, "start", rows_of_the_first),
}


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    # Sums so short that a warpgroup could be a tile ahead of the other: stages have room for that.
    view = fprop_view(ConvProblem((4, 9, 11, 64), (64, 1, 1)))
    tile = retiled(TILE, m=128, warps_m=8, k=32, stages=3)
    check_fault(FAULTS[name], view, F16, tile, "sm_90a", most=1)


def test_a_team_that_does_not_wait_for_its_turn() -> None:
    """It would take stages that were full a lap before for full ones."""
    view, dtype, tile, *_ = RUN["teams"]
    none = put(Pipeline, "wait_for_turn", lambda self, consumer, turn: None)
    check_fault(none, view, dtype, tile, "sm_90a", most=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": KernelSchedule.PINGPONG, "scheduler": TileScheduler.SINGLE_TILE},
        {"b_resident": 2, "scheduler": TileScheduler.SINGLE_TILE},
        {"schedule": KernelSchedule.PINGPONG, "warps": (8, 1), "mma": (128, 64, 64)},
    ],
)
def test_ping_pong_and_a_resident_b_are_of_persistent_kernels(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a persistent kernel for|one consumer warpgroup"):
        replace(TILE, **changes)


@pytest.mark.parametrize(
    ("view", "tile", "options", "message"),
    [
        (fprop_view(PLANES), replace(TILE, b_resident=8), {}, "k-tiles of a resident B as a sum"),
        (fprop_view(WIDE), replace(TILE, b_resident=3), {}, "and all columns"),
        (fprop_view(ODD), TEAMS, {}, "expected results of 16 or 32 bits"),
        (
            fprop_view(WIDE), TEAMS, {"epilogue": Epilogue(statistics=True).structure},
            "statistics of all columns",
        ),
    ],
    ids=["k-tiles", "columns", "types", "statistics"],
)  # fmt: skip
def test_what_ping_pong_and_a_resident_b_do_not_compute(
    view: GemmView, tile: TileConfig, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compile_view(view, F16, tile, "sm_90a", **options)
