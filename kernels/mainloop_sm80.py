"""The Ampere main loop: cp.async into swizzled shared memory, ldmatrix, mma.sync.

``stages`` k-tiles are in flight. While the tensor cores work on one k-block (one MMA step along k), the
fragments of the next are read from shared memory, the copies of a k-tile ``stages - 1`` ahead are
issued, and the index buffer is read one k-tile further ahead, so that no latency is waited for.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, TFloat32, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync, warp

from .operand import Operand
from .tile import Tile

COPY_BYTES = 16  # of one cp.async


class MainloopSm80:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(self, tile: Tile, dtype: Any) -> None:
        self.tile, self.dtype = tile, dtype
        self.vector = COPY_BYTES * 8 // dtype.width
        if dtype is TFloat32:
            op, self.mma_k = warp.MmaTF32Op((16, 8, 8)), 8
        else:
            op, self.mma_k = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16)), 16
        if tile.k < 2 * self.mma_k or tile.k % self.mma_k:
            raise ValueError(f"{tile}: k must be at least two MMA steps of {self.mma_k}")
        warps = (tile.warps_m, tile.warps_n, 1)
        # Two n8 atoms side by side, so that one ldmatrix.x4 fills B's fragments of both.
        permutation = (16 * tile.warps_m, 16 * tile.warps_n, self.mma_k)
        self.mma = cute.make_tiled_mma(op, cute.make_layout(warps), permutation_mnk=permutation)
        self.copy_atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL),
            dtype,
            num_bits_per_copy=8 * COPY_BYTES,
        )

    # -- shared memory ---------------------------------------------------------------------------

    def shared_layout(self, rows: int) -> tuple[Any, Any]:
        """(rows, k, stages) with k contiguous, and the swizzle that spreads 8 rows over all banks."""
        k = self.tile.k
        layout = cute.make_ordered_layout((rows, k, self.tile.stages), order=(1, 0, 2))
        vectors = min(k // self.vector, 8)  # 16-byte vectors of a row that share a 128-byte line
        return layout, cute.make_swizzle(vectors.bit_length() - 1, 4, 3)  # of byte addresses

    def allocate(self, smem: Any, rows: int) -> Any:
        layout, swizzle = self.shared_layout(rows)
        return smem.allocate_tensor(self.dtype, layout, byte_alignment=128, swizzle=swizzle)

    # -- the loop --------------------------------------------------------------------------------

    def producer(
        self, operand: Operand, smem: Any, first_row: Any, rows: int, tid: Any
    ) -> Producer:
        """This thread's share of copying tiles of ``operand`` into ``smem``."""
        vectors = self.tile.k // self.vector
        threads = cute.make_ordered_layout((self.tile.threads // vectors, vectors), order=(1, 0))
        copy = cute.make_tiled_copy_tv(
            self.copy_atom, threads, cute.make_layout((1, self.vector))
        ).get_slice(tid)
        where = copy.partition_S(cute.make_identity_tensor((rows, self.tile.k)))
        return Producer(
            self.copy_atom, operand, copy.partition_D(smem), where, first_row, self.tile.k
        )

    @cute.jit
    def __call__(
        self, a: Producer, b: Producer, s_a: Any, s_b: Any, k_tiles: Any, tid: Any, acc: Any
    ):
        """Accumulate ``k_tiles`` k-tiles; ``a`` and ``b`` are producers into ``s_a`` and ``s_b``."""
        # Names of their own: what a dynamic loop reaches through an object, the DSL would carry.
        copy_a, copy_b, round_ = a.copy, b.copy, self._round
        prefetch_a, prefetch_b = a.prefetch, b.prefetch
        stages = const_expr(self.tile.stages)
        for stage in range_constexpr(stages - 1):
            prefetch_a(stage, k_tiles)
            prefetch_b(stage, k_tiles)
            copy_a(stage, stage, k_tiles)
            copy_b(stage, stage, k_tiles)
            cute.arch.cp_async_commit_group()
        prefetch_a(stages - 1, k_tiles)
        prefetch_b(stages - 1, k_tiles)

        load_a, from_a, to_a, r_a = self._fragments(s_a, tid, is_a=True)
        load_b, from_b, to_b, r_b = self._fragments(s_b, tid, is_a=False)
        k_blocks = const_expr(self.tile.k // self.mma_k)
        read, write = Int32(0), Int32(stages - 1)

        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        cute.copy(load_a, from_a[None, None, 0, read], to_a[None, None, 0])
        cute.copy(load_b, from_b[None, None, 0, read], to_b[None, None, 0])

        for k_tile in cutlass.range(k_tiles, unroll=1):
            for k_block in range_constexpr(k_blocks):
                if const_expr(k_block == k_blocks - 1):
                    read = read + 1
                    read = 0 if read == stages else read
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                ahead = const_expr((k_block + 1) % k_blocks)
                cute.copy(load_a, from_a[None, None, ahead, read], to_a[None, None, ahead])
                cute.copy(load_b, from_b[None, None, ahead, read], to_b[None, None, ahead])
                if const_expr(k_block == 0):
                    copy_a(k_tile + stages - 1, write, k_tiles)
                    copy_b(k_tile + stages - 1, write, k_tiles)
                    cute.arch.cp_async_commit_group()
                    prefetch_a(k_tile + stages, k_tiles)
                    prefetch_b(k_tile + stages, k_tiles)
                    write = write + 1
                    write = 0 if write == stages else write
                round_(r_a, k_block)
                round_(r_b, k_block)
                cute.gemm(self.mma, acc, r_a[None, None, k_block], r_b[None, None, k_block], acc)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    def _fragments(self, smem: Any, tid: Any, *, is_a: bool) -> tuple[Any, Any, Any, Any]:
        """ldmatrix's view of shared memory and of the fragments, and the fragments themselves."""
        thread = self.mma.get_slice(tid)
        partition = thread.partition_A(smem) if is_a else thread.partition_B(smem)
        make = self.mma.make_fragment_A if is_a else self.mma.make_fragment_B
        fragments = make(partition[None, None, None, 0])
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        tiled = (cute.make_tiled_copy_A if is_a else cute.make_tiled_copy_B)(atom, self.mma)
        copy = tiled.get_slice(tid)
        return tiled, copy.partition_S(smem), copy.retile(fragments), fragments

    def _round(self, fragments: Any, k_block: int) -> None:
        """fp32 data to tf32, to nearest: the tensor cores would truncate."""
        if self.dtype is not TFloat32:
            return
        block = fragments[None, None, k_block]
        as_float, as_bits = cute.recast_tensor(block, Float32), cute.recast_tensor(block, Int32)
        for i in range(cute.size(block)):
            as_bits[i] = Int32(cute.arch.cvt_f32_tf32(as_float[i]))


class Producer:
    """Copies one operand's k-tiles into shared memory, a few 16-byte vectors a thread.

    A thread keeps its rows for the whole main loop, and one column of vectors: per k-tile it computes
    one delta, and per vector one address and one predicate.
    """

    def __init__(
        self, atom: Any, operand: Operand, to: Any, where: Any, first_row: Any, tile_k: int
    ) -> None:
        self.atom, self.operand, self.to, self.tile_k = atom, operand, to, tile_k
        count = cute.size(where, mode=[1])
        self.rows = [operand.row(first_row + where[(0, 0), i, 0][0]) for i in range(count)]
        self.first_columns = [where[(0, 0), 0, j][1] for j in range(cute.size(where, mode=[2]))]
        self.index = None
        if operand.gather:
            self.index = cute.make_rmem_tensor((1, count, len(self.first_columns)), Int32)

    @cute.jit
    def prefetch(self, k_tile: Any, k_tiles: Any):
        """Read the index buffer for a k-tile, if the operand has one."""
        if const_expr(self.index is not None):
            if k_tile < k_tiles:
                for j in range_constexpr(len(self.first_columns)):
                    column = self.operand.column(k_tile * self.tile_k + self.first_columns[j])
                    for i in range_constexpr(len(self.rows)):
                        self.operand.load_index(self.rows[i], column, self.index[None, i, j])

    @cute.jit
    def copy(self, k_tile: Any, stage: Any, k_tiles: Any):
        """Issue the copies of a k-tile into a stage; a vector that is not there becomes zeros."""
        if k_tile < k_tiles:
            for j in range_constexpr(len(self.first_columns)):
                column = self.operand.column(k_tile * self.tile_k + self.first_columns[j])
                for i in range_constexpr(len(self.rows)):
                    index = self.index[0, i, j] if const_expr(self.index is not None) else None
                    vector, there = self.operand.locate(self.rows[i], column, index)
                    pred = cute.make_rmem_tensor(1, cutlass.Boolean)
                    pred[0] = there
                    cute.copy(self.atom, vector, self.to[None, i, j, stage], pred=pred)
