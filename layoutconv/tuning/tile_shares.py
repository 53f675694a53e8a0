"""Statistics of races over many layers: the share of layers at which each tile is best or close.

A tile that is never best, nor within 2% of the best, is one too many. Where a tile takes longer
than the cost model expects, on layers that fill a GPU, its rate in ``planning/tile_table.py`` is
too high by as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from statistics import median

from ..planning.cost_model import Problem, expected_time
from ..planning.machine import Machine
from ..planning.tile import TileConfig
from .race import Tuned

NEAR = 1.02  # times the best: as good
LONG = 15.0  # microseconds of a layer that says something about rates


@dataclass(frozen=True)
class TileShare:
    """A kind of tile over the races that it was in.

    Attributes:
        kind: sizes, warps and schedule, in words.
        races: how many it was in.
        best, near: shares of these in which it was the fastest, and within 2% of the fastest.
        speed: the model's time over the measured one, the median of races of 15 us and more; 0
            where there is none. A rate times this is what was measured.
    """

    kind: str
    races: int
    best: float
    near: float
    speed: float


def kind_of(tile: TileConfig) -> str:
    """Return what tiles of one row of the tile table have in common, in words.

    >>> from ..planning.tile import persistent
    >>> kind_of(persistent((128, 192, 64), (8, 1), 5))
    '128x192, 8x1 warps, cooperative, TMA by a warp, persistent'
    """
    warps_m, warps_n = tile.warps
    return ", ".join([f"{tile.m}x{tile.n}", f"{warps_m}x{warps_n} warps", *tile.traits(3)])


def tile_shares(races: Iterable[tuple[Problem, Tuned]], machine: Machine) -> list[TileShare]:
    """Return the kinds of tiles of some races, those that are near the best most often first."""
    found: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    for problem, tuned in races:
        times: dict[str, float] = {}
        for trial in tuned.trials:
            if not isfinite(trial.microseconds):
                continue
            kind = kind_of(trial.tile)
            times[kind] = min(trial.microseconds, times.get(kind, trial.microseconds))
            if trial.microseconds >= LONG:
                expected = expected_time(problem, trial.tile, trial.splits, machine)
                speeds[kind].append(expected / trial.microseconds)
        for kind, time in times.items():
            least = min(times.values())
            found[kind].append((time == least, time <= NEAR * least))
    shares = [
        TileShare(
            kind,
            races=len(of),
            best=sum(best for best, _ in of) / len(of),
            near=sum(near for _, near in of) / len(of),
            speed=median(speeds[kind]) if speeds[kind] else 0.0,
        )
        for kind, of in found.items()
    ]
    return sorted(shares, key=lambda share: (-share.near * share.races, share.kind))
