"""Rates and times of pointwise layers of whole vectors: short sums, memory-bound.

Fitted on an H200 to 8,701 trials of tiles, in 793 passes of network layers and of randomly drawn
channels, and cross-validated by halves (docs/lab_notebook.md). The rates are from an earlier fit to
4,476 of these trials: in cross-validation, new ones chose no better. ``tile_table.py`` has the
tiles that are missing here.
"""

from __future__ import annotations

from typing import NamedTuple

from .schedule import Load
from .tile import LINE_BYTES, TileConfig
from .tile_table import Shape

# Products, memory and loads overlap, but not fully: their times add up as a norm of this exponent.
# Within that norm, memory is a little faster than kernels that only copy reach. Data that L2 keeps
# from one launch to the next are faster still: half of them, at this many bytes.
NORM, MEMORY_RATE, HELD_RATE, HELD_BYTES = 2.2, 1.12, 3.0, 45e6
# Microseconds of an SM per row that TMA loads, by the row's bytes: up to 16, or none; up to 48;
# less than a line; a whole line, or a row outside the matrix. Then, per vector that threads copy.
ROW_16, ROW_48, ROW_PART, ROW_LINE, VECTOR = 0.0057, 0.0038, 0.0018, 0.0005, 0.00023
# Microseconds per 1000 results of a tile in which an SM of a persistent kernel only stores; half
# of that with ping-pong consumers.
STORE = 0.0114
# Microseconds of load latency, with all stages but one in flight: of a persistent kernel; and, past
# the first stages, of a tile that one warp loads, of a multistage tile, and of a multistage tile
# that sums over pixels. Other tiles hide it.
PERSISTENT_LATENCY, ONE_WARP_LATENCY, LATENCY, LATENCY_OF_SUMS = 0.66, 0.17, 0.39, 0.71
# Share of a multistage kernel's start that each further wave takes: CTAs of an SM overlap.
MORE_WAVES = 0.72
# Microseconds of the kernel that adds up split-K slices, memory aside; and of both kernels, at
# least.
LAUNCH, TWO_LAUNCHES = 0.4, 3.6


class Rate(NamedTuple):
    """A tile's rate, relative to the best of ``FAMILY``, and microseconds beside its products."""

    rate: float
    start: float


