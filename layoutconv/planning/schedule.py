"""Named choices of a tile: the kernel schedule, the tile scheduler, and the producer's load.

The three are separate axes. The *kernel schedule* says which warps of a CTA load and which
multiply, the *tile scheduler* which output tiles a CTA computes, the *load* which warps copy
operands from global to shared memory, and by which instruction.
"""

from __future__ import annotations

from enum import Enum

WARP = 32  # threads
HALF_WARPGROUP = 64
WARPGROUP = 128  # threads whose wgmma instructions compute 64 rows at a time


class _Choice(Enum):
    """A named choice whose ``repr`` evaluates to itself."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __str__(self) -> str:
        return str(self.value)


class KernelSchedule(_Choice):
    """Which warps of a CTA load operands, and which multiply them.

    Attributes:
        MULTISTAGE: all warps do both, with several stages of cp.async in flight (Ampere's
            mainloop, ``mma.sync``).
        WARP_SPECIALIZED: producer warps load; one consumer warpgroup multiplies with ``wgmma``.
        COOPERATIVE: the same with two or more consumer warpgroups, which share an output tile.
        PINGPONG: the same with two consumer warpgroups on alternate output tiles: one runs its
            epilogue while the other multiplies. It needs a persistent kernel.
    """

    MULTISTAGE = "multistage"
    WARP_SPECIALIZED = "warp-specialized"
    COOPERATIVE = "cooperative"
    PINGPONG = "ping-pong"


class TileScheduler(_Choice):
    """Which output tiles a CTA computes.

    Attributes:
        SINGLE_TILE: one; the grid has one CTA per tile.
        STATIC_PERSISTENT: several, at a fixed stride; the grid has as many CTAs as the GPU runs at
            once, and the producer warp prefetches the next tile while consumers run the epilogue.
    """

    SINGLE_TILE = "single tile"
    STATIC_PERSISTENT = "persistent"


class Load(_Choice):
    """Which threads copy operands from global to shared memory, and by which instruction.

    Beside a cp.async producer, TMA loads whichever of A and B a TMA descriptor describes.

    Attributes:
        CP_ASYNC: all threads of a multistage kernel.
        CP_ASYNC_WARPGROUP: a producer warpgroup.
        CP_ASYNC_HALF_WARPGROUP: half a warpgroup, which leaves registers for another CTA per SM.
        TMA_WARP: one producer warp; TMA descriptors must describe both operands.

    >>> [load.producer_threads for load in Load]
    [0, 128, 64, 32]
    """

    CP_ASYNC = "cp.async", 0
    CP_ASYNC_WARPGROUP = "cp.async by a warpgroup", WARPGROUP
    CP_ASYNC_HALF_WARPGROUP = "cp.async by half a warpgroup", HALF_WARPGROUP
    TMA_WARP = "TMA by a warp", WARP

    def __init__(self, words: str, producer_threads: int) -> None:
        self.words = words
        self.producer_threads = producer_threads  # threads of a CTA that only load

    def __str__(self) -> str:
        return self.words
