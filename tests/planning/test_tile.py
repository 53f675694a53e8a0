"""Tiles: named choices that fit each other, and their JSON, of this format and the one before."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.planning import schedule
from layoutconv.planning.schedule import KernelSchedule, Load, TileScheduler
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.planning.tile_json import FORMAT, tile_from_json, tile_to_json

NAMES = {"TileConfig": TileConfig, **vars(schedule)}


@st.composite
def tiles(draw: st.DrawFn) -> TileConfig:
    """Tiles that can be constructed, from all combinations of choices."""
    warps = draw(st.sampled_from([(1, 1), (2, 2), (1, 4), (4, 1), (4, 2), (8, 1), (12, 1)]))
    fields = {
        "mma": tuple(
            draw(st.sampled_from(sizes)) for sizes in ((64, 128, 192), (32, 64, 128), (32, 64))
        ),
        "warps": warps,
        "stages": draw(st.integers(1, 5)),
        "schedule": draw(st.sampled_from(list(KernelSchedule))),
        "load": draw(st.sampled_from(list(Load))),
        "scheduler": draw(st.sampled_from(list(TileScheduler))),
        "halo_taps": draw(st.integers(1, 3)),
        "cluster_k": draw(st.sampled_from([1, 2, 4])),
        "b_resident": draw(st.sampled_from([0, 0, 9])),
    }
    try:
        return TileConfig(**fields)
    except ValueError:
        return draw(st.sampled_from(SOME))


SOME = [
    TileConfig((128, 64, 32)),
    TileConfig((256, 64, 32), (4, 1), 4, cluster_k=2),
    specialized((128, 64, 64), (4, 1), 4),
    specialized((128, 128, 64), (8, 1), 3, Load.CP_ASYNC_HALF_WARPGROUP),
    specialized((256, 64, 32), (8, 1), 3, Load.TMA_WARP, halo_taps=3),
    persistent((128, 256, 64), (8, 1), 3),
    persistent((128, 64, 32), (4, 1), 6, pingpong=True, halo_taps=3, b_resident=9),
]


@given(tile=tiles())
def test_a_repr_and_json_are_the_tile(tile: TileConfig) -> None:
    assert eval(repr(tile), NAMES) == tile
    assert tile_from_json(tile_to_json(tile), FORMAT) == tile


@given(a=tiles(), b=tiles())
def test_tiles_that_differ_are_written_differently(a: TileConfig, b: TileConfig) -> None:
    """Kernels are kept under a digest of ``repr``."""
    assert (a == b) == (repr(a) == repr(b)) == (str(a) == str(b) and a.b_resident == b.b_resident)


@given(tile=tiles())
def test_threads_of_a_cta(tile: TileConfig) -> None:
    assert tile.threads == tile.consumer_threads + tile.producer_threads
    assert tile.warp_specialized == (tile.producer_threads > 0)
    assert (tile.schedule is KernelSchedule.COOPERATIVE) == (
        tile.warp_specialized and tile.mma_threads > schedule.WARPGROUP
    )
    if tile.pingpong:
        assert tile.persistent
        assert tile.consumer_threads == 2 * tile.mma_threads == 2 * schedule.WARPGROUP


def test_every_schedule_has_its_load() -> None:
    for kind, load in product(KernelSchedule, Load):
        if (kind is KernelSchedule.MULTISTAGE) != (load is Load.CP_ASYNC):
            with pytest.raises(ValueError, match="a load by producers where warps are specialized"):
                replace(SOME[0], warps=(4, 1), schedule=kind, load=load)


# -- tiles as they were kept before choices had names ----------------------------------------------

OLD: dict[str, Any] = {"m": 128, "n": 64, "k": 32, "warps_m": 4, "warps_n": 1, "stages": 4}


@pytest.mark.parametrize(
    ("fields", "tile"),
    [
        ({}, TileConfig((128, 64, 32), (4, 1), 4)),
        ({"producers": 0}, TileConfig((128, 64, 32), (4, 1), 4)),
        ({"producers": 0, "parts": 4}, TileConfig((128, 64, 32), (4, 1), 4, cluster_k=4)),
        ({"producers": 128, "sharing": 1}, specialized((128, 64, 32), (4, 1), 4)),
        (
            {"producers": 32, "taps": 3, "lasting": False, "holding": 0, "teams": 1},
            specialized((128, 64, 32), (4, 1), 4, Load.TMA_WARP, halo_taps=3),
        ),
        (
            {"producers": 64, "warps_m": 8},
            specialized((128, 64, 32), (8, 1), 4, Load.CP_ASYNC_HALF_WARPGROUP),
        ),
        (
            {"producers": 32, "taps": 2, "lasting": True, "holding": 4, "teams": 2},
            persistent((128, 64, 32), (4, 1), 4, pingpong=True, halo_taps=2, b_resident=4),
        ),
        ({"producers": 32, "lasting": True}, persistent((128, 64, 32), (4, 1), 4)),
    ],
)
def test_a_tile_of_format_1_is_migrated(fields: dict[str, Any], tile: TileConfig) -> None:
    assert tile_from_json({**OLD, **fields}, 1) == tile


@pytest.mark.parametrize(
    ("found", "version"),
    [
        ({**OLD, "producers": 128, "sharing": 2}, 1),  # TMA multicast
        ({**OLD, "producers": 96}, 1),
        ({**OLD, "producers": 128, "lasting": True}, 1),
        ({**OLD, "producers": 32, "teams": 2}, 1),
        ({**OLD, "producers": 128, "colour": 2}, 1),
        ({**OLD, "producers": 0}, FORMAT),
        (tile_to_json(SOME[0]), 1),
        (3, 1),
        (tile_to_json(SOME[0]), FORMAT + 1),
        ({**tile_to_json(SOME[2]), "load": "BY_HAND"}, FORMAT),
        ({**tile_to_json(SOME[2]), "load": "CP_ASYNC"}, FORMAT),
    ],
)
def test_what_is_no_tile_is_not_read_as_another(found: dict[str, Any], version: int) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        tile_from_json(found, version)
