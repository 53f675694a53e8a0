"""Columns that k-tiles lack: which they are, and kernels that leave them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra.int_tuple import flatten
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.conv.stride_folding import folded_fprop_view, folds
from layoutconv.gpu.phase_choice import MORE_COLUMNS, arranged_dgrad
from layoutconv.planning.halo_reuse import halo_of, widened
from layoutconv.planning.schedule import Load
from layoutconv.planning.structural_zeros import (
    COLUMNS,
    BlockRange,
    ColumnRange,
    KTileRun,
    k_tile_runs,
)
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_im2col import is_mapped
from layoutconv.view.gemm_view import GemmView

from .launcher import check_view_runs, compiled_view, half_line, located, spec_of
from .test_random import problems
from .test_tma import copies, known
from .tiles import retiled

F16, F32 = torch.float16, torch.float32
TILE = specialized((64, 128, 64), (4, 1), 2, Load.TMA_WARP)


def present(
    there: torch.Tensor, tile: TileConfig, k: int, block: int
) -> tuple[ColumnRange, BlockRange]:
    """From the first instruction's columns, of a k-tile at column k of A, to the last of those for
    which some of B is there; and so of its blocks of some elements."""
    of_tile = there[:, k : k + tile.k]
    columns, blocks = (torch.nonzero(of_tile.any(mode)).flatten() for mode in (1, 0))
    if not len(columns):
        return ColumnRange(0, 0), BlockRange(0, 0)
    first, last = (int(c) // COLUMNS * COLUMNS for c in (columns[0], columns[-1]))
    past = last + COLUMNS
    least, most = int(blocks[0]) // block, int(blocks[-1]) // block
    some = ColumnRange(first, (tile.n if past >= len(there) else past) - first)
    return some, BlockRange(least, most + 1 - least)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([F16, F32]))
def test_what_is_left_out_is_absent(data: st.DataObject, dtype: torch.dtype) -> None:
    """Every k-tile is in one run, and has what is there of B, from the first column to the last."""
    drawn = data.draw(problems(16 // dtype.itemsize))
    C, K = (data.draw(st.sampled_from(s)) for s in ([16, 32, 64], [32, 64]))
    *cells, W = drawn.spatial
    W *= data.draw(st.sampled_from([1, drawn.stride[-1]]), "W is a multiple of the stride")
    shapes = (1, *cells, W, C), (K, *drawn.taps)
    problem = ConvProblem(*shapes, drawn.stride, drawn.padding)
    beside = tuple(i for i in range(problem.rank) if data.draw(st.booleans(), f"mode {i}"))
    views = [view for view in dgrad_views(problem, side_by_side=beside) if view.k]
    views = [k_major_view(view) if dtype == F32 else view for view in views]
    views += [folded_fprop_view(problem) if folds(problem) else fprop_view(problem)]
    view = data.draw(st.sampled_from(views), "view")
    tile = retiled(TILE, k=half_line(dtype) * data.draw(st.integers(1, 2)))
    tile = retiled(tile, n=data.draw(st.sampled_from([128, 192, 256])), warps_m=8, m=128)
    wide = widened(view)
    if wide is not None and data.draw(st.booleans(), "taps share rows"):
        view, tile = wide, replace(tile, halo_taps=int(wide.a.inner.shape[1][-1]))
    spec, window = spec_of(view, dtype, tile, "sm_90a"), halo_of(view, tile)
    runs = k_tile_runs(view, spec)
    channels = int(flatten(view.a.shape[1])[0])
    if view.n > tile.n or channels % tile.k or not is_mapped(view, spec):
        assert runs == ()
        return
    starts, there = range(0, view.k // tile.halo_taps, tile.k), located(view.b, view.n, view.k)[1]
    block = 32 // dtype.itemsize
    every = ColumnRange(0, tile.n), BlockRange(0, tile.k // block)
    want = {
        k: [present(there, tile, k + tap * window.columns, block) for tap in range(tile.halo_taps)]
        for k in starts
    }
    if not runs:
        assert {part for parts in want.values() for part in parts} == {every}
        return
    got = {
        run.k + i * run.step: list(zip(run.columns, run.blocks, strict=True))
        for run in runs
        for i in range(run.k_tiles)
    }
    assert sum(run.k_tiles for run in runs) == len(got)
    assert every[0] in runs[0].columns
    first = want[runs[0].k]
    if every[0] not in [columns for columns, _ in first]:  # then the first tap has it all
        first[0] = every
    # What is all zeros is in no run.
    assert got == {k: parts for k, parts in want.items() if any(width for (_, width), _ in parts)}


# A volume whose residues along W and H are beside each other, and a plane of whole instructions.
VOLUME = ConvProblem((1, 3, 4, 9, 32), (64, 3, 3, 3), 2, 1)
PLANE = ConvProblem((2, 5, 9, 64), (64, 3, 3), 2, 1)
FOUR = ConvProblem((1, 5, 9, 64), (64, 4, 4), 2, 1)
RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig, int]] = {
    "two modes": (dgrad_views(VOLUME, side_by_side=(1, 2))[1], F16, TILE, 4),
    "channels of an instruction": (
        dgrad_views(PLANE, side_by_side=(1,))[1], torch.bfloat16, replace(TILE, stages=3), 2
    ),
    "of taps that share rows, each its own": (
        known(widened(dgrad_views(PLANE, side_by_side=(1,))[1])),
        F16, retiled(TILE, k=32, halo_taps=2, stages=3), 1,
    ),
    "the second of three taps has all": (
        known(widened(dgrad_views(FOUR, side_by_side=(1,))[0])), F16, replace(TILE, halo_taps=3), 1
    ),
    "no tap has all, a warpgroup copies": (
        dgrad_views(ConvProblem((1, 11, 64), (64, 2), 2, 1), side_by_side=(0,))[0],
        F16, retiled(TILE, m=128, warps_m=8, k=32, load=Load.CP_ASYNC_WARPGROUP), 3,
    ),
    "tf32": (
        k_major_view(dgrad_views(VOLUME, side_by_side=(1, 2))[0]), F32, retiled(TILE, k=32), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile, count = RUN[name]
    check_view_runs(view, dtype, tile, arch="sm_90a")
    runs = k_tile_runs(view, spec_of(view, dtype, tile, "sm_90a"))
    assert len(runs) == count
    # Every run has copies of its own, of A's pixels and of the lines of B that it has.
    panels = sum(c.width for run in runs for c in run.columns) // COLUMNS
    lines = panels if dtype != F32 else count * tile.halo_taps
    assert copies(compiled_view(view, dtype, tile, "sm_90a")) == [count, lines, 0]


def test_views_without_such_columns() -> None:
    for view in (fprop_view(PLANE), dgrad_views(VOLUME, side_by_side=(2,))[0]):
        assert k_tile_runs(view, spec_of(view, F16, TILE, "sm_90a")) == ()
    view = RUN["two modes"][0]
    for changes in ({"cluster_k": 2}, {"n": 64}):
        tile = retiled(TILE, **changes)
        assert k_tile_runs(view, spec_of(view, F16, tile, "sm_90a")) == ()
    assert k_tile_runs(view, spec_of(view, F16, TILE, "sm_90a", aligned=(8, 16, 16))) == ()
    first, *_ = k_tile_runs(view, spec_of(view, F16, TILE, "sm_90a"))
    assert first == KTileRun(128, 2, 64, (ColumnRange(0, 128),), (BlockRange(0, 4),))


@pytest.mark.parametrize("C", [8, 16, 24, 32, 40, 48, 64, 128])
def test_more_columns_are_multiplied_with_no_more_zeros(C: int) -> None:
    """Residues fill more columns than an instruction's only where what a tap lacks is left out."""
    problem = ConvProblem((8, 64, 64, 64, C), (64, 3, 3, 3), 2, 1)
    few, more = (arranged_dgrad(problem, columns) for columns in (COLUMNS, MORE_COLUMNS))
    products = 0
    for view in more:
        spec = spec_of(view, F16, TILE, "sm_90a")
        widths = [(run.k_tiles, run.columns[0].width) for run in k_tile_runs(view, spec)]
        widths = widths or [(view.k // TILE.k, view.n)]
        products += view.m * TILE.k * sum(k_tiles * width for k_tiles, width in widths)
        assert view.n <= COLUMNS or is_mapped(view, spec)
    assert products <= sum(view.m * view.n * view.k for view in few)
    assert len(more) == (len(few) // 2 if C in (32, 64) else len(few))
