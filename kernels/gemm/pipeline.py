"""mbarrier pipelines between warps: stages of k-tiles, and the turns of ping-pong consumers."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, const_expr, range_constexpr

from layoutconv.planning.schedule import WARP
from layoutconv.planning.tile import TileConfig


class PipelineState:
    """A position in the ring of stages: the ``index`` of a stage, and the parity of its ``phase``.

    Dynamic loops carry it like an integer.
    """

    def __init__(self, stages: int, index: Any, phase: Any) -> None:
        self.stages, self.index, self.phase = stages, index, phase

    @classmethod
    def of_producer(cls, stages: int) -> PipelineState:
        """The producer's initial state: phase parity 1, so that the first waits find all stages
        empty.
        """
        return cls(stages, Int32(0), Int32(1))

    @classmethod
    def of_consumer(cls, stages: int) -> PipelineState:
        return cls(stages, Int32(0), Int32(0))

    def next(self) -> PipelineState:
        """The state of the next stage; the phase flips each time around the ring."""
        following = self.index + 1
        wrapped = Int32(following == self.stages)
        return PipelineState(self.stages, following * (1 - wrapped), self.phase ^ wrapped)

    def skip(self, k_tiles: Any) -> PipelineState:
        """The state ``k_tiles`` stages later."""
        further = self.index + k_tiles
        laps = further // self.stages
        return PipelineState(self.stages, further - laps * self.stages, self.phase ^ (laps & 1))

    def __extract_mlir_values__(self) -> list[Any]:
        return [Int32(self.index).ir_value(), Int32(self.phase).ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> PipelineState:
        index, phase = values
        return PipelineState(self.stages, Int32(index), Int32(phase))


class Pipeline:
    """The mbarriers of a warp-specialised kernel: who arrives at each, and who waits.

    =============  ===================================  ==========================================
    mbarrier       arrives                              waits
    =============  ===================================  ==========================================
    full[stage]    threads that issue cp.async, warps   consumers, before they multiply a stage
                   that store rounded data, the thread
                   that expects the bytes of TMA
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
        """Return the mbarrier at which ping-pong consumer ``consumer`` waits for its turn."""
        return self.full + (self.tile.mbarriers - self.tile.consumers) + consumer

    @cute.jit
    def initialize(self, full_arrivals: int, tid: Any) -> None:
        """Initialize the mbarriers in thread 0; the caller synchronises the CTA before any use."""
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
        """Wait until the other consumer has waited for all stages of its tile; the first wait of
        consumer 0 returns at once.

        A wait tests one parity bit: without turns, a stage that was full, empty and full again
        would look unchanged to a consumer that lags behind.
        """
        cute.arch.mbarrier_wait(self.turn(consumer), turn ^ (1 - consumer))

    def end_turn(self, tid: Any) -> None:
        """Pass the turn to the other consumer: this one has waited for all stages of its tile."""
        other = 1 - cute.arch.thread_idx()[0] // self.tile.mma_threads
        arrive(self.turn(other), tid)


class PipelineProducer:
    """The producer's side of a pipeline, made where the role's branch begins."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.full, self.empty = pipeline.full, pipeline.empty

    def acquire(self, state: PipelineState) -> None:
        """Wait until a stage is empty."""
        cute.arch.mbarrier_wait(self.empty + state.index, state.phase)


class PipelineConsumer:
    """A consumer's side of a pipeline, made where the role's branch begins; see ``wait_full``."""

    def __init__(self, pipeline: Pipeline, *, fence: bool) -> None:
        self.full, self.empty, self.fence = pipeline.full, pipeline.empty, fence

    def wait(self, state: PipelineState) -> None:
        """Wait until a stage is full."""
        wait_full(self.full + state.index, state.phase, fence=self.fence)

    def release(self, index: Any, tid: Any) -> None:
        """Arrive at the empty mbarrier of a stage that the warp has read."""
        arrive(self.empty + index, tid)


def wait_full(mbarrier: Any, phase: Any, *, fence: bool) -> None:
    """Wait until a stage is full. ``fence`` makes data that threads wrote visible to the async
    proxy, through which ``wgmma`` reads; data that TMA copied need none.
    """
    cute.arch.mbarrier_wait(mbarrier, phase)
    if fence:
        cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def arrive(mbarrier: Any, tid: Any) -> None:
    """Arrive once per warp, from its first lane."""
    if tid % WARP == 0:
        cute.arch.mbarrier_arrive(mbarrier)
