"""Chunks of pairs fill whole waves of the tiles that the cost model chooses for their products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.pair_chunks import LEAST, MOST, WAVE_PAIRS, chunk_for, slots
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse.maps.tap_pairs import Pairs
from layoutconv.sparse.views import pairs_wgrad_view

examples = settings(max_examples=200, deadline=None)
H100 = MACHINES["sm_90a"]
# Of clouds of benchmarks, rounded: (pairs of the centre, of each other tap).
CLOUDS = {"lidar": (89_500, 15_700), "indoor": (184_000, 71_400), "shape": (497_000, 235_200)}


def counts_of(cloud: str) -> list[int]:
    centre, other = CLOUDS[cloud]
    return [other] * 13 + [centre] + [other] * 13


def chunks_of(counts: list[int], chunk: int) -> int:
    return sum(-(-count // chunk) for count in counts)


def tile_for(C: int, K: int, dtype: torch.dtype) -> TileConfig:
    rows = torch.zeros(600, 4096, dtype=torch.int32)
    pairs = Pairs(rows, rows, torch.tensor([600]), 4096)
    view = pairs_wgrad_view(pairs, C, K, in_rows=20_000, out_rows=20_000)
    found = choose_kernel(view, dtype, H100, torch.promote_types(dtype, torch.float32))
    assert found.splits == 1
    assert isinstance(found.spec.tile, TileConfig)
    return found.spec.tile


@examples
@given(
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 10**6)), min_size=1, max_size=40),
    st.sampled_from([108, 132, 528]), st.integers(1, 40),
)  # fmt: skip
def test_chunks_are_whole_waves_or_the_shortest_or_longest(counts, at_once, across):
    chunk = chunk_for(counts, at_once, across)
    assert chunk % 64 == 0
    assert 64 <= chunk <= MOST
    mean, ctas = sum(counts) // len(counts), across * chunks_of(counts, chunk)
    least = max(64, -(-min(LEAST, mean) // 64) * 64)
    assert chunk >= least
    # Shorter ones, by 4% and a k-tile, would begin another wave.
    if least < chunk < MOST:
        waves = -(-ctas // at_once)
        full = 1 << (waves - 1).bit_length()
        shorter = (chunk * 24 // 25 - 64) // 64 * 64
        many = chunks_of(counts, shorter) if shorter > 0 else None
        taps = sum(count > 0 for count in counts)
        assert many is None or many > full * at_once // across or ctas <= across * 4 * taps


@pytest.mark.parametrize("of_tiles", [(528, 1), (264, 1), (132, 2), (132, 8)])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_no_other_number_of_waves_is_expected_to_be_faster(cloud, of_tiles):
    counts, (at_once, across) = counts_of(cloud), of_tiles
    times = {}
    for length in (*range(512, MOST, 64), chunk_for(counts, *of_tiles)):
        waves = -(-across * chunks_of(counts, length) // at_once)
        if waves & (waves - 1) == 0:  # those that are tried
            times[length] = waves * (length + WAVE_PAIRS)
    assert times[chunk_for(counts, *of_tiles)] <= 1.03 * min(times.values())


def test_a_cloud_without_pairs_has_chunks():
    assert chunk_for([], 528, 1) == chunk_for([0, 0], 528, 1) == 64


def test_many_channels_have_a_chunk_for_every_tap_at_least_and_few_more():
    chunk = chunk_for(counts_of("lidar"), 132, 512)  # 4096 channels: 16 waves for each of 4 chunks
    assert chunks_of(counts_of("lidar"), chunk) < 3 * 27


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("C", [16, 32, 48, 64, 96, 128, 192, 256, 512])
def test_slots_are_those_of_the_tile_that_is_chosen(C, dtype):
    kind = "tfloat32" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    for K in {C, 64, 128}:
        tile = tile_for(C, K, dtype)
        across = -(-K // tile.m) * -(-C // tile.n)
        assert slots((C, K), kind, H100) == (132 * tile.ctas_per_sm, across)


def test_slots_follow_the_gpu():
    assert slots((64, 64), "float16", replace(H100, sm_count=78)) == (4 * 78, 1)
    assert slots((7, 7), "float16", H100)[0] % 132 == 0  # rows that no vector of 4 bytes divides
    for arch in ("sm_80", "sm_86", "sm_89"):
        at_once, across = slots((128, 128), "float16", MACHINES[arch])
        assert at_once % MACHINES[arch].sm_count == 0
        assert across >= 1


# What was fastest in a race of tiles and chunks on an H100 (docs/lab_notebook.md).
@pytest.mark.parametrize(
    ("C", "dtype", "shape", "stages", "load"),
    [
        (32, torch.float16, (64, 64, 64), 3, Load.CP_ASYNC_WARPGROUP),
        (64, torch.float16, (64, 64, 64), 3, Load.CP_ASYNC_WARPGROUP),
        (128, torch.bfloat16, (128, 128, 64), 3, Load.CP_ASYNC_HALF_WARPGROUP),
        (256, torch.float16, (128, 256, 64), 4, Load.CP_ASYNC_WARPGROUP),
        (64, torch.float32, (64, 64, 32), 3, None),
        (128, torch.float32, (128, 128, 32), 3, None),
    ],
)
def test_the_tiles_that_won(C, dtype, shape, stages, load):
    tile = tile_for(C, C, dtype)
    assert ((tile.m, tile.n, tile.k), tile.stages) == (shape, stages)
    assert tile.warp_specialized == (load is not None)
    assert load is None or tile.load is load


@pytest.mark.parametrize(
    ("cloud", "C", "waves"),
    [(cloud, C, 1) for cloud in CLOUDS for C in (32, 64, 128)]
    + [("lidar", 256, 1), ("indoor", 256, 4), ("shape", 256, 4)],
)
def test_the_waves_that_won(cloud, C, waves):
    counts, (at_once, across) = counts_of(cloud), slots((C, C), "float16", H100)
    ctas = across * chunks_of(counts, chunk_for(counts, at_once, across))
    assert 0.8 * waves < ctas / at_once <= waves
