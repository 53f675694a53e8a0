"""Load times of short rows of A: rows of few or padded channels that TMA loads, and rows whose
channels are too few or unaligned for ``cp.async``, which threads load through registers.
"""

from __future__ import annotations

from .schedule import Load
from .tile import LINE_BYTES, TileConfig

# Microseconds of an SM for a row of A, by the most bytes of it that are in memory; for a box of B
# of short rows, which windows of shared rows hide, and for one of its columns. Of 12 races of
# padded channels on an H200, the longest of products, memory and these loads chose tiles 3% slower
# than the best, 33% without them: 16 channels of fp16 took 178 us in a tile that was expected to
# take 80, and 77 where threads copy.
ROWS = ((32, 0.0020), (48, 0.0037), (LINE_BYTES - 1, 0.0018), (LINE_BYTES, 0.0005))
# Of tf32, which TMA rounds as it copies, 96 bytes take twice as long: stems of 3x7x7 taps, of 24
# channels of 32, took 1.4 times as long by TMA as by threads.
ROWS_OF_TF32 = ((32, 0.0020), (48, 0.0037), (64, 0.0018), (LINE_BYTES - 1, 0.0037), ROWS[-1])
BOX, COLUMN = 0.25, 0.001
SHORT = LINE_BYTES // 2  # bytes: rows of no fewer, all in memory, were not slower
# Elements that the threads of an SM load through registers in a microsecond, H200. Rows that are
# short, as of images and volumes: 15 layers of 9 to 441 terms. Longer ones, of odd channels: 3,000
# to 9,000 in nine gradients. Across the sum, in wgrad with 5 channels: a million took 520 us.
OF_SHORT_ROWS, OF_LONG_ROWS, ACROSS = 8000.0, 4000.0, 2100.0


def copies_by_registers(row_bytes: int) -> float:
    """Return the elements per microsecond that the threads of an SM load through registers.

    ``row_bytes``: contiguous bytes along the sum; 0 if the sum runs across memory, as in wgrad.

    >>> [copies_by_registers(row_bytes) for row_bytes in (0, 6, 510)]
    [2100.0, 8000.0, 4000.0]
    """
    if not row_bytes:
        return ACROSS
    return OF_SHORT_ROWS if row_bytes < SHORT else OF_LONG_ROWS


def time_of_tap(tile: TileConfig, columns: float, stored: int, size: int) -> float:
    """Return the microseconds that the TMA warp of a tile takes to load a tap; 0 without one.

    Args:
        tile: the tile; other loads than ``Load.TMA_WARP`` give 0.
        columns: columns of the result in a tile.
        stored: channels of a tap in memory, without padding.
        size: bytes per element.

    >>> from .tile import persistent
    >>> tile = persistent((128, 32, 32), (4, 1), 4)
    >>> [round(time_of_tap(tile, 32, C, 2), 2) for C in (16, 24, 48)]
    [0.54, 0.76, 0.77]
    """
    if tile.load is not Load.TMA_WARP:
        return 0.0
    whole, rest = divmod(stored, tile.k)
    of_row = whole * _row(tile.k, size) + (_row(rest, size) if rest else 0.0)
    time = tile.m * of_row / tile.halo_taps
    if tile.b_resident:
        return time
    waits = tile.halo_taps == 1 and (rest or tile.k) * size < SHORT
    return time + COLUMN * columns + (BOX if waits else 0.0)


def time_of_pixel(tile: TileConfig, channels: int, size: int) -> float:
    """Return the microseconds that TMA takes to load a pixel's lines of A and B for a tile.

    Args:
        tile: a warp-specialised tile.
        channels: of B, whose rows are padded to whole lines.
        size: bytes per element.

    >>> from .tile import specialized
    >>> tile = specialized((64, 128, 64), (4, 1), 4)
    >>> [round(1e3 * time_of_pixel(tile, C, 2), 2) for C in (48, 96, 160)]
    [4.1, 2.8, 2.37]
    """
    line = LINE_BYTES // size
    whole, rest = divmod(channels, line)
    of_b = whole * _row(line, size) + (_row(rest, size) if rest else 0.0)
    return (tile.m * _row(line, size) + tile.n * of_b / (whole + bool(rest))) / line


def _row(channels: int, size: int) -> float:
    rows = ROWS_OF_TF32 if size == 4 else ROWS
    return next(time for most, time in rows if channels * size <= most)
