"""Loads through registers, which round fp32 data to tf32 on their way to shared memory."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32

from layoutconv.planning.tile import LINE_BYTES, TileConfig

from .cp_async import CpAsyncLoad
from .mma_atoms import round_to_tf32
from .operand import Operand
from .smem_tile import SharedTile

# Producers hold two k-tiles in registers if m * n <= PRODUCTS, where a k-tile is multiplied within
# the 500 cycles that a load takes, and if a thread has at most WORDS words of one: more spilled
# beside the masks of 16 rows.
PRODUCTS, WORDS = 128 * 128, 32
ROWS = 8  # period of the swizzle


class RoundingLoad(CpAsyncLoad):
    """Loads tiles of an operand, rounds them to nearest, and stores them k-contiguous.

    ``read_ahead`` loads a k-tile's vectors into registers; ``copy`` rounds and stores them one or
    two k-tiles later, which hides the latency. If the operand is not k-contiguous in memory, the
    store transposes: each element of a vector goes to its own row.
    """

    def __init__(
        self, operand: Operand, shared: SharedTile, tile: TileConfig, tid: Any, first: Any
    ) -> None:
        super().__init__(operand, shared, Float32, tile.producer_threads, tid, first)
        op = cute.nvgpu.CopyUniversalOp()
        self.atom = cute.make_copy_atom(op, Float32, num_bits_per_copy=8 * self.bytes)
        # (row, column) steps of the vectors from the thread's first, in the order of their loads.
        self.steps = [
            (row_step, step)
            for _, steps in self.segments
            for row_step in self.row_steps
            for step in steps
        ]
        words = operand.vector * len(self.steps) * tile.halo_taps
        self.tiles = 2 if tile.m * tile.n <= PRODUCTS and words <= WORDS else 1
        shape = (operand.vector, 1), len(self.steps), (tile.halo_taps, self.tiles)
        self.held = cute.make_rmem_tensor(shape, Float32)
        if operand.along == 0:
            row, column = self.column_number, self.row_number  # in shared memory: transposed
            self.starts = [shared.start(shared.logical(row + i, column)) for i in range(ROWS)]

    def _extents(self) -> tuple[int, int]:
        rows, columns = super()._extents()
        return (rows, columns) if self.operand.along == 1 else (columns, rows)

    def _place(self, threads: int, tid: Any, rows: int, per_row: int) -> tuple[int, Any, Any]:
        """Place threads so that a warp loads whole sectors and stores without bank conflicts."""
        if self.operand.along == 0:  # a warp has two adjacent vectors at each of 16 k
            pair = tid // 2
            return threads // rows, pair % rows, (tid & 1) + pair // rows * 2
        across, row, column = super()._place(threads, tid, rows, per_row)
        if across == 4 and self.shared.line_bytes == LINE_BYTES:
            # A store covers half a line of two rows: rows four apart are in opposite halves.
            row = row // ROWS * ROWS + (row & 1) * 4 + row // 2 % 4
        return across, row, column

    def read_ahead(self, first_k: Any, place: tuple[int, int] = (0, 0)) -> None:
        """Load the k-tile at ``first_k`` into registers; predicated-off vectors become zeros."""
        for i, (_, _, vector, pred) in enumerate(self._vectors(first_k)):
            held = self.held[None, i, place]
            held.fill(0.0)
            cute.copy_atom_call(self.atom, cute.recast_tensor(vector, Float32), held, pred=pred)

    def copy(self, first_k: Any, stage: Any, place: tuple[int, int] = (0, 0)) -> None:
        """Round the k-tile that ``read_ahead`` loaded, and store it into a stage."""
        for i, (row_step, step) in enumerate(self.steps):
            held = self.held[None, i, place]
            words = cute.make_rmem_tensor(held.shape, Int32)
            for j in range(self.operand.vector):
                words[j] = round_to_tf32(held[j], 90)
            if self.operand.along == 1:
                slot = self._slot(row_step, step, stage)
                cute.autovec_copy(words, cute.recast_tensor(slot, Int32))
                continue
            for j in range(self.operand.vector):
                down, start = divmod(step + j, ROWS)
                displacement = self.shared.displacement(down * ROWS, row_step)
                address = self.shared.at(self.starts[start], displacement, stage)
                cute.recast_tensor(self._at(address, 1), Int32)[0] = words[j]
