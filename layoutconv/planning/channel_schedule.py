"""Cut norms over channels into lanes: those of a row, and the vectors that each holds."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 256  # of a CTA
AT_ONCE = 2  # rows that a thread reads before it waits for one
MOST_TURNS, MOST_LOG_LANES = 4, 5  # vectors of a lane where more lanes can help; a warp
MOST_VECTORS = 16 << MOST_LOG_LANES  # of a row, in registers of a warp


@dataclass(frozen=True)
class ChannelNormShape:
    """The structure that kernels are compiled for.

    Args:
        dtype: of all tensors; sums are in float32.
        vector: elements that a lane reads at once, which divide the channels.
        log_lanes: the logarithm of the lanes of a row.
        turns: vectors of a lane.
        biased: whether there is a bias.
        early: whether the kernel starts while the one before it ends (PDL).
    """

    dtype: str
    vector: int
    log_lanes: int
    turns: int
    biased: bool
    early: bool


def lanes_of(vectors: int) -> tuple[int, int]:
    """The logarithm of a row's lanes, and the vectors of each, for a row of so many.

    Few lanes: each has several loads in flight, and fewer shuffles follow.

    >>> lanes_of(12), lanes_of(16), lanes_of(1), lanes_of(200)
    ((2, 3), (2, 4), (0, 1), (5, 7))
    """
    log_lanes = 0
    while vectors > MOST_TURNS << log_lanes and log_lanes < MOST_LOG_LANES:
        log_lanes += 1
    return log_lanes, -(-vectors >> log_lanes)
