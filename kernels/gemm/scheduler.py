"""Tile schedulers: which output tiles a CTA computes, and when its roles move on to the next.

Where one CTA fills an SM, nothing runs beside its start and its end: the first loads are waited
for, and the last rows are stored, by tensor cores that have nothing to do. A persistent kernel has
as many CTAs as a GPU holds at once, and the tiles are dealt out to them: the producer warp goes
around the ring of stages as if all of a CTA's k-tiles were of one sum, and prefetches the next tile
while the consumers run the epilogue.
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

Loads = Callable[[Any, Any], tuple[Any, Any]]  # of A and of B, of the tile at a row and a column


class SingleTile:
    """The scheduler of one output tile per CTA: the tile at ``m_tile``, ``n_tile`` of a ``group``.

    Of a sum that CTAs share, in slices or in a cluster, this CTA has the share number ``rank``.

    CTAs that share rows of A run side by side: their gathers meet in L2.
    """

    def __init__(self, tile: TileConfig, n: int, *, last_first: bool) -> None:
        cta, self.rank, self.group = cute.arch.block_idx()
        n_tiles = -(-n // tile.n)
        self.m_tile, self.n_tile = cta // n_tiles, cta % n_tiles
        if last_first:
            # Rows with many taps come last in a kernel map: they start first, or all wait for them.
            self.m_tile = cute.arch.grid_dim()[0] // n_tiles - 1 - self.m_tile
        self.m0, self.n0 = self.m_tile * tile.m, self.n_tile * tile.n


class StaticPersistent:
    """The static scheduler of a persistent kernel: tiles number ``cta``, ``cta + grid``, and so on.

    Warp roles and pipelines: those of ``MainloopSm90``; states are carried from tile to tile.

    Timeline of the producer: (resident B) -> k-tiles of tile 0 -> k-tiles of tile 1 -> ...
    Timeline of a consumer: multiply tile 0 -> epilogue -> multiply tile 1 -> epilogue -> ...
    Timeline of two ping-pong consumers, which skip the k-tiles of each other's tiles::

        consumer 0: turn | multiply 0 | epilogue 0 | turn | multiply 2 | ...
        consumer 1:        turn       | multiply 1 | epilogue 1 | turn | ...

    Constraints: whole sums of one group and every tap; one TMA warp loads.
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
        """``state = work(m0, n0, *state)`` of every tile, one after the other; of those of a
        ``consumer``, if there are several."""
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
        """Sum all k-tiles of every tile into ``acc``, which then is to ``store``; ``fetch`` what
        that reads of the columns: before the first wait, or once where all tiles have the same.
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
    """Fetch no columns: they are there."""


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
    """The same of a ping-pong consumer, which skips the k-tiles of the other's next tile."""
    mainloop.pipeline.wait_for_turn(consumer, turn)
    (following,) = multiply(m0, n0, state)
    return following.skip(count), turn ^ 1
