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

from .operand import Operand
from .shared import VECTOR_BYTES, SharedTile
from .tile import Tile

THREADS_PER_ROW = 4  # each moves 16 of 64 contiguous bytes; more threads a row, more rows a thread


class MainloopSm80:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(self, tile: Tile, dtype: Any, arch: int) -> None:
        self.tile, self.dtype, self.arch = tile, dtype, arch
        self.vector = VECTOR_BYTES * 8 // dtype.width
        if dtype is TFloat32:
            op: Any = warp.MmaTF32Op((16, 8, 8))
        else:
            op = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        self.mma_k = op.shape_mnk[2]
        line = 128 * 8 // dtype.width
        if tile.k not in (line // 2, line):
            raise ValueError(f"{tile}: k must be {line // 2} or {line}, 64 or 128 bytes")
        warps = (tile.warps_m, tile.warps_n, 1)
        # Two n8 atoms side by side, so that one ldmatrix.x4 fills B's fragments of both.
        permutation = (16 * tile.warps_m, 16 * tile.warps_n, self.mma_k)
        self.mma = cute.make_tiled_mma(op, cute.make_layout(warps), permutation_mnk=permutation)
        self.copy_atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(cache_mode=cute.nvgpu.LoadCacheMode.GLOBAL),
            dtype,
            num_bits_per_copy=8 * VECTOR_BYTES,
        )

    # -- what the loop works on ------------------------------------------------------------------

    def allocate(self, smem: Any, rows: int) -> SharedTile:
        """Shared memory for all stages of an operand with so many rows in a CTA's tile."""
        return SharedTile(smem, self.dtype, rows, self.tile.k, self.tile.stages)

    def k_tiles(self, a: Operand) -> tuple[int, Any]:
        """How many k-tiles there are, and what takes the first column of one to that of the next.

        Taps run fastest, then blocks of channels: neighbouring taps read mostly the same rows,
        which stay in the caches (N4 16x32x32 C256 K256, fp16, H200: 420 TFLOP/s; with channels
        fastest 329).
        """
        step, total, channels = self.tile.k, a.col_count, a.vector_extent
        if channels % step:
            return -(-total // step), lambda first: first + step

        def advance(first: Any) -> Any:
            past = Int32(total - 1 - channels - first) >> 31  # all ones after the last tap
            return first + channels - ((total - step) & past)

        return total // step, advance

    def producer(self, operand: Operand, shared: SharedTile, first_row: Any, tid: Any) -> Producer:
        """This thread's share of copying tiles of ``operand`` into ``shared``."""
        across = min(shared.vectors, THREADS_PER_ROW)
        threads = cute.make_ordered_layout((self.tile.threads // across, across), order=(1, 0))
        values = cute.make_layout((1, self.vector))
        copy = cute.make_tiled_copy_tv(self.copy_atom, threads, values).get_slice(tid)
        return Producer(self.copy_atom, operand, shared, copy, first_row)

    # -- the loop --------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self, a: Producer, b: Producer, s_a: SharedTile, s_b: SharedTile, tid: Any, acc: Any
    ):
        """Accumulate all k-tiles that ``a`` and ``b`` bring to ``s_a`` and ``s_b``."""
        # Names of their own: what a dynamic loop reaches through an object, the DSL would carry.
        copy_a, copy_b, round_ = a.copy, b.copy, self._round
        read_a, read_b = a.read_index, b.read_index
        stages = const_expr(self.tile.stages)
        k_tiles, advance = self.k_tiles(a.operand)
        first = Int32(0)  # column of the k-tile that is copied next
        read_a(first)
        read_b(first)
        for stage in range_constexpr(stages - 1):
            if const_expr(stage < k_tiles):
                copy_a(first, stage)
                copy_b(first, stage)
            first = advance(first)
            if const_expr(stage + 1 < k_tiles):
                read_a(first)
                read_b(first)
            cute.arch.cp_async_commit_group()

        load_a, r_a = self._fragments(s_a, tid, is_a=True)
        load_b, r_b = self._fragments(s_b, tid, is_a=False)
        k_blocks = const_expr(self.tile.k // self.mma_k)
        read, write = Int32(0), Int32(stages - 1)

        acc.fill(0.0)
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        load_a(0, read)
        load_b(0, read)

        for k_tile in cutlass.range(k_tiles, unroll=1):
            for k_block in range_constexpr(k_blocks):
                if const_expr(k_block == k_blocks - 1):
                    if k_tile + 1 < k_tiles:  # else what is read ahead is not used
                        read = read + 1
                        read = Int32(0) if read == stages else read
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                ahead = const_expr((k_block + 1) % k_blocks)
                load_a(ahead, read)
                load_b(ahead, read)
                if const_expr(k_block == 0):
                    if k_tile + stages - 1 < k_tiles:
                        copy_a(first, write)
                        copy_b(first, write)
                    cute.arch.cp_async_commit_group()
                    first = advance(first)
                    if k_tile + stages < k_tiles:
                        read_a(first)
                        read_b(first)
                    write = write + 1
                    write = Int32(0) if write == stages else write
                round_(r_a, k_block)
                round_(r_b, k_block)
                cute.gemm(self.mma, acc, r_a[None, None, k_block], r_b[None, None, k_block], acc)
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    def _fragments(self, shared: SharedTile, tid: Any, *, is_a: bool) -> tuple[Any, Any]:
        """What loads this thread's fragments of a k-block from a stage, and the fragments."""
        thread = self.mma.get_slice(tid)
        smem = shared.tensor
        partition = thread.partition_A(smem) if is_a else thread.partition_B(smem)
        make = self.mma.make_fragment_A if is_a else self.mma.make_fragment_B
        fragments = make(partition[None, None, None, 0])
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), self.dtype)
        tiled = (cute.make_tiled_copy_A if is_a else cute.make_tiled_copy_B)(atom, self.mma)
        copy = tiled.get_slice(tid)
        block = copy.partition_S(smem)[None, None, 0, 0]
        start, to = shared.start(block), copy.retile(fragments)
        k_bytes = self.mma_k * self.dtype.width // 8

        def load(k_block: int, stage: Any) -> None:
            pointer = shared.pointer(start, k_block * k_bytes, stage)
            cute.copy(tiled, cute.make_tensor(pointer, block.layout), to[None, None, k_block])

        return load, fragments

    def _round(self, fragments: Any, k_block: int) -> None:
        """fp32 data to tf32, to nearest: the tensor cores would truncate."""
        if self.dtype is not TFloat32:
            return
        block = fragments[None, None, k_block]
        as_float, as_bits = cute.recast_tensor(block, Float32), cute.recast_tensor(block, Int32)
        for i in range(cute.size(block)):
            as_bits[i] = round_to_tf32(as_float[i], self.arch)


def round_to_tf32(x: Any, arch: int) -> Int32:
    """The bits of ``x`` rounded to tf32: one instruction on Hopper, which has ``.rn``; else two."""
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

    A thread keeps its rows for the whole main loop. Per k-tile it computes one delta, and per row
    one address and one predicate, if the k-tile lies within one tap: a row's other vectors follow
    at fixed distances. If not, each column of vectors is a segment of its own.
    """

    def __init__(
        self, atom: Any, operand: Operand, shared: SharedTile, copy: Any, first_row: Any
    ) -> None:
        self.atom, self.operand, self.shared = atom, operand, shared
        rows, k, _ = shared.tensor.shape
        where = copy.partition_S(cute.make_identity_tensor((rows, k)))
        to = copy.partition_D(shared.tensor)
        self.start, self.to_row = shared.start(to), to[None, None, 0, 0].layout
        row_range, vectors = (range(cute.size(where, mode=[mode])) for mode in (1, 2))
        self.rows = [operand.row(first_row + where[(0, 0), i, 0][0]) for i in row_range]
        columns = [where[(0, 0), 0, j][1] for j in vectors]
        # (first column, steps of its vectors): one segment if a k-tile lies within one tap
        if operand.vector_extent % k == 0:
            self.segments = [(columns[0], list(vectors))]
        else:
            self.segments = [(column, [j]) for j, column in enumerate(columns)]
        self.index = None
        if operand.gather:
            self.index = cute.make_rmem_tensor((len(self.rows), len(self.segments)), Int32)

    def read_index(self, first_column: Any) -> None:
        """Read the index buffer for the k-tile at a column, if the operand has one."""
        if self.index is None:
            return
        for s, (first, _) in enumerate(self.segments):
            column = self.operand.column(first_column + first)
            for i, row in enumerate(self.rows):
                self.index[i, s] = self.operand.load_index(row, column, written=False)

    def copy(self, first_column: Any, stage: Any) -> None:
        """Issue a k-tile's copies into a stage; a vector that is not there becomes zeros."""
        for s, (first, steps) in enumerate(self.segments):
            column = self.operand.column(first_column + first)
            for i, row in enumerate(self.rows):
                index = None if self.index is None else self.index[i, s]
                pointer, there = self.operand.locate(row, column, index)
                pred = cute.make_rmem_tensor(1, Boolean)
                pred[0] = there
                for j in steps:
                    distance = (j - steps[0]) * THREADS_PER_ROW * self.operand.vector
                    vector = cute.make_tensor(pointer + distance, self.operand.vector_layout)
                    cute.copy(self.atom, vector, self._slot(i, j, stage), pred=pred)

    def _slot(self, i: int, j: int, stage: Any) -> Any:
        """Where in shared memory the vector of row ``i`` and step ``j`` goes."""
        pointer = self.shared.pointer(self.start, j * THREADS_PER_ROW * VECTOR_BYTES, stage)
        offset = cute.crd2idx((0, i), self.to_row)
        return cute.make_tensor(pointer + offset, self.operand.vector_layout)