MULTISTAGE: dict[Shape, Rate] = {
    (128, 32, 4, 1): Rate(0.50, 2.3), (256, 32, 4, 1): Rate(0.53, 2.5),
    (32, 128, 1, 4): Rate(0.46, 2.4), (64, 8, 2, 1): Rate(0.15, 2.4),
    (256, 8, 4, 1): Rate(0.25, 1.6), (256, 16, 4, 1): Rate(0.29, 1.9),
    (64, 64, 2, 2): Rate(0.57, 2.1), (128, 64, 2, 2): Rate(0.74, 2.4),
    (64, 128, 2, 2): Rate(0.71, 2.3), (256, 64, 4, 1): Rate(0.90, 4.1),
    (96, 128, 2, 2): Rate(0.87, 2.4), (128, 128, 2, 2): Rate(0.95, 3.1),
    (256, 128, 4, 2): Rate(0.91, 3.0), (128, 256, 2, 4): Rate(1.12, 3.1),
}  # fmt: skip
# Warp-specialised tiles: threads copy vectors; TMA loads rows; and for sums over pixels.
SPECIALIZED: dict[Shape, tuple[Rate | None, Rate | None, Rate | None]] = {
    (128, 8, 4, 1): (Rate(0.13, 2.4), Rate(0.13, 2.1), None),
    (128, 16, 4, 1): (Rate(0.24, 2.4), None, None),
    (128, 64, 4, 1): (None, Rate(1.42, 2.2), Rate(1.20, 2.2)),
    (256, 64, 8, 1): (None, Rate(1.32, 3.1), Rate(1.70, 3.1)),
    (64, 128, 4, 1): (Rate(1.00, 2.3), Rate(1.36, 2.1), Rate(1.24, 2.3)),
    (128, 128, 8, 1): (Rate(1.29, 2.6), Rate(1.79, 2.5), Rate(1.82, 3.1)),
    (192, 128, 12, 1): (None, Rate(1.80, 3.0), Rate(1.78, 3.4)),
    (256, 128, 8, 1): (None, Rate(2.03, 3.8), Rate(1.93, 3.8)),
    (64, 256, 4, 2): (Rate(1.10, 3.1), Rate(1.10, 3.2), Rate(1.41, 3.2)),
    (128, 256, 8, 1): (None, Rate(1.98, 4.0), Rate(1.92, 4.0)),
}
# Tiles that one TMA warp loads.
ONE_WARP: dict[Shape, Rate] = {
    (128, 32, 4, 1): Rate(0.39, 1.6),
    (64, 128, 4, 1): Rate(0.90, 1.8),
    (128, 64, 4, 1): Rate(0.88, 1.8),
    (256, 32, 8, 1): Rate(0.55, 2.0),
    (256, 64, 8, 1): Rate(1.07, 3.0),
}
# Persistent tiles by m, n, warps and whether ping-pong; then those with a resident B.
PERSISTENT: dict[tuple[int, int, int, bool], Rate] = {
    (128, 16, 4, False): Rate(0.27, 2.8),
    (128, 32, 4, False): Rate(0.50, 3.9),
    (128, 64, 4, False): Rate(0.96, 4.8),
    (128, 128, 4, True): Rate(1.83, 3.1),
    (128, 160, 8, False): Rate(1.65, 3.0),
    (128, 192, 8, False): Rate(1.79, 3.0),
    (192, 128, 12, False): Rate(1.82, 3.0),
    (256, 96, 8, False): Rate(1.65, 4.0),
    (128, 256, 8, False): Rate(1.72, 5.0),
    (192, 192, 12, False): Rate(1.91, 3.4),
}
RESIDENT: dict[tuple[int, int, int, bool], Rate] = {
    (128, 64, 4, True): Rate(1.32, 2.5),
    (128, 128, 4, True): Rate(1.87, 2.9),
    (192, 128, 12, False): Rate(1.72, 3.2),
    (128, 256, 8, False): Rate(1.99, 5.0),
}


