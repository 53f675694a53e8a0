"""The Hopper mainloop: producer warps load k-tiles, consumer warpgroups multiply them by ``wgmma``.

``wgmma`` reads shared memory, so consumers hold only accumulators, and the producer warps pay for
addresses and masks. Operands of tf32 are rounded first: TMA rounds as it copies; without TMA, B is
rounded in the producer's registers and A in the consumers'.

``wgmma`` may start at any row of a tile. So with halo reuse a stage is a tile of A with a few more
rows, and a tile of B for each tap that it serves. TMA im2col loads those rows like any others: they
are consecutive pixels.
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
from layoutconv.planning.structural_zeros import BLOCK_BYTES, COLUMNS, Blocks, Columns, Run
from layoutconv.planning.tma_im2col import Im2col
from layoutconv.planning.tma_tiled import Boxes

from ..common.arguments import Arguments
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

GATHERED_ROWS = 128  # of a tile that is gathered by whole lines: rows are looked up more often


class MainloopSm90:
    """Multiplies a CTA's tiles of two operands into register accumulators, warp-specialised.

    Warp roles:
        warps 0 .. mma_threads / 32: consumers, in warpgroups; of ping-pong, twice as many.
        the warps after them: the producer, a warpgroup, half of one or one warp.

    Pipelines:
        producer -> consumers, ``TileConfig.stages`` deep; ``Pipeline`` lists who arrives where.

    Timeline of the producer (``Producer``)::

        acquire 0, load 0 | acquire 1, load 1 | ...                 up to ``stages`` ahead

    Timeline of a consumer (``Consumer``)::

        wait 0, wgmma 0 | wait 1, wgmma 1, release 0 | wait 2, wgmma 2, release 1 | ... | epilogue

    Constraints: sm_90a, and ``planning/legality.py``. ``tools/ptx_sim`` runs one without a GPU; to
    profile one, run ``python benchmarks/bench_template.py`` under ncu, kernel ``ImplicitGemm``.
    """

    def __init__(
        self,
        spec: KernelSpec,
        data: Data,
        smem: Any,
        halo: Halo,
        tma: tuple[bool, bool],
        runs: tuple[Run, ...],
    ) -> None:
        self.spec, self.tile, self.data, self.halo = spec, spec.tile, data, halo
        self.tma, self.runs = tma, runs
        self.by_runs = bool(runs)
        if not runs:
            taps, blocks = spec.tile.halo_taps, spec.tile.k * data.bytes // BLOCK_BYTES
            every = Columns(0, spec.tile.n), Blocks(0, blocks)
            self.runs = (Run(0, 0, 0, (every[0],) * taps, (every[1],) * taps),)
        # wgmma does not transpose 32 bits: producers do, with the B that they round, and consumers,
        # which read A word by word.
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
        """Return how an operand that runs along a mode is read from shared memory."""
        return "words" if along == 0 and self.rounds else "matrices"

    @property
    def storing(self) -> int:
        """Return how many threads round B and store it to shared memory."""
        return self.tile.producer_threads if self.rounds and not self.tma[1] else 0

    @property
    def leaves_out(self) -> bool:
        """Return whether a warpgroup skips taps that its own rows lack but other rows of the tile
        have. It needs ``OWN_ROWS`` rows and all columns. With A in registers this was 5% slower.
        """
        tile = self.tile
        alone = tile.warps[1] == 1 and tile.m * WARPGROUP == OWN_ROWS * tile.mma_threads
        return alone and tile.warps[0] > 4 and not self.multiplier.rounds

    @property
    def fences(self) -> bool:
        """Return whether a proxy fence is needed: ``wgmma`` reads shared memory that threads wrote.
        Data that TMA copied, and an A that consumers read into registers, need none.
        """
        a_by_threads = not self.tma[0] and not self.multiplier.rounds
        return a_by_threads or not self.tma[1]

    @property
    def loading(self) -> int:
        """Threads that load: where TMA brings both operands, one warp."""
        return WARP if all(self.tma) else self.tile.producer_threads

    def cp_async_load(
        self, operand: Operand, shared: SharedTile, first: Any, tid: Any
    ) -> CpAsyncLoad:
        """Return a thread's share of loading tiles of ``operand``, from row ``first`` of the GEMM.

        Only producer threads load, but every thread holds the rows of one of them: so all threads
        together find the active taps of the tile.
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
        """Return whether gathered rows are copied by whole lines.

        In tf32, half lines are up to 8% faster (128x128, example 59); kernel maps were raced with
        whole lines. In sums over pairs, whole lines are 10% faster for rows of 64 channels, 6%
        slower for shorter rows, and between 10% faster and 11% slower for longer ones (H100).
        """
        if operand.along == 0:
            line = shared.columns * self.data.bytes == 16 * THREADS_PER_LINE
            return line and operand.vector_extent % shared.columns == 0
        return self.tile.m <= GATHERED_ROWS and (not self.rounds or self.spec.skip)

    def tma_tiled_load(
        self, made: tuple[Any, Any], found: Boxes, first: Any, group: Any, tid: Any
    ) -> TmaTiledLoad:
        """Return the TMA load of tiles of B; ``made`` are its copy atom and coordinates."""
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
        """Return the load of tiles by TMA im2col."""
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
        """Accumulate ``count`` k-tiles of one output tile, from number ``begin`` on.

        Consumers call ``meanwhile`` before their first wait.
        """
        tile = const_expr(self.tile)
        if const_expr(len(k_tiles.present) == 0):  # else all have met to find the active taps
            cute.arch.sync_threads()
        # Of no k-tile at all, the one past the last column is multiplied: zeros.
        count = cutlass.max(Int32(count), Int32(1))
        load = Producer(self, a, b, k_tiles).load
        multiply = Consumer(self, a, b, k_tiles, acc).multiply
        if tid < tile.mma_threads:
            multiply(begin, count, tid, PipelineState.of_consumer(tile.stages), meanwhile)
        elif tid < tile.mma_threads + self.loading:
            load(begin, count, tid, PipelineState.of_producer(tile.stages))

    @cute.jit
    def prepare(self, a: LoadOfA, b: LoadOfB, tid: Any) -> None:
        """Initialize mbarriers and prefetch TMA descriptors, which no other kernel writes. All
        threads synchronise before the mainloop.
        """
        by_tma: Any = const_expr([load for load in (a, b) if isinstance(load, TmaLoad)])
        for load in by_tma:
            load.prefetch()
        # Copies arrive by themselves; a warp arrives when its threads have stored what they
        # rounded, and a thread that expects the bytes of TMA.
        asynchronous = const_expr(0 if all(self.tma) else self.tile.producer_threads)
        arrivals = const_expr(asynchronous + self.storing // WARP + any(self.tma))
        self.pipeline.initialize(arrivals, tid)
