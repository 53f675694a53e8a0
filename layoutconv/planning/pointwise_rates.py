"""Rates and times of pointwise layers of 16 bits and whole vectors: short sums, bound by memory.

Fitted to 3,005 trials of tiles on an H200, 277 passes of layers of networks, most of them 1x1; by
halves of them, fitted on one and judged on the other (docs/lab_notebook.md). Where a tile is not
here, ``tile_table.py`` has it, as those with a resident B.
"""

from __future__ import annotations

from typing import NamedTuple

from .tile import TileConfig

Shape = tuple[int, int, int, int]  # m, n, warps_m, warps_n

# Products, memory and the latency of k-tiles hide each other but for a rest: their times are added
# as a norm of this exponent. Memory is a little faster than kernels that do nothing else reach, as
# the norm has it, and L2 faster still: it holds so many bytes from one launch to the next.
NORM, MEMORY_RATE, HELD_RATE, HELD_BYTES = 2.5, 1.12, 1.4, 40e6
# Of the start of a wave after the first, where a CTA has the SM alone; and where others multiply.
ALONE, BESIDE = 0.95, 0.66
# Of a persistent kernel, microseconds in which an SM stores 1000 results of a tile and does nothing
# else: of ping-pong consumers, half of that, and what a turn takes.
STORE, TURN = 0.008, 0.15
K_TILE = 0.005  # microseconds from one k-tile to the next, at least
# Microseconds of a kernel that adds parts of sums up, beside memory, and of both kernels at least.
LAUNCH, TWO_LAUNCHES = 2.0, 5.5


class Found(NamedTuple):
    """A tile's rate, a share of the best of ``FAMILY``, and microseconds beside its products."""

    rate: float
    start: float


MULTISTAGE: dict[Shape, Found] = {
    (128, 32, 4, 1): Found(0.51, 2.2),
    (256, 32, 4, 1): Found(0.53, 2.6),
    (64, 8, 2, 1): Found(0.15, 2.4),
    (256, 16, 4, 1): Found(0.29, 2.1),
    (64, 64, 2, 2): Found(0.57, 2.1),
    (64, 128, 2, 2): Found(0.71, 2.3),
    (256, 64, 4, 1): Found(0.90, 4.1),
    (128, 128, 2, 2): Found(0.94, 3.1),
    (256, 128, 4, 2): Found(0.92, 2.9),
    (128, 256, 2, 4): Found(1.12, 3.1),
}
# Warp-specialised tiles: of vectors that threads copy, of rows that TMA loads, and of sums over
# pixels; and those of one TMA warp.
COPIED: dict[Shape, Found] = {
    (128, 8, 4, 1): Found(0.13, 2.4),
    (128, 16, 4, 1): Found(0.24, 2.4),
    (64, 128, 4, 1): Found(1.00, 2.3),
    (128, 128, 8, 1): Found(1.29, 2.6),
    (64, 256, 4, 2): Found(1.10, 3.1),
}
ROWS: dict[Shape, Found] = {
    (128, 8, 4, 1): Found(0.13, 2.1),
    (128, 64, 4, 1): Found(1.44, 2.3),
    (256, 64, 8, 1): Found(1.31, 3.1),
    (64, 128, 4, 1): Found(1.43, 2.0),
    (128, 128, 8, 1): Found(1.78, 2.6),
    (64, 256, 4, 2): Found(1.10, 3.2),
    (192, 128, 12, 1): Found(1.82, 3.0),
    (256, 128, 8, 1): Found(1.84, 3.8),
}
SUMS: dict[Shape, Found] = {
    (128, 64, 4, 1): Found(1.20, 2.2),
    (256, 64, 8, 1): Found(1.70, 3.1),
    (64, 128, 4, 1): Found(1.24, 2.3),
    (128, 128, 8, 1): Found(1.82, 3.1),
    (64, 256, 4, 2): Found(1.41, 3.2),
    (192, 128, 12, 1): Found(1.78, 3.4),
    (256, 128, 8, 1): Found(1.93, 3.8),
    (128, 256, 8, 1): Found(1.92, 4.0),
}
ONE_WARP: dict[Shape, Found] = {
    (128, 32, 4, 1): Found(0.43, 1.5),
    (256, 32, 8, 1): Found(0.55, 2.0),
    (64, 128, 4, 1): Found(0.91, 1.55),
    (128, 64, 4, 1): Found(0.92, 1.6),
    (256, 64, 8, 1): Found(1.10, 3.0),
}
# By m, n, warps, and whether ping-pong.
PERSISTENT: dict[tuple[int, int, int, bool], Found] = {
    (128, 16, 4, False): Found(0.27, 2.8),
    (128, 32, 4, False): Found(0.50, 3.9),
    (128, 64, 4, False): Found(0.93, 4.9),
    (128, 128, 4, True): Found(1.81, 3.2),
    (128, 256, 8, False): Found(1.80, 5.0),
    (192, 192, 12, False): Found(1.90, 3.4),
}


def norm(*times: float) -> float:
    """Add up times that hide each other but for a rest.

    >>> round(norm(1.0, 1.0), 2), norm(3.0, 0.0)
    (1.32, 3.0)
    """
    return float(sum(time**NORM for time in times) ** (1 / NORM))


def store_time(tile: TileConfig) -> float:
    """Microseconds of an output tile in which a persistent kernel only stores.

    >>> from .tile import persistent
    >>> round(store_time(persistent((128, 256, 64), (8, 1), 3)), 2)
    0.26
    """
    time = STORE * tile.m * tile.n / 1000
    return time / 2 + TURN if tile.pingpong else time


def memory_time(moved: int, bandwidth: float) -> float:
    """Microseconds in which bytes are read and written; those that L2 holds, sooner.

    >>> memory_time(2 * 10**8, 4e6) > 5 * memory_time(3 * 10**7, 4e6)
    True
    """
    return moved / (MEMORY_RATE * bandwidth * (HELD_RATE if moved < HELD_BYTES else 1))


def waves_after(count: int, ctas_per_sm: int, start: float) -> float:
    """Microseconds of the starts of waves after the first, which others hide in part.

    >>> waves_after(3, 1, 2.0), waves_after(0, 4, 2.0)
    (3.8, 0.0)
    """
    return max(count - 1, 0) * start * (ALONE if ctas_per_sm == 1 else BESIDE)
