"""Gradients of filters from K-major copies in the machine: both operands by im2col TMA."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem
from layoutconv.conv.k_major_wgrad import k_major_wgrads
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized

from .launcher import Case, check_exact, compiled_view, run_case

F32 = torch.float32
TILES = {
    "by a warp": specialized((64, 64, 32), (4, 1), 3, Load.TMA_WARP),
    "persistent": persistent((128, 96, 32), (8, 1), 3),
    "a cluster": specialized((64, 128, 32), (4, 1), 2, cluster_k=2),
}
# A problem, and another of the same kernel: rows that end in a tile, taps within one, padding.
PROBLEMS = {
    "lines": (
        ConvProblem((2, 40, 36), (68, 3), padding=1),
        ConvProblem((1, 9, 36), (68, 3), padding=1),
    ),
    "planes": (
        ConvProblem((2, 9, 8, 16), (24, 3, 2), padding=((1, 1), (0, 2)), dilation=(2, 1)),
        ConvProblem((1, 13, 5, 16), (24, 3, 2), padding=((1, 1), (0, 2)), dilation=(2, 1)),
    ),
    "volumes": (
        ConvProblem((1, 4, 5, 6, 8), (64, 2, 3, 3), padding=1),
        ConvProblem((2, 3, 4, 3, 8), (64, 2, 3, 3), padding=1),
    ),
    "one tap": (
        ConvProblem((1, 6, 11, 100), (72, 1, 1), stride=2),
        ConvProblem((3, 4, 4, 100), (72, 1, 1), stride=2),
    ),
}


@pytest.mark.parametrize(
    ("name", "tile", "copied"),
    [
        ("lines", "by a warp", 1),
        ("planes", "persistent", 1),
        ("volumes", "a cluster", 1),
        ("volumes", "persistent", 2),  # taps along D are copied
        ("one tap", "persistent", 1),
        pytest.param("volumes", "by a warp", 1, marks=pytest.mark.deep),
        pytest.param("planes", "a cluster", 6, marks=pytest.mark.deep),
    ],
)
def test_kernels_are_exact_and_serve_every_size(name: str, tile: str, copied: int) -> None:
    first, second = PROBLEMS[name]
    of: TileConfig = TILES[tile]
    one, other = (
        next(found for found in k_major_wgrads(problem) if found.b.shape[2] == copied)
        for problem in (first, second)
    )
    compiled = compiled_view(one.view, F32, of, "sm_90a")
    assert compiled_view(other.view, F32, of, "sm_90a") is compiled
    assert "im2col" in compiled.ptx
    for view in (one.view, other.view):
        case = Case.of(view, F32)
        check_exact(case, run_case(case, compiled))
