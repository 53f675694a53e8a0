"""Chunks of pairs: the number of pairs of rows that a CTA sums over in a sparse wgrad.

Every chunk is a product of its own, (K, C), in fp32; another kernel adds up the chunks. Tiles and
CTAs per SM are those that the cost model would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf

from .cost_model import choose
from .cost_problem import Problem
from .kernel_spec import BYTES, VECTOR_BYTES, suits_warpgroups
from .machine import Machine
from .tile_time import resident

K_TILE = 64  # pairs of 16-bit data; two k-tiles in tf32
LEAST = 512  # pairs per chunk, if taps have as many: smaller chunks write too many bytes of results
MOST = 1 << 15  # longer sums gained nothing, and tensor cores truncate sums
# Overhead of a wave, in pairs that a CTA multiplies in that time: its start, writing and reading of
# its results, and L2 reuse lost as CTAs drift apart. With 128x128 tiles each further wave took 20
# to 26 us (H100), as long as 950 to 1200 pairs; with 64x64 tiles 8 to 11 us, 480 to 690 pairs; with
# 128x256 tiles up to 18 us, 1070 pairs.
WAVE_PAIRS = 1000


def slots(channels: tuple[int, int], dtype: str, machine: Machine) -> tuple[int, int]:
    """Return the CTAs that run on a GPU at once, and the CTAs per chunk, with the tile for
    ``channels`` (C, K). ``dtype`` is the kernel's.

    >>> from .machine import MACHINES
    >>> [slots((C, C), "float16", MACHINES["sm_90a"]) for C in (32, 64, 128, 256)]
    [(528, 1), (528, 1), (264, 1), (132, 2)]
    >>> [slots((C, C), "tfloat32", MACHINES["sm_90a"]) for C in (64, 128)]
    [(396, 1), (264, 1)]
    """
    C, K = channels
    vector = VECTOR_BYTES // BYTES[dtype]
    vectors = gcd(K, vector), gcd(C, vector)
    wgmma = dtype != "tfloat32" and suits_warpgroups(dtype, vectors)
    problem = Problem(
        K, C, 4096, 0, dtype, 8 if dtype == "float64" else 4, groups=1 << 16, gathered=True,
        wgmma=wgmma, stored_bytes=4, b_along_k=False,
    )  # fmt: skip
    tile, _ = choose(problem, machine)
    at_once = resident(problem, tile, machine) * machine.sm_count
    return at_once, -(-K // tile.m) * -(-C // tile.n)


def chunk_for(counts: Sequence[int], at_once: int, across: int) -> int:
    """Return the pairs per chunk, a multiple of 64, for taps that have ``counts`` pairs.

    ``at_once`` and ``across`` are :func:`slots`. All chunks together are one wave, or two, four ...
    if that is faster: one wave of large tiles has few chunks per tap, and each tap's last chunk is
    half empty. With 256 channels in 128x256 tiles one wave takes 172 us on a street and four take
    213; in a room 812 and 601 (H100).

    >>> street, room = [15_800] * 13 + [89_500] + [15_800] * 13, [76_000] * 27
    >>> [chunk_for(street, *of_tiles) for of_tiles in ((528, 1), (264, 1), (132, 2))]
    [1024, 1984, 7936]
    >>> [chunk_for(room, *of_tiles) for of_tiles in ((528, 1), (264, 1), (132, 2))]
    [4032, 8512, 8512]
    """
    pairs, mean = sum(counts), sum(counts) // max(len(counts), 1)
    least = max(K_TILE, -(-min(LEAST, mean) // K_TILE) * K_TILE)
    best, chosen, waves = inf, least, 1
    # Stop once this many waves, even with every slot full, cannot be faster.
    while pairs and pairs * across / at_once + waves * WAVE_PAIRS < best:
        chunk = _shortest(counts, pairs, waves * at_once // across)
        time = waves * (chunk + WAVE_PAIRS)
        if 0 < chunk <= MOST and time < best:
            best, chosen = time, chunk
        waves *= 2
    return max(least, chosen)


def _shortest(counts: Sequence[int], pairs: int, most: int) -> int:
    """Return the shortest chunk, within 2%, that makes at most ``most``; 0 if taps are more."""
    taps = len(counts) - counts.count(0)
    if most < taps:
        return 0
    # Bounds in k-tiles: perhaps too few, and surely enough, as only a tap's last chunk is not full.
    few = -(-pairs // (most * K_TILE))
    enough = -(-max(counts) // K_TILE)
    if most > taps:
        enough = min(enough, -(-pairs // ((most - taps) * K_TILE)))
    while few < enough:
        middle = (few + enough) // 2
        if sum([-(-count // (middle * K_TILE)) for count in counts]) <= most:
            enough = middle
        elif enough - middle <= enough // 64:
            break
        else:
            few = middle + 1
    return enough * K_TILE
