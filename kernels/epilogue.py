"""From accumulators to memory: convert, turn in shared memory, write whole vectors by row."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import const_expr, range_constexpr

from .operand import Operand
from .tile import Tile

STORE_BYTES = 16
BATCH = 4  # rows a thread reads at once: their loads overlap, and fit in registers


class Epilogue:
    """Writes a CTA's tile through the layout of D: dense rows, or rows that an index scatters."""

    def __init__(self, tile: Tile, dtype: Any) -> None:
        self.tile, self.dtype = tile, dtype
        self.vector = STORE_BYTES * 8 // dtype.width

    def shared_layout(self) -> tuple[Any, Any]:
        """(m, n) with n contiguous; the swizzle spreads a warp's fragments over the banks."""
        layout = cute.make_ordered_layout((self.tile.m, self.tile.n), order=(1, 0))
        row_bits = (self.tile.n // self.vector).bit_length() - 1  # of a row's 16-byte vectors
        return layout, cute.make_swizzle(min(3, row_bits), 4, row_bits)  # of byte addresses

    @cute.jit
    def __call__(self, acc: Any, mma: Any, d: Operand, base: Any, m0: Any, n0: Any, tid: Any):
        """``base`` is shared memory that the main loop is done with."""
        layout, swizzle = self.shared_layout()
        smem = cute.make_tensor(cute.recast_ptr(base, swizzle, dtype=self.dtype), layout)
        converted = cute.make_fragment_like(acc, self.dtype)
        converted.store(acc.load().to(self.dtype))
        cute.autovec_copy(converted, mma.get_slice(tid).partition_C(smem))
        cute.arch.sync_threads()

        across = const_expr(self.tile.n // self.vector)
        threads = cute.make_ordered_layout((self.tile.threads // across, across), order=(1, 0))
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=8 * STORE_BYTES
        )
        copy = cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, self.vector))).get_slice(
            tid
        )
        source = copy.partition_S(smem)
        where = copy.partition_S(cute.make_identity_tensor((self.tile.m, self.tile.n)))
        column = d.column(n0 + where[(0, 0), 0, 0][1])
        count = const_expr(cute.size(where, mode=[1]))
        for first in range_constexpr(0, count, BATCH):
            batch = const_expr(range(first, min(first + BATCH, count)))
            rows = [d.row(m0 + where[(0, 0), i, 0][0]) for i in batch]
            index = [d.load_index(row, column, written=True) if d.gather else None for row in rows]
            vectors = cute.make_fragment_like(source[None, None, 0])
            for i in range_constexpr(len(batch)):
                cute.autovec_copy(source[None, batch[i], 0], vectors[None, i])
            for i in range_constexpr(len(batch)):
                pointer, there = d.locate(rows[i], column, index[i])
                pred = cute.make_rmem_tensor(1, cutlass.Boolean)
                pred[0] = there
                to = cute.make_tensor(pointer, d.vector_layout)
                cute.copy(atom, vectors[None, i], to, pred=pred)
