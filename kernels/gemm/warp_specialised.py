"""The parts of a warp-specialised mainloop that its producer and its consumers read."""

from __future__ import annotations

from typing import Protocol

from layoutconv.planning.halo_reuse import Halo
from layoutconv.planning.structural_zeros import KTileRun
from layoutconv.planning.tile import TileConfig

from .pipeline import Pipeline
from .wgmma import WarpgroupMultiplier


class WarpSpecialised(Protocol):
    """A mainloop as its ``Producer`` and its ``Consumer`` see it: ``MainloopSm90``.

    Attributes:
        runs: the runs of k-tiles, in the order of the loop.
        by_runs: whether the runs skip structural zeros of B; else one run has all k-tiles.
        tma: whether TMA loads A, and B.
        storing: the number of threads that round B and store it to shared memory.
        fences: whether ``wgmma`` reads what threads wrote, and so needs a proxy fence.
    """

    tile: TileConfig
    halo: Halo
    runs: tuple[KTileRun, ...]
    by_runs: bool
    tma: tuple[bool, bool]
    multiplier: WarpgroupMultiplier
    pipeline: Pipeline

    @property
    def storing(self) -> int: ...

    @property
    def fences(self) -> bool: ...
