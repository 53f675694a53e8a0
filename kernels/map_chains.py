"""What kernel maps launch: chains of parts, and the room that sorting takes while it goes on.

A chain fills a table, searches it for rows in the order of their taps, or sorts an index; it is two
launches. ``neighbours.py`` has the parts that search, and calls them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .blocks import Fill, Insert, Neighbours, Reserve, Settle
from .per_rank import Chain, Places
from .tap_keys import Keys, KeysOfIndex
from .tap_order import AddUp, Count, Gather, Place, Refine, Sizes
from .together import Together

FEWEST_OF_CHUNK = 256  # rows: every chunk counts 4096 places, and below this the fewer the faster
WORD = 4  # the Int32 of a barrier's word, which is filled with what is around it
NOTHING_TO_FILL = 1, 0
SIZES = Sizes()


@lru_cache
def filled(rank: int, threads: int) -> Chain:
    """Rows into a table: addresses of slots, first, values, cells, the rows' slots, a barrier's
    word; integers rows, bits, the grid, how many CTAs there are, and those of ``Fill``."""
    steps = _to_fill(rank, (0, 1, 2, 3, 4), tuple(range(3 + rank)))
    return _after_fill(tuple((step,) for step in steps), (0, 2), threads)


def _to_fill(rank: int, addresses: tuple[int, ...], integers: tuple[int, ...]) -> Places:
    """One phase after the other."""
    slots, first, values, cells, slot_of = addresses
    return (
        (Insert(rank), (cells, slots, slot_of, values), integers),
        (Reserve(rank), (slots, slot_of, values, first), integers[:1]),
        (Settle(rank), (cells, slots, slot_of, values, first), integers[:1]),
    )


def _after_fill(phases: tuple[Places, ...], table: tuple[int, int], threads: int) -> Chain:
    """Phases, after what fills a table at two addresses, if there is one to fill, and sets the
    barrier's word."""
    rank = phases[0][0][0].rank
    # The blocks of a thread's centre, 8 of 12 bytes, or 16 in four dimensions, fill shared memory.
    together = Together(phases, threads // 2 if rank == 4 else threads)
    word, last = len(together.tensors()) - 1, together.integers()
    return Chain(
        (
            (Fill(rank), (*table, word), (last, last + 1)),
            (together, tuple(range(word + 1)), tuple(range(last))),
        )
    )


@lru_cache
def sorted_search(search: Neighbours, keys: Keys, sizes: Sizes, empty: bool) -> Chain:
    """A table is searched for sorted rows; one that is ``empty`` is filled first.

    Addresses of slots, first, values, centres, natural, visits, order, index, runs, counts, keys,
    totals, of a table to fill its cells and the rows' slots, and the barrier's word. Integers rows,
    bits, taps, 1, rows of a chunk, chunks, places, the geometry and the grid, of a table to fill
    its rows, how many CTAs there are, and those of ``Fill``.
    """
    rank = search.rank
    geometry = tuple(range(7, 8 + 4 * rank))
    grid = geometry[-rank - 1 :]
    counted = (keys, (3, 0, 5, 10), (0, 1, 2, *geometry))
    count, add_up, *rest = _sort(sizes, counted, (8, 9, 11, 6), (0, 4, 5, 6))
    found = (search, (0, 1, 2, 3, 4, 6, 7), (0, 1, 2, 3, *geometry))
    phases: tuple[Places, ...] = ((count,), (add_up,))
    if empty:
        insert, reserve, settle = _to_fill(rank, (0, 1, 2, 12, 13), (geometry[-1] + 1, 1, *grid))
        phases = (insert,), (count, reserve), (add_up, settle)
    return _after_fill((*phases, *((part,) for part in (*rest, found))), (0, 2), sizes.threads)


@lru_cache
def sorted_index(sizes: Sizes) -> Chain:
    """Addresses of the index, visits, the sorted one, order, runs, counts, keys, totals and the
    barrier's word; integers rows, taps, rows of a chunk, chunks, places, how many CTAs there are,
    and those of ``Fill``."""
    counted = (KeysOfIndex(1, sizes), (0, 1, 6), (0, 1))
    phases = _sort(sizes, counted, (4, 5, 7, 3), (0, 2, 3, 4))
    gather = Gather(1, sizes), (0, 3, 2), (0, 1)
    return _after_fill(tuple((part,) for part in (*phases, gather)), (8, 8), sizes.threads)


def _sort(sizes: Sizes, keys: Any, addresses: tuple[int, ...], integers: tuple[int, ...]) -> Places:
    """From what finds keys to an order, one phase after the other."""
    find, of_keys, numbers = keys
    runs, counts, totals, order = addresses
    rows, chunk, chunks, places = integers
    rank = find.rank
    return (
        (Count(find, sizes), (runs, counts, *of_keys), (rows, chunk, chunks, *numbers)),
        (AddUp(rank, sizes), (counts, totals), (places, chunks)),
        (Place(rank, sizes), (runs, counts, totals, order), (rows, chunk, chunks)),
        (Refine(rank, sizes), (of_keys[-1], order), (rows,)),
    )


class RoomToSort:
    """What sorting needs while it goes on: one piece of memory, in front of what else a call needs,
    which a barrier's word starts.

    Args:
        rows: how many are sorted.
        ctas: how many CTAs there are.

    Attributes:
        chunks: rows of a chunk, and how many chunks there are: one for each CTA, two, or more.
        size: of it, in Int32.
    """

    def __init__(self, rows: int, ctas: int) -> None:
        turns = -(-rows // (ctas << SIZES.chunk))
        chunk = max(FEWEST_OF_CHUNK, -(-rows // (ctas * turns)))
        self.chunk = min(-(-chunk // 32) * 32, 1 << SIZES.chunk)
        self.chunks = -(-rows // self.chunk)
        self._rows, self._bins = rows, 1 << SIZES.place
        self.size = WORD + (self.chunks + 1) * self._bins + 2 * rows

    @property
    def integers(self) -> tuple[int, ...]:
        return self.chunk, self.chunks, self._bins

    def addresses(self, word: int) -> tuple[int, ...]:
        """Of runs, counts, keys and totals."""
        counts = word + 4 * WORD
        totals = counts + 4 * self.chunks * self._bins
        keys = totals + 4 * self._bins
        return keys + 4 * self._rows, counts, keys, totals
