"""Tile table: the tiles that kernels have, with their stages and rates.

Rates are relative to the best tile of Ampere's mainloop on a full GPU, measured on an H200; rates
of Hopper's tiles are fits to 1,504 trials of tiles on an H100, and to 1,645 more on layers of
networks (docs/lab_notebook.md). The cost model uses them to choose the tile of a problem.

Rates of tiles of 8 and of 16 columns, and of persistent ones of 32 and 64, are estimates until
``benchmarks/race_narrow.py`` has been run. Narrow tiles are bound by reading rows for few products.
From L2 they read rows as fast as tiles of 64 columns, so 8 columns have an eighth of their rate.
With halo reuse they read shared memory at 128 bytes a cycle: 2304 bytes for 64 rows of 32 bytes and
8 columns, 3072 with 32 columns, so 8 columns have a third of their rate.
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
# Stages of Hopper's ``wgmma`` tiles whose producer is a warpgroup.
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
# Their rates, relative to the best tile above: with vectors that threads copy, for data of 16 and 8
# bits; with tf32 that threads round; and below, MAPPED, if TMA loads both operands of any type.
COPIED = dict(
    zip(HOPPER, (0.12, 0.23, 0.91, 1.08, 0.88, 1.22, 1.05, 1.40, 1.55, 1.69), strict=True)
)
ROUNDED = dict(
    zip(HOPPER, (0.12, 0.23, 0.95, 1.05, 1.00, 1.15, 0.80, 1.60, 0.80, 1.54), strict=True)
)
# For tf32 operands contiguous along M and N: producers transpose B, consumers A, word by word.
TURNED = dict(
    zip(HOPPER, (0.12, 0.23, 0.55, 0.68, 0.43, 0.72, 0.43, 0.86, 0.60, 0.82), strict=True)
)
MAPPED = dict(
    zip(HOPPER, (0.12, 0.23, 1.02, 1.10, 1.02, 1.73, 1.05, 1.73, 1.79, 2.02), strict=True)
)
# The same if neither operand is contiguous along k: filter gradients of 16 bits, whose small tiles
# were raced separately.
MAPPED_SUMS = dict(
    zip(HOPPER, (0.12, 0.23, 1.20, 1.60, 1.20, 1.73, 1.25, 1.73, 1.79, 2.02), strict=True)
)
# Rate and stages with halo reuse (a tile of A serves a filter row), k-tiles of half a line.
WINDOWS = {
    (128, 32, 4, 1): (1.25, 4),
    (128, 64, 4, 1): (1.26, 4),
    (256, 64, 8, 1): (1.54, 6),
}
ROUNDED_WINDOWS = 0.75  # factor for tf32
# If TMA loads both operands, one warp issues the copies, and two or three CTAs fit an SM: one
# stores while others multiply. Rates, microseconds of a wave beside its products, and stages: for
# two taps, as in strided passes, and for more.
MAPPED_WINDOWS = {
    (256, 8, 8, 1): (0.42, 2.0, 3, 3),
    (256, 16, 8, 1): (0.75, 2.0, 3, 3),
    (256, 32, 8, 1): (1.27, 2.0, 3, 3),
    (128, 64, 4, 1): (1.54, 2.0, 3, 3),  # for 16 bits: with tf32 the larger one is never slower
    (256, 64, 8, 1): (1.57, 2.0, 4, 3),
    (128, 128, 4, 1): (1.80, 2.0, 4, 0),  # more than two taps gain nothing
}
# The best tiles if TMA loads both operands and one warp issues the copies: their rates, and
# microseconds of a wave beside its products. Registers bound their occupancy.
ONE_WARP = {
    (128, 8, 4, 1): (0.12, 1.4),
    (128, 16, 4, 1): (0.24, 1.4),
    (64, 128, 4, 1): (0.98, 1.0),
    (128, 64, 4, 1): (0.90, 1.4),
    (256, 64, 8, 1): (1.02, 3.2),
}


class PersistentRow(NamedTuple):
    """A tile of a persistent kernel: its rate, microseconds beside all products, and stages."""

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


# Tiles for columns that others would pad; the rate of 160 lies between those of its neighbours.
WHOLE_COLUMNS = [
    PersistentRow(256, 96, 8, False, False, 1.76, 4.0, 5),
    PersistentRow(128, 160, 8, False, False, 1.70, 3.0, 6),
    PersistentRow(128, 192, 8, False, False, 1.75, 3.0, 5),
    PersistentRow(192, 192, 12, False, False, 2.20, 3.2, 4),
]
# For pointwise layers, with all of B resident in shared memory: TMA then loads only rows of A.
RESIDENT = [
    PersistentRow(128, 32, 4, True, True, 0.60, 3.0, 8),
    PersistentRow(128, 64, 4, True, True, 1.17, 2.8, 8),
    PersistentRow(128, 128, 4, True, True, 1.78, 3.0, 6),
    PersistentRow(192, 128, 12, False, True, 1.74, 3.2, 5),
    PersistentRow(128, 256, 8, False, True, 1.98, 5.0, 5),
]
# For 16 bits and tf32, by the number of taps that share rows; 3 means three or more.
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
# Stages of the tiles that are best with k-tiles of half a line: with these two CTAs fit an SM.
HALF_LINES = {(256, 64, 4, 1): 4}
WARPGROUP_TYPES = (
    "float16", "bfloat16", "tfloat32", "int8", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
# Microseconds of a wave beside its products if that is not WAVE: these tiles load many rows first,
# and a tile alone on an SM has a store that no other CTA hides.
SLOW_START = {
    (256, 64, 4, 1): 5.4, (256, 64, 8, 1): 3.3, (128, 128, 8, 1): 2.6,
    (192, 128, 12, 1): 3.1, (64, 256, 4, 2): 3.2, (256, 128, 8, 1): 3.8,
    (128, 256, 8, 1): 4.0,
}  # fmt: skip
# Factor for multistage tf32 tiles with operands contiguous along M and N, by their warps: ldmatrix
# cannot transpose words, so fragments are read as words, those of A in pairs.
WORD_BY_WORD = {2: 0.82, 4: 0.82, 8: 0.95}
# Factor for k-tiles of half a line: a barrier serves half as many products.
HALF_LINE_RATE = 0.85
MANY_PRODUCTS = 128 * 128  # in a tile that one warp copies: enough for a barrier


class GatheredRow(NamedTuple):
    """The rate, the stages and the load of a tile whose rows are gathered."""

    rate: float
    stages: int
    load: Load = Load.CP_ASYNC_WARPGROUP


_HALF = Load.CP_ASYNC_HALF_WARPGROUP
# Tiles over kernel maps, 16 and 8 bits. Two of 128x128 fit an SM if half a warpgroup loads.
GATHERED = {
    (128, 8, 4, 1): GatheredRow(0.16, 4), (128, 16, 4, 1): GatheredRow(0.31, 4),
    (128, 32, 4, 1): GatheredRow(0.59, 4), (64, 64, 4, 1): GatheredRow(0.93, 3),
    (128, 64, 4, 1): GatheredRow(1.05, 4), (64, 128, 4, 1): GatheredRow(1.25, 4),
    (128, 128, 8, 1): GatheredRow(1.42, 3, _HALF), (64, 256, 4, 2): GatheredRow(1.30, 5),
    (128, 256, 8, 1): GatheredRow(1.68, 4),
}  # fmt: skip
# The same for tf32, where producers may round B.
ROUNDED_GATHERED = {
    (128, 32, 4, 1): GatheredRow(0.57, 4), (64, 64, 4, 1): GatheredRow(0.81, 4),
    (128, 64, 4, 1): GatheredRow(0.87, 4), (64, 128, 4, 1): GatheredRow(1.07, 4),
    (128, 128, 8, 1): GatheredRow(1.19, 5), (64, 256, 4, 2): GatheredRow(1.15, 5),
    (128, 256, 8, 1): GatheredRow(1.40, 4),
}  # fmt: skip
# For 16-bit sums over pairs of rows, both gathered, in chunks of about a wave (a race of 480 trials
# on an H100). Rates are bounded by the rows read from L2 per product, fewer with large tiles, and
# by the number of CTAs per SM that wait for them, more with small tiles: 128x128 with five stages,
# alone on an SM, has 0.67. Rates of 128x64, 64x128 and 192x128 are estimates from this.
# ``mma.sync`` reaches 0.51 with 64x64 and 0.83 with 128x128: never faster.
GATHERED_SUMS = {
    (64, 64, 4, 1): GatheredRow(0.56, 3), (128, 64, 4, 1): GatheredRow(0.68, 4),
    (64, 128, 4, 1): GatheredRow(0.68, 4), (128, 128, 8, 1): GatheredRow(0.91, 3, _HALF),
    (192, 128, 12, 1): GatheredRow(0.91, 4), (256, 128, 8, 1): GatheredRow(1.08, 4),
    (128, 256, 8, 1): GatheredRow(1.10, 4),
}  # fmt: skip


def shapes(arch: str, dtype: str) -> list[Shape]:
    """Return the shapes of the tiles that an architecture runs for a dtype."""
    hopper = arch == "sm_90a" and dtype in WARPGROUP_TYPES
    return [*FAMILY, *(HOPPER if hopper else ())]


def tile_of(shape: Shape, k: int, half_line: int) -> TileConfig:
    """Return the tile of a shape, with k-tiles of ``k``, or of ``half_line`` for some."""
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
    """Return the tile of a row, with k-tiles of ``k``; B has ``b_k_tiles`` if it is resident.

    ``stages``: if 0, those of the row.
    """
    return persistent(
        (row.m, row.n, k), (row.warps, 1), stages or row.stages, pingpong=row.pingpong,
        halo_taps=halo_taps, b_resident=b_k_tiles if row.b_resident else 0,
    )  # fmt: skip


def persistent_row(tile: TileConfig) -> PersistentRow:
    """Return the row of the table that a persistent tile was made from."""
    key = tile.m, tile.n, tile.warps[0], tile.pingpong, tile.b_resident > 0
    return next(row for row in PERSISTENT[min(tile.halo_taps, 3)] if row.key == key)
