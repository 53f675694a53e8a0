"""Tiles of 96, 160 and 192 columns, which registers store, and of 192 rows: none are empty."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import legality
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import TileScheduler
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.planning.tile_table import PERSISTENT, WHOLE_COLUMNS, persistent_tile
from layoutconv.view.epilogue import Epilogue, Residual
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    check_epilogue,
    check_view_runs,
    spec_of,
)

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
H200 = MACHINES["sm_90a"]
TILES = {(row.m, row.n): replace(persistent_tile(row, 32), stages=2) for row in WHOLE_COLUMNS}


def forward(K: int) -> GemmView:
    return fprop_view(ConvProblem((3, 9, 11, 32), (K, 1, 2)))


def gradient(C: int) -> GemmView:
    """B runs along its columns."""
    (view,) = dgrad_views(ConvProblem((3, 9, 11, C), (32, 1, 2), padding=(0, 1)))
    return view


RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig]] = {
    "96": (forward(96), F16, TILES[256, 96]),
    "160, twice": (forward(320), BF16, TILES[128, 160]),
    "192": (forward(192), F16, TILES[128, 192]),
    "some of 192": (forward(136), F16, TILES[128, 192]),
    "96 of a gradient": (gradient(96), F16, TILES[256, 96]),
    "160 of a gradient": (gradient(160), F16, TILES[128, 160]),
    "192 of a gradient": (gradient(192), BF16, TILES[128, 192]),
    "192 rows": (forward(192), F16, TILES[192, 192]),
    "192 rows of a gradient": (gradient(192), F16, TILES[192, 192]),
    "192, tf32": (forward(192), F32, TILES[192, 192]),
    "160, tf32": (forward(320), F32, TILES[128, 160]),
    "some of 96, tf32": (forward(68), F32, TILES[256, 96]),
}
ROWS = specialized((192, 128, 32), (12, 1), 2)


DEEP = "192", "192 of a gradient", "192 rows", "192 rows of a gradient", "160, tf32"


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile = RUN[name]
    ran = check_view_runs(view, dtype, tile, arch="sm_90a", most=2)
    size = dtype.itemsize
    assert ran.launch.shared_bytes == tile.smem_bytes(size, size) == tile.mainloop_bytes(size)
    legality.check(view, spec_of(view, dtype, tile, "sm_90a"), H200.smem_per_cta)


MORE_DEEP = [
    "cluster",
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", with_deep(["forward", "gradient", "sums", "cluster", "persistent"], *MORE_DEEP)
)
@pytest.mark.parametrize("dtype", [F16, F32], ids=["16 bits", "tf32"])
@pytest.mark.chessboard
def test_192_rows(kind: str, dtype: torch.dtype) -> None:
    """Three consumer warpgroups, with rows of two tiles, and columns of two."""
    view = forward(136)
    if kind == "gradient":
        view = gradient(136)
    elif kind == "sums":
        view = wgrad_view(ConvProblem((2, 9, 11, 136), (200, 1, 1)))
    elif kind == "cluster":
        view = fprop_view(ConvProblem((2, 9, 11, 64), (136, 3, 3)))
    parts = 2 if kind == "cluster" else 1
    tile = replace(ROWS, cluster_k=parts)
    more = {}
    if kind == "persistent":
        tile, more = persistent((192, 128, 32), (12, 1), 2), {"most": 2}
    check_view_runs(view, dtype, tile, arch="sm_90a", **more)


@pytest.mark.parametrize("name", ["192", "192, tf32"])
def test_a_bias_and_an_activation(name: str) -> None:
    view, dtype, tile = RUN[name]
    check_epilogue(view, dtype, tile, "bias relu")


def test_what_they_do_not_store() -> None:
    view, tile = forward(96), TILES[256, 96]

    def reasons(tile: TileConfig, dtype: torch.dtype = F16, **more: object) -> list[str]:
        return legality.reasons(view, spec_of(view, dtype, tile, "sm_90a", **more))

    assert not reasons(tile)
    assert not reasons(tile, F32)
    assert any("of 16 or 32 bits" in r for r in reasons(tile, F16, aligned=(16, 16, 8)))
    residual = Epilogue((Residual(torch.zeros(3, 9, 10, 96, dtype=F16)),)).structure
    assert any("by steps of no row" in r for r in reasons(tile, epilogue=residual))
    single = TileConfig((128, 96, 32), stages=2)
    assert any("a power of two for columns" in r for r in reasons(single))


def test_all_rows_of_the_table_fit_a_gpu() -> None:
    assert [row for row in PERSISTENT[1] if row.n & (row.n - 1)] == WHOLE_COLUMNS
    for row in WHOLE_COLUMNS:
        assert persistent_tile(row, 64).smem_bytes(2, 2) <= H200.smem_per_cta


@pytest.mark.parametrize(
    ("K", "tile", "less"), [(96, (256, 96), 8), (320, (128, 160), 40), (192, (192, 192), 8)]
)
def test_the_model_takes_them_for_their_columns_alone(
    K: int, tile: tuple[int, int], less: int
) -> None:
    """Up to a tenth of 160 columns may be empty: 280 of 320 are too few."""
    for columns, wanted in ((K, True), (K - less, False)):
        view = fprop_view(ConvProblem((14, 72, 128, 192), (columns, 3, 3), padding=1))
        found = choose_kernel(view, F16, H200).spec.tile
        assert ((found.m, found.n) == tile) == wanted
        exact = choose_kernel(view, torch.float64, H200).spec.tile
        assert exact.n & (exact.n - 1) == 0


@pytest.mark.parametrize(
    ("dtype", "C", "offered"), [(F16, 512, True), (F16, 64, False), (F32, 64, True)]
)
def test_nearly_whole_columns_of_sums_that_stores_do_not_bound(
    dtype: torch.dtype, C: int, offered: bool
) -> None:
    choice = choose_kernel(fprop_view(ConvProblem((64, 7, 7, C), (2032, 1, 1))), dtype, H200)
    assert (160 in {tile.n for tile, _ in ranked(choice.problem, H200)}) == offered


def test_which_persistent_tiles_turn_in_shared_memory() -> None:
    plain = persistent((128, 128, 64), (8, 1), 3)
    assert [plain.stores_registers(size) for size in (1, 2, 4)] == [False, False, True]
    assert persistent((128, 160, 64), (8, 1), 3).stores_registers(2)
    assert persistent((128, 128, 64), (4, 1), 3, pingpong=True).stores_registers(2)
    assert not replace(plain, scheduler=TileScheduler.SINGLE_TILE).stores_registers(4)
