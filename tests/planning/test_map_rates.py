"""The times of tiles over kernel maps: few rows wait for the longest CTA, many for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import map_rates
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.cost_problem import Problem
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.tile_table import GATHERED, ROUNDED_GATHERED
from layoutconv.planning.tile_time import expected_time
from layoutconv.sparse import kernel_map_view

HOPPER = MACHINES["sm_90a"]


def problem(rows: int, C: int, K: int, dtype: str = "float16") -> Problem:
    of_map = {"skips_taps": True, "gathered": True, "clusters": True}
    return Problem(rows, K, 27 * C, C, dtype, 2 if dtype == "float16" else 4, **of_map)


def chosen(rows: int, C: int, K: int, dtype: str = "float16") -> TileConfig:
    tile, splits = next(ranked(problem(rows, C, K, dtype), HOPPER))
    assert splits == 1
    return tile


def test_every_tile_over_a_map_has_its_time() -> None:
    assert GATHERED.keys() - map_rates.OF_LINES.keys() <= {(128, 8, 4, 1), (128, 16, 4, 1)}
    assert ROUNDED_GATHERED.keys() == map_rates.OF_LINES.keys()


@pytest.mark.parametrize("dtype", ["float16", "tfloat32"])
def test_the_deepest_level_shares_its_sums(dtype: str) -> None:
    """On an H200, 679 rows of 256 channels took 24.7 us in the tile of before, 11.5 in clusters of
    four; in tf32 33.2 and 23.0.
    """
    assert chosen(679, 256, 256, dtype).cluster_k == 4


def test_a_view_tells_of_all_taps() -> None:
    """Its sums had half of them once, for the times of other tiles: no cluster was worth it."""
    index = torch.zeros(27, 679, dtype=torch.int32).T
    order = torch.arange(679, dtype=torch.int32)
    view = kernel_map_view(index, 256, 256, kernel_size=(3, 3, 3), scatter_index=order)
    named = replace(HOPPER, name="NVIDIA H200")
    choice = choose_kernel(view, torch.float16, named, torch.float16, measures=False)
    assert (choice.problem.k, choice.spec.tile) == (27 * 256, chosen(679, 256, 256))


@pytest.mark.parametrize("rows", [89_511, 183_968, 496_934])
def test_large_clouds_keep_their_tiles(rows: int) -> None:
    shapes = {C: (chosen(rows, C, C).m, chosen(rows, C, C).n) for C in (64, 128, 256)}
    assert shapes == {64: (128, 64), 128: (128, 128), 256: (128, 256)}


def test_channels_that_are_no_lines_are_one_k_tile() -> None:
    """On an H200, 96 channels took 199 us in k-tiles of 32 where 156 are enough (183,968 rows)."""
    assert {chosen(rows, 96, 96).k for rows in (679, 7817, 48_315, 183_968)} == {96}


@given(
    rows=st.integers(1, 10**6), C=st.sampled_from([32, 64, 96, 128, 160, 256]),
    K=st.sampled_from([17, 32, 64, 96, 200, 256]), dtype=st.sampled_from(["float16", "tfloat32"]),
)  # fmt: skip
def test_more_rows_take_no_less(rows: int, C: int, K: int, dtype: str) -> None:
    """But for the share of taps, which falls by less than rows grow."""
    one, two = problem(rows, C, K, dtype), problem(2 * rows, C, K, dtype)
    for tile, parts in ranked(one, HOPPER):
        assert expected_time(two, tile, parts, HOPPER) >= expected_time(one, tile, parts, HOPPER)


def test_narrow_results_and_other_gpus_have_the_times_of_before() -> None:
    narrow = problem(5000, 64, 16)
    for machine, of in ((HOPPER, narrow), (MACHINES["sm_86"], problem(5000, 64, 64))):
        for tile, parts in ranked(of, machine):
            apart = replace(of, wgmma=False)
            same = expected_time(apart, tile, parts, machine)
            assert expected_time(of, tile, parts, machine) == same
