"""Kernel maps in 8 bits: requantised sums, residuals of 8 bits, both main loops; exact."""

from __future__ import annotations

import pytest
import torch

from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual, Scale

from .launcher import Case, integers, run_case
from .test_epilogue import check
from .test_skip import kernel_map

TYPES = [torch.int8, torch.float8_e4m3fn]
TILES = {
    "mma": (64, "sm_89", TileConfig((64, 64, 64), (2, 2), 3)),
    "wgmma": (128, "sm_90a", specialized((64, 64, 128), (4, 1), 3)),
    "half a warpgroup": (
        32, "sm_90a", specialized((128, 64, 64), (8, 1), 3, Load.CP_ASYNC_HALF_WARPGROUP)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", TILES)
@pytest.mark.chessboard
def test_a_map_is_multiplied_and_requantised(name: str, dtype: torch.dtype) -> None:
    """Powers of two scale, so that what is rounded is known to the last bit."""
    channels, arch, tile = TILES[name]
    index = kernel_map(100, 9, 0.2)
    index[-40:] = -1  # rows that no tap has: the bias, and what is past it
    rows = torch.randperm(105, generator=torch.Generator().manual_seed(1))[:100].int()
    sizes = {"kernel_size": (3, 3), "out_rows": 105}
    view = kernel_map_view(index, channels, 40, scatter_index=rows, **sizes)
    scale = 2.0 ** -(torch.arange(40) % 7).float()
    past = integers((105, 40), dtype, 5)
    steps = Scale(scale), Bias(integers((40,), torch.float32, 4)), Residual(past, 0.25)
    case = Case.of(view, dtype, dtype)
    case.epilogue = Epilogue((*steps, Activation("relu")))
    check(case, run_case(case, case.compiled(tile, arch, skip=True)))
