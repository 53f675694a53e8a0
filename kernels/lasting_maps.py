"""CTAs that last, over a kernel map: several tiles each, and the next one's index is read ahead.

A tile of a kernel map begins with what it takes of index buffers, and which taps its rows have. For
the next tile those who copy find that out (``ahead.py``) when the ring of stages is full of the
present one, as the others store the one before. These store from registers (``from_registers.py``):
beside four stages and two tiles' entries there is no room to turn one.

Tiles take as long as they have taps, which nobody knows before. So they are dealt out by who is done
first, as GPUs deal CTAs out: there are more of these than fit at once, of many tiles at first, and
of fewer and fewer. Tiles of a CTA lie apart: neighbours have about as many taps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from .ahead import Ahead
from .mainloop_sm90 import MainloopSm90
from .tile import Tile

# Of the tiles that are left, those who run at once take two thirds, so often; then one each. On
# kernel maps of 5, 11 and 29 tiles for each, that is within 1 to 2.5% of a shared counter, by a
# simulation; half of them 2 to 5%.
SHARE = 2, 3
ROUNDS = 6


def rounds(tiles: Any, most: Any) -> list[tuple[Any, Any, Any, Any]]:
    """How tiles are dealt out to CTAs, of which ``most`` run at once.

    Of each round the first tile, how many a CTA has at most, the first CTA, and how many there are.
    The last round is not bounded. ``tiles`` and ``most`` are Int32.
    """
    found, before, ctas = [], Int32(0), Int32(0)
    for number in range(ROUNDS + 1):
        left = cutlass.max(tiles - before, Int32(0))
        each, here = Int32(1), left
        if number < ROUNDS:
            each = cutlass.max(left * SHARE[0] // (most * SHARE[1]), Int32(1))
            here = cutlass.min(most, (left + each - 1) // each)
        found.append((before, each, ctas, here))
        before, ctas = before + each * here, ctas + here
    return found


def ctas_of(tiles: Any, most: Any) -> Any:
    """How many CTAs there are in all rounds."""
    *_, (_, _, first, count) = rounds(tiles, most)
    return first + count


class TilesOfRound:
    """The tiles that a CTA computes: of m x n results, every so many from one on.

    Rows with many taps come last in a kernel map: they start first, or all wait for them. CTAs
    that share rows of A run side by side.
    """

    def __init__(self, tile: Tile, m: Any, n: int, most: Any) -> None:
        self.tile, self.across = tile, -(-n // tile.n)
        self.down = Int32((m + tile.m - 1) // tile.m)
        cta, _, _ = cute.arch.block_idx()
        tiles = self.down * self.across
        self.first, self.step, self.end = Int32(0), Int32(1), Int32(0)
        for before, each, ctas, here in rounds(tiles, most):
            mine = cta >= ctas
            first = before + cta - ctas
            end = cutlass.min(tiles, before + each * here)
            self.first = cutlass.select_(mine, first, self.first)
            self.step = cutlass.select_(mine, here, self.step)
            self.end = cutlass.select_(mine, end, self.end)

    def place(self, number: Any) -> tuple[Any, Any]:
        """The first row and column of a tile."""
        row = self.down - 1 - number // self.across
        return row * self.tile.m, number % self.across * self.tile.n

    @cute.jit
    def each(self, work: Callable[..., Any], stage: Any, parity: Any):
        """``stage, parity = work(number, nth, stage, parity)`` of every tile, one after the other;
        it is the CTA's ``nth``."""
        nth = Int32(0)
        for number in cutlass.range(self.first, self.end, self.step, unroll=1):
            stage, parity = work(number, nth, stage, parity)
            nth = nth + 1


@cute.jit
def compute(
    mainloop: MainloopSm90,
    tiles: TilesOfRound,
    first: tuple[Any, Any],
    producers: Callable[[Any, Any], tuple[Any, Any]],
    ahead: Ahead,
    tid: Any,
    acc: Any,
    store: Callable[..., None],
):
    """Sum all k-tiles of every tile into ``acc``, which then is to ``store``.

    ``producers`` are those of the tile at a row and a column, and so is what is stored; the
    ``first`` are those of the CTA's first.
    """
    a, b = first
    ahead.prepare(tid)
    mainloop.prepare(a, b, tid)
    copy = partial(_copy, mainloop, tiles, producers, ahead, tid)
    multiply = partial(_multiply, mainloop, tiles, (a, b), ahead, tid, acc, store)
    look = partial(_look, ahead, tiles, tiles.first, Int32(0), tid)
    each, threads = tiles.each, mainloop.tile.threads
    if tid < threads:
        each(multiply, Int32(0), Int32(0))
    else:
        look()
        each(copy, Int32(0), Int32(1))


def _copy(
    mainloop: MainloopSm90,
    tiles: TilesOfRound,
    producers: Callable[[Any, Any], tuple[Any, Any]],
    ahead: Ahead,
    tid: Any,
    number: Any,
    nth: Any,
    stage: Any,
    parity: Any,
) -> Any:
    a, b = producers(*tiles.place(number))
    a.kept = ahead.kept_index(nth)
    k_tiles = ahead.k_tiles(nth, tid)
    of_next = partial(_look, ahead, tiles, number + tiles.step, nth + 1, tid)
    return mainloop.produce(a, b, k_tiles, 0, k_tiles.count, tid, stage, parity, of_next)


@cute.jit
def _look(ahead: Ahead, tiles: TilesOfRound, number: Any, nth: Any, tid: Any):
    """At one of the CTA's tiles, if there is one of this number."""
    look, place = ahead.look, tiles.place
    if number < tiles.end:
        first, _ = place(number)
        look(first, nth, tid)


def _multiply(
    mainloop: MainloopSm90,
    tiles: TilesOfRound,
    operands: tuple[Any, Any],
    ahead: Ahead,
    tid: Any,
    acc: Any,
    store: Callable[..., None],
    number: Any,
    nth: Any,
    stage: Any,
    parity: Any,
) -> Any:
    ahead.wait(nth)
    k_tiles = ahead.k_tiles(nth, tid)
    following = mainloop.consume(*operands, k_tiles, 0, k_tiles.count, tid, acc, stage, parity)
    m0, n0 = tiles.place(number)
    store(m0, n0, kept=ahead.kept_rows(nth), done=partial(ahead.leave, nth, tid))
    return following
