"""Deep tiles: small ones with many stages, for few more CTAs than a GPU has SMs.

A CTA that is alone on its SM gets a k-tile in the latency of a load over the loads in flight, its
stages, until memory or products take longer. Fitted to 1,785 trials of 73 passes on an H200
(docs/lab_notebook.md).
"""

from __future__ import annotations

from typing import NamedTuple

from .schedule import Load
from .tile import TileConfig, specialized
from .tile_table import HOPPER, Shape

FLIGHT = 1.1  # microseconds from the start of a k-tile's load, by TMA or threads, to its products


class DeepTile(NamedTuple):
    """The rate of a deep tile, microseconds of a wave beside its products, and its stages."""

    rate: float
    start: float
    stages: int


DEEP: dict[Shape, DeepTile] = {
    (64, 64, 4, 1): DeepTile(1.00, 2.0, 8),
    (64, 128, 4, 1): DeepTile(1.40, 2.0, 6),
    (128, 64, 4, 1): DeepTile(1.40, 2.0, 8),
}


def deep_tiles(k: int, k_tiles: int, load: Load) -> list[TileConfig]:
    """Return the deep tiles for sums of so many k-tiles of ``k``: they have no more stages.

    >>> [tile.stages for tile in deep_tiles(64, 5, Load.TMA_WARP)]
    [5, 5, 5]
    >>> [tile.mma for tile in deep_tiles(64, 2, Load.TMA_WARP)]  # others are of the tile table
    [(64, 64, 64)]
    """
    found = []
    for shape, deep in DEEP.items():
        m, n, warps_m, warps_n = shape
        stages = min(deep.stages, k_tiles)
        if stages > HOPPER.get(shape, 0):
            found.append(specialized((m, n, k), (warps_m, warps_n), stages, load))
    return found


def deep_tile(tile: TileConfig) -> DeepTile | None:
    """Return the row of a tile that TMA loads, if it has more stages than others of its shape.

    >>> [bool(deep_tile(specialized((64, 128, 64), (4, 1), stages))) for stages in (4, 6)]
    [False, True]
    """
    shape = tile.m, tile.n, *tile.warps
    deep = DEEP.get(shape) if _has_own_sum(tile) else None
    return deep if tile.stages > HOPPER.get(shape, 0) else None


def time_in_flight(tile: TileConfig) -> float:
    """Return the microseconds per k-tile that TMA's loads in flight take; 0 where others hide them.

    Deep tiles were fitted with all of their stages, whether or not a sum has as many k-tiles.
    """
    if not _has_own_sum(tile):
        return 0.0
    deep = deep_tile(tile)
    return FLIGHT / (deep.stages if deep else tile.stages)


def _has_own_sum(tile: TileConfig) -> bool:
    """Return whether a CTA's producers load one sum, tap by tap."""
    return tile.warp_specialized and not tile.persistent and tile.halo_taps == 1
