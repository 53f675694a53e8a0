"""Times of Hopper tiles over kernel maps, which skip the taps that none of their rows has.

CTAs differ: one has every tap, most have half of them. Rows are sorted by their taps, so the
longest CTAs start first. A cloud of few rows therefore takes as long as its longest CTA, which
cluster split-K shortens; a cloud of many rows takes as long as all CTAs together. Fitted on an H200
to 3,500 trials of tiles, for submanifold and strided layers of three clouds at all their levels; on
the levels of two other clouds the pick loses 2% to the best trial (docs/lab_notebook.md).
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

from .kernel_spec import BYTES
from .tile import LINE_BYTES, TileConfig, specialized
from .tile_table import Shape

LEAST_COLUMNS = 17  # tiles of 8 and 16 columns were not raced
# At this many rows, the average CTA has half of all taps; more with fewer rows.
HALF_FULL, THINNING = 127_000.0, 0.27
# Share of the taps that the longest CTA has: strided 2x2x2 filters seldom find all of them.
SMALL_FILTER, OF_SMALL_FILTER = 8, 0.6
# Time of a half-line k-tile relative to a whole line's: for 64 rows, and for more.
HALF_LINE_TIME = {64: 0.85, 128: 0.71}
# Microseconds for a cluster to synchronise, and to reduce tiles of 8192 results (twice that for
# four CTAs). In tf32 they vanish beside the prologue and epilogue of a CTA.
MEETING, ADDING_UP = 1.1, 0.6


class MapTile(NamedTuple):
    """Microseconds of a tile over a kernel map: per k-tile, and once beside all of them."""

    k_tile: float
    start: float


# For 16 and 8 bits, and for tf32, with k-tiles of a whole line; 32 columns in tf32 are an estimate.
OF_LINES: dict[Shape, tuple[MapTile, MapTile]] = {
    (128, 32, 4, 1): (MapTile(0.21, 3.4), MapTile(0.22, 5.9)),
    (64, 64, 4, 1): (MapTile(0.150, 3.2), MapTile(0.155, 5.7)),
    (128, 64, 4, 1): (MapTile(0.240, 4.2), MapTile(0.325, 6.0)),
    (64, 128, 4, 1): (MapTile(0.207, 3.2), MapTile(0.233, 6.1)),
    (128, 128, 8, 1): (MapTile(0.379, 5.0), MapTile(0.380, 6.8)),
    (64, 256, 4, 2): (MapTile(0.303, 4.1), MapTile(0.356, 7.3)),
    (128, 256, 8, 1): (MapTile(0.549, 5.8), MapTile(0.66, 10.0)),
}
# For 16 bits, where an SM has few CTAs: k-tiles of two to five half lines, the key, with the stages
# that fill shared memory. Three and five are all channels of a tap that are no multiple of a line;
# four save barriers. The time is that of a whole k-tile.
SEVERAL_LINES: dict[int, dict[Shape, tuple[MapTile, int]]] = {
    2: {
        (64, 64, 4, 1): (MapTile(0.145, 3.2), 6),
    },
    3: {
        (64, 64, 4, 1): (MapTile(0.250, 3.0), 4),
        (128, 64, 4, 1): (MapTile(0.285, 5.0), 4),
        (64, 128, 4, 1): (MapTile(0.219, 6.0), 4),
        (128, 128, 8, 1): (MapTile(0.414, 6.0), 4),
    },
    4: {
        (64, 64, 4, 1): (MapTile(0.235, 3.0), 6),
        (64, 128, 4, 1): (MapTile(0.327, 3.1), 4),
    },
    5: {
        (64, 64, 4, 1): (MapTile(0.440, 6.0), 2),
        (64, 128, 4, 1): (MapTile(0.549, 6.0), 3),
    },
}


def tiles_of_several_lines(dtype: str, channels: int) -> list[TileConfig]:
    """Return the tiles of ``SEVERAL_LINES``, whose k-tiles lie within one tap of ``channels``.

    >>> [(tile.m, tile.n, tile.k) for tile in tiles_of_several_lines("float16", 160)]
    [(64, 64, 160), (64, 128, 160)]
    >>> sorted({tile.k for tile in tiles_of_several_lines("float16", 256)})
    [64, 128]
    >>> tiles_of_several_lines("float16", 32), tiles_of_several_lines("tfloat32", 96)
    ([], [])
    """
    half_line = LINE_BYTES // 2 // BYTES[dtype]
    found = []
    for halves, table in SEVERAL_LINES.items() if BYTES[dtype] == 2 else ():
        whole_lines = channels % (2 * half_line) == 0
        if channels % (halves * half_line) == 0 and whole_lines == (halves % 2 == 0):
            found += [
                specialized((m, n, halves * half_line), (warps_m, warps_n), stages)
                for (m, n, warps_m, warps_n), (_, stages) in table.items()
            ]
    return found


class MapTerms(NamedTuple):
    """The terms of a tile's time that do not depend on rows or on the length of sums.

    Attributes:
        product: microseconds of a CTA per product of every sum.
        start: microseconds beside them, including the reduction of a cluster.
        at_once: CTAs per SM.
    """

    product: float
    start: float
    at_once: int

    def time(self, rows: int, k: int, taps: int, ctas: int, sms: int) -> float:
        """Return microseconds of ``ctas`` CTAs, those of clusters included, over a map of ``rows``
        rows, for sums of ``k`` products over ``taps`` taps.

        >>> of = MapTerms(0.01, 3.0, 2)
        >>> of.time(1000, 1000, 27, 132, 132), of.time(1000, 1000, 27, 12, 132)
        (13.0, 13.0)
        >>> 15 < of.time(10**5, 1000, 27, 264, 132) < of.time(1000, 1000, 27, 264, 132) < 23
        True
        """
        longest = self.product * k * (OF_SMALL_FILTER if taps <= SMALL_FILTER else 1.0)
        on_each = ctas / sms
        full: float = 1 / (1 + (rows / HALF_FULL) ** THINNING)
        turns = max(1, ceil(on_each / self.at_once))
        return longest * (1 + full * max(0.0, on_each - 1)) + self.start * turns


def map_terms(tile: TileConfig, dtype: str, at_once: int) -> MapTerms | None:
    """Return the terms of a tile; None if this file has no time for it.

    >>> from .tile import specialized
    >>> one, two = (specialized((64, 128, 64), (4, 1), 4, cluster_k=n) for n in (1, 2))
    >>> terms = map_terms(one, "float16", 2)
    >>> round(terms.product * 27 * 128, 1), terms.start
    (11.2, 3.2)
    >>> terms = map_terms(two, "float16", 2)
    >>> round(terms.product * 27 * 128, 1), round(terms.start, 1)
    (5.6, 4.9)
    """
    found = _found(tile, dtype) if tile.warp_specialized else None
    if found is None:
        return None
    k_tile, start = found
    if tile.cluster_k > 1 and dtype != "tfloat32":
        start += MEETING + ADDING_UP * log2(tile.cluster_k) * tile.m * tile.n / 8192
    return MapTerms(k_tile / (tile.k * tile.cluster_k), start, at_once)


def _found(tile: TileConfig, dtype: str) -> MapTile | None:
    """Return the table entry of a tile, whichever k-tile length it has."""
    shape, halves = (tile.m, tile.n, *tile.warps), 2 * tile.k * BYTES[dtype] // LINE_BYTES
    several, stages = SEVERAL_LINES.get(halves, {}).get(shape, (None, 0))
    if halves > 2 or tile.stages == stages:
        return several
    if shape not in OF_LINES:
        return None
    found = OF_LINES[shape][dtype == "tfloat32"]
    return found if halves == 2 else found._replace(k_tile=found.k_tile * HALF_LINE_TIME[tile.m])
