"""Tile table: which tiles there are, their stages, and how fast each is.

Rates are shares of that of the best tile of Ampere's loop when a GPU is full, measured on an H200;
those of Hopper's tiles are fits to 1,504 trials of tiles on an H100, and to 1,645 more, of layers
of networks (docs/lab_notebook.md). ``tune`` makes of them which tile runs a problem.

Rates of tiles of 8 and of 16 columns, and of persistent ones of 32 and 64, are estimates until
``benchmarks/race_narrow.py`` has been run. What bounds narrow tiles are rows, which are read for
few products: from L2 as fast as those of 64 columns, an eighth of whose rate 8 columns have then;
with halo reuse from shared memory, 128 bytes a cycle: 2304 for 64 rows of 32 bytes and 8 columns,
3072 with 32 columns, so a third of their rate.
"""

from __future__ import annotations

from typing import NamedTuple

from .schedule import Load
from .tile import TileConfig, persistent, specialized

Shape = tuple[int, int, int, int]  # m, n, warps_m, warps_n

# (m, n, warps_m, warps_n): share of the best tile's rate on a full GPU, measured on an H200 with
# fp16 C = K = 32, 64, 256 and tf32 C = 64, K = 128; docs/performance.md has the runs.
FAMILY = {
    (128, 32, 4, 1): 0.46, (256, 32, 4, 1): 0.48, (32, 128, 1, 4): 0.46,
    (64, 8, 2, 1): 0.12, (256, 8, 4, 1): 0.14, (256, 16, 4, 1): 0.26,
    (64, 64, 2, 2): 0.60, (128, 64, 2, 2): 0.74, (64, 128, 2, 2): 0.74,
    (256, 64, 4, 1): 0.85, (96, 128, 2, 2): 0.87, (128, 128, 2, 2): 0.95,
    (256, 128, 4, 2): 0.99, (128, 256, 2, 4): 1.00,
}  # fmt: skip
# Stages of the tiles of Hopper's own instructions, of which a warpgroup copies.
HOPPER = {
    (128, 8, 4, 1): 4,
    (128, 16, 4, 1): 4,
    (128, 64, 4, 1): 4,
    (256, 64, 8, 1): 5,
    (64, 128, 4, 1): 4,
    (128, 128, 8, 1): 5,
    (64, 256, 4, 2): 5,
    (192, 128, 12, 1): 4,
    (256, 128, 8, 1): 4,
    (128, 256, 8, 1): 4,
}
# Their rates, as shares of the best tile's above: of vectors that threads copy, for data of 16 and
# 8 bits; of tf32 that they round; and where TMA loads both operands, whatever the type.
COPIED = dict(
    zip(HOPPER, (0.12, 0.23, 0.91, 1.08, 0.88, 1.22, 1.05, 1.40, 1.55, 1.69), strict=True)
)
ROUNDED = dict(
    zip(HOPPER, (0.12, 0.23, 0.95, 1.05, 1.00, 1.15, 0.80, 1.60, 0.80, 1.54), strict=True)
)
# Of tf32 whose operands run along M and N: producers turn B, and consumers A, word by word.
TURNED = dict(
    zip(HOPPER, (0.12, 0.23, 0.55, 0.68, 0.43, 0.72, 0.43, 0.86, 0.60, 0.82), strict=True)
)
MAPPED = dict(
    zip(HOPPER, (0.12, 0.23, 1.02, 1.10, 1.02, 1.73, 1.05, 1.73, 1.79, 2.02), strict=True)
)
# The same where sums run across memory in both operands: filter gradients of 16 bits, whose small
# tiles were raced apart.
MAPPED_SUMS = dict(
    zip(HOPPER, (0.12, 0.23, 1.20, 1.60, 1.20, 1.73, 1.25, 1.73, 1.79, 2.02), strict=True)
)
# The same where a tile of A serves the taps of a row of the filter, with k-tiles of half a line.
WINDOWS = {
    (128, 32, 4, 1): (1.25, 4),
    (128, 64, 4, 1): (1.26, 4),
    (256, 64, 8, 1): (1.54, 6),
}
ROUNDED_WINDOWS = 0.75  # times as fast with tf32
# Where TMA loads both operands, one warp issues the copies, and two or three CTAs fit an SM: one
# stores while others multiply. Rates, microseconds of a wave beside its products, and stages: of
# two taps, as of strided passes, and of more.
MAPPED_WINDOWS = {
    (256, 8, 8, 1): (0.42, 2.0, 3, 3),
    (256, 16, 8, 1): (0.75, 2.0, 3, 3),
    (256, 32, 8, 1): (1.27, 2.0, 3, 3),
    (128, 64, 4, 1): (1.54, 2.0, 3, 3),  # of 16 bits: of tf32 the larger one is never slower
    (256, 64, 8, 1): (1.57, 2.0, 4, 3),
    (128, 128, 4, 1): (1.80, 2.0, 4, 0),  # more than two taps gain nothing
}
# The best tiles where TMA loads both operands and one warp issues the copies: their rates, and
# microseconds of a wave beside its products. As many fit an SM as it has registers for.
ONE_WARP = {
    (128, 8, 4, 1): (0.12, 1.4),
    (128, 16, 4, 1): (0.24, 1.4),
    (64, 128, 4, 1): (0.98, 1.0),
    (128, 64, 4, 1): (0.90, 1.4),
    (256, 64, 8, 1): (1.02, 3.2),
}


