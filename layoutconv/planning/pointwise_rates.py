"""Rates and times of pointwise layers of 16 bits and whole vectors: short sums, bound by memory.

Fitted on an H200 to 4,476 trials of tiles, 384 passes of layers of networks and of channels drawn
at random; by halves of them, fitted on one and judged on the other (docs/lab_notebook.md). ``SUMS``
keep an earlier fit, since a new one chose worse on the half that judged. Where a
tile is not here, ``tile_table.py`` has it.
"""

from __future__ import annotations

from typing import NamedTuple

from .tile import TileConfig

Shape = tuple[int, int, int, int]  # m, n, warps_m, warps_n

# Products, memory and loads hide each other but for a rest: their times are added as a norm of this
# exponent. Memory is a little faster than kernels that do nothing else reach, as the norm has it,
# and what L2 holds from one launch to the next comes faster still: half of so many bytes.
NORM, MEMORY_RATE, HELD_RATE, HELD_BYTES = 2.3, 1.12, 3.0, 45e6
# Microseconds of an SM for a row that TMA loads, of at most 32 bytes and of at most 64. Longer ones
# come as fast as memory and products let them. And for a vector of 16 bytes that threads copy.
ROW_32, ROW_64, VECTOR = 0.003, 0.0009, 0.00024
# Of a persistent kernel, microseconds in which an SM stores 1000 results of a tile and does nothing
# else; half of that with ping-pong consumers.
STORE = 0.025
# Microseconds of a kernel that adds parts of sums up, beside memory, and of both kernels at least.
LAUNCH, TWO_LAUNCHES = 1.4, 4.35


class Found(NamedTuple):
    """A tile's rate, a share of the best of ``FAMILY``, and microseconds beside its products."""

    rate: float
    start: float


MULTISTAGE: dict[Shape, Found] = {
    (32, 128, 1, 4): Found(0.46, 2.3),
    (64, 64, 2, 2): Found(0.54, 1.8),
    (128, 32, 4, 1): Found(0.48, 2.3),
    (256, 16, 4, 1): Found(0.29, 1.6),
    (64, 128, 2, 2): Found(0.71, 2.4),
    (128, 64, 2, 2): Found(0.75, 2.4),
    (256, 32, 4, 1): Found(0.53, 2.4),
    (96, 128, 2, 2): Found(0.87, 2.4),
    (128, 128, 2, 2): Found(0.98, 3.0),
    (256, 64, 4, 1): Found(0.91, 3.8),
    (128, 256, 2, 4): Found(1.11, 3.2),
    (256, 128, 4, 2): Found(0.91, 3.1),
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
    (64, 256, 4, 2): Found(1.10, 3.2),
    (64, 128, 4, 1): Found(1.23, 2.3),
    (128, 64, 4, 1): Found(1.39, 2.2),
    (128, 128, 8, 1): Found(1.76, 2.6),
    (256, 64, 8, 1): Found(1.34, 3.1),
    (192, 128, 12, 1): Found(1.80, 3.1),
    (128, 256, 8, 1): Found(1.87, 4.0),
    (256, 128, 8, 1): Found(2.19, 4.0),
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
    (128, 32, 4, 1): Found(0.39, 2.0),
    (64, 128, 4, 1): Found(0.91, 2.0),
    (128, 64, 4, 1): Found(0.95, 2.1),
    (256, 32, 8, 1): Found(0.54, 2.1),
    (256, 64, 8, 1): Found(1.04, 2.8),
}
# By m, n, warps, and whether ping-pong; and those with a resident B.
PERSISTENT: dict[tuple[int, int, int, bool], Found] = {
    (128, 16, 4, False): Found(0.27, 2.8),
    (128, 32, 4, False): Found(0.52, 3.9),
    (128, 64, 4, False): Found(1.04, 4.5),
    (128, 128, 4, True): Found(2.03, 2.5),
    (128, 160, 8, False): Found(1.30, 2.8),
    (128, 192, 8, False): Found(1.94, 2.9),
    (192, 128, 12, False): Found(1.85, 2.9),
    (256, 96, 8, False): Found(1.49, 4.1),
    (128, 256, 8, False): Found(1.60, 4.9),
    (192, 192, 12, False): Found(1.94, 3.4),
}
RESIDENT: dict[tuple[int, int, int, bool], Found] = {
    (128, 64, 4, True): Found(1.64, 2.3),
    (128, 128, 4, True): Found(1.99, 3.0),
    (192, 128, 12, False): Found(1.69, 3.3),
    (128, 256, 8, False): Found(2.08, 4.6),
}


class Loads(NamedTuple):
    """A tile's loads of a pointwise layer.

    Attributes:
        tma: TMA loads rows, boxes of at most 128 bytes; else threads copy vectors.
        k: elements of a k-tile.
        a_along_k, b_along_k: A and B run along k in memory; else along rows and columns of D.
        b_resident: B is loaded once.
    """

    tma: bool
    k: int
    a_along_k: bool
    b_along_k: bool
    b_resident: bool

    def time(self, m: float, n: float, k: int) -> float:
        """Microseconds of an SM for the operands of ``m`` rows and ``n`` columns, sums of ``k``.

        >>> Loads(True, 64, True, True, True).time(128, 64, 64)  # whole lines
        0.0
        >>> round(Loads(True, 32, True, True, True).time(128, 64, 16), 3)
        0.384
        >>> round(Loads(False, 32, True, True, True).time(128, 64, 16), 3)
        0.061
        """
        time = self._of(m, k, self.k) if self.a_along_k else self._of(k, m, 64)
        if self.b_resident:
            return time
        return time + (self._of(n, k, self.k) if self.b_along_k else self._of(k, n, 64))

    def _of(self, rows: float, elements: float, box: int) -> float:
        """The time of rows of so many elements, in boxes of ``box``."""
        if not self.tma:
            return rows * elements / 8 * VECTOR
        whole, rest = divmod(elements, box)
        return rows * (whole * _row_time(box) + _row_time(rest))


def _row_time(elements: float) -> float:
    """Microseconds of a row of 16 bits an element that TMA loads."""
    if not 0 < elements <= 32:
        return 0.0
    return ROW_32 if elements <= 16 else ROW_64


def norm(*times: float) -> float:
    """Add up times that hide each other but for a rest.

    >>> round(norm(1.0, 1.0), 2), norm(3.0, 0.0)
    (1.35, 3.0)
    """
    return float(sum(time**NORM for time in times) ** (1 / NORM))


def store_time(tile: TileConfig) -> float:
    """Microseconds of an output tile in which a persistent kernel only stores.

    >>> from .tile import persistent
    >>> round(store_time(persistent((128, 256, 64), (8, 1), 3)), 2)
    0.82
    """
    time = STORE * tile.m * tile.n / 1000
    return time / 2 if tile.pingpong else time


def memory_time(moved: int, bandwidth: float) -> float:
    """Microseconds in which bytes are read and written; those that L2 holds, sooner.

    >>> memory_time(2 * 10**8, 4e6) > 5 * memory_time(4 * 10**7, 4e6)
    True
    """
    missed = moved**3 / (moved**3 + HELD_BYTES**3)
    return moved / (MEMORY_RATE * bandwidth) * (missed + (1 - missed) / HELD_RATE)
