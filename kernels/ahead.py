"""What those who copy find out of a kernel map's next tile, while they copy for the present one.

Where CTAs last (``lasting_maps.py``), what a tile takes of index buffers, and which taps its rows
have, is in one of two places of shared memory. Those who copy fill one while the other is used, and
tell the others by an mbarrier; these tell by another when they are done with it.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from .k_tiles import KTiles
from .kept_index import KeptIndex, KeptRows, memory_of
from .operand import Operand
from .present import tell, told, word_count, words_of_index
from .spec import Spec
from .tile import WARP

PLACES = 2


class Ahead:
    """What is known of two of a CTA's tiles, the present one and the next.

    ``apart``: how many rows lie between those that a thread copies. Of a CTA's tile number ``nth``
    the place is ``nth % 2``.
    """

    def __init__(
        self, smem: Any, spec: Spec, a: Operand, d: Operand, apart: int, leaves_out: bool
    ) -> None:
        tile = spec.tile
        self.tile, self.a, self.d, self.apart = tile, a, d, apart
        self.unit = KTiles.of_units(a, tile.k, []).unit
        self.count, self.warps = word_count(a, self.unit), tile.producers // WARP
        # A warp has to look at rows of one warpgroup.
        self.own = leaves_out and tile.m <= tile.producers
        self.entries = spec.kept // PLACES - (tile.m if d.gather else 0)
        self.rows = memory_of(smem, PLACES * tile.m) if d.gather else None
        self.index = memory_of(smem, PLACES * self.entries)
        self.words = memory_of(smem, PLACES * self.warps * self.count)
        self.known = smem.allocate_array(Int64, PLACES)
        self.done = smem.allocate_array(Int64, PLACES)

    @cute.jit
    def prepare(self, tid: Any):
        """The barriers, which all threads then wait for."""
        if tid == 0:
            for place in range_constexpr(PLACES):
                cute.arch.mbarrier_init(self.known + place, 1)
                cute.arch.mbarrier_init(self.done + place, self.tile.threads // WARP)

    # -- those who copy --------------------------------------------------------------------------

    @cute.jit
    def look(self, first: Any, nth: Any, tid: Any):
        """All of them read what the tile from row ``first`` on takes of index buffers.

        The others have to be done with the tile two before it: then all copies for that are done.
        """
        tile, place = self.tile, _place(nth)
        number = tid - tile.threads
        cute.arch.mbarrier_wait(self.done + place, _parity(nth) ^ 1)
        rows = self.kept_rows(nth)
        if const_expr(rows is not None):
            rows.fill(self.d, first, tile.producers, number)
        of = tile.producers, number, self.kept_index(nth)
        words = words_of_index(self.a, first, tile.m, self.unit, *of)
        tell(words, self._words(nth), self.warps, number)
        cute.arch.barrier(barrier_id=3, number_of_threads=tile.producers)
        if number == 0:
            cute.arch.mbarrier_arrive(self.known + place)

    def kept_index(self, nth: Any) -> KeptIndex:
        """Where the entries of a tile are."""
        words = _at(self.index, nth, self.entries)
        return KeptIndex(words, self.tile.m, self.apart, self.a.vector_extent)

    # -- all -------------------------------------------------------------------------------------

    def k_tiles(self, nth: Any, tid: Any) -> KTiles:
        """Those of a tile that is known; those who multiply learn which their own rows have."""
        rows = self.tile.m if self.own else 0
        found = told(self.count, self._words(nth), self.warps, tid, rows)
        return KTiles.of_units(self.a, self.tile.k, found.all, found.own if self.own else [])

    # -- those who multiply ----------------------------------------------------------------------

    def wait(self, nth: Any) -> None:
        """Until a tile is known."""
        cute.arch.mbarrier_wait(self.known + _place(nth), _parity(nth))

    def kept_rows(self, nth: Any) -> KeptRows | None:
        """Where the rows of D of a tile are."""
        if self.rows is None:
            return None
        return KeptRows(_at(self.rows, nth, self.tile.m), self.tile.m)

    @cute.jit
    def leave(self, nth: Any, tid: Any):
        """A warp has read all that it takes of a tile's place."""
        cute.arch.sync_warp()
        if tid % WARP == 0:
            cute.arch.mbarrier_arrive(self.done + _place(nth))

    def _words(self, nth: Any) -> Any:
        return self.words + _place(nth) * (self.warps * self.count)


def _at(words: Any, nth: Any, count: int) -> Any:
    """The part of a tile, of so many words."""
    return words + cute.assume(_place(nth) * count, divby=4)


def _place(nth: Any) -> Any:
    return Int32(nth) & 1


def _parity(nth: Any) -> Any:
    """Of the phase in which a place is filled for a tile."""
    return (Int32(nth) >> 1) & 1
