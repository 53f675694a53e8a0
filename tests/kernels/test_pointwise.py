"""Pointwise convolutions as plain GEMMs: TMA tiled loads the rows of a matrix, in all passes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.pointwise_views import (
    is_pointwise,
    pointwise_dgrad_view,
    pointwise_fprop_view,
    pointwise_wgrad_view,
)
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.tensors.expected_tensors import expected
from layoutconv.view.gemm_view import GemmView

from .launcher import check_view_runs, compiled_view
from .test_im2col_sums import copies

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
INDEX = ConvProblem((3, 7, 9, 64), (40, 1, 1))  # 189 pixels
REST = ConvProblem((1, 5, 5, 11, 48), (72, 1, 1, 1))  # 275, a k-tile and a half
FEW = ConvProblem((2, 70, 16), (96, 1))  # 140, of which a line is half empty
LINE = ConvProblem((5, 30, 64), (64, 1))  # rows adjoin the box's: one pitch, one line

PERSISTENT = persistent((64, 64, 64), (4, 1), 2)
ONE_WARP = specialized((128, 64, 32), (4, 1), 2, Load.TMA_WARP)
WARPGROUP = specialized((64, 64, 64), (4, 1), 2)
TALL = specialized((256, 32, 32), (8, 1), 2)


def in_turns(tile: tuple[int, int, int], stages: int, b_resident: int) -> TileConfig:
    """A tile of ping-pong consumers, with all of B in shared memory."""
    return persistent(tile, (4, 1), stages, pingpong=True, b_resident=b_resident)


VIEWS: dict[str, Callable[[ConvProblem], GemmView]] = {
    "fprop": pointwise_fprop_view, "dgrad": pointwise_dgrad_view, "wgrad": pointwise_wgrad_view
}  # fmt: skip
RUN: dict[str, tuple[str, ConvProblem, torch.dtype, TileConfig]] = {
    "fprop, persistent": ("fprop", INDEX, F16, PERSISTENT),
    "fprop, a rest of channels": ("fprop", REST, BF16, PERSISTENT),
    "fprop, half a line": ("fprop", FEW, F16, ONE_WARP),
    "fprop, pitch of a line": ("fprop", LINE, F16, WARPGROUP),
    "fprop, boxes of 256 rows": ("fprop", REST, F16, TALL),
    "fprop, tf32": ("fprop", INDEX, F32, specialized((64, 64, 32), (4, 1), 2)),
    "fprop, B stays": ("fprop", INDEX, F16, persistent((64, 64, 64), (4, 1), 3, b_resident=1)),
    "fprop, B stays, ping-pong": ("fprop", REST, BF16, in_turns((64, 128, 32), 2, 2)),
    "fprop, B stays, whole lines": ("fprop", REST, F16, in_turns((64, 128, 64), 3, 1)),
    "dgrad, B stays": ("dgrad", FEW, F16, persistent((128, 32, 32), (8, 1), 3, b_resident=3)),
    "dgrad, B stays, whole lines": ("dgrad", FEW, F16, in_turns((64, 32, 64), 4, 2)),
    "dgrad, persistent": ("dgrad", FEW, F16, PERSISTENT),
    "dgrad, a rest of channels": ("dgrad", INDEX, BF16, ONE_WARP),
    "wgrad": ("wgrad", INDEX, F16, WARPGROUP),
    "wgrad, a rest of channels": ("wgrad", REST, BF16, WARPGROUP),
    "wgrad, half a line": ("wgrad", FEW, F16, specialized((128, 64, 32), (8, 1), 3)),
}


@pytest.mark.parametrize("name", RUN)
def test_a_pass_over_matrices(name: str) -> None:
    """Results are exact, and TMA tiled alone copies."""
    kind, problem, dtype, tile = RUN[name]
    view = VIEWS[kind](problem)
    im2col, tiled, vectors = copies(compiled_view(view, dtype, tile, "sm_90a", None))
    assert (im2col, vectors) == (0, 0)
    assert tiled > 0
    check_view_runs(view, dtype, tile, arch="sm_90a")


@pytest.mark.parametrize("channels", [16, 96, 144])
def test_whole_lines_of_channels(channels: int) -> None:
    """Tiles of whole lines are offered where they are fewer than half lines."""
    view = pointwise_fprop_view(ConvProblem((64, 56, 56, channels), (96, 1, 1)))
    choice = choose_kernel(view, F16, MACHINES["sm_90a"], measures=False)
    offered = {tile.k for tile, _ in ranked(choice.problem, choice.machine) if tile.persistent}
    assert offered == ({32} if channels == 16 else {32, 64})


def test_rows_are_divided_by_nothing() -> None:
    """No kernel of pixels as rows looks for the image or the line of a row."""
    view = pointwise_fprop_view(INDEX)
    assert not re.search(
        r"\b(div|rem|mul\.hi)\.", compiled_view(view, F16, PERSISTENT, "sm_90a", None).ptx
    )


def test_one_kernel_serves_images_of_any_shape() -> None:
    problems = [
        ConvProblem((N, *spatial, 64), (40, 1, 1))
        for N, spatial in ((3, (9, 1)), (1, (4, 5)), (2, (3, 2)))
    ]
    for along, kind in (((1, 1), "fprop"), ((1, 0), "dgrad"), ((0, 0), "wgrad")):
        assert len({signature(VIEWS[kind](problem), along) for problem in problems}) == 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_memory_has_as_many_modes_as_the_result(rank: int) -> None:
    """A kernel refuses a result of another number of modes, and warm calls give it theirs."""
    problem = ConvProblem((2, *range(3, 3 + rank), 64), (40, *(1 for _ in range(rank))))
    for kind, plain in (("fprop", fprop_view), ("wgrad", wgrad_view)):
        assert len(expected(VIEWS[kind](problem)).d.shape) == len(expected(plain(problem)).d.shape)
        assert expected(VIEWS[kind](problem)).b.shape[-1] == expected(plain(problem)).b.shape[-1]
    (plain_dgrad,) = dgrad_views(problem)
    found = expected(pointwise_dgrad_view(problem))
    assert len(found.d.shape) == len(expected(plain_dgrad).d.shape) == rank + 2
    assert found.b == expected(plain_dgrad).b


def test_no_images_have_the_views_of_any_layer() -> None:
    assert not is_pointwise(ConvProblem((0, 4, 4, 8), (8, 1, 1)))
