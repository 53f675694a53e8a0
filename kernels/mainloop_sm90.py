"""The Hopper main loop: warps that copy by cp.async, and warps that multiply by wgmma.

A warpgroup of producers copies k-tiles into a ring of ``stages``, the others multiply what is
there; an mbarrier of every stage says that it is full, another that it is empty again. wgmma reads
both operands from shared memory by itself: accumulators are all that those who multiply hold, and
what addresses and masks cost is paid by warps that have nothing else to do.

wgmma reads rows from any of them on. So where taps are rows further (``window.py``), a stage is a
tile of A with a few rows more, and a tile of B for each of those taps.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from .atoms import Data
from .k_tiles import KTiles
from .operand import Operand
from .producer import THREADS_PER_ROW, Producer
from .shared import SharedTile, shared_tiles, sync
from .spec import Spec
from .tile import WARPGROUP, Tile

GATHERED_LINES = False
THREADS_PER_LINE = 8  # a warp's copies are of whole lines: half as many requests to L2
# Types that wgmma multiplies, and how. Of 8 bits both operands run along k, as they always do here.
OPERATIONS = {
    "float16": warpgroup.MmaF16BF16Op,
    "bfloat16": warpgroup.MmaF16BF16Op,
    "float8_e4m3fn": warpgroup.MmaF8Op,
    "float8_e5m2": warpgroup.MmaF8Op,
    "int8": warpgroup.MmaI8Op,
}


class WarpgroupMultiplier:
    """The tiled MMA of a CTA's warpgroups, each of one or several times 64 rows."""

    def __init__(self, data: Data, tile: Tile, along: tuple[int, int]) -> None:
        self.accumulator = data.accumulator
        shape = (WARPGROUP // 2, tile.n // tile.warps_n, 32 // data.bytes)
        majors = [OperandMajorMode.K if mode == 1 else OperandMajorMode.MN for mode in along]
        source = warpgroup.OperandSource.SMEM
        if data.bytes == 2:
            operands: tuple[Any, ...] = (data.element,)
        else:  # A and B might differ
            operands = data.element, data.element
        op = OPERATIONS[data.name]
        self._op = op(*operands, self.accumulator, shape, source, *majors)
        self._atoms = (tile.warps_m // 4, tile.warps_n, 1)
        self.mma = self.tiled()

    def tiled(self) -> Any:
        """A tiled MMA for one branch of the kernel, which sets its fields."""
        return cute.make_tiled_mma(cute.make_mma_atom(self._op), cute.make_layout(self._atoms))

    def accumulators(self, tile: Tile) -> Any:
        return cute.make_rmem_tensor(self.mma.partition_shape_C((tile.m, tile.n)), self.accumulator)


class MainloopSm90:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(self, spec: Spec, data: Data, smem: Any, tap_rows: int) -> None:
        self.tile, self.data, self.tap_rows = spec.tile, data, tap_rows
        self.multiplier = WarpgroupMultiplier(data, spec.tile, spec.along)
        self.s_a, self.s_b = shared_tiles(smem, spec, data, lambda along: "matrices")
        self.barriers = smem.allocate_array(Int64, 2 * spec.tile.stages)

    def producer(self, operand: Operand, shared: SharedTile, first: Any, tid: Any) -> Producer:
        """A thread's share of copying tiles of ``operand``, from row ``first`` of the GEMM.

        Only producers copy. But all threads know the rows of some producer, and so, together, what
        a tile may leave out.
        """
        tile, threads = self.tile, self.tile.producers
        halo = tile.taps > 1 and shared is self.s_a
        used = tile.m + self.tap_rows * (tile.taps - 1) if halo else None
        of = operand, shared, self.data.element, threads, tid % threads, first, used
        along_k = operand.hoist_rows and (GATHERED_LINES or not operand.gather)
        return Producer(*of, THREADS_PER_LINE if along_k else THREADS_PER_ROW)

    @cute.jit
    def __call__(
        self, a: Producer, b: Producer, k_tiles: KTiles, begin: Any, count: Any, tid: Any, acc: Any
    ):
        """Accumulate ``count`` k-tiles, from number ``begin`` on, that ``a`` and ``b`` bring."""
        tile = const_expr(self.tile)
        full, empty = self.barriers, self.barriers + tile.stages
        if tid == 0:
            for stage in range_constexpr(tile.stages):
                cute.arch.mbarrier_init(full + stage, tile.producers)
                cute.arch.mbarrier_init(empty + stage, tile.threads // 32)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        # Of no k-tile at all, the one past the last column is multiplied: zeros.
        count = cutlass.max(Int32(count), Int32(1))
        produce, consume = partial(self._produce, a, b, k_tiles), partial(self._consume, a, b)
        if tid >= tile.threads:
            produce(begin, count, full, empty)
        else:
            consume(count, tid, acc, full, empty)

    @cute.jit
    def _produce(
        self,
        a: Producer,
        b: Producer,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        full: Any,
        empty: Any,
    ):
        """Copy all k-tiles, each as soon as its stage is empty; the index is read one ahead."""
        # Names of their own: what a dynamic loop reaches through an object, the DSL would carry.
        copy_a, copy_b, tile = a.copy, b.copy, const_expr(self.tile)
        read_a, read_b, advance = a.read_index, b.read_index, k_tiles.advance
        of_a_tap = const_expr(a.operand.col_count // tile.taps if tile.taps > 1 else 0)  # columns
        first = Int32(k_tiles.first(begin))  # column of the k-tile that is copied next
        read_a(first)
        read_b(first)
        stage, parity = Int32(0), Int32(1)
        for k_tile in cutlass.range(count, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, parity)
            copy_a(first, stage)
            for tap in range_constexpr(tile.taps):
                copy_b(first + tap * of_a_tap, stage * tile.taps + tap)
            cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
            first = advance(first)
            if k_tile + 1 < count:
                read_a(first)
                read_b(first)
            stage, parity = _next(stage, parity, tile.stages)

    @cute.jit
    def _consume(
        self, a: Producer, b: Producer, count: Any, tid: Any, acc: Any, full: Any, empty: Any
    ):
        """Multiply all k-tiles; a stage is given back while products of the next are running."""
        mma, tile = self.multiplier.tiled(), const_expr(self.tile)
        thread = mma.get_slice(tid)
        windows = const_expr((tile.m, tile.taps, self.tap_rows))
        s_a = a.shared.stages_tensor(a.operand.along, windows)
        s_b = b.shared.stages_tensor(b.operand.along)
        r_a = mma.make_fragment_A(thread.partition_A(s_a))
        r_b = mma.make_fragment_B(thread.partition_B(s_b))
        blocks = const_expr(list(product(range(tile.taps), range(cute.size(r_a, mode=[2])))))
        # The first k-tile stands before the loop: behind a loop that might not run at all, the
        # compiler would move reads of the sums to where products are still running.
        _wait(full, 0)
        for i in range_constexpr(len(blocks)):
            tap, block = const_expr(blocks[i])
            mma.set(warpgroup.Field.ACCUMULATE, i > 0)
            here_a, here_b = r_a[None, None, block, 0, tap], r_b[None, None, block, tap, 0]
            cute.gemm(mma, acc, here_a, here_b, acc)
        warpgroup.commit_group()
        before, stage, parity = Int32(0), Int32(1), Int32(0)
        for _ in cutlass.range(1, count, 1, unroll=1):
            _wait(full + stage, parity)
            for i in range_constexpr(len(blocks)):
                tap, block = const_expr(blocks[i])
                here_a = r_a[None, None, block, stage, tap]
                here_b = r_b[None, None, block, stage * tile.taps + tap, 0]
                cute.gemm(mma, acc, here_a, here_b, acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if tid % 32 == 0:
                cute.arch.mbarrier_arrive(empty + before)
            before = stage
            stage, parity = _next(stage, parity, tile.stages)
        warpgroup.wait_group(0)
        sync(self.tile)


def _wait(full: Any, parity: Any) -> None:
    """Wait until a stage is full; what cp.async wrote is made visible to wgmma."""
    cute.arch.mbarrier_wait(full, parity)
    cute.arch.fence_proxy("async.shared", space="cta")
    warpgroup.fence()


def _next(stage: Any, parity: Any, stages: int) -> tuple[Any, Any]:
    """The stage after one, and the parity of its phase: another every time around the ring."""
    following = stage + 1
    wrapped = Int32(following == stages)
    return following * (1 - wrapped), parity ^ wrapped
