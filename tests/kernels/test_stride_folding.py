"""Stride folding in kernels: taps share rows, and cells outside the filter are not multiplied."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.conv.stride_folding import folded_fprop_view
from layoutconv.gpu import select
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.structural_zeros import k_tile_runs
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tile_table import MAPPED_WINDOWS
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    check_exact,
    check_not_finite,
    check_view_runs,
    compile_view,
    compiled_view,
    half_line,
    integers,
    run_case,
    spec_of,
    unspilled,
)
from .test_epilogue import check
from .test_random import few
from .test_tma import check_copies, known
from .tiles import retiled

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = specialized((64, 64, 32), (4, 1), 3, Load.TMA_WARP, halo_taps=2)
LINES = retiled(TILE, k=64, stages=2)
ALONE = replace(LINES, halo_taps=1)

UNET = ConvProblem((2, 5, 6, 12, 32), (40, 3, 2, 3), 2, 1)
MORE = ConvProblem((1, 3, 10, 64), (64, 3, 3), 2, (1, (0, 1)))
FEW = ConvProblem((2, 5, 12, 16), (24, 3, 3), 2, 1)
THREES = ConvProblem((1, 4, 18, 32), (64, 2, 7), (1, 3), (0, (3, 2)))
PATCHES = ConvProblem((1, 9, 24, 16), (64, 4, 4), 4)


def wide(problem: ConvProblem) -> GemmView:
    return known(widened(folded_fprop_view(problem)))


# With how many runs of k-tiles, and how many instructions copy A, B, and vectors.
RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig, int, list[int]]] = {
    "half of a tap's k-tiles": (wide(UNET), F16, TILE, 2, [2, 3, 0]),
    "half of a tap's blocks": (wide(UNET), BF16, LINES, 1, [1, 2, 0]),
    "rows that no taps share": (folded_fprop_view(UNET), F16, ALONE, 2, [2, 2, 0]),
    "k-tiles of a part of a cell": (wide(MORE), F16, TILE, 4, [4, 6, 0]),
    "two cells in half a line": (wide(FEW), F16, retiled(TILE, n=32), 1, [1, 2, 0]),
    "three taps of three cells": (wide(THREES), F16, replace(TILE, halo_taps=3), 3, [3, 7, 0]),
    "patches": (folded_fprop_view(PATCHES), F16, ALONE, 0, [1, 1, 0]),
    "tf32": (wide(UNET), F32, retiled(TILE, k=16), 4, [4, 6, 0]),
    "rows of two pieces": (wide(UNET), F16, retiled(TILE, m=256, warps_m=8), 2, [4, 3, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", with_deep(RUN, "half of a tap's k-tiles", "rows of two pieces"))
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile, count, want = RUN[name]
    check_copies(view, dtype, tile, want)
    assert len(k_tile_runs(view, spec_of(view, dtype, tile, "sm_90a"))) == count


@pytest.mark.parametrize(("problem", "tile"), [(UNET, TILE), (UNET, LINES), (FEW, TILE)])
def test_what_is_not_finite_reaches_its_windows_alone(
    problem: ConvProblem, tile: TileConfig
) -> None:
    """Products with zeros would spread it to others."""
    plain, view = Case.of(fprop_view(problem), F16), wide(problem)
    cells = plain.a.view(-1, problem.C)
    cells[integers((9,), torch.int64, 3).cumsum(0).abs() * 7 % len(cells), 1] = torch.inf
    case = Case(view, plain.a.view(Case.of(view, F16).a.shape), plain.b, plain.out)
    ran = run_case(case, compiled_view(view, F16, tile, "sm_90a"))
    check_not_finite(plain, ran)


@few
@given(data=st.data(), dtype=st.sampled_from([F16, F32]), shared=st.booleans())
def test_any_problem(data: st.DataObject, dtype: torch.dtype, shared: bool) -> None:
    """By tiles of every kind; a vector of channels is not of two taps."""
    rank, stride = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 3))
    taps = data.draw(st.integers(1, 5))
    cells = stride * data.draw(st.integers(-(-taps // stride), 7))
    near, far = (data.draw(st.integers(0, 4)) for _ in "nf")
    C, K = (2 * data.draw(st.integers(1, top)) for top in (24, 20))
    problem = ConvProblem(
        (2, *[3] * (rank - 1), cells, C), (K, *[2] * (rank - 1), taps), stride,
        [*[(1, 0)] * (rank - 1), (near, far)],
    )  # fmt: skip
    view, k = folded_fprop_view(problem), half_line(dtype)
    found = widened(view) if shared and view.k % k == 0 else None
    if found is not None and found.k // int(found.a.inner.shape[1][-1]) % k == 0:
        taps = int(found.a.inner.shape[1][-1])
        check_view_runs(
            found,
            dtype,
            retiled(TILE, k=k, load=Load.CP_ASYNC_WARPGROUP, halo_taps=taps),
            arch="sm_90a",
        )
    else:
        check_view_runs(view, dtype, TileConfig((64, 32, k), stages=2))


def test_what_follows_the_sums() -> None:
    case = Case.of(wide(UNET), F16, F32)
    steps = (
        Bias(integers((UNET.K,), F32, 7)),
        Residual(integers(tuple(case.out.shape), F32, 8)),
        Activation("relu"),
    )
    case.epilogue = Epilogue(steps, statistics=True)
    check(case, run_case(case, case.compiled(TILE, "sm_90a")))


def test_one_kernel_serves_other_sizes() -> None:
    view, other = (
        wide(replace_activation(UNET, extents)) for extents in (UNET.activation[:4], (3, 2, 7, 16))
    )
    assert signature(view) == signature(other)
    case = Case.of(other, F16)
    check_exact(case, run_case(case, compiled_view(view, F16, TILE, "sm_90a")))


def replace_activation(problem: ConvProblem, extents: tuple[int, ...]) -> ConvProblem:
    shape = *extents, problem.C
    return ConvProblem(shape, problem.filter, problem.stride, problem.padding)


def test_memory_that_starts_anywhere() -> None:
    """Threads copy one operand then, and multiply zeros."""
    view, tile = wide(UNET), replace(TILE, load=Load.CP_ASYNC_WARPGROUP)
    case = Case.of(view, F16)
    compiled = compiled_view(view, F16, tile, "sm_90a", aligned=(16, 8, 16))
    check_exact(case, run_case(case, compiled, shift=(0, 8, 0)))
    assert k_tile_runs(view, compiled.spec) == ()


@pytest.mark.parametrize("shape", [shape for shape in MAPPED_WINDOWS if shape[1] == 64], ids=str)
def test_nothing_spills(shape: tuple[int, int, int, int]) -> None:
    """The kernel of the first layer that halves a volume does not spill, at that layer's size."""
    (m, n, *warps), (_, _, stages, _) = shape, MAPPED_WINDOWS[shape]
    tile = specialized((m, n, 32), warps, stages, Load.TMA_WARP, halo_taps=2)
    unspilled(compile_view(wide(LARGE), F16, tile, "sm_90a"), tile.ctas_per_sm)


LARGE = ConvProblem((2, 128, 128, 128, 32), (64, 3, 3, 3), 2, 1)


@pytest.mark.parametrize(
    ("problem", "taps"), [(LARGE, 2), (ConvProblem((8, 99, 256, 64), (128, 3, 3), 2, 1), 1)]
)
def test_a_plan_leaves_zeros_out(problem: ConvProblem, taps: int) -> None:
    chosen = select.choose_kernel(folded_fprop_view(problem), F16, MACHINES["sm_90a"])
    assert (chosen.spec.tile.halo_taps, chosen.spec.tile.load) == (taps, Load.TMA_WARP)
    assert chosen.problem.tma_halo
    assert k_tile_runs(chosen.view, chosen.spec)
