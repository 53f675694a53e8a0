"""The Ampere main loop: cp.async into swizzled shared memory, ldmatrix, mma.sync.

``stages`` k-tiles are in flight. While the tensor cores work on one k-block (one MMA step along k),
the fragments of the next are read from shared memory, the copies of the k-tile ``stages - 1`` ahead
are issued, and the index buffer is read one k-tile further ahead: no latency is waited for.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from .atoms import Data, Multiplier
from .fragments import Fragments
from .k_tiles import KTiles
from .operand import Operand
from .producer import Producer
from .shared import SharedTile, shared_tiles
from .spec import Spec
from .tile import MOST_REGISTERS


class MainloopSm80:
    """Multiplies a CTA's tiles of two operands into register accumulators."""

    def __init__(self, spec: Spec, data: Data, smem: Any) -> None:
        self.tile, self.data = spec.tile, data
        self.multiplier = Multiplier(data, spec.tile, spec.arch_number)
        self.s_a, self.s_b = shared_tiles(smem, spec, data, spec.along, self.multiplier.read)

    leaves_out = False  # taps that the rows of some warps lack, and those of others have

    # -- what the loop works on ------------------------------------------------------------------

    def producer(self, operand: Operand, shared: SharedTile, first: Any, tid: Any) -> Producer:
        """This thread's share of copying tiles of ``operand``, from row ``first`` of the GEMM."""
        return Producer(operand, shared, self.data.element, self.tile.threads, tid, first)

    # -- the loop --------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self, a: Producer, b: Producer, k_tiles: KTiles, begin: Any, count: Any, tid: Any, acc: Any
    ):
        """Accumulate ``count`` k-tiles, from number ``begin`` on, that ``a`` and ``b`` bring."""
        # Names of their own: what a dynamic loop reaches through an object, the DSL would carry.
        copy_a, copy_b, multiply = a.copy, b.copy, self.multiplier
        read_a, read_b, advance = a.read_ahead, b.read_ahead, k_tiles.advance
        stages, copies_first = const_expr(self.tile.stages), const_expr(self._copies_first(a))
        first = Int32(k_tiles.first(begin))  # column of the k-tile that is copied next
        read_a(first)
        read_b(first)
        for stage in range_constexpr(stages - 1):
            if stage < count:
                copy_a(first, stage)
                copy_b(first, stage)
            first = advance(first)
            if stage + 1 < count:
                read_a(first)
                read_b(first)
            cute.arch.cp_async_commit_group()

        load_a, r_a = self._fragments(a, tid, is_a=True)
        load_b, r_b = self._fragments(b, tid, is_a=False)
        k_blocks = const_expr(self.tile.k // multiply.k)
        read, write = Int32(0), Int32(stages - 1)

        acc.fill(0)
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        load_a(0, read)
        load_b(0, read)

        for k_tile in cutlass.range(count, unroll=1):
            for k_block in range_constexpr(k_blocks):
                if const_expr(k_block == k_blocks - 1):
                    if k_tile + 1 < count:  # else what is read ahead is not used
                        read = read + 1
                        read = Int32(0) if read == stages else read
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                ahead = const_expr((k_block + 1) % k_blocks)
                late = const_expr(k_block == 0 and copies_first)
                if const_expr(not late):
                    load_a(ahead, read)
                    load_b(ahead, read)
                if const_expr(k_block == 0):
                    if k_tile + stages - 1 < count:
                        copy_a(first, write)
                        copy_b(first, write)
                    cute.arch.cp_async_commit_group()
                    first = advance(first)
                    if k_tile + stages < count:
                        read_a(first)
                        read_b(first)
                    write = write + 1
                    write = Int32(0) if write == stages else write
                if const_expr(late):
                    load_a(ahead, read)
                    load_b(ahead, read)
                multiply(acc, r_a[None, None, k_block], r_b[None, None, k_block])
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    def _copies_first(self, a: Producer) -> bool:
        """Whether copies go before the fragments of the second k-block are read.

        Addresses beside the fragments of two k-blocks are more than a thread's registers hold where
        accumulators and rows leave few (256x64): up to 9 words spilled, every k-tile. Of 16-bit
        data, which nothing rounds in between, the compiler multiplies before it copies, and only
        masks of several digits were too much.
        """
        full = self.tile.registers > MOST_REGISTERS - 8
        return full and (self.data.bytes == 4 or len(a.operand.fields) > 1)

    def _fragments(self, producer: Producer, tid: Any, *, is_a: bool) -> tuple[Any, Any]:
        """What loads this thread's fragments of a k-block from a stage, and the fragments."""
        multiply, along = self.multiplier, producer.operand.along
        found = Fragments(producer.shared, multiply.mma, multiply.unit, tid, is_a=is_a, along=along)
        return found.load, found.tensor
