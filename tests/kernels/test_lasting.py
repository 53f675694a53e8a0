"""CTAs that compute several tiles, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass.cute as cute
import pytest
import torch
from layoutconv.kernels import mainloop_sm90
from layoutconv.kernels.columns import runs_of
from layoutconv.kernels.tile import Tile
from layoutconv.kernels.tune import MACHINES
from layoutconv.kernels.window import widened

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.folded import folded_fprop_view
from layoutconv.epilogue import Activation, Bias, Epilogue, Residual
from layoutconv.executors.residues import arranged_dgrad
from layoutconv.gemm_view import GemmView

from ..machine import Fault, read_cubin
from .launcher import (
    Case,
    check_exact,
    check_view_runs,
    compile_view,
    compiled_view,
    integers,
    run_case,
)
from .test_epilogue import check
from .test_tma import known

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = Tile(64, 64, 64, 4, 1, 2, 32, lasting=True)
THREE = replace(TILE, k=32, stages=3, taps=3)
TWO = replace(TILE, n=128, k=32, stages=3, taps=2)

PLANES = ConvProblem((3, 7, 9, 64), (40, 3, 3), padding=1)
WIDE = ConvProblem((1, 11, 13, 64), (136, 2, 3), padding=1)
STRIDED = ConvProblem((2, 7, 18, 32), (64, 3, 3), 2, 1)
VOLUME = ConvProblem((2, 5, 6, 18, 32), (64, 3, 3, 3), 2, 1)
DEEP = ConvProblem((2, 9, 11, 64), (64, 1, 1))


def wide(view: GemmView) -> GemmView:
    return known(widened(view))


# With how many tiles there are, and how many runs of k-tiles.
RUN: dict[str, tuple[GemmView, torch.dtype, Tile, int, int]] = {
    "dense": (fprop_view(PLANES), F16, TILE, 3, 0),
    "columns of several tiles": (fprop_view(WIDE), BF16, TILE, 9, 0),
    "a k-tile each": (fprop_view(DEEP), F16, replace(TILE, stages=3), 4, 0),
    "more stages than k-tiles": (fprop_view(DEEP), F16, replace(TILE, k=32, stages=5), 4, 0),
    "windows": (wide(fprop_view(PLANES)), F16, THREE, 4, 0),
    "windows of two pieces": (
        wide(fprop_view(PLANES)), BF16, replace(THREE, m=256, warps_m=8, stages=2), 1, 0
    ),
    "a gradient": (wide(dgrad_views(WIDE)[0]), F16, replace(THREE, stages=4), 5, 0),
    "residues beside each other": (arranged_dgrad(VOLUME, 128)[1], F16, replace(TILE, n=128), 1, 0),
    "runs of taps": (wide(arranged_dgrad(VOLUME, 128)[0]), F16, TWO, 2, 0),
    "folded lines": (wide(folded_fprop_view(STRIDED)), F16, replace(TWO, n=64), 2, 0),
    "a filter's gradient": (wgrad_view(PLANES), F16, replace(TILE, k=32), 9, 0),
    "tf32": (wide(fprop_view(PLANES)), F32, replace(THREE, k=16), 4, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile, tiles, runs = RUN[name]
    ran = check_view_runs(view, dtype, tile, arch="sm_90a")
    compiled = compiled_view(view, dtype, tile, "sm_90a")
    print(name, view.m, view.n, view.k, ran.launch.grid, compiled.spec.resident, len(runs_of(view, compiled.spec)))
    # an accumulator's registers...
