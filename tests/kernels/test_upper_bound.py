"""The benchmarks' kernel without loads: it multiplies and writes as much as the template does."""

from __future__ import annotations

import re

import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.planning.tile import TileConfig, specialized

from .launcher import compile_view

LOADS = (r"cp\.async\.c[ag]\.shared", r"ld\.global", r"cp\.async\.bulk\.tensor")
REST = (r"cp\.async\.wait_group", r"ldmatrix", r"mma\.sync", r"st\.global", r"bar\.sync")
REST_OF_HOPPER = (r"wgmma\.mma_async", r"mbarrier\.arrive", r"mbarrier\.try_wait", r"st\.global")


@pytest.fixture
def no_loads(load_benchmark):
    return load_benchmark("upper_bound").no_loads


SPREAD = TileConfig((256, 128, 64), (4, 2))  # whose copies are spread over k-blocks


@pytest.mark.parametrize("tile", [TileConfig((64, 64, 32)), SPREAD], ids=str)
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.chessboard
def test_it_loads_nothing_and_does_the_rest(no_loads, gathered, tile):
    problem = ConvProblem((2, 8, 8, 64), (64, 3, 3), padding=1)
    index = torch.arange(128, dtype=torch.int32)
    view = gather_fprop_view(problem, index) if gathered else fprop_view(problem)

    def counts() -> dict[str, int]:
        ptx = compile_view(view, torch.float16, tile).ptx
        return {i: len(re.findall(rf"^\s*(?:@\S+ )?{i}", ptx, re.M)) for i in (*LOADS, *REST)}

    whole = counts()
    with no_loads():
        bare = counts()
    assert whole[LOADS[0]] > 0
    assert (whole[LOADS[1]] > 0) is gathered  # the index
    assert [bare[i] for i in LOADS] == [0, 0, 0]
    assert [bare[i] for i in REST] == [whole[i] for i in REST]
    assert all(bare[i] > 0 for i in REST)
    if tile is not SPREAD:  # which takes seconds to compile
        assert counts() == whole  # and afterwards loads are back


@pytest.mark.parametrize("channels", [40, 64])  # of A by vectors, and by a tensor map
def test_hoppers_loop_waits_for_what_does_not_come(no_loads, channels):
    view = fprop_view(ConvProblem((2, 8, 8, channels), (64, 3, 3), padding=1))

    def counts() -> dict[str, int]:
        tile = specialized((64, 64, 64), (4, 1), 3)
        ptx = compile_view(view, torch.float16, tile, "sm_90a").ptx
        return {i: len(re.findall(i, ptx)) for i in (*LOADS, *REST_OF_HOPPER)}

    whole = counts()
    with no_loads():
        bare = counts()
    assert [whole[i] > 0 for i in LOADS] == [channels == 40, False, True]
    assert [bare[i] for i in LOADS] == [0, 0, 0]
    assert [bare[i] for i in REST_OF_HOPPER] == [whole[i] for i in REST_OF_HOPPER]
    assert all(bare[i] > 0 for i in REST_OF_HOPPER)
