"""Pipelines of mbarriers between warps: stages of k-tiles, and the turns of ping-pong consumers."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from layoutconv.planning.schedule import WARP
from layoutconv.planning.tile import TileConfig


class PipelineState:
    """A place in a ring of stages: the ``index`` of a stage, and the parity of its ``phase``.

    Loops carry it, as they carry an integer.
    """

    def __init__(self, stages: int, index: Any, phase: Any) -> None:
        self.stages, self.index, self.phase = stages, index, phase

    @classmethod
    def of_producer(cls, stages: int) -> PipelineState:
        """Where a producer starts: the phase before the first, in which all stages are empty."""
        return cls(stages, Int32(0), Int32(1))

    @classmethod
    def of_consumer(cls, stages: int) -> PipelineState:
        return cls(stages, Int32(0), Int32(0))

    def next(self) -> PipelineState:
        """The stage after this one; its phase is another every time around the ring."""
        following = self.index + 1
        wrapped = Int32(following == self.stages)
        return PipelineState(self.stages, following * (1 - wrapped), self.phase ^ wrapped)

    def skip(self, k_tiles: Any) -> PipelineState:
        """The state so many k-tiles later."""
        further = self.index + k_tiles
        laps = further // self.stages
        return PipelineState(self.stages, further - laps * self.stages, self.phase ^ (laps & 1))

    def __extract_mlir_values__(self) -> list[Any]:
        return [Int32(self.index).ir_value(), Int32(self.phase).ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> PipelineState:
        index, phase = values
        return PipelineState(self.stages, Int32(index), Int32(phase))


class Pipeline:
    """Stages of shared memory from a producer to consumers, and what else its mbarriers guard.

    =============  ===================================  ==========================================
    mbarrier       arrives                              waits
    =============  ===================================  ==========================================
    full[stage]    threads of cp.async, warps that      consumers, before they multiply a stage
                   stored what they rounded, the
                   thread that expects bytes of TMA
    empty[stage]   each consumer warp, once ``wgmma``   the producer, before it loads a stage
                   has read the stage
    resident       the thread that expects B's bytes    consumers, once (B resident)
    turn[0, 1]     each warp of the other consumer      a ping-pong consumer, before each tile
    =============  ===================================  ==========================================
    """

    def __init__(self, tile: TileConfig, mbarriers: Any) -> None:
        self.tile, self.stages = tile, tile.stages
        self.full = mbarriers

    @property
    def empty(self) -> Any:
        return self.full + self.stages

    @property
    def resident(self) -> Any:
        """Return the mbarrier of a resident B."""
        return self.full + 2 * self.stages

    def turn(self, consumer: Any) -> Any:
        """The mbarrier at which a ping-pong consumer waits for its turn."""
        return self.full + (self.tile.mbarriers - self.tile.consumers) + consumer

    @cute.jit
    def initialize(self, full_arrivals: int, tid: Any) -> None:
        """Initialize the mbarriers, by one thread; all threads meet before one is used."""
        tile, full, empty = const_expr(self.tile), self.full, self.empty
        warps = const_expr(tile.mma_threads // WARP)
        if tid == 0:
            for stage in range_constexpr(tile.stages):
                cute.arch.mbarrier_init(full + stage, full_arrivals)
                cute.arch.mbarrier_init(empty + stage, warps)
            if const_expr(tile.b_resident):
                cute.arch.mbarrier_init(self.resident, 1)
            for consumer in range_constexpr(tile.consumers if tile.pingpong else 0):
                cute.arch.mbarrier_init(self.turn(consumer), warps)
        cute.arch.mbarrier_init_fence()

    def wait_for_turn(self, consumer: Any, turn: Any) -> None:
        """Wait until the other consumer has waited for all stages of its tile; the first consumer
        waits for nobody, once.

        A stage that was full, empty and full again looks as it did before.
        """
        cute.arch.mbarrier_wait(self.turn(consumer), turn ^ (1 - consumer))

    def end_turn(self, tid: Any) -> None:
        """Let the other consumer wait for stages: this one has waited for all of its tile."""
        other = 1 - cute.arch.thread_idx()[0] // self.tile.mma_threads
        arrive(self.turn(other), tid)


class PipelineProducer:
    """A pipeline as its producer sees it, made where its role begins."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.full, self.empty = pipeline.full, pipeline.empty

    def acquire(self, state: PipelineState) -> None:
        """Wait until a stage is empty."""
        cute.arch.mbarrier_wait(self.empty + state.index, state.phase)


class PipelineConsumer:
    """A pipeline as a consumer sees it, made where its role begins; see ``wait_full``."""

    def __init__(self, pipeline: Pipeline, *, fence: bool) -> None:
        self.full, self.empty, self.fence = pipeline.full, pipeline.empty, fence

    def wait(self, state: PipelineState) -> None:
        """Wait until a stage is full."""
        wait_full(self.full + state.index, state.phase, fence=self.fence)

    def release(self, index: Any, tid: Any) -> None:
        """Give a stage back, which the warp has read."""
        arrive(self.empty + index, tid)


def wait_full(mbarrier: Any, phase: Any, *, fence: bool) -> None:
    """Wait until a stage is full. The ``fence`` makes data that threads wrote visible to ``wgmma``,
    the async proxy; data that TMA copied need none.
    """
    cute.arch.mbarrier_wait(mbarrier, phase)
    if fence:
        cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def arrive(mbarrier: Any, tid: Any) -> None:
    """One thread of a warp arrives."""
    if tid % WARP == 0:
        cute.arch.mbarrier_arrive(mbarrier)