class PointwiseLoads(NamedTuple):
    """The loads of a tile in a pointwise layer.

    Attributes:
        size: bytes per element.
        tma: TMA loads rows, in boxes of at most 128 bytes; else threads copy vectors.
        m, n, k: of the tile.
        a_along_k, b_along_k: whether A and B are K-major; else they are M- and N-major.
        b_resident: whether B is loaded only once.
    """

    size: int
    tma: bool
    m: int
    n: int
    k: int
    a_along_k: bool
    b_along_k: bool
    b_resident: bool

    def time(self, m: int, n: int, k: int) -> float:
        """Return microseconds of an SM to load a CTA's operands, the mean over a result (m, n).

        >>> whole_lines = PointwiseLoads(2, True, 128, 64, 64, True, True, True)
        >>> round(whole_lines.time(128, 64, 64), 3)
        0.064
        >>> round(PointwiseLoads(2, True, 128, 64, 32, True, True, True).time(128, 64, 16), 3)
        0.486
        >>> round(PointwiseLoads(2, False, 128, 64, 32, True, True, True).time(128, 64, 16), 3)
        0.059
        """
        time = self._along_k(m, self.m, k) if self.a_along_k else self._across(k, m, self.m)
        if self.b_resident:
            return time
        return time + (
            self._along_k(n, self.n, k) if self.b_along_k else self._across(k, n, self.n)
        )

    def _along_k(self, size: int, tile: int, k: int) -> float:
        """Return microseconds of a K-major tile: TMA fills rows past the end with zeros."""
        rows = size / -(-size // tile)
        if not self.tma:
            return rows * k * self.size / 16 * VECTOR
        whole, rest = divmod(k, self.k)
        of_row = whole * self._row(self.k) + (self._row(rest) if rest else 0.0)
        return rows * of_row + (tile - rows) * (whole + (rest > 0)) * ROW_LINE

    def _across(self, k: int, size: int, tile: int) -> float:
        """Return microseconds of an M/N-major tile: per row of k, one box per line; the last tile
        may lack some."""
        tiles = -(-size // tile)
        if not self.tma:
            return k * size / tiles * self.size / 16 * VECTOR
        line = LINE_BYTES // self.size
        boxes, (whole, rest) = -(-tile // line), divmod(size - (tiles - 1) * tile, line)
        time = self._boxes(tile) * (tiles - 1) + whole * self._row(line)
        if rest:
            time += self._row(rest)
        return k * (time + (boxes - whole - (rest > 0)) * self._row(0)) / tiles

    def _boxes(self, elements: int) -> float:
        """Return microseconds of a row: its whole boxes, and the remainder."""
        whole, rest = divmod(elements * self.size, LINE_BYTES)
        return whole * ROW_LINE + (self._row(rest // self.size) if rest else 0.0)

    def _row(self, elements: int) -> float:
        """Return microseconds of a row of elements that TMA loads."""
        nbytes = elements * self.size
        if nbytes <= 48:
            return ROW_16 if nbytes <= 16 else ROW_48
        return ROW_PART if nbytes < LINE_BYTES else ROW_LINE


class Latency(NamedTuple):
    """The time that a CTA waits for its k-tiles.

    Attributes:
        k_tile: microseconds per k-tile, with others in flight.
        ahead: k-tiles of a sum that are loaded at once, without a wait; 0 for a persistent kernel,
            whose sums are one pipeline.
    """

    k_tile: float
    ahead: int

    @classmethod
    def of(cls, tile: TileConfig, along_k: bool) -> Latency:
        """Return the latency of a tile's loads.

        >>> from .tile import persistent
        >>> Latency.of(persistent((128, 256, 64), (8, 1), 3), True)
        Latency(k_tile=0.33, ahead=0)
        """
        ahead = max(1, tile.stages - 1)
        if tile.persistent:
            return cls(PERSISTENT_LATENCY / ahead, 0)
        if tile.load is Load.TMA_WARP:
            return cls(ONE_WARP_LATENCY / ahead, ahead)
        if tile.warp_specialized:
            return cls(0.0, 0)
        return cls((LATENCY if along_k else LATENCY_OF_SUMS) / ahead, ahead)

    def time(self, k_tiles: int, sums: int) -> float:
        """Return microseconds of waiting for ``sums`` sums, one after the other."""
        return self.k_tile * max(0, k_tiles - self.ahead) * sums


def norm(*times: float) -> float:
    """Add up times that overlap, but not fully.

    >>> round(norm(1.0, 1.0), 2), round(norm(3.0, 0.0), 2)
    (1.37, 3.0)
    """
    return float(sum(time**NORM for time in times) ** (1 / NORM))


def store_time(tile: TileConfig) -> float:
    """Return microseconds per output tile in which a persistent kernel only stores.

    >>> from .tile import persistent
    >>> round(store_time(persistent((128, 256, 64), (8, 1), 3)), 2)
    0.37
    """
    time = STORE * tile.m * tile.n / 1000
    return time / 2 if tile.pingpong else time


def memory_time(moved: int, bandwidth: float) -> float:
    """Return microseconds to read and write bytes; those that L2 holds are faster.

    >>> memory_time(2 * 10**8, 4e6) > 5 * memory_time(4 * 10**7, 4e6)
    True
    """
    missed = moved**3 / (moved**3 + HELD_BYTES**3)
    return moved / (MEMORY_RATE * bandwidth) * (missed + (1 - missed) / HELD_RATE)
