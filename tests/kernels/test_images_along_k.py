"""Views that users may write, in which TMA's images lie along k or m, or are not all rows of A.

A copy stays within one image along k, the rows of further ones are not those of the first, and
statistics count no row past the last.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import legality
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_im2col import im2col_of_a, im2col_of_b
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import row_major, runtime, static

from .launcher import (
    Case,
    check_epilogue,
    check_exact,
    check_view_runs,
    compile_spec,
    run_case,
    spec_of,
)

F16, F32 = torch.float16, torch.float32
BY_WARP, BY_THREADS = (
    specialized((64, 64, 64), (4, 1), 3, load) for load in (Load.TMA_WARP, Load.CP_ASYNC_WARPGROUP)
)


def matrix(rows: int, columns: int, of: int = 0) -> ComposedLayout:
    """A matrix: the first rows of one of ``of``."""
    return ComposedLayout(
        row_major((of or rows, columns)), 0, Layout((rows, columns), (E(0), E(1)))
    )


def of_runs(rows: int, run: int, runs: int) -> ComposedLayout:
    """An operand (rows, (run, J)) with a run of each row in each of J images."""
    J, along = runtime(runs, "J"), (run, runtime(runs, "J"))
    memory = Layout((J, rows, run), (rows * run, run, 1))
    return ComposedLayout(memory, 0, Layout((rows, along), (E(1), (E(2), E(0)))))


def product(rows: int, run: int, runs: int = 5) -> GemmView:
    return GemmView(of_runs(rows, run, runs), of_runs(64, run, runs), matrix(rows, 64))


def of_images(channels: int, images: int, pixels: int) -> GemmView:
    """Sums over the pixels of each image: rows are the channels of all images."""
    k, columns = runtime(pixels, "K"), static(64, "N")
    rows = static(channels, "C"), static(images, "I")
    memory = Layout((rows[1], k, channels), (pixels * channels, channels, 1))
    return GemmView(
        ComposedLayout(memory, 0, Layout((rows, k), ((E(2), E(0)), E(1)))),
        ComposedLayout(row_major((k, columns)), 0, Layout((columns, k), (E(1), E(0)))),
        ComposedLayout(
            row_major((images, channels, columns)), 0, Layout((rows, columns), ((E(1), E(0)), E(2)))
        ),
    )


@pytest.mark.parametrize(("dtype", "run"), [(F16, 32), (F16, 16), (F16, 48), (F32, 16)])
def test_a_k_tile_lies_within_one_image(dtype: torch.dtype, run: int) -> None:
    view, line = product(64, run), 128 // dtype.itemsize
    for tile in (specialized((64, 64, k), (4, 1), 3, Load.TMA_WARP) for k in (line, line // 2)):
        spec = spec_of(view, dtype, tile, "sm_90a")
        whole = run % tile.k == 0
        assert (im2col_of_a(view, spec) is not None) == whole
        assert (im2col_of_b(view, spec) is not None) == whole
        assert (not legality.reasons(view, spec)) == whole
    chosen, case = choose_kernel(view, dtype, MACHINES["sm_90a"]), Case.of(view, dtype)
    compiled = compile_spec(chosen.view, chosen.spec)
    check_exact(case, run_case(replace(case, view=chosen.view), compiled))


def test_rows_of_further_images_are_theirs() -> None:
    """In sums over pixels channels are rows, and TMA brings those of one image alone."""
    view = of_images(64, 3, 80)
    assert im2col_of_a(view, spec_of(view, F16, BY_WARP, "sm_90a")) is None
    check_view_runs(view, F16, BY_THREADS, arch="sm_90a")


def exchanged(problem: ConvProblem) -> GemmView:
    """A filter's gradient whose rows are the taps."""
    view = wgrad_view(problem)
    return GemmView(view.b, view.a, matrix(view.n, view.m))


def few_channels(used: int, stored: int) -> GemmView:
    """Sums over pixels, of the first channels of A alone."""
    view, W = of_images(64, 1, 50), static(50, "K")
    memory = Layout((W, stored), (stored, 1))
    a = ComposedLayout(memory, 0, Layout((used, W), (E(1), E(0))))
    return GemmView(a, view.b, matrix(used, 64))


COUNTED: dict[str, tuple[GemmView, TileConfig, bool]] = {
    "all rows of a matrix": (
        GemmView(matrix(40, 64), matrix(64, 64), matrix(40, 64)), BY_THREADS, True,
    ),
    "first rows of a matrix": (
        GemmView(matrix(40, 64, of=100), matrix(64, 64), matrix(40, 64)), BY_THREADS, False,
    ),
    "images": (fprop_view(ConvProblem((3, 9, 64), (64, 3))), BY_THREADS, True),
    "images along k": (product(40, 64), BY_THREADS, False),
    "taps": (
        exchanged(ConvProblem((1, 20, 64), (64, 3), padding=1)),
        specialized((128, 64, 64), (8, 1), 3), False,
    ),
    "all channels": (few_channels(40, 40), BY_THREADS, True),
    "first channels": (few_channels(40, 128), BY_THREADS, False),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_statistics_count_no_row_past_the_last(name: str) -> None:
    """TMA brings A only where such rows are zeros; without statistics it brings all of these."""
    view, tile, zeros = COUNTED[name]
    spec = spec_of(view, F16, tile, "sm_90a")
    assert im2col_of_a(view, spec) is not None
    counting = spec_of(view, F16, tile, "sm_90a", epilogue="statistics")
    assert (im2col_of_a(view, counting) is not None) == zeros
    check_epilogue(view, F16, tile, "statistics")
