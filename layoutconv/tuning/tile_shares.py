"""Statistics of races over many layers: the share of layers at which each tile is best or close.

A tile that is never within 2% of the best can be dropped. If a tile takes longer than the cost
model expects, on layers that fill a GPU, its rate in ``planning/tile_table.py`` is too high by that
factor.
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

NEAR = 1.02  # times the best time: counts as near
LONG = 15.0  # shortest layer that is used to judge rates, in microseconds


@dataclass(frozen=True)
class TileShare:
    """Statistics of a kind of tile over its races.

    Attributes:
        kind: sizes, warps and schedule, as text.
        races: number of races that it was in.
        best, near: share of these races in which it was the fastest, or within 2% of the fastest.
        speed: modelled / measured time, the median over races of 15 us and more; 0 without any. The
            table's rate times this is the measured rate.
    """

    kind: str
    races: int
    best: float
    near: float
    speed: float


def table_row(tile: TileConfig) -> str:
    """Return the text by which tiles of one row of the tile table are grouped.

    >>> from ..planning.tile import persistent
    >>> table_row(persistent((128, 192, 64), (8, 1), 5))
    '128x192, 8x1 warps, cooperative, TMA by a warp, persistent'
    """
    warps_m, warps_n = tile.warps
    return ", ".join([f"{tile.m}x{tile.n}", f"{warps_m}x{warps_n} warps", *tile.traits(3)])


def tile_shares(races: Iterable[tuple[Problem, Tuned]], machine: Machine) -> list[TileShare]:
    """Return the kinds of tiles in races, those most often near the best first."""
    found: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    for problem, tuned in races:
        times: dict[str, float] = {}
        for trial in tuned.trials:
            if not isfinite(trial.microseconds):
                continue
            kind = table_row(trial.tile)
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
