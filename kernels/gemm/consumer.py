"""The consumers of a warp-specialised kernel: warpgroups that multiply the pipeline's stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr
from cutlass.cute.nvgpu import warpgroup

from .k_tiles import KTiles
from .pipeline import PipelineConsumer, PipelineState, arrive, wait_full
from .smem_tile import sync
from .tma_im2col_copy import LoadOfA, LoadOfB
from .warp_specialised import WarpSpecialised
from .wgmma import KTileOperands, wait_for_products


class Consumer:
    """Multiplies k-tiles into the accumulators ``acc``: one warpgroup, or several (cooperative).

    Timeline of a k-tile: wait for its stage (full mbarrier) -> issue ``wgmma`` -> when the previous
    k-tile's ``wgmma`` are done, release that stage (empty mbarrier) -> next. A stage is released
    one k-tile late, so that the tensor cores always have work queued.

    Constraints: at least one k-tile. The first is peeled off the loop and overwrites the
    accumulators. With a kernel map, a warpgroup skips later k-tiles that none of its rows has.
    """

    def __init__(
        self, mainloop: WarpSpecialised, a: LoadOfA, b: LoadOfB, k_tiles: KTiles, acc: Any
    ) -> None:
        self.mainloop, self.a, self.b, self.k_tiles, self.acc = mainloop, a, b, k_tiles, acc
        self.tile, self.runs, self.by_runs = mainloop.tile, mainloop.runs, mainloop.by_runs

    @cute.jit
    def multiply(
        self,
        begin: Any,
        count: Any,
        tid: Any,
        state: PipelineState,
        meanwhile: Callable[[], None],
    ) -> PipelineState:
        """Multiply ``count`` k-tiles from number ``begin`` on, whose stages start at ``state``;
        return the state after the last. Call ``meanwhile`` before the first wait.
        """
        meanwhile()
        tile, mainloop, k_tiles = const_expr(self.tile), self.mainloop, self.k_tiles
        pipeline = mainloop.pipeline
        stages = PipelineConsumer(pipeline, fence=mainloop.fences)
        halo = const_expr((tile.m, tile.halo_taps, mainloop.halo.rows))
        of = mainloop.multiplier, tid, self.a, self.b, halo, self.acc
        wait, release, empty = stages.wait, stages.release, stages.empty
        advance, is_own = k_tiles.advance, k_tiles.is_own
        some, first = const_expr(len(k_tiles.own) > 0), Int32(k_tiles.first(begin))
        slot = Int32(0)  # the k-tile's number: its slot in a resident B
        if const_expr(tile.b_resident):
            wait_full(pipeline.resident, 0, fence=mainloop.fences)
        for number in range_constexpr(len(self.runs)):
            run = const_expr(self.runs[number])
            operands = KTileOperands(*of, run)
            multiply_one = partial(self._multiply_one, operands, tid)
            end = run.k_tiles if const_expr(self.by_runs) else count
            if const_expr(number > 0):
                operands.mma.set(warpgroup.Field.ACCUMULATE, True)
            else:
                # Peel the first k-tile: after a loop that might run zero times, the compiler would
                # move reads of the accumulators to where wgmma is still in flight.
                wait(state)
                multiply_one(state.index, slot, None)
                operands.mma.set(warpgroup.Field.ACCUMULATE, True)  # in case it took one wgmma
                before, slot = Int32(state.index), slot + 1
                state = state.next()
            for _ in cutlass.range(int(number == 0), end, 1, unroll=1):
                wait(state)
                if const_expr(some):
                    first = advance(first)
                    if is_own(first):
                        multiply_one(state.index, slot, empty + before)
                    else:
                        warpgroup.wait_group(0)
                        release(before, tid)
                else:
                    multiply_one(state.index, slot, empty + before)
                before, slot = state.index, slot + 1
                state = state.next()
        if const_expr(tile.pingpong):
            pipeline.end_turn(tid)
        wait_for_products(self.acc)
        if const_expr(tile.persistent):  # the next tile's loads need the last stage, too
            release(before, tid)
        if const_expr(not tile.pingpong):
            sync(self.tile)
        return state

    @cute.jit
    def _multiply_one(
        self, operands: KTileOperands, tid: Any, stage: Any, slot: Any, before: Any
    ) -> None:
        """Multiply the k-tile in ``stage``, and fetch the next operands while ``wgmma`` runs.

        A resident B is read from ``slot`` instead. ``before`` is the empty mbarrier of the previous
        k-tile's stage: the warp arrives there once that k-tile's ``wgmma`` are done. It is None for
        the first k-tile.
        """
        groups, in_flight = const_expr(operands.groups), const_expr(operands.in_flight)
        mma, of_b = operands.mma, stage
        if const_expr(self.tile.b_resident):
            of_b = slot
        operands.fetch(0, stage)
        for i in range_constexpr(len(groups)):
            warpgroup.fence()
            for j in range_constexpr(len(groups[i])):
                if const_expr(before is None):
                    mma.set(warpgroup.Field.ACCUMULATE, i + j > 0)
                acc, here_a, here_b = operands.of(i, j, stage, of_b)
                cute.gemm(mma, acc, here_a, here_b, acc)
            warpgroup.commit_group()
            warpgroup.wait_group(in_flight)
            if const_expr(before is not None and i + 1 == in_flight):
                if const_expr(operands.sets):  # each lane read A from the stage on its own
                    cute.arch.sync_warp()
                arrive(before, tid)
            if const_expr(i + 1 < len(groups)):
                operands.fetch(i + 1, stage)
