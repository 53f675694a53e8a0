"""Active taps of a tile: those that some row of it has. The mainloop skips the others, all zeros.

A row has a tap if the tap is in bounds, as its tap mask says, or, with a kernel map, if the index
buffer has a row for it. The index buffer is read once for this, tap by tap, a thread per row. The
mainloop reads it again, from the caches or from its copy in shared memory (``smem_index.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from layoutconv.planning.schedule import WARP, WARPGROUP

from .k_tiles import WORD, KTiles
from .operand import Operand, Row
from .smem_index import SmemIndex

OWN_ROWS = 64  # of a warpgroup that multiplies by one instruction at a time


class Units(NamedTuple):
    """Bit words with one bit per unit of the sum: the units that some row of a tile has, at least
    one; and those that the ``OWN_ROWS`` rows of the thread's own warpgroup have.
    """

    all: list[Int32]
    own: list[Int32]


def active_k_tiles(mainloop: Any, k_tiles: KTiles, load: Any, first: Any, tid: Any) -> KTiles:
    """Return the k-tiles of the taps that some row of the CTA's tile has.

    ``load`` is that of A, from row ``first`` on, with the part of the index buffer that is kept.
    """
    operand, base, tile = load.operand, load.shared.base, mainloop.tile
    warps = tile.threads // WARP
    if operand.gather:
        unit = KTiles.of_units(operand, tile.k, []).unit
        found = units_of_index(operand, first, tile.m, unit, base, warps, tid, load.kept)
    elif operand.fields:
        found = units_of_rows(load.rows, base, warps, tid)
    else:  # no tap is ever outside
        return k_tiles
    own = found.own if operand.gather and mainloop.leaves_out else []
    return KTiles.of_units(operand, tile.k, found.all, own)


def units_of_rows(rows: list[Row], base: Any, warps: int, tid: Any) -> Units:
    """Return the units of the threads' rows whose masks have a bit per unit, at most 32."""
    own = Int32(0)
    for row in rows:
        own = own | row.mask
    return _of_all([own], base, warps, tid)


def units_of_index(
    operand: Operand,
    first: Any,
    rows: int,
    unit: int,
    base: Any,
    warps: int,
    tid: Any,
    kept: SmemIndex | None = None,
) -> Units:
    """The units that the index buffer has for some of ``rows`` rows from ``first`` on.

    Where there are more threads than rows, these share the taps of a row. What is read is ``kept``,
    if there is room.
    """
    threads = 32 * warps
    channels = operand.vector_extent
    taps, per_unit = operand.col_count // channels, unit // channels
    parts = max(1, threads // rows)
    parts = 4 if parts > 4 else 2 if parts == 3 else parts  # that divide a word
    part = cutlass.min(tid // rows, Int32(parts - 1))
    words = [Int32(0) for _ in range(-(-taps // (per_unit * WORD)))]
    for step in range(0, rows, threads):
        place = step + tid % min(rows, threads)
        row = operand.row(first + place)
        for tap in range(0, taps, parts):
            number = cutlass.min(tap + part, Int32(taps - 1)) if parts > 1 else Int32(tap)
            entry = operand.load_index(row, operand.column(number * channels), written=True)
            if kept is not None:
                mine = (tid < rows * parts) & (tap + part < taps) & (place < rows)
                kept.keep(number, place, entry, mine)
            there = Int32(1) + (entry >> 31)
            bit = number // per_unit if per_unit > 1 else number
            word = tap // per_unit // WORD
            words[word] = words[word] | (there << (bit - WORD * word))
    return _of_all(words, base, warps, tid, rows)


def _of_all(words: list[Any], base: Any, warps: int, tid: Any, rows: int = 0) -> Units:
    """Combine the units that all threads found; if there are none, unit 0, whose rows read zeros.

    If number ``i`` looked at row ``i % rows``, also what there is of those near the thread.

    Shared memory is free again after a barrier, which there is before a stage is read, and stages
    are not written before one.
    """
    pointer = cute.recast_ptr(base, dtype=Int32)
    shared = cute.make_tensor(pointer, cute.make_layout(warps * len(words)))
    for i, word in enumerate(words):
        shared[tid // WARP + warps * i] = cute.arch.warp_redux_sync(word, "or")  # by all lanes
    cute.arch.sync_threads()
    found = Units([], [])
    for i in range(len(words)):
        every, own = Int32(0), Int32(0)
        for warp in range(warps):
            word = shared[warp + warps * i]
            every = every | word
            if rows:
                near = warp * WARP % rows // OWN_ROWS == tid // WARPGROUP
                own = own | cutlass.select_(near, word, Int32(0))
        found.all.append(every)
        found.own.append(own)
    cute.arch.sync_threads()
    none = Int32(0)
    for word in found.all:
        none = none | word
    found.all[0] = cutlass.select_(none == 0, Int32(1), found.all[0])
    return found
