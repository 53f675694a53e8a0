"""The Hopper mainloop: producer warps load k-tiles, consumer warpgroups multiply them by ``wgmma``.

``wgmma`` reads operands from shared memory, so consumers keep only accumulators in registers, and
producer warps keep addresses and masks. tf32 operands are rounded first: TMA rounds as it copies;
without TMA, the producer rounds B in registers, and the consumers round A in theirs.

``wgmma`` can start at any row of a tile. So with halo reuse, a stage holds a tile of A with a few
extra rows, and a tile of B for each tap that A serves. TMA im2col loads the extra rows like any
others: they are consecutive pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, TFloat32, const_expr

from layoutconv.planning.halo_reuse import Halo
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.schedule import WARP, WARPGROUP
from layoutconv.planning.structural_zeros import (
    BLOCK_BYTES,
    COLUMNS,
    BlockRange,
    ColumnRange,
    KTileRun,
)
from layoutconv.planning.tma_im2col import Im2col
from layoutconv.planning.tma_tiled import Boxes

from ..common.runtime_integers import RuntimeIntegers
from .active_taps import OWN_ROWS
from .consumer import Consumer
from .cp_async import THREADS_PER_LINE, THREADS_PER_ROW, CpAsyncLoad
from .k_tiles import KTiles
from .mma_atoms import Data
from .operand import Operand
from .pipeline import Pipeline, PipelineState
from .producer import Producer
from .smem_tile import SharedTile, shared_tiles
from .tf32_rounding import RoundingLoad
from .tma import TmaLoad, TmaTiledLoad
from .tma_im2col_copy import LoadOfA, LoadOfB, TmaIm2colLoad, TmaRowsLoad, TmaSumLoad
from .wgmma import WarpgroupMultiplier

GATHERED_ROWS = 128  # most rows to gather by whole lines: each thread then looks up more rows


class MainloopSm90:
    """Multiplies a CTA's tiles of two operands into register accumulators, warp-specialised.

    Warp roles:
        warps 0 .. mma_threads / 32 - 1: consumer warpgroups; with ping-pong, twice as many.
        the warps after them: the producer: a warpgroup, half a warpgroup or one warp.

    Pipelines:
        producer -> consumers, ``TileConfig.stages`` deep; ``Pipeline`` lists who arrives where.

    Timeline of the producer (``Producer``)::

        acquire 0, load 0 | acquire 1, load 1 | ...                 up to ``stages`` ahead

    Timeline of a consumer (``Consumer``)::

        wait 0, wgmma 0 | wait 1, wgmma 1, release 0 | wait 2, wgmma 2, release 1 | ... | epilogue

    Constraints: sm_90a; ``planning/legality.py``. ``tools/ptx_sim`` runs it without a GPU. To
    profile it, run ``python benchmarks/bench_template.py`` under ncu, kernel ``ImplicitGemm``.
    """

    def __init__(
        self,
        spec: KernelSpec,
        data: Data,
        smem: Any,
        halo: Halo,
        tma: tuple[bool, bool],
        runs: tuple[KTileRun, ...],
    ) -> None:
        self.spec, self.tile, self.data, self.halo = spec, spec.tile, data, halo
        self.tma, self.runs = tma, runs
        self.by_runs = bool(runs)
        if not runs:
            taps, blocks = spec.tile.halo_taps, spec.tile.k * data.bytes // BLOCK_BYTES
            every = ColumnRange(0, spec.tile.n), BlockRange(0, blocks)
            self.runs = (KTileRun(0, 0, 0, (every[0],) * taps, (every[1],) * taps),)
        # wgmma cannot transpose 32-bit operands: producers transpose B as they round it, consumers
        # transpose A as they read it word by word.
        self.rounds = data.element is TFloat32
        self.along = (spec.along[0], 1) if self.rounds else spec.along
        in_registers = self.rounds and not tma[0]
        widths = {part.width for run in runs for part in run.columns}
        columns = COLUMNS if widths - {0, spec.tile.n} else spec.tile.n // spec.tile.warps[1]
        of = data, spec.tile, self.along, in_registers, columns
        self.multiplier = WarpgroupMultiplier(*of)
        self.s_a, self.s_b = shared_tiles(smem, spec, data, self.along, self._read)
        mbarriers = smem.allocate_array(Int64, spec.tile.mbarriers)
        self.pipeline = Pipeline(spec.tile, mbarriers)

    def _read(self, along: int) -> str:
        """Return how an operand that is contiguous along a mode is read from shared memory."""
        return "words" if along == 0 and self.rounds else "matrices"

    @property
    def storing(self) -> int:
        """Return the number of threads that round B and store it to shared memory."""
        return self.tile.producer_threads if self.rounds and not self.tma[1] else 0

    @property
    def leaves_out(self) -> bool:
        """Return whether a warpgroup skips taps that only other warpgroups' rows have. It must have
        ``OWN_ROWS`` rows and all columns. With A in registers, skipping was 5% slower.
        """
        tile = self.tile
        alone = tile.warps[1] == 1 and tile.m * WARPGROUP == OWN_ROWS * tile.mma_threads
        return alone and tile.warps[0] > 4 and not self.multiplier.rounds

    @property
    def fences(self) -> bool:
        """Return whether ``wgmma`` reads shared memory that threads wrote, and so needs a proxy
        fence. Data from TMA needs none, nor does an A that consumers read into registers.
        """
        a_by_threads = not self.tma[0] and not self.multiplier.rounds
        return a_by_threads or not self.tma[1]

    @property
    def loading(self) -> int:
        """Return the number of threads that load: one warp if TMA loads both operands."""
        return WARP if all(self.tma) else self.tile.producer_threads

    def cp_async_load(
        self, operand: Operand, shared: SharedTile, first: Any, tid: Any
    ) -> CpAsyncLoad:
        """Return a thread's loads of tiles of ``operand`` from row ``first`` of the GEMM on.

        Only producer threads load, but every thread holds the rows of one producer thread, so that
        all threads help to find the tile's active taps.
        """
        tile, threads = self.tile, self.tile.producer_threads
        if self.rounds and shared is self.s_b:
            return RoundingLoad(operand, shared, tile, tid % threads, first)
        halo = tile.halo_taps > 1 and shared is self.s_a
        used = tile.m + self.halo.halo if halo else None
        of = operand, shared, self.data.element, threads, tid % threads, first, used
        lines = self.gathers_lines(operand, shared) if operand.gather else operand.along == 1
        return CpAsyncLoad(*of, THREADS_PER_LINE if lines else THREADS_PER_ROW)

    def gathers_lines(self, operand: Operand, shared: SharedTile) -> bool:
        """Return whether gathered rows are copied in whole lines.

        In tf32, half lines are up to 8% faster (128x128, example 59); kernel maps were raced with
        whole lines. In sums over pairs, whole lines are 10% faster for rows of 64 channels, 6%
        slower for shorter rows, and 10% faster to 11% slower for longer ones (H100).
        """
        if operand.along == 0:
            line = shared.columns * self.data.bytes == 16 * THREADS_PER_LINE
            return line and operand.vector_extent % shared.columns == 0
        return self.tile.m <= GATHERED_ROWS and (not self.rounds or self.spec.skip)

    def tma_tiled_load(
        self, made: tuple[Any, Any], found: Boxes, first: Any, group: Any, tid: Any
    ) -> TmaTiledLoad:
        """Return B's TMA tiled load; ``made`` is its copy atom and coordinate tensor."""
        number = tid - self.tile.consumer_threads
        return TmaTiledLoad(made, found, self.s_b, number, first, group, self.spec)

    def tma_im2col_load(
        self,
        atom: Any,
        found: Im2col,
        args: RuntimeIntegers,
        shared: SharedTile,
        first: Any,
        group: Any,
        tid: Any,
    ) -> TmaIm2colLoad:
        """Return an operand's TMA im2col load."""
        of = atom, found, args, shared, tid - self.tile.consumer_threads
        if self.along == (0, 0):
            return TmaSumLoad(*of, self.tile.k, first, group)
        rows = self.tile.n if shared is self.s_b else self.tile.m
        return TmaRowsLoad(*of, rows, first, group)

    @cute.jit
    def __call__(
        self,
        a: LoadOfA,
        b: LoadOfB,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        tid: Any,
        acc: Any,
        meanwhile: Callable[[], None],
    ) -> None:
        """Accumulate ``count`` k-tiles of one output tile from number ``begin`` on.

        Consumers call ``meanwhile`` before their first wait.
        """
        tile = const_expr(self.tile)
        if const_expr(len(k_tiles.active) == 0):  # else finding active taps has synchronised
            cute.arch.sync_threads()
        # With no k-tiles, multiply the one past the last column: zeros.
        count = cutlass.max(Int32(count), Int32(1))
        load = Producer(self, a, b, k_tiles).load
        multiply = Consumer(self, a, b, k_tiles, acc).multiply
        if tid < tile.mma_threads:
            multiply(begin, count, tid, PipelineState.of_consumer(tile.stages), meanwhile)
        elif tid < tile.mma_threads + self.loading:
            load(begin, count, tid, PipelineState.of_producer(tile.stages))

    @cute.jit
    def prepare(self, a: LoadOfA, b: LoadOfB, tid: Any) -> None:
        """Initialize mbarriers and prefetch TMA descriptors, which no other kernel writes, so that
        this may precede the PDL wait. All threads synchronise before the mainloop.
        """
        by_tma: Any = const_expr([load for load in (a, b) if isinstance(load, TmaLoad)])
        for load in by_tma:
            load.prefetch()
        # Arrivals per stage: each producer thread's cp.async, each warp that stores rounded data,
        # and the thread that expects the TMA bytes.
        asynchronous = const_expr(0 if all(self.tma) else self.tile.producer_threads)
        arrivals = const_expr(asynchronous + self.storing // WARP + any(self.tma))
        self.pipeline.initialize(arrivals, tid)
