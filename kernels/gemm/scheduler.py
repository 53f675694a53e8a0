"""CTAs that last: each computes several tiles of D, and copies for the next while it stores.

Where one CTA fills a multiprocessor, nothing runs beside its start and its end: the first copies
are waited for, and the last rows are stored, by tensor cores that have nothing to do. So there are
as many CTAs as a GPU holds at once, and the tiles are dealt out to them. The warp that copies goes
around the ring of stages as if all of a CTA's k-tiles were of one sum; the others store a tile from
shared memory of its own, and find the first k-tiles of the next when they are done.

All k-tiles of a small B may stay, copied before the first tile. Two teams may take tiles in turn:
each passes over the k-tiles of the other, and stores from registers while that multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from layoutconv.planning.tile import TileConfig

from .k_tiles import KTiles
from .mainloop_sm90 import MainloopSm90


class TilesOfCta:
    """The tiles that a CTA computes: of m x n results, each so many CTAs further.

    CTAs that share rows of A run side by side, as where each has one tile.
    """

    def __init__(self, tile: TileConfig, m: Any, n: int) -> None:
        self.tile, self.across = tile, -(-n // tile.n)
        self.count = Int32((m + tile.m - 1) // tile.m) * self.across
        self.first, _, _ = cute.arch.block_idx()
        self.step, _, _ = cute.arch.grid_dim()

    def place(self, number: Any) -> tuple[Any, Any]:
        """The first row and column of a tile."""
        return number // self.across * self.tile.m, number % self.across * self.tile.n

    @cute.jit
    def each(self, work: Callable[..., Any], state: tuple[Any, ...], team: Any = 0, of: int = 1):
        """``state = work(m0, n0, *state)`` of every tile, one after the other; of those of a
        ``team``, if there are several."""
        place, first = self.place, self.first + team * self.step
        for number in cutlass.range(first, self.count, of * self.step, unroll=1):
            m0, n0 = place(number)
            state = work(m0, n0, *state)


@cute.jit
def compute(
    mainloop: MainloopSm90,
    tiles: TilesOfCta,
    producers: Callable[[Any, Any], tuple[Any, Any]],
    k_tiles: KTiles,
    tid: Any,
    acc: Any,
    store: Callable[[Any, Any], None],
):
    """Sum all k-tiles of every tile into ``acc``, which then is to ``store``.

    ``producers`` are those of the tile at a row and a column, and so is what is stored.
    """
    m0, n0 = tiles.place(tiles.first)
    a, b = producers(m0, n0)
    mainloop.prepare(a, b, tid)
    count, each = cutlass.max(Int32(k_tiles.count), Int32(1)), tiles.each
    tile, hold = mainloop.tile, mainloop.hold
    workers, holding, teams = tile.consumer_threads, tile.b_resident, tile.consumers
    team, number = tid // tile.mma_threads, tid % tile.mma_threads
    if cutlass.const_expr(teams == 1):
        team, number = 0, tid
    copy = partial(_copy, mainloop, producers, k_tiles, count, tid)
    multiply = partial(_multiply, mainloop, (a, b), k_tiles, count, number, acc, store)
    if cutlass.const_expr(teams > 1):
        multiply = partial(_in_turn, mainloop, multiply, team, count)
    if tid < workers:
        start = _following(Int32(0), Int32(0), team * count, tile.stages)
        each(multiply, (*start, Int32(0)) if teams > 1 else start, team, teams)
    else:
        if cutlass.const_expr(holding):
            hold(b, k_tiles, tid)
        each(copy, (Int32(0), Int32(1)))


def _copy(
    mainloop: MainloopSm90,
    producers: Callable[[Any, Any], tuple[Any, Any]],
    k_tiles: KTiles,
    count: Any,
    tid: Any,
    m0: Any,
    n0: Any,
    stage: Any,
    parity: Any,
) -> Any:
    return mainloop.produce(*producers(m0, n0), k_tiles, 0, count, tid, stage, parity)


def _multiply(
    mainloop: MainloopSm90,
    operands: tuple[Any, Any],
    k_tiles: KTiles,
    count: Any,
    tid: Any,
    acc: Any,
    store: Callable[[Any, Any], None],
    m0: Any,
    n0: Any,
    stage: Any,
    parity: Any,
) -> Any:
    following = mainloop.consume(*operands, k_tiles, 0, count, tid, acc, stage, parity)
    store(m0, n0)
    return following


def _in_turn(
    mainloop: MainloopSm90,
    multiply: Callable[..., Any],
    team: Any,
    count: Any,
    m0: Any,
    n0: Any,
    stage: Any,
    parity: Any,
    turn: Any,
) -> Any:
    """The same of a team, which passes over the k-tiles of the other's next tile."""
    mainloop.wait_for_turn(team, turn)
    stage, parity = multiply(m0, n0, stage, parity)
    return *_following(stage, parity, count, mainloop.tile.stages), turn ^ 1


def _following(stage: Any, parity: Any, k_tiles: Any, stages: int) -> tuple[Any, Any]:
    """The stage, and the parity of its phase, so many k-tiles further."""
    further = stage + k_tiles
    laps = further // stages
    return further - laps * stages, parity ^ (laps & 1)
