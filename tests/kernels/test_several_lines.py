"""K-tiles of several half lines: all channels of a tap of a kernel map, in one stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layoutconv.planning.kernel_spec import can_skip
from layoutconv.planning.map_rates import tiles_of_several_lines
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view, strided_map, submanifold_map
from layoutconv.sparse.views import kernel_map_dgrad_view
from layoutconv.view.gemm_view import GemmView

from .launcher import (
    check_epilogue,
    check_view_runs,
    compile_view,
    compiled_view,
    spec_of,
    unspilled,
)
from .test_kernel_maps import cloud
from .test_skip import kernel_map

ALL = [
    (tile, channels) for channels in (96, 128, 160)
    for tile in tiles_of_several_lines("float16", channels)
]  # fmt: skip
SMALL = specialized((64, 64, 96), (4, 1), 2)


def ran(view: GemmView, tile: TileConfig, dtype: torch.dtype = torch.float16) -> None:
    assert can_skip(view, spec_of(view, dtype, tile, "sm_90a").along, tile)
    check_view_runs(view, dtype, tile, arch="sm_90a", skip=True)


@pytest.mark.parametrize(("tile", "channels"), ALL, ids=str)
def test_every_tile_of_the_table(tile: TileConfig, channels: int) -> None:
    index = kernel_map(150, 9, 0.3)
    index[-40:] = -1  # rows, and tiles, without any tap
    ran(kernel_map_view(index, channels, 72, kernel_size=(3, 3)), tile)


@pytest.mark.parametrize(("tile", "channels"), ALL, ids=str)
def test_no_register_is_spilled(tile: TileConfig, channels: int) -> None:
    order = torch.randperm(200, dtype=torch.int32)
    index = kernel_map(200, 27, 0.3)
    view = kernel_map_view(index, channels, 128, kernel_size=(3, 3, 3), scatter_index=order)
    unspilled(compiled_view(view, torch.float16, tile, "sm_90a", skip=True))


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_gradient_of_the_inputs(mirrored: bool) -> None:
    """Its B runs along n, so that k-tiles are rows of shared memory."""
    found = submanifold_map(cloud(2, 70, 9)) if mirrored else strided_map(cloud(2, 70, 9), 2, 2)
    options = {"kernel_size": found.taps, "mirrored": mirrored}
    if mirrored:
        (index, order), rows = found.sorted, {}
    else:
        index, order = found.inverse.sorted
        rows = {"in_rows": len(found.inputs), "out_rows": len(found.outputs)}
    ran(kernel_map_dgrad_view(index, 64, 96, scatter_index=order, **rows, **options), SMALL)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_what_follows_the_sums(parts: int) -> None:
    index, order = kernel_map(150, 9, 0.3), torch.randperm(150, dtype=torch.int32)
    view = kernel_map_view(index, 96, 64, kernel_size=(3, 3), scatter_index=order)
    tile, steps = replace(SMALL, cluster_k=parts), "bias residual relu"
    check_epilogue(view, torch.float16, tile, steps, out=torch.float32, skip=True)


def test_bfloat16() -> None:
    index = kernel_map(100, 9, 0.3)
    view = kernel_map_view(index, 192, 72, kernel_size=(3, 3))  # two k-tiles to a tap
    ran(view, SMALL, torch.bfloat16)


def test_refused() -> None:
    view = kernel_map_view(kernel_map(100, 9, 0.3), 96, 64, kernel_size=(3, 3))
    with pytest.raises(ValueError, match="k of 32 or 64, lines of shared memory, got 96"):
        compile_view(view, torch.float16, SMALL, "sm_90a")  # skips no taps
    wide = specialized((64, 64, 192), (4, 1), 2)
    with pytest.raises(ValueError, match="or up to 160 of 16 bits that skip taps, got 192"):
        compile_view(view, torch.float16, wide, "sm_90a", skip=True)
    with pytest.raises(ValueError, match="k of 16 or 32, lines of shared memory, got 96"):
        compile_view(view, torch.float32, SMALL, "sm_90a", skip=True)
