"""Active taps of a tile: taps that some row has. The mainloop skips the others, which are zeros.

A row has a tap if its tap mask says that the tap is in bounds or, with a kernel map, if the index
buffer holds a row for it. This pass reads the index buffer once, tap by tap, a thread per row. The
mainloop reads it again, from the caches or from the copy in shared memory (``smem_index.py``).
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

OWN_ROWS = 64  # rows of a warpgroup whose part of the tile is one wgmma (m64) high


class ActiveUnits(NamedTuple):
    """Bit masks of active units, in 32-bit words; ``KTiles`` defines a unit, usually one tap.

    ``all``: active in some row of the tile, at least one. ``own``: active in some of the
    ``OWN_ROWS`` rows of the thread's warpgroup.
    """

    all: list[Int32]
    own: list[Int32]


def active_k_tiles(mainloop: Any, k_tiles: KTiles, load: Any, first: Any, tid: Any) -> KTiles:
    """Return the k-tiles of the tile's active taps.

    ``load`` loads A from row ``first`` on. ``load.kept``, if there is one, receives the tile's
    index entries in shared memory.
    """
    operand, base, tile = load.operand, load.shared.base, mainloop.tile
    warps = tile.threads // WARP
    if operand.gather:
        unit = KTiles.of_active(operand, tile.k, []).unit
        found = active_units_of_index(operand, first, tile.m, unit, base, warps, tid, load.kept)
    elif operand.fields:
        found = active_units_of_rows(load.rows, base, warps, tid)
    else:  # every tap is in bounds for every row
        return k_tiles
    own = found.own if operand.gather and mainloop.leaves_out else []
    return KTiles.of_active(operand, tile.k, found.all, own)


def active_units_of_rows(rows: list[Row], base: Any, warps: int, tid: Any) -> ActiveUnits:
    """Return the active units by the rows' tap masks, which have a bit per unit, at most 32."""
    own = Int32(0)
    for row in rows:
        own = own | row.mask
    return _of_all([own], base, warps, tid)


def active_units_of_index(
    operand: Operand,
    first: Any,
    rows: int,
    unit: int,
    base: Any,
    warps: int,
    tid: Any,
    kept: SmemIndex | None = None,
) -> ActiveUnits:
    """Return the active units by the index buffer: those with an entry in any of ``rows`` rows
    from ``first`` on.

    With more threads than rows, several threads share the taps of a row. ``kept``, if given,
    receives the entries.
    """
    threads = 32 * warps
    channels = operand.vector_extent
    taps, per_unit = operand.col_count // channels, unit // channels
    parts = max(1, threads // rows)
    parts = 4 if parts > 4 else 2 if parts == 3 else parts  # must divide the bits of a word
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


def _of_all(words: list[Any], base: Any, warps: int, tid: Any, rows: int = 0) -> ActiveUnits:
    """Combine the units that all threads found; if there are none, use unit 0, whose rows read
    zeros.

    With ``rows``, thread ``i`` looked at row ``i % rows``: also combine the units of the rows of
    this thread's warpgroup.

    The scratch at ``base`` is stage memory. The last barrier frees it before a stage is written.
    """
    pointer = cute.recast_ptr(base, dtype=Int32)
    shared = cute.make_tensor(pointer, cute.make_layout(warps * len(words)))
    for i, word in enumerate(words):
        shared[tid // WARP + warps * i] = cute.arch.warp_redux_sync(word, "or")  # same in all lanes
    cute.arch.sync_threads()
    found = ActiveUnits([], [])
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
