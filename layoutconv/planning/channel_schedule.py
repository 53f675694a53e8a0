"""Schedule of norms over channels: lanes per row, and vectors per lane."""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 256  # per CTA
AT_ONCE = 2  # rows that a thread loads before it waits for one
MOST_TURNS, MOST_LOG_LANES = 4, 5  # vectors per lane while more lanes can help; a warp of lanes
MOST_VECTORS = 16 << MOST_LOG_LANES  # per row, held in a warp's registers


@dataclass(frozen=True)
class ChannelNormShape:
    """The compile-time key of a kernel.

    Args:
        dtype: of all tensors; sums are in float32.
        vector: elements per load of a lane; divides the channels.
        log_lanes: log2 of the lanes per row.
        turns: vectors per lane.
        biased: whether there is a bias.
        early: whether the kernel starts while the previous one ends (PDL).
    """

    dtype: str
    vector: int
    log_lanes: int
    turns: int
    biased: bool
    early: bool


def lanes_of(vectors: int) -> tuple[int, int]:
    """Return log2 of the lanes per row, and the vectors per lane, for a row of ``vectors``.

    Few lanes are better: each has several loads in flight, and fewer shuffles follow.

    >>> lanes_of(12), lanes_of(16), lanes_of(1), lanes_of(200)
    ((2, 3), (2, 4), (0, 1), (5, 7))
    """
    log_lanes = 0
    while vectors > MOST_TURNS << log_lanes and log_lanes < MOST_LOG_LANES:
        log_lanes += 1
    return log_lanes, -(-vectors >> log_lanes)
