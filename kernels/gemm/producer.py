"""The producer of a warp-specialised kernel: warps that load k-tiles into a pipeline's stages."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from layoutconv.planning.structural_zeros import ColumnRange

from .cp_async import CpAsyncLoad, Vectors
from .k_tiles import KTiles
from .pipeline import PipelineProducer, PipelineState, arrive
from .tma import TmaLoad, expect
from .tma_im2col_copy import LoadOfA, LoadOfB
from .warp_specialised import WarpSpecialised


class Producer:
    """Loads the k-tiles of one output tile, each as soon as its stage is empty.

    Roles: a warpgroup, half a warpgroup or one warp (``TileConfig.load``). One elected thread
    issues TMA copies.

    Timeline of a k-tile, whose index entries were read one k-tile earlier: compute addresses ->
    acquire the stage (empty mbarrier) -> expect the TMA bytes, issue TMA copies -> read the index
    entries of the next k-tile -> issue other copies -> arrive at the full mbarrier as all complete.

    Constraints: A is read one k-tile ahead; B, if it goes through registers, one or two
    (``CpAsyncLoad.tiles``).
    """

    def __init__(self, mainloop: WarpSpecialised, a: LoadOfA, b: LoadOfB, k_tiles: KTiles) -> None:
        self.mainloop, self.a, self.b, self.k_tiles = mainloop, a, b, k_tiles
        self.tile, self.runs, self.by_runs = mainloop.tile, mainloop.runs, mainloop.by_runs
        self.columns_per_tap = mainloop.halo.columns

    @cute.jit
    def load(self, begin: Any, count: Any, tid: Any, state: PipelineState) -> PipelineState:
        """Load ``count`` k-tiles from number ``begin`` on into the stages from ``state`` on; return
        the state after the last.
        """
        a, k_tiles, pipeline = self.a, self.k_tiles, PipelineProducer(self.mainloop.pipeline)
        advance, ahead = k_tiles.advance, const_expr(self.b.tiles)
        read_b = self._read_b
        first = Int32(k_tiles.first(begin))  # column of the k-tile to load next
        later = first  # column of the k-tile of B to read ahead next
        a.read_ahead(first)
        for place in range_constexpr(ahead):
            if const_expr(place > 0):
                later = advance(later)
            if place < count:
                read_b(later, place)
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            if const_expr(self.by_runs):
                first, advance = Int32(run.k), partial(_further, run.step)
            load_one = partial(self._load_one, pipeline, (advance, run.columns), tid)
            end = run.k_tiles if const_expr(self.by_runs) else count
            for k_tile in cutlass.range(0, end, ahead, unroll=1):
                first, later, state = load_one(0, count - k_tile, first, later, state)
                for place in range_constexpr(1, ahead):
                    left = count - k_tile - place
                    if left > 0:
                        first, later, state = load_one(place, left, first, later, state)
        return state

    @cute.jit
    def load_resident_b(self, tid: Any) -> None:
        """Load all k-tiles of B into shared memory, where they stay."""
        tile, apart = const_expr(self.tile), const_expr(self.columns_per_tap)
        b: Any = self.b
        k_tiles, full = self.k_tiles, self.mainloop.pipeline.resident
        counts = const_expr([run.k_tiles or tile.b_resident for run in self.runs])
        sizes = const_expr([b.bytes_of(run.columns) for run in self.runs])
        size = const_expr(sum(n * each for n, each in zip(counts, sizes, strict=True)))
        expect(full, size, tid - tile.consumer_threads)
        first, slot, advance, copy = Int32(k_tiles.first(0)), Int32(0), k_tiles.advance, b.copy
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            if const_expr(self.by_runs):
                first, advance = Int32(run.k), partial(_further, run.step)
            load_one = partial(copy, apart=apart, full=full, columns=run.columns)
            for _ in cutlass.range(0, counts[number], 1, unroll=1):
                load_one(first, slot)
                first, slot = advance(first), slot + 1

    @cute.jit
    def _load_one(
        self,
        pipeline: PipelineProducer,
        order: tuple[Any, tuple[ColumnRange, ...]],
        tid: Any,
        place: Any,
        left: Any,
        first: Any,
        later: Any,
        state: PipelineState,
    ) -> Any:
        """Load one k-tile, and read ahead for later ones.

        ``order``: the function from a k-tile's column to the next one's, and the column ranges of B
        in this k-tile. ``place``: the register slot of B's read-ahead. ``left``: the number
        of k-tiles from this one on. ``first``: the column of this k-tile. ``later``: the column up
        to which B was read ahead. Return ``first``, ``later`` and the state for the next k-tile.
        """
        advance, columns = order
        # Local names: the DSL would carry any object that a dynamic branch reads attributes of.
        a, b, mainloop = self.a, self.b, self.mainloop
        read_a, read_b, ahead = a.read_ahead, self._read_b, const_expr(b.tiles)
        stage, apart = state.index, const_expr(self.columns_per_tap)
        by_tma: Any = const_expr(self._by_tma())
        vectors = self._vectors_of_a(first)
        here, first = first, advance(first)
        pipeline.acquire(state)
        if const_expr(by_tma):
            size = const_expr(sum(load.bytes_of(columns) for load in by_tma))
            expect(pipeline.full + stage, size, tid - self.tile.consumer_threads)
        for load in by_tma:
            load.copy(here, stage, apart, pipeline.full + stage, columns)
        if left > 1:  # before the copies: queued behind them, the read would wait
            read_a(first)
        self._issue(vectors, stage)
        for tap in range_constexpr(0 if mainloop.tma[1] else self.tile.halo_taps):
            b.copy(here + tap * apart, stage * self.tile.halo_taps + tap, (tap, place))
        if const_expr(not all(mainloop.tma)):
            cute.arch.cp_async_mbarrier_arrive_noinc(pipeline.full + stage)
        if const_expr(mainloop.storing):
            cute.arch.sync_warp()
            arrive(pipeline.full + stage, tid)
        later = advance(later) if const_expr(ahead > 1) else first
        if left > ahead:
            read_b(later, place)
        return first, later, state.next()

    def _vectors_of_a(self, first: Any) -> Vectors:
        """Compute the addresses of this thread's vectors of A; none if TMA loads A."""
        return self.a.vectors(first) if isinstance(self.a, CpAsyncLoad) else []

    def _issue(self, vectors: Vectors, stage: Any) -> None:
        if isinstance(self.a, CpAsyncLoad):
            self.a.issue(vectors, stage)

    def _by_tma(self) -> list[TmaLoad]:
        """Return the loads that TMA does per k-tile: not that of a resident B."""
        both = (self.a,) if self.tile.b_resident else (self.a, self.b)
        return [load for load in both if isinstance(load, TmaLoad)]

    def _read_b(self, first: Any, place: int) -> None:
        """Read ahead B's k-tile at column ``first``, for each halo tap."""
        for tap in range(self.tile.halo_taps):
            self.b.read_ahead(first + tap * self.columns_per_tap, (tap, place))


def _further(step: int, first: Any) -> Any:
    """Return the column of the k-tile that follows the one at column ``first`` in a run."""
    return first + step
