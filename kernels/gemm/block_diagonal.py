"""Block-diagonal products of a warp: each block of columns multiplies its own group's channels.

An MMA instruction takes 8 columns, and k in *chunks* of 16 bytes, a row of an ldmatrix 8 x 8
matrix: one chunk (m16n8k8 in 16 bits, m16n8k4 in tf32) or two. A group of 4 channels in 16 bits is
half a chunk. Zeros in B alone do not separate groups, since 0 times infinity is NaN: where B's
registers are zeroed, A's registers of the other group are zeroed too, and columns of a block that
two groups share have one sum for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutconv.planning.group_tile import BLOCK

CHUNK_BYTES = 16


@dataclass(frozen=True)
class Factor:
    """Part of a group's k: ``count`` chunks from number ``chunk`` on, or one ``half`` of a chunk.

    ``first`` is its first channel within the group.
    """

    chunk: int
    count: int
    half: int | None
    first: int


@dataclass(frozen=True)
class DiagonalPiece:
    """A group's columns ``begin`` to ``end`` of a block of 8, over all of the group's k."""

    block: int
    group: int
    begin: int
    end: int
    factors: tuple[Factor, ...]


def factors_of(begin: int, end: int, elements: int) -> tuple[Factor, ...]:
    """Split channels ``begin`` to ``end`` into chunks of ``elements``; pairs start at even chunks.

    >>> [(f.chunk, f.count, f.half) for f in factors_of(24, 48, 8)]
    [(3, 1, None), (4, 2, None)]
    >>> [(f.chunk, f.count, f.half, f.first) for f in factors_of(12, 24, 8)]
    [(1, 1, 1, 0), (2, 1, None, 4)]
    """
    found, chunk = [], begin // elements
    while chunk * elements < end:
        low, high = max(begin, chunk * elements), min(end, (chunk + 1) * elements)
        half, count = None, 1
        if high - low < elements:
            half = (low - chunk * elements) * 2 // elements
        elif chunk % 2 == 0 and (chunk + 2) * elements <= end:
            count = 2
        found.append(Factor(chunk, count, half, low - begin))
        chunk += count
    return tuple(found)


def pieces_of(groups: int, channels: int, columns: int, elements: int) -> tuple[DiagonalPiece, ...]:
    """Return the pieces of a warp's ``groups``, block by block.

    >>> [(p.block, p.group, p.begin, p.end) for p in pieces_of(3, 8, 12, 8)]
    [(0, 0, 0, 8), (1, 0, 0, 4), (1, 1, 4, 8), (2, 1, 0, 8), (3, 2, 0, 8), (4, 2, 0, 4)]
    """
    found = []
    for block in range(-(-groups * columns // BLOCK)):
        first, last = BLOCK * block, min(BLOCK * (block + 1), groups * columns) - 1
        for group in range(first // columns, last // columns + 1):
            begin = max(0, group * columns - first)
            end = min(BLOCK, (group + 1) * columns - first)
            factors = factors_of(group * channels, (group + 1) * channels, elements)
            found.append(DiagonalPiece(block, group, begin, end, factors))
    return tuple(found)
