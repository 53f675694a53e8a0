"""Tiles of tests: like another, but for a few of its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from layoutconv.planning.schedule import WARPGROUP, KernelSchedule
from layoutconv.planning.tile import TileConfig

SPECIALIZED = KernelSchedule.WARP_SPECIALIZED, KernelSchedule.COOPERATIVE


def retiled(tile: TileConfig, **changes: Any) -> TileConfig:
    """``replace`` with ``m``, ``n``, ``k``, ``warps_m`` and ``warps_n`` as fields of their own; a
    warp-specialised tile becomes cooperative if it has several consumer warpgroups then."""
    m, n, k = (changes.pop(name, size) for name, size in zip("mnk", tile.mma, strict=True))
    names = zip(("warps_m", "warps_n"), tile.warps, strict=True)
    warps = tuple(changes.pop(name, count) for name, count in names)
    schedule = changes.pop("schedule", tile.schedule)
    if schedule in SPECIALIZED:
        schedule = SPECIALIZED[32 * warps[0] * warps[1] > WARPGROUP]
    return replace(tile, mma=(m, n, k), warps=warps, schedule=schedule, **changes)
