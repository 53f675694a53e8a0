"""Tile schedulers: which output tiles a CTA computes, and when its roles move on to the next.

With one CTA per SM, nothing overlaps its prologue and epilogue: the tensor cores idle while the
first loads arrive and while the last rows are stored. A persistent kernel launches as many CTAs as
the GPU holds at once, and each loops over output tiles. The producer warp goes around the ring of
stages as if all k-tiles of its CTA belonged to one sum, so it prefetches the next tile while the
consumers run the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from layoutconv.planning.tile import TileConfig

from .consumer import Consumer
from .k_tiles import KTiles
from .mainloop_sm90 import MainloopSm90
from .pipeline import PipelineState
from .producer import Producer

Loads = Callable[[Any, Any], tuple[Any, Any]]  # (m0, n0) of a tile -> the loads of A and B


class SingleTile:
    """Scheduler of one output tile per CTA: the tile at ``m_tile``, ``n_tile`` of a ``group``.

    ``rank``: the CTA's split-K slice, or its rank in the cluster (cluster split-K).

    CTAs that share rows of A are neighbours in the grid: their gathers meet in L2.
    """

    def __init__(self, tile: TileConfig, n: int, *, last_first: bool) -> None:
        cta, self.rank, self.group = cute.arch.block_idx()
        n_tiles = -(-n // tile.n)
        self.m_tile, self.n_tile = cta // n_tiles, cta % n_tiles
        if last_first:
            # A kernel map has the rows with most taps last: start them first, not in the tail.
            self.m_tile = cute.arch.grid_dim()[0] // n_tiles - 1 - self.m_tile
        self.m0, self.n0 = self.m_tile * tile.m, self.n_tile * tile.n


class StaticPersistent:
    """Static persistent scheduler: a CTA takes tiles ``cta``, ``cta + grid``, ``cta + 2 * grid``...

    Warp roles and pipelines: see ``MainloopSm90``. Pipeline states carry over from tile to tile.

    Timeline of the producer: (resident B) -> k-tiles of tile 0 -> k-tiles of tile 1 -> ...
    Timeline of a consumer: multiply tile 0 -> epilogue -> multiply tile 1 -> epilogue -> ...
    Timeline of two ping-pong consumers, which alternate tiles and skip each other's k-tiles::

        consumer 0: turn | multiply 0 | epilogue 0 | turn | multiply 2 | ...
        consumer 1:        turn       | multiply 1 | epilogue 1 | turn | ...

    Constraints: one group, no split-K, no skipped taps; one TMA warp loads.
    """

    def __init__(self, tile: TileConfig, m: Any, n: int) -> None:
        self.tile, self.n_tiles = tile, -(-n // tile.n)
        self.count = Int32((m + tile.m - 1) // tile.m) * self.n_tiles
        self.first, _, _ = cute.arch.block_idx()
        self.step, _, _ = cute.arch.grid_dim()

    def place(self, number: Any) -> tuple[Any, Any]:
        """The first row and column of a tile."""
        return number // self.n_tiles * self.tile.m, number % self.n_tiles * self.tile.n

    @cute.jit
    def each(
        self, work: Callable[..., Any], state: tuple[Any, ...], consumer: Any = 0, of: int = 1
    ) -> None:
        """Run ``state = work(m0, n0, *state)`` for each tile of this CTA in order; consumer number
        ``consumer`` takes every ``of``-th of them."""
        place, first = self.place, self.first + consumer * self.step
        for number in cutlass.range(first, self.count, of * self.step, unroll=1):
            m0, n0 = place(number)
            state = work(m0, n0, *state)

    @cute.jit
    def run(
        self,
        mainloop: MainloopSm90,
        loads: Loads,
        k_tiles: KTiles,
        tid: Any,
        acc: Any,
        store: Callable[[Any, Any], None],
        fetch: Callable[[Any], None],
    ) -> None:
        """For each tile, accumulate all k-tiles into ``acc``, then ``store`` it. ``fetch`` loads
        the epilogue's per-column values: before each tile's first wait, or only once if there is
        one tile along N.
        """
        a, b = loads(*self.place(self.first))
        mainloop.prepare(a, b, tid)
        cute.arch.sync_threads()
        count, each = cutlass.max(Int32(k_tiles.count), Int32(1)), self.each
        tile = mainloop.tile
        consumer_threads, consumers = tile.consumer_threads, tile.consumers
        consumer, number = tid // tile.mma_threads, tid % tile.mma_threads
        if cutlass.const_expr(not tile.pingpong):
            consumer, number = 0, tid
        once = cutlass.const_expr(self.n_tiles == 1)
        fetch_each = cutlass.const_expr(_nothing if once else fetch)
        consume = Consumer(mainloop, a, b, k_tiles, acc)
        load = partial(_load, mainloop, loads, k_tiles, count, tid)
        multiply: Callable[..., Any] = partial(_multiply, consume, count, number, store, fetch_each)
        if cutlass.const_expr(tile.pingpong):
            multiply = partial(_in_turn, mainloop, multiply, consumer, count)
        producer = Producer(mainloop, a, b, k_tiles)
        load_resident_b = producer.load_resident_b
        if tid < consumer_threads:
            if cutlass.const_expr(once):
                fetch(0)
            state = PipelineState.of_consumer(tile.stages).skip(consumer * count)
            each(multiply, (state, Int32(0)) if consumers > 1 else (state,), consumer, consumers)
        else:
            if cutlass.const_expr(tile.b_resident):
                load_resident_b(tid)
            each(load, (PipelineState.of_producer(tile.stages),))


def _nothing(n0: Any) -> None:
    """Fetch nothing: all tiles have the same columns, which ``run`` fetched."""


def _load(
    mainloop: MainloopSm90,
    loads: Loads,
    k_tiles: KTiles,
    count: Any,
    tid: Any,
    m0: Any,
    n0: Any,
    state: PipelineState,
) -> tuple[PipelineState]:
    return (Producer(mainloop, *loads(m0, n0), k_tiles).load(0, count, tid, state),)


def _multiply(
    consumer: Consumer,
    count: Any,
    tid: Any,
    store: Callable[[Any, Any], None],
    fetch: Callable[[Any], None],
    m0: Any,
    n0: Any,
    state: PipelineState,
) -> tuple[PipelineState]:
    following = consumer.multiply(0, count, tid, state, partial(fetch, n0))
    store(m0, n0)
    return (following,)


def _in_turn(
    mainloop: MainloopSm90,
    multiply: Callable[..., tuple[PipelineState]],
    consumer: Any,
    count: Any,
    m0: Any,
    n0: Any,
    state: PipelineState,
    turn: Any,
) -> tuple[PipelineState, Any]:
    """Wait for this ping-pong consumer's turn, run its tile, and skip the other's k-tiles."""
    mainloop.pipeline.wait_for_turn(consumer, turn)
    (following,) = multiply(m0, n0, state)
    return following.skip(count), turn ^ 1
