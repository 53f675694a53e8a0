"""One column: layers with one filter, and gradients of one channel, by every kind of Hopper tile.

Memory of B has a mode of extent 1 there. A TMA copy that left it out named fewer coordinates than
its descriptor has modes, which is an illegal instruction: the process lost its GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.kernels.gemm import tma
from layoutconv.planning.schedule import Load, TileScheduler
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_tiled import memory_of_b
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from tools.ptx_sim import Fault

from ..grid_cover import with_deep
from .launcher import Case, check_view_runs, compile_view, run_case, spec_of
from .mutations import put
from .test_skip import kernel_map
from .tiles import retiled
from .view_cases import wide

F16, F32, FP8 = torch.float16, torch.float32, torch.float8_e4m3fn
TILE = specialized((64, 16, 64), (4, 1), 2)
ONE_WARP = replace(TILE, load=Load.TMA_WARP)
PERSISTENT = replace(ONE_WARP, scheduler=TileScheduler.STATIC_PERSISTENT)
RESIDENT = replace(PERSISTENT, b_resident=3)


def fprop(*extents: int, filter: tuple[int, ...] = (3, 3), **options: Any) -> GemmView:
    return fprop_view(ConvProblem(extents, (1, *filter), padding=1, **options))


HEAD = fprop(2, 5, 9, 64)
VOLUME = fprop(1, 3, 4, 9, 64, filter=(3, 3, 3))
GRADIENT = ConvProblem((1, 7, 9, 1), (32, 3, 3), padding=1)  # of an image with one channel
MAP = kernel_map_view(kernel_map(100, 27, 0.1), 32, 1, kernel_size=(3, 3, 3))

RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig]] = {
    "a head": (HEAD, F16, TILE),
    "one warp copies": (HEAD, F16, ONE_WARP),
    "strided and dilated": (fprop(1, 9, 11, 64, stride=2, dilation=2), F16, TILE),
    "persistent": (VOLUME, F16, PERSISTENT),
    "persistent, B resident": (fprop(1, 6, 64, filter=(3,)), F16, RESIDENT),
    "taps share rows": (wide(HEAD), F16, retiled(TILE, k=32, halo_taps=3)),
    "a cluster shares sums": (HEAD, F16, replace(TILE, cluster_k=2)),
    "tf32": (HEAD, F32, retiled(TILE, k=32)),
    "tf32, taps share rows": (wide(HEAD), F32, retiled(TILE, k=16, stages=3, halo_taps=3)),
    "tf32, gradient": (
        wide(k_major_view(dgrad_views(GRADIENT)[0])),
        F32,
        retiled(TILE, k=16, stages=3, halo_taps=3),
    ),
    "gradient": (k_major_view(dgrad_views(replace(GRADIENT, filter=(64, 3, 3)))[0]), F16, TILE),
    "fp8": (fprop(1, 5, 9, 128), FP8, retiled(TILE, k=128)),
    "int8": (fprop(1, 5, 9, 128), torch.int8, retiled(TILE, k=128)),
    "kernel map": (MAP, F16, retiled(TILE, k=32)),
    "kernel map, tf32": (MAP, F32, retiled(TILE, k=32)),
}  # fmt: skip


DEEP = "gradient", "kernel map, tf32", "tf32", "tf32, taps share rows", "persistent, B resident"


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_one_column(name: str) -> None:
    view, dtype, tile = RUN[name]
    assert view.n == 1
    out = {FP8: F16, torch.int8: torch.int32}.get(dtype)
    check_view_runs(view, dtype, tile, arch="sm_90a", out=out)


def test_b_comes_by_tma() -> None:
    """Most of them want what was broken; a tile without it would prove nothing."""
    mapped = [memory_of_b(v, spec_of(v, d, t, "sm_90a")) for v, d, t in RUN.values()]
    assert sum(found is not None and 1 in found.layout.outer.shape for found in mapped) >= 12


def test_a_mode_that_is_left_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host, which launches nothing; and by the machine, as the hardware does."""
    put(tma, "Int32", lambda extent: extent)(monkeypatch)
    with pytest.raises(RuntimeError, match="expected 2 coordinates, a mode each, got 1"):
        compile_view(HEAD, F16, TILE, "sm_90a")
    monkeypatch.setattr(tma, "len", lambda of: 2, raising=False)
    compiled = compile_view(HEAD, F16, TILE, "sm_90a")
    with pytest.raises(Fault, match="a copy with 1 coordinates, of a tensor with 2 modes"):
        run_case(Case.of(HEAD, F16), compiled)
