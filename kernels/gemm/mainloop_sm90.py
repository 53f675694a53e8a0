"""The Hopper main loop: warps that copy by cp.async, and warps that multiply by wgmma.

A warpgroup of producers copies k-tiles into a ring of ``stages``, the others multiply what is
there; an mbarrier of every stage says that it is full, another that it is empty again. wgmma reads
shared memory by itself: accumulators are all that those who multiply hold, and what addresses and
masks cost is paid by warps that have nothing else to do. Where tensor maps describe both operands,
one warp has the hardware copy them. Of tf32, whose operands are rounded before they are multiplied,
tensor maps round as they copy; else B goes through the producers' registers, and A through those of
the others.

wgmma reads rows from any of them on. So where taps are rows further (``window.py``), a stage is a
tile of A with a few rows more, and a tile of B for each of those taps. Tensor maps bring those rows
as they bring others: pixels that follow each other.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, TFloat32, const_expr, range_constexpr
from cutlass.cute.nvgpu import warpgroup

from layoutconv.planning.halo_reuse import Halo
from layoutconv.planning.kernel_spec import Spec
from layoutconv.planning.schedule import WARP, WARPGROUP
from layoutconv.planning.structural_zeros import BLOCK_BYTES, COLUMNS, Blocks, Columns, Run
from layoutconv.planning.tma_im2col import Im2col
from layoutconv.planning.tma_tiled import Boxes

from ..common.arguments import Arguments
from .active_taps import OWN_ROWS
from .cp_async import THREADS_PER_LINE, THREADS_PER_ROW, CpAsyncLoad
from .k_tiles import KTiles
from .mma_atoms import Data
from .operand import Operand
from .smem_tile import SharedTile, shared_tiles, sync
from .tf32_rounding import RoundingLoad
from .tma import TmaLoad, TmaTiledLoad, expect
from .tma_im2col_copy import TmaIm2colLoad, TmaRowsLoad, TmaSumLoad
from .wgmma import KTileOperands, WarpgroupMultiplier

GATHERED_ROWS = 128  # of a tile that is gathered by whole lines: rows are looked up more often


class MainloopSm90:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(
        self,
        spec: Spec,
        data: Data,
        smem: Any,
        window: Halo,
        maps: tuple[bool, bool],
        runs: tuple[Run, ...],
    ) -> None:
        self.spec, self.tile, self.data, self.halo = spec, spec.tile, data, window
        self.maps, self.runs = maps, runs
        self.by_runs = bool(runs)
        if not runs:
            taps, blocks = spec.tile.halo_taps, spec.tile.k * data.bytes // BLOCK_BYTES
            every = Columns(0, spec.tile.n), Blocks(0, blocks)
            self.runs = (Run(0, 0, 0, (every[0],) * taps, (every[1],) * taps),)
        # What is rounded by those who copy it, they turn as well: wgmma does not turn 32 bits.
        self.rounds = data.element is TFloat32
        self.along = (1, 1) if self.rounds else spec.along
        in_registers = self.rounds and not maps[0]
        widths = {part.width for run in runs for part in run.columns}
        columns = COLUMNS if widths - {0, spec.tile.n} else spec.tile.n // spec.tile.warps[1]
        of = data, spec.tile, self.along, in_registers, columns
        self.multiplier = WarpgroupMultiplier(*of)
        self.s_a, self.s_b = shared_tiles(smem, spec, data, self.along, lambda along: "matrices")
        self.barriers = smem.allocate_array(Int64, spec.tile.mbarriers)

    @property
    def storing(self) -> int:
        """How many threads store what they have rounded."""
        return self.tile.producer_threads if self.rounds and not self.maps[1] else 0

    @property
    def leaves_out(self) -> bool:
        """Whether a warpgroup leaves out taps that its rows lack, and those of others have: one
        with ``OWN_ROWS`` rows and all columns. Not with A in registers: it was slower by 5%."""
        tile = self.tile
        alone = tile.warps[1] == 1 and tile.m * WARPGROUP == OWN_ROWS * tile.mma_threads
        return alone and tile.warps[0] > 4 and not self.multiplier.rounds

    @property
    def fences(self) -> bool:
        """Whether wgmma reads by itself what threads wrote to shared memory: not what tensor maps
        bring, nor an A that those who multiply read into registers."""
        a_by_threads = not self.maps[0] and not self.multiplier.rounds
        return a_by_threads or not self.maps[1]

    @property
    def copying(self) -> int:
        """How many threads copy: where all comes by tensor maps, one warp."""
        return WARP if all(self.maps) else self.tile.producer_threads

    def cp_async_load(
        self, operand: Operand, shared: SharedTile, first: Any, tid: Any
    ) -> CpAsyncLoad:
        """A thread's share of copying tiles of ``operand``, from row ``first`` of the GEMM.

        Only producers copy. But all threads know the rows of some producer, and so, together, what
        a tile may leave out.
        """
        tile, threads = self.tile, self.tile.producer_threads
        if self.rounds and shared is self.s_b:
            return RoundingLoad(operand, shared, tile, tid % threads, first)
        halo = tile.halo_taps > 1 and shared is self.s_a
        used = tile.m + self.halo.halo if halo else None
        of = operand, shared, self.data.element, threads, tid % threads, first, used
        lines = operand.along == 1 and (not operand.gather or self.gathers_lines)
        return CpAsyncLoad(*of, THREADS_PER_LINE if lines else THREADS_PER_ROW)

    @property
    def gathers_lines(self) -> bool:
        """Whether gathered rows are copied by whole lines.

        In tf32 halves are up to 8% faster (128x128, example 59); kernel maps were raced by lines.
        """
        return self.tile.m <= GATHERED_ROWS and (not self.rounds or self.spec.skip)

    def tma_tiled_load(
        self, made: tuple[Any, Any], found: Boxes, first: Any, group: Any, tid: Any
    ) -> TmaTiledLoad:
        """A thread's share of copying tiles of B by a tensor map, ``made`` by the host."""
        number = tid - self.tile.consumer_threads
        return TmaTiledLoad(made, found, self.s_b, number, first, group, self.spec)

    def tma_im2col_load(
        self,
        atom: Any,
        found: Im2col,
        args: Arguments,
        shared: SharedTile,
        first: Any,
        group: Any,
        tid: Any,
    ) -> TmaIm2colLoad:
        """A thread's share of copying tiles by an im2col tensor map, made by the host."""
        of = atom, found, args, shared, tid - self.tile.consumer_threads
        if self.along == (0, 0):
            return TmaSumLoad(*of, self.tile.k, first, group)
        return TmaRowsLoad(*of, self.tile.m, first, group)

    @cute.jit
    def __call__(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        tid: Any,
        acc: Any,
    ):
        """Accumulate ``count`` k-tiles, from number ``begin`` on, that ``a`` and ``b`` bring."""
        tile = const_expr(self.tile)
        self.prepare(a, b, tid)
        # Of no k-tile at all, the one past the last column is multiplied: zeros.
        count = cutlass.max(Int32(count), Int32(1))
        produce = partial(self.produce, a, b, k_tiles)
        consume = partial(self.consume, a, b, k_tiles)
        if tid < tile.mma_threads:
            consume(begin, count, tid, acc, 0, 0)
        elif tid < tile.mma_threads + self.copying:
            produce(begin, count, tid, Int32(0), Int32(1))

    @cute.jit
    def prepare(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        tid: Any,
    ):
        """Barriers, and tensor maps, before anything is copied; all threads wait for that."""
        tile = const_expr(self.tile)
        full, empty = self.barriers, self.barriers + tile.stages
        # Copies tell of themselves; a warp tells that its threads have stored what they rounded,
        # and a thread how many bytes come by a tensor map.
        by_maps: Any = const_expr([p for p in (a, b) if isinstance(p, TmaLoad)])
        for producer in by_maps:
            producer.prefetch()
        asynchronous = const_expr(0 if all(self.maps) else tile.producer_threads)
        arrivals = const_expr(asynchronous + self.storing // 32 + any(self.maps))
        if tid == 0:
            for stage in range_constexpr(tile.stages):
                cute.arch.mbarrier_init(full + stage, arrivals)
                cute.arch.mbarrier_init(empty + stage, tile.mma_threads // 32)
            if const_expr(tile.b_resident):
                cute.arch.mbarrier_init(self._held, 1)
            for team in range_constexpr(tile.consumers if tile.pingpong else 0):
                cute.arch.mbarrier_init(self._turns + team, tile.mma_threads // 32)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

    @property
    def _held(self) -> Any:
        """The barrier of B's k-tiles, where they are held."""
        return self.barriers + 2 * self.tile.stages

    @property
    def _turns(self) -> Any:
        """The barriers of teams, each told by the other."""
        return self.barriers + (self.tile.mbarriers - self.tile.consumers)

    def wait_for_turn(self, team: Any, turn: Any) -> None:
        """Until the other team has waited for all stages of its tile; the first for nobody, once.

        A stage that was full, empty and full again looks as it did before.
        """
        cute.arch.mbarrier_wait(self._turns + team, turn ^ (1 - team))

    def _moving(self, a: Any, b: Any) -> list[TmaLoad]:
        """Those who copy by tensor maps into stages."""
        both = (a,) if self.tile.b_resident else (a, b)
        return [producer for producer in both if isinstance(producer, TmaLoad)]

    @cute.jit
    def hold(self, b: TmaTiledLoad | TmaIm2colLoad, k_tiles: KTiles, tid: Any):
        """Copy all k-tiles of B, which stay."""
        tile, apart = const_expr(self.tile), const_expr(self.halo.columns)
        counts = const_expr([run.k_tiles or tile.b_resident for run in self.runs])
        sizes = const_expr([b.bytes_of(run.columns) for run in self.runs])
        size = const_expr(sum(n * each for n, each in zip(counts, sizes, strict=True)))
        expect(self._held, size, tid - tile.consumer_threads)
        first, slot, advance, copy = Int32(k_tiles.first(0)), Int32(0), k_tiles.advance, b.copy
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            if const_expr(self.by_runs):
                first, advance = Int32(run.k), partial(_further, run.step)
            bring = partial(copy, apart=apart, full=self._held, columns=run.columns)
            for _ in cutlass.range(0, counts[number], 1, unroll=1):
                bring(first, slot)
                first, slot = advance(first), slot + 1

    @cute.jit
    def produce(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        tid: Any,
        stage: Any,
        parity: Any,
    ):
        """Copy all k-tiles, each as soon as its stage is empty; what it takes is read one ahead.

        ``stage`` is that of the first, and what follows the last is returned; so is ``parity``, of
        the phase in which it is still full.
        """
        full, empty = self.barriers, self.barriers + self.tile.stages
        advance, held = k_tiles.advance, const_expr(b.tiles)
        read_b = partial(self._read, a, b)
        first = Int32(k_tiles.first(begin))  # column of the k-tile that is copied next
        later = first  # and of that of B which is read next
        a.read_ahead(first)
        for place in range_constexpr(held):
            if const_expr(place > 0):
                later = advance(later)
            if place < count:
                read_b(later, place)
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            if const_expr(self.by_runs):
                first, advance = Int32(run.k), partial(_further, run.step)
            bring = partial(self._bring, a, b, advance, tid, full, empty, run.columns)
            end = run.k_tiles if const_expr(self.by_runs) else count
            for k_tile in cutlass.range(0, end, held, unroll=1):
                first, later, stage, parity = bring(0, count - k_tile, first, later, stage, parity)
                for place in range_constexpr(1, held):
                    left = count - k_tile - place
                    if left > 0:
                        of = first, later, stage, parity
                        first, later, stage, parity = bring(place, left, *of)
        return stage, parity

    @cute.jit
    def _bring(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        advance: Any,
        tid: Any,
        full: Any,
        empty: Any,
        columns: tuple[Columns, ...],
        place: Any,
        left: Any,
        first: Any,
        later: Any,
        stage: Any,
        parity: Any,
    ):
        """Copy a k-tile, of which B is held in a ``place``; then read what later ones take.

        Returns the columns of the next, and of the last of B that was read; the next stage, and its
        parity. ``left``: how many there are from this k-tile on.
        """
        # Names of their own: what a dynamic branch reaches through an object, the DSL would carry.
        read_a, read_b, held = a.read_ahead, partial(self._read, a, b), const_expr(b.tiles)
        by_maps: Any = const_expr(self._moving(a, b))
        cute.arch.mbarrier_wait(empty + stage, parity)
        if const_expr(by_maps):
            size = const_expr(sum(p.bytes_of(columns) for p in by_maps))
            expect(full + stage, size, tid - self.tile.consumer_threads)
        for producer in by_maps:
            producer.copy(first, stage, self.halo.columns, full + stage, columns)
        if const_expr(not self.maps[0]):
            a.copy(first, stage)
        for tap in range_constexpr(0 if self.maps[1] else self.tile.halo_taps):
            column = first + tap * self.halo.columns
            b.copy(column, stage * self.tile.halo_taps + tap, (tap, place))
        if const_expr(not all(self.maps)):
            cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
        if const_expr(self.storing):
            cute.arch.sync_warp()
            _arrive(full + stage, tid)
        first = advance(first)
        if left > 1:
            read_a(first)
        later = advance(later) if const_expr(held > 1) else first
        if left > held:
            read_b(later, place)
        stage, parity = _next(stage, parity, self.tile.stages)
        return first, later, stage, parity

    def _read(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        first: Any,
        place: int,
    ) -> None:
        """What copies of B take of a k-tile, for each of the taps that share rows."""
        for tap in range(self.tile.halo_taps):
            b.read_ahead(first + tap * self.halo.columns, (tap, place))

    @cute.jit
    def consume(
        self,
        a: CpAsyncLoad | TmaIm2colLoad,
        b: CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        tid: Any,
        acc: Any,
        stage: Any,
        parity: Any,
    ):
        """Multiply all k-tiles; a stage is given back while products of the next are running.

        A k-tile that the warpgroup's rows lack is left out, if it is not the first. ``stage`` is
        that of the first, and what follows the last is returned; so is ``parity``, of the phase in
        which it is filled.
        """
        tile = const_expr(self.tile)
        full, empty = self.barriers, self.barriers + tile.stages
        windows = const_expr((tile.m, tile.halo_taps, self.halo.rows))
        of = self.multiplier, tid, a, b, windows, acc
        wait = const_expr(_wait if self.fences else _wait_for_maps)
        advance, is_own = k_tiles.advance, k_tiles.is_own
        some, first = const_expr(len(k_tiles.own) > 0), Int32(k_tiles.first(begin))
        slot = Int32(0)
        if const_expr(tile.b_resident):
            wait(self._held, 0)
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            operands = KTileOperands(*of, run)
            multiply = partial(self._multiply, operands, tid)
            end = run.k_tiles if const_expr(self.by_runs) else count
            if const_expr(number > 0):
                operands.mma.set(warpgroup.Field.ACCUMULATE, True)
            else:
                # The first k-tile stands before the loop: behind a loop that might not run at all,
                # the compiler would move reads of the sums to where products are still running.
                wait(full + stage, parity)
                multiply(stage, slot, None)
                before, slot = Int32(stage), slot + 1
                stage, parity = _next(stage, parity, tile.stages)
            for _ in cutlass.range(int(number == 0), end, 1, unroll=1):
                wait(full + stage, parity)
                if const_expr(some):
                    first = advance(first)
                    if is_own(first):
                        multiply(stage, slot, empty + before)
                    else:
                        warpgroup.wait_group(0)
                        _arrive(empty + before, tid)
                else:
                    multiply(stage, slot, empty + before)
                before, slot = stage, slot + 1
                stage, parity = _next(stage, parity, tile.stages)
        if const_expr(tile.pingpong):
            other = 1 - cute.arch.thread_idx()[0] // tile.mma_threads
            _arrive(self._turns + other, tid)
        warpgroup.wait_group(0)
        if const_expr(tile.persistent):  # the last stage as well: copies for another tile follow
            _arrive(empty + before, tid)
        if const_expr(not tile.pingpong):
            sync(self.tile)
        return stage, parity

    @cute.jit
    def _multiply(self, operands: KTileOperands, tid: Any, stage: Any, slot: Any, before: Any):
        """Multiply a k-tile, and fetch what is next of it while products are running.

        It is in a ``stage``; B's, where all are held, has that of its number, a ``slot``.
        ``before`` is the empty mbarrier of the k-tile before, at which the warp arrives when the
        products of that are done; the first has none.
        """
        groups, in_flight = const_expr(operands.groups), const_expr(operands.in_flight)
        mma, of_b = operands.mma, stage
        if const_expr(self.tile.b_resident):
            of_b = slot
        operands.fetch(0, stage)
        for i in range_constexpr(len(groups)):
            warpgroup.fence()
            for j in range_constexpr(len(groups[i])):
                if const_expr(before is None):
                    mma.set(warpgroup.Field.ACCUMULATE, i + j > 0)
                acc, here_a, here_b = operands.of(i, j, stage, of_b)
                cute.gemm(mma, acc, here_a, here_b, acc)
            warpgroup.commit_group()
            warpgroup.wait_group(in_flight)
            if const_expr(before is not None and i + 1 == in_flight):
                if const_expr(operands.sets):  # lanes have read it by themselves
                    cute.arch.sync_warp()
                _arrive(before, tid)
            if const_expr(i + 1 < len(groups)):
                operands.fetch(i + 1, stage)


def _further(step: int, first: Any) -> Any:
    """The first column of the k-tile after the one at a column, of a run."""
    return first + step


def _wait(full: Any, parity: Any) -> None:
    """Wait until a stage is full; what threads wrote there is made visible to wgmma."""
    cute.arch.mbarrier_wait(full, parity)
    cute.arch.fence_proxy("async.shared", space="cta")


def _wait_for_maps(full: Any, parity: Any) -> None:
    """Wait until a stage is full; of what tensor maps brought, wgmma needs no fence."""
    cute.arch.mbarrier_wait(full, parity)


@cute.jit
def _arrive(barrier: Any, tid: Any):
    """One thread of a warp arrives."""
    if tid % 32 == 0:
        cute.arch.mbarrier_arrive(barrier)


def _next(stage: Any, parity: Any, stages: int) -> tuple[Any, Any]:
    """The stage after one, and the parity of its phase: another every time around the ring."""
    following = stage + 1
    wrapped = Int32(following == stages)
    return following * (1 - wrapped), parity ^ wrapped
