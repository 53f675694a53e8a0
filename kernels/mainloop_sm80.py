"""The Ampere main loop: cp.async into swizzled shared memory, ldmatrix, mma.sync.

``stages`` k-tiles are in flight. While the tensor cores work on one k-block (one MMA step along k),
the fragments of the next are read from shared memory, the copies of the k-tile ``stages - 1`` ahead
are issued, and the index buffer is read one k-tile further ahead: no latency is waited for.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, TFloat32, const_expr, range_constexpr
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, warp

from layoutconv.algebra.layout import Layout

from .operand import Operand
from .tile import Tile

COPY_BYTES = 16  # of one cp.async
THREADS_PER_ROW = 4  # each moves 16 of 64 contiguous bytes; more threads a row, more rows a thread


class MainloopSm80:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(self, tile: Tile, dtype: Any, arch: int) -> None:
        self.tile, self.dtype, self.arch = tile, dtype, arch
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

    # -- what the loop works on ------------------------------------------------------------------

    def allocate(self, smem: Any, rows: int) -> Any:
        """Shared memory (rows, k, stages), k contiguous, swizzled: 8 rows cover all banks."""
        k = self.tile.k
        layout = cute.make_ordered_layout((rows, k, self.tile.stages), order=(1, 0, 2))
        line = min(k // self.vector, 8)  # 16-byte vectors of a row in one 128-byte line
        swizzle = cute.make_swizzle(line.bit_length() - 1, 4, 3)  # of byte addresses
        return smem.allocate_tensor(self.dtype, layout, byte_alignment=128, swizzle=swizzle)

    def k_order(self, a: Operand) -> Layout:
        """The first column of each k-tile: taps run fastest where A is affine.

        Neighbouring taps read mostly the same rows, which so stay in the caches (N4 16x32x32 C256
        K256, fp16, H200: 329 to 420 TFLOP/s). Rows behind an index buffer are read whole, tap by
        tap (200k voxels, C = K = 128: 422 against 390).
        """
        if a.gather or a.vector_extent % self.tile.k:
            return Layout(-(-a.col_count // self.tile.k), self.tile.k)
        taps, blocks = a.col_count // a.vector_extent, a.vector_extent // self.tile.k
        return Layout((taps, blocks), (a.vector_extent, self.tile.k))

    def producer(
        self, operand: Operand, order: Layout, smem: Any, first_row: Any, tid: Any
    ) -> Producer:
        """This thread's share of copying tiles of ``operand`` into ``smem``, in that order."""
        across = min(self.tile.k // self.vector, THREADS_PER_ROW)
        threads = cute.make_ordered_layout((self.tile.threads // across, across), order=(1, 0))
        values = cute.make_layout((1, self.vector))
        copy = cute.make_tiled_copy_tv(self.copy_atom, threads, values).get_slice(tid)
        rows = cute.size(smem, mode=[0])
        where = copy.partition_S(cute.make_identity_tensor((rows, self.tile.k)))
        return Producer(
            self.copy_atom, operand, order, copy.partition_D(smem), where, first_row, self.tile.k
        )

    # -- the loop --------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self, a: Producer, b: Producer, s_a: Any, s_b: Any, k_tiles: Any, tid: Any, acc: Any
    ):
        """Accumulate ``k_tiles`` k-tiles that ``a`` and ``b`` bring to ``s_a`` and ``s_b``."""
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
            as_bits[i] = round_to_tf32(as_float[i], self.arch)


def round_to_tf32(x: Any, arch: int) -> Int32:
    """The bits of ``x`` rounded to tf32. One instruction on Hopper, which has ``.rn``; two before."""
    mode = "rn" if arch >= 90 else "rna"
    bits = llvm.inline_asm(
        Int32.mlir_type,
        [Float32(x).ir_value()],
        f"cvt.{mode}.tf32.f32 $0, $1;",
        "=r,f",
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return Int32(bits)


class Producer:
    """Copies one operand's k-tiles into shared memory, a few 16-byte vectors a thread.

    A thread keeps its rows for the whole main loop. Per k-tile it computes one delta, and per row one
    address and one predicate, if the k-tile lies within one tap: then a row's other vectors follow
    at fixed distances. If not, each column of vectors is a segment of its own.
    """

    def __init__(
        self,
        atom: Any,
        operand: Operand,
        order: Layout,
        to: Any,
        where: Any,
        first_row: Any,
        tile_k: int,
    ) -> None:
        self.atom, self.operand, self.order, self.to = atom, operand, order, to
        rows, vectors = (range(cute.size(where, mode=[mode])) for mode in (1, 2))
        self.rows = [operand.row(first_row + where[(0, 0), i, 0][0]) for i in rows]
        columns = [where[(0, 0), 0, j][1] for j in vectors]
        if operand.vector_extent % tile_k == 0:
            distance = THREADS_PER_ROW * operand.vector
            self.segments = [(columns[0], [(j, j * distance) for j in vectors])]
        else:
            self.segments = [(column, [(j, 0)]) for j, column in enumerate(columns)]
        self.index = None
        if operand.gather:
            shape = (1, len(self.rows), len(self.segments))
            self.index = cute.make_rmem_tensor(shape, Int32)

    @cute.jit
    def prefetch(self, k_tile: Any, k_tiles: Any):
        """Read the index buffer for a k-tile, if the operand has one."""
        if const_expr(self.index is not None):
            if k_tile < k_tiles:
                for s in range_constexpr(len(self.segments)):
                    column = self.operand.column(self.order(k_tile) + self.segments[s][0])
                    for i in range_constexpr(len(self.rows)):
                        self.operand.load_index(self.rows[i], column, self.index[None, i, s])

    @cute.jit
    def copy(self, k_tile: Any, stage: Any, k_tiles: Any):
        """Issue the copies of a k-tile into a stage; a vector that is not there becomes zeros."""
        if k_tile < k_tiles:
            for s in range_constexpr(len(self.segments)):
                first, vectors = self.segments[s]
                column = self.operand.column(self.order(k_tile) + first)
                for i in range_constexpr(len(self.rows)):
                    index = self.index[0, i, s] if const_expr(self.index is not None) else None
                    pointer, there = self.operand.locate(self.rows[i], column, index)
                    pred = cute.make_rmem_tensor(1, Boolean)
                    pred[0] = there
                    for v in range_constexpr(len(vectors)):
                        j, distance = vectors[v]
                        vector = cute.make_tensor(pointer + distance, self.operand.vector_layout)
                        cute.copy(self.atom, vector, self.to[None, i, j, stage], pred=pred)
