"""The Ampere mainloop, multistage: cp.async into swizzled shared memory, ldmatrix, mma.sync.

``stages - 1`` k-tiles are in flight. While the tensor cores work on one k-block (one MMA step along
k), a warp reads the fragments of the next from shared memory, issues the copies of the k-tile
``stages - 1`` ahead, and reads the index buffer one k-tile further ahead, which hides their
latencies. It issues the copies beside the first k-block, or spreads them over the next two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tile import MOST_REGISTERS

from .cp_async import CpAsyncLoad
from .fragments import Fragments
from .k_tiles import KTiles
from .mma_atoms import Data, Multiplier
from .operand import Column, Operand
from .smem_tile import SharedTile, shared_tiles

SPREAD = (256, 128)  # tile (m, n) whose copies are spread over k-blocks


class MainloopSm80:
    """Multiplies a CTA's tiles of two operands into register accumulators, multistage.

    Warp roles: all warps load, multiply and store.

    Pipeline: ``TileConfig.stages`` stages of shared memory; per k-tile, one ``cp.async`` group and
    one CTA barrier.

    Timeline of a warp, with three stages::

        copy 0, copy 1 | wait 0 | mma 0, copy 2 | wait 1 | mma 1, copy 3 | ... | epilogue

    Constraints: sm_80 and newer; ``planning/legality.py``. ``cp.async`` loads gathered rows, too.
    Profile it with ``python benchmarks/bench_template.py`` under ncu.
    """

    def __init__(self, spec: KernelSpec, data: Data, smem: Any) -> None:
        self.tile, self.data = spec.tile, data
        self.multiplier = Multiplier(data, spec.tile, spec.along, spec.arch_number)
        self.s_a, self.s_b = shared_tiles(smem, spec, data, spec.along, self.multiplier.read)

    leaves_out = False  # no warp skips a tap that other warps' rows have

    # -- what the loop works on ------------------------------------------------------------------

    def cp_async_load(
        self, operand: Operand, shared: SharedTile, first: Any, tid: Any
    ) -> CpAsyncLoad:
        """Return this thread's loads of tiles of ``operand`` from row ``first`` on."""
        return CpAsyncLoad(operand, shared, self.data.element, self.tile.mma_threads, tid, first)

    # -- the loop --------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self,
        a: CpAsyncLoad,
        b: CpAsyncLoad,
        k_tiles: KTiles,
        begin: Any,
        count: Any,
        tid: Any,
        acc: Any,
        meanwhile: Callable[[], None],
    ) -> None:
        """Accumulate ``count`` k-tiles from number ``begin`` on into ``acc``.

        Call ``meanwhile`` before the last wait.
        """
        # Local names: the DSL would carry any object that a dynamic loop reads attributes of.
        copy_a, copy_b, multiply = a.copy, b.copy, self.multiplier
        read_a, read_b, advance = a.read_ahead, b.read_ahead, k_tiles.advance
        stages, copies_first = const_expr(self.tile.stages), const_expr(self._copies_first(a))
        first = Int32(k_tiles.first(begin))  # column of the k-tile to copy next
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
        copied, share_of = const_expr(self.copied(k_blocks)), const_expr(partial(_share, a, b))
        columns_of = const_expr((a.columns_of, b.columns_of))
        read, write = Int32(0), Int32(stages - 1)

        acc.fill(0)
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        load_a(0, read)
        load_b(0, read)

        for k_tile in cutlass.range(count, unroll=1):
            for k_block in range_constexpr(k_blocks):
                if const_expr(k_block == k_blocks - 1):
                    if k_tile + 1 < count:  # else the fragments read ahead are not used
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
                    columns = const_expr([of(first) for of in columns_of])
                if const_expr(k_block in copied):
                    copies = const_expr(share_of(columns, k_block - copied.start, len(copied)))
                    if k_tile + stages - 1 < count:
                        for copy in copies:
                            copy(first, write)
                if const_expr(k_block == copied.stop - 1):
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
        meanwhile()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()

    def copied(self, k_blocks: int) -> range:
        """Return the k-blocks beside which a k-tile's copies are issued: the first alone, or the
        two after it.

        Spreading makes 256x128 in 16 bits 4% faster (417 to 434 TFLOP/s with C = K = 128, H200). It
        does not change 128x128, and makes 128x256 and tf32 up to 7% slower.
        """
        spread = self.data.bytes == 2 and (self.tile.m, self.tile.n) == SPREAD
        return range(1, 3) if spread and k_blocks > 3 else range(1)

    def _copies_first(self, a: CpAsyncLoad) -> bool:
        """Return whether copies are issued before the fragments of the second k-block are read.

        If accumulators and rows leave few registers (256x64), the copies' addresses do not fit
        beside the fragments of two k-blocks: up to 9 words spilled per k-tile. In 16 bits nothing
        is rounded in between, so the compiler multiplies before it copies, and only row masks of
        several fields spilled.
        """
        full = self.tile.registers > MOST_REGISTERS - 8
        return full and (self.data.bytes == 4 or len(a.operand.fields) > 1)

    def _fragments(self, producer: CpAsyncLoad, tid: Any, *, is_a: bool) -> tuple[Any, Any]:
        """Return the loader of this thread's fragments of a k-block, and the fragments."""
        multiply, along = self.multiplier, producer.operand.along
        found = Fragments(producer.shared, multiply.mma, multiply.unit, tid, is_a=is_a, along=along)
        return found.load, found.tensor


def _share(
    a: CpAsyncLoad, b: CpAsyncLoad, columns: list[list[Column]], part: int, parts: int
) -> list[Callable[[Any, Any], None]]:
    """Return the copies in part ``part`` of ``parts`` of a k-tile, A's before B's.

    Several parts share ``columns``; a single part computes them as it copies.
    """
    if parts == 1:
        return [a.copy, b.copy]
    counts = [len(producer.row_steps) for producer in (a, b)]
    begin, end = (-(-number * sum(counts) // parts) for number in (part, part + 1))
    copies: list[Callable[[Any, Any], None]] = []
    before = 0
    for producer, count, of in zip((a, b), counts, columns, strict=True):
        some = range(max(0, begin - before), min(count, end - before))
        before += count
        if some:
            copies.append(partial(producer.copy_rows, columns=of, some=some))
    return copies
