"""The template with Hopper's main loop, where some warps copy and others multiply."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv.algebra import ComposedLayout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.kernels.gemm import consumer, mainloop_sm90, pipeline
from layoutconv.kernels.gemm.pipeline import PipelineState
from layoutconv.planning.halo_reuse import halo_rows_per_tap, widened
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tile_table import HOPPER, tile_of
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import row_major

from ..grid_cover import with_deep
from .launcher import (
    check_epilogue,
    check_parts,
    check_view_runs,
    compile_view,
    compiled_view,
    spec_of,
)
from .mutations import check_fault, put
from .mutations import replace as mutated
from .test_skip import kernel_map, tile_taps
from .test_template import DENSE, grid
from .test_tma import check_copies

TYPES = [torch.float16, torch.bfloat16]
# (m, n, k, warps_m, warps_n, stages), small as in test_template.
SMALL = [
    (64, 64, 64, 4, 1, 3), (128, 32, 32, 4, 1, 4), (128, 64, 64, 8, 1, 2), (64, 64, 32, 4, 2, 3),
]  # fmt: skip


def small_tile(number: int) -> TileConfig:
    m, n, k, warps_m, warps_n, stages = SMALL[number % len(SMALL)]
    return specialized((m, n, k), (warps_m, warps_n), stages)


def check(view: GemmView, number: int, **options: Any) -> Any:
    dtype = TYPES[number % 2]
    return check_view_runs(view, dtype, small_tile(number), arch="sm_90a", **options)


DEEP = ["1-D", "one tap", "stride beyond the filter", "blocks of channels", "125 taps"]


@pytest.mark.parametrize("name", with_deep(list(DENSE)[::2], *DEEP))
def test_dense(name: str) -> None:
    check(fprop_view(DENSE[name]), list(DENSE).index(name))


@pytest.mark.parametrize(
    ("kind", "dtype", "out"),
    [
        ("int8", torch.int8, torch.int32),
        ("float8_e4m3fn", torch.float8_e4m3fn, torch.float16),
        ("float8_e5m2", torch.float8_e5m2, torch.float32),
    ],
)
def test_types_of_8_bits(kind: str, dtype: torch.dtype, out: torch.dtype) -> None:
    tile = specialized((64, 64, 128), (4, 1), 3)
    problem = ConvProblem((1, 6, 7, 48), (40, 3, 3), padding=1)
    check_view_runs(fprop_view(problem), dtype, tile, arch="sm_90a", out=out, kind=kind)


@pytest.mark.parametrize("number", with_deep(range(len(SMALL)), 1, 2))
def test_operands_that_run_along_rows(number: int) -> None:
    """Both of a filter's gradient, and the filter of the inputs' gradient."""
    K = 24 - 4 * (number % 2)  # 20 are no whole vectors: no tensor map brings these
    problem = ConvProblem((2, 7, 5, 40), (K, 2, 3), stride=(1, 2), padding=1)
    ran = check(wgrad_view(problem), number, out=torch.float32)
    assert ran.launch.block == (small_tile(number).threads, 1, 1)
    for view in dgrad_views(problem):
        check(view, number)


@pytest.mark.parametrize("number", with_deep(range(len(SMALL)), 1, 2))
def test_gathered_and_scattered(number: int) -> None:
    problem = ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=((0, 1), 1))
    check(grid(problem, True, True), number)


@pytest.mark.parametrize(("channels", "taps"), [(16, 3), (64, 3), (16, 5)])
def test_a_kernel_map_without_the_taps_that_tiles_lack(channels: int, taps: int) -> None:
    index = kernel_map(150, taps**3, 0.1)
    index[-70:] = -1
    view = kernel_map_view(index, channels, 40, kernel_size=3 * (taps,))
    ran = check(view, 0, skip=True)
    spec = spec_of(view, torch.float16, small_tile(0), "sm_90a", skip=True)
    assert spec.kept == (64 * 27 if channels == 64 else 0)
    assert ran.launch.shared_bytes == spec.smem_bytes


def wgmmas(ran: Any) -> int:
    return sum(count for name, count in ran.stats.opcodes.items() if name.startswith("wgmma.mma"))


def test_a_warpgroup_leaves_out_taps_that_its_rows_lack() -> None:
    """But for the first tap of its tile, which all multiply. Half a warpgroup copies."""
    index, tile = (
        kernel_map(200, 27, 0.15),
        specialized((128, 64, 32), (8, 1), 3, Load.CP_ASYNC_HALF_WARPGROUP),
    )
    index[-40:] = -1
    rows = torch.randperm(233, generator=torch.Generator().manual_seed(1))[:200].int()
    rows[::9] = -1  # not stored
    view = kernel_map_view(index, 32, 40, scatter_index=rows, out_rows=233)

    def ran(skip: bool) -> Any:
        spec = spec_of(view, torch.float16, tile, "sm_90a", skip=skip)
        assert spec.kept == (128 * (27 + 1) if skip else 0)
        return wgmmas(check_view_runs(view, torch.float16, tile, arch="sm_90a", skip=skip))

    of_tiles, of_warpgroups = (tile_taps(index, rows) for rows in (128, 64))
    of_tiles[~of_tiles.any(1), 0] = True  # a tile of no tap has one, of zeros
    first = of_tiles & (of_tiles.cumsum(1) == 1)
    own = torch.zeros(2 * len(of_tiles), 27, dtype=torch.bool)
    own[: len(of_warpgroups)] = of_warpgroups
    others = first.repeat_interleave(2, 0) & ~own
    assert int(own.sum() + others.sum()) < 2 * int(of_tiles.sum())
    # A tap is a k-tile, of which the first of a tile is multiplied regardless.
    of_k_tile = ran(False) // own.numel()
    assert ran(True) == int(own.sum() + others.sum()) * of_k_tile


LARGE = [(128, 16, 4, 1), (128, 64, 4, 1), (256, 64, 8, 1), (256, 128, 8, 1), (128, 256, 8, 1)]


@pytest.mark.parametrize("shape", with_deep(HOPPER, *LARGE), ids=str)
def test_tiles_of_the_family(shape: tuple[int, int, int, int]) -> None:
    number = list(HOPPER).index(shape)
    m, n, *_ = shape
    tile = tile_of(shape, 32 * (1 + number % 2), 32)
    problem = ConvProblem((1, m + 9, 16), (n + 8, 3), padding=1)  # a rest of every kind of tile
    ran = check_view_runs(fprop_view(problem), TYPES[number % 2], tile, arch="sm_90a")
    assert ran.launch.grid == (4, 1, 1)
    assert ran.launch.shared_bytes == tile.smem_bytes(2, 2)


def test_parts_of_a_sum_the_last_of_them_empty() -> None:
    view = wgrad_view(ConvProblem((1, 7, 5, 8), (24, 2, 3), padding=1))
    check_parts(view, torch.float16, small_tile(0), 3)  # of one k-tile


@pytest.mark.parametrize(
    ("tile", "biased", "out"),
    [
        (small_tile(2), True, torch.float32),
        pytest.param(
            specialized((128, 64, 32), (8, 1), 2, halo_taps=3),
            True,
            torch.float32,
            marks=pytest.mark.deep,
        ),
        # Those who copied sum what tensor cores sum, in turns or with warps to spare.
        (small_tile(2), True, torch.float16),
        (specialized((128, 64, 32), (8, 1), 2, halo_taps=3), True, torch.float16),
        (small_tile(1), False, torch.float16),
        (specialized((64, 128, 32), (4, 1), 2), False, torch.bfloat16),
    ],
)
def test_statistics_of_an_epilogue(tile: TileConfig, biased: bool, out: torch.dtype) -> None:
    """Rows behind a line, which a bias makes other than zero, take no part in them."""
    view: Any = fprop_view(ConvProblem((1, 9, 11, 32), (72, 3, 3), padding=1))
    if tile.halo_taps > 1:
        view = widened(view)
    dtype = torch.bfloat16 if out == torch.bfloat16 else torch.float16
    check_epilogue(view, dtype, tile, "bias relu statistics" if biased else "statistics", out=out)


def within(view: GemmView, shape: tuple[int, ...]) -> GemmView:
    """The view with its results in a larger tensor."""
    d: Any = view.d
    return GemmView(view.a, view.b, ComposedLayout(row_major(shape), d.offset, d.inner))


WINDOWS_OF = {
    "padding": ConvProblem((1, 2, 5, 9, 32), (32, 3, 3, 3), padding=1),
    "no padding, two taps": ConvProblem((2, 5, 9, 64), (32, 3, 2)),
    "near and far differ": ConvProblem((1, 3, 21, 32), (64, 2, 3), padding=((1, 0), (0, 3))),
    "dilation": ConvProblem((2, 3, 40, 64), (64, 2, 3), padding=(1, 2), dilation=(1, 2)),
    "rows on rows": ConvProblem((3, 33, 96), (64, 5), padding=2),
    "groups": ConvProblem((1, 4, 17, 128), (64, 3, 3), padding=1, groups=2),
}


@pytest.mark.parametrize("name", with_deep(WINDOWS_OF, "padding", "near and far differ"))
def test_rows_that_several_taps_share(name: str) -> None:
    """The widened view is the same problem, for every kernel, and is copied once for its taps."""
    problem = WINDOWS_OF[name]
    taps = problem.stored_filter[-2]
    number = list(WINDOWS_OF).index(name)
    for view in (fprop_view(problem), *dgrad_views(problem)):
        wide = widened(view)
        assert wide is not None
        tile = specialized(
            (64 if number % 2 else 128, 64, 32), (4, 1), 2 + number % 3, halo_taps=taps
        )
        ran = check_copies(wide, TYPES[number % 2], tile, [1, taps, 0])
        assert ran.launch.shared_bytes == tile.smem_bytes(2, 2)
        assert halo_rows_per_tap(wide) == problem.dilation[-1]
    if name == "rows on rows":  # the widened view is one like any other
        check(wide, number)


def test_what_is_not_copied_asynchronously_is_refused() -> None:
    view = fprop_view(ConvProblem((1, 9, 5), (32, 3), padding=1))
    with pytest.raises(ValueError, match="vectors of 4 bytes or more, got 2"):
        compile_view(view, torch.float16, small_tile(0), "sm_90a")


def test_k_tiles_may_not_straddle_the_taps_that_share_rows() -> None:
    wide = widened(fprop_view(ConvProblem((1, 9, 40), (32, 3), padding=1)))
    assert wide is not None
    with pytest.raises(ValueError, match="40 columns of a tap"):
        compile_view(
            wide, torch.float16, specialized((64, 64, 32), (4, 1), 2, halo_taps=3), "sm_90a"
        )


@pytest.mark.parametrize(
    "view",
    [
        fprop_view(ConvProblem((1, 9, 9, 32), (32, 3, 3), stride=2)),
        fprop_view(ConvProblem((1, 9, 9, 32), (32, 3, 1))),
        fprop_view(ConvProblem((1, 99, 32), (32, 3), dilation=17)),
        grid(ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=1), True, True),
        wgrad_view(ConvProblem((1, 9, 9, 32), (32, 3, 3))),
        dgrad_views(ConvProblem((70, 3, 4, 64), (64, 2, 4)), images_first=True)[0],
        kernel_map_view(kernel_map(50, 27, 0.3), 32, 32, kernel_size=(3, 3, 3)),
        within(fprop_view(ConvProblem((1, 9, 9, 32), (32, 3, 3))), (1, 7, 8, 32)),
    ],
    ids=[
        "stride", "one tap", "far taps", "gathered", "wgrad", "images first", "kernel map",
        "room behind a line",
    ],
)  # fmt: skip
def test_views_whose_taps_share_no_rows(view: GemmView) -> None:
    assert widened(view) is None


# -- every guard is needed -------------------------------------------------------------------------


def no_fence(wait: Any) -> Any:
    return lambda mbarrier, phase, fence: wait(mbarrier, phase, fence=False)


def the_same_parity(following: Any) -> Any:
    return lambda s: PipelineState(s.stages, following(s).index, s.phase)


def one_stage_more(following: Any) -> Any:
    def later(state: PipelineState) -> PipelineState:
        found = following(PipelineState(state.stages + 1, state.index, state.phase))
        return PipelineState(state.stages, found.index, found.phase)

    return later


FAULTS = {
    "roles that do not meet behind the mbarriers": put(
        mainloop_sm90.cute.arch, "sync_threads", lambda: None
    ),
    "no waiting for a full stage": put(pipeline, "wait_full", lambda mbarrier, phase, fence: None),
    "no fence between copies and products": mutated(pipeline, "wait_full", no_fence),
    "the same parity every time around": mutated(PipelineState, "next", the_same_parity),
    "a ring that is too long": mutated(PipelineState, "next", one_stage_more),
    "an epilogue that does not wait for all products": put(consumer, "sync", lambda tile: None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    # Three k-tiles in two stages: the last lies where the epilogue turns its tile. Producers copy
    # A, whose k-tiles are of several taps.
    view = fprop_view(ConvProblem((1, 140, 56), (64, 3), padding=1))
    of = torch.float16, small_tile(2), "sm_90a", torch.float32
    check_view_runs(view, torch.float16, small_tile(2), arch="sm_90a", out=torch.float32)
    check_fault(FAULTS[name], view, *of)


@pytest.mark.parametrize(
    ("mma", "warps", "message"),
    [
        ((64, 64, 64), (2, 2), "4 warps along m"),
        ((64, 256, 64), (4, 1), "as many as they have threads"),
    ],
)
def test_tiles_that_cannot_be(
    mma: tuple[int, int, int], warps: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        specialized(mma, warps, 3)


@pytest.mark.parametrize(
    ("tile", "out", "four"),
    [
        (small_tile(0), torch.float16, 4),
        (small_tile(1), torch.bfloat16, 4),
        (small_tile(3), torch.float16, 2),
        (small_tile(0), torch.float32, 0),
        (specialized((128, 8, 64), (4, 1), 3), torch.float16, 0),
    ],
)
def test_results_of_16_bits_are_staged_as_matrices(
    tile: TileConfig, out: torch.dtype, four: int
) -> None:
    """By ``stmatrix``, of which a thread's every one is for 16 rows of 16 columns of its warp."""
    view = fprop_view(ConvProblem((1, 9, 9, 64), (tile.n, 3, 3)))
    dtype = torch.float16 if out is torch.float32 else out
    ptx = compiled_view(view, dtype, tile, "sm_90a", out).ptx
    assert ptx.count("stmatrix.sync.aligned.m8n8.x4.shared.b16") == four
    assert ptx.count("stmatrix") == four