class PersistentRow(NamedTuple):
    """A tile of a persistent kernel, its rate, microseconds beside all products, and stages."""

    m: int
    n: int
    warps: int
    pingpong: bool
    b_resident: bool
    rate: float
    start: float
    stages: int

    @property
    def key(self) -> tuple[int, int, int, bool, bool]:
        return self[:5]


# Tiles for columns that others pad; of 160, the rate lies between those of its neighbours.
WHOLE_COLUMNS = [
    PersistentRow(256, 96, 8, False, False, 1.76, 4.0, 5),
    PersistentRow(128, 160, 8, False, False, 1.70, 3.0, 6),
    PersistentRow(128, 192, 8, False, False, 1.75, 3.0, 5),
    PersistentRow(192, 192, 12, False, False, 2.20, 3.2, 4),
]
# Of pointwise layers, with all of B in shared memory: TMA then loads rows of A alone.
RESIDENT = [
    PersistentRow(128, 32, 4, True, True, 0.60, 3.0, 8),
    PersistentRow(128, 64, 4, True, True, 1.17, 2.8, 8),
    PersistentRow(128, 128, 4, True, True, 1.78, 3.0, 6),
    PersistentRow(192, 128, 12, False, True, 1.74, 3.2, 5),
    PersistentRow(128, 256, 8, False, True, 1.98, 5.0, 5),
]
# Of 16 bits and of tf32, by the taps that share rows; 3 are three or more.
PERSISTENT = {
    1: [
        PersistentRow(128, 8, 4, False, False, 0.13, 3.0, 4),
        PersistentRow(256, 8, 8, False, False, 0.13, 3.0, 3),
        PersistentRow(128, 16, 4, False, False, 0.25, 3.0, 4),
        PersistentRow(128, 32, 4, False, False, 0.55, 4.0, 4),
        PersistentRow(128, 64, 4, False, False, 1.00, 4.0, 4),
        PersistentRow(128, 128, 4, True, False, 1.74, 3.0, 6),
        PersistentRow(192, 128, 12, False, False, 1.76, 3.2, 4),
        PersistentRow(128, 256, 8, False, False, 2.00, 5.2, 3),
        *WHOLE_COLUMNS,
        *RESIDENT,
    ],
    2: [
        PersistentRow(256, 64, 8, False, False, 1.59, 3.0, 5),
        PersistentRow(256, 128, 8, False, False, 1.50, 3.0, 4),
        PersistentRow(128, 64, 4, True, True, 1.80, 3.0, 6),
        PersistentRow(128, 128, 4, True, True, 1.77, 3.0, 6),
    ],
    3: [
        PersistentRow(256, 64, 8, False, False, 1.56, 3.0, 5),
        PersistentRow(128, 64, 4, True, False, 1.52, 3.0, 9),
        PersistentRow(128, 64, 4, True, True, 1.80, 3.0, 6),
        PersistentRow(128, 32, 4, True, True, 1.20, 2.6, 5),
    ],
}
# Stages of the tiles that are best with k-tiles of half a line: two CTAs fit, one would not.
HALF_LINES = {(256, 64, 4, 1): 4}
WARPGROUP_TYPES = (
    "float16", "bfloat16", "tfloat32", "int8", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
# Microseconds of a wave beside its products where that is not WAVE: many rows to start with, and of
# those that fill an SM alone a store that nothing else hides.
SLOW_START = {
    (256, 64, 4, 1): 5.4, (256, 64, 8, 1): 3.3, (128, 128, 8, 1): 2.6,
    (192, 128, 12, 1): 3.1, (64, 256, 4, 2): 3.2, (256, 128, 8, 1): 3.8,
    (128, 256, 8, 1): 4.0,
}  # fmt: skip
# Multistage tiles of tf32 whose operands run along M and N, by their warps: no ldmatrix turns
# words, so that fragments are read one by one.
WORD_BY_WORD = {2: 0.82, 4: 0.82, 8: 0.95}
# Of k-tiles of half a line, these are so much slower: a barrier for half as many products.
HALF_LINE_RATE = 0.85
MANY_PRODUCTS = 128 * 128  # of a tile that one warp copies: these are enough for a barrier


class GatheredRow(NamedTuple):
    """The rate, the stages and the load of a tile whose rows are gathered."""

    rate: float
    stages: int
    load: Load = Load.CP_ASYNC_WARPGROUP


_HALF = Load.CP_ASYNC_HALF_WARPGROUP
# Tiles of kernel maps, for data of 16 and 8 bits. Two of 128x128 fit an SM if half a warpgroup
# loads.
GATHERED = {
    (128, 8, 4, 1): GatheredRow(0.16, 4), (128, 16, 4, 1): GatheredRow(0.31, 4),
    (128, 32, 4, 1): GatheredRow(0.59, 4), (64, 64, 4, 1): GatheredRow(0.93, 3),
    (128, 64, 4, 1): GatheredRow(1.05, 4), (64, 128, 4, 1): GatheredRow(1.25, 4),
    (128, 128, 8, 1): GatheredRow(1.42, 3, _HALF), (64, 256, 4, 2): GatheredRow(1.30, 5),
    (128, 256, 8, 1): GatheredRow(1.68, 4),
}  # fmt: skip
# The same for tf32, of which producers may round B.
ROUNDED_GATHERED = {
    (128, 32, 4, 1): GatheredRow(0.57, 4), (64, 64, 4, 1): GatheredRow(0.81, 4),
    (128, 64, 4, 1): GatheredRow(0.87, 4), (64, 128, 4, 1): GatheredRow(1.07, 4),
    (128, 128, 8, 1): GatheredRow(1.19, 5), (64, 256, 4, 2): GatheredRow(1.15, 5),
    (128, 256, 8, 1): GatheredRow(1.40, 4),
}  # fmt: skip
# Of sums over pairs of rows, both gathered, of 16 bits, in chunks of about a wave (a race of 480
# trials on an H100): rates are bounded by the rows that a product takes from L2, of which large
# tiles read fewer, and by the CTAs that wait for them, of which small ones are more: 128x128 with
# five stages, alone on an SM, has 0.67. Those of 128x64, 64x128 and 192x128 are estimates from
# this. ``mma.sync`` reaches 0.51 with 64x64 and 0.83 with 128x128: never faster.
GATHERED_SUMS = {
    (64, 64, 4, 1): GatheredRow(0.56, 3), (128, 64, 4, 1): GatheredRow(0.68, 4),
    (64, 128, 4, 1): GatheredRow(0.68, 4), (128, 128, 8, 1): GatheredRow(0.91, 3, _HALF),
    (192, 128, 12, 1): GatheredRow(0.91, 4), (256, 128, 8, 1): GatheredRow(1.08, 4),
    (128, 256, 8, 1): GatheredRow(1.10, 4),
}  # fmt: skip


def shapes(arch: str, dtype: str) -> list[Shape]:
    """The tiles that a machine runs for a type of data."""
    hopper = arch == "sm_90a" and dtype in WARPGROUP_TYPES
    return [*FAMILY, *(HOPPER if hopper else ())]


def tile_of(shape: Shape, k: int, half_line: int) -> TileConfig:
    """The tile of a shape, with k-tiles of ``k``, or what suits the shape better."""
    m, n, warps_m, warps_n = shape
    warps = warps_m, warps_n
    stages = HOPPER.get(shape)
    if stages:
        return specialized((m, n, k), warps, stages)
    if shape in HALF_LINES:
        return TileConfig((m, n, half_line), warps, HALF_LINES[shape])
    return TileConfig((m, n, k), warps, stages=3)


def persistent_tile(
    row: PersistentRow, k: int, halo_taps: int = 1, b_k_tiles: int = 0, stages: int = 0
) -> TileConfig:
    """Return the tile of a row, of k-tiles of ``k``; B has ``b_k_tiles``, if it is resident.

    ``stages``: those of the row, if nobody says.
    """
    return persistent(
        (row.m, row.n, k), (row.warps, 1), stages or row.stages, pingpong=row.pingpong,
        halo_taps=halo_taps, b_resident=b_k_tiles if row.b_resident else 0,
    )  # fmt: skip


def persistent_row(tile: TileConfig) -> PersistentRow:
    """Return the row of the table that a persistent tile is made of."""
    key = tile.m, tile.n, tile.warps[0], tile.pingpong, tile.b_resident > 0
    return next(row for row in PERSISTENT[min(tile.halo_taps, 3)] if row.key == key)
