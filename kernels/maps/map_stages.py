"""Stages of kernel maps: chains of parts, and the room that sorting takes while it goes on.

A chain fills a table, searches it for rows in the order of their taps, or sorts an index; it is two
launches. ``neighbours.py`` has the parts that search, and calls them.
"""

from __future__ import annotations

from typing import Any

from layoutconv.base.caches import remembered

from .block_table import Fill, Insert, Reserve, Settle
from .cooperative import WORD, Together
from .per_rank import Chain, Places
from .row_order import Count, Gather, Sizes, Windows
from .sort_keys import Keys, KeysOfIndex
from .tap_blocks import Neighbours

FEWEST_OF_CHUNK = 256  # rows: every chunk counts 4096 places, and below this the fewer the faster
SIZES = Sizes()


@remembered(128)
def filled(rank: int, threads: int, wide: bool) -> Chain:
    """Rows into a table: addresses of slots, values, cells, the rows' slots, a barrier's word;
    integers rows, bits, the grid, how many CTAs there are, and those of ``Fill``."""
    steps = _to_fill(rank, wide, (0, 1, 2, 3), tuple(range(3 + rank)))
    return _after_fill(tuple((step,) for step in steps), (0, 1, 4), threads, 0)


def _to_fill(
    rank: int, wide: bool, addresses: tuple[int, ...], integers: tuple[int, ...]
) -> Places:
    """One phase after the other."""
    slots, values, cells, slot_of = addresses
    return (
        (Insert(rank, wide), (cells, slots, slot_of, values), integers),
        (Reserve(rank, wide), (slots, slot_of, values), integers[:1]),
        (Settle(rank, wide), (cells, slots, slot_of, values), integers[:1]),
    )


def _after_fill(
    phases: tuple[Places, ...], filled: tuple[int, int, int], threads: int, totals: int
) -> Chain:
    """Phases, after what fills: a table at two addresses, if there is one to fill, the barrier's
    word at a third one, and so many totals behind it."""
    rank, word = phases[0][0][0].rank, filled[-1]
    # The blocks of a thread's centre, 8 of 12 bytes, or 16 in four dimensions, fill shared memory.
    together = Together(phases, threads // 2 if rank == 4 else threads, word)
    last = together.integers()
    return Chain(
        (
            (Fill(rank, (WORD + totals) // 4), filled, (last, last + 1)),
            (together, tuple(range(word + 1)), tuple(range(last))),
        )
    )


@remembered(128)
def sorted_search(search: Neighbours, keys: Keys, sizes: Sizes, empty: bool) -> Chain:
    """A table is searched for sorted rows; one that is ``empty`` is filled first.

    Addresses of slots, values, centres, natural, visits, order, index, runs, counts, keys, of a
    table to fill its cells and the rows' slots, and the barrier's word. Integers rows, bits,
    taps, 1, rows of a chunk, chunks, rows of a window, the geometry and the grid, of a table to
    fill its rows, how many CTAs there are, and those of ``Fill``.
    """
    rank, word = search.rank, 12 if empty else 10
    geometry = tuple(range(7, 8 + 4 * rank))
    grid = geometry[-rank - 1 :]
    counted = (keys, (2, 0, 4, 9), (0, 1, 2, *geometry))
    found = (search, (0, 1, 2, 3, 5, 6), (0, 1, 2, 3, *geometry))
    count, windows = _sort(sizes, counted, found, (7, 8, word, 5), (0, 4, 5, 6), waits=empty)
    phases: tuple[Places, ...] = ((count,), (windows,))
    if empty:
        of_table = geometry[-1] + 1, 1, *grid
        insert, reserve, settle = _to_fill(rank, search.wide, (0, 1, 10, 11), of_table)
        phases = (insert,), (count, reserve), (settle,), (windows,)
    return _after_fill(phases, (0, 1, word), sizes.threads, 1 << sizes.place)


@remembered(128)
def sorted_index(sizes: Sizes) -> Chain:
    """Addresses of the index, visits, the sorted one, order, runs, counts, keys and the barrier's
    word; integers rows, taps, rows of a chunk, chunks, rows of a window, how many CTAs there are,
    and those of ``Fill``."""
    counted = (KeysOfIndex(1, sizes), (0, 1, 6), (0, 1))
    gathered = (Gather(1, sizes), (0, 3, 2), (0, 1))
    count, windows = _sort(sizes, counted, gathered, (4, 5, 7, 3), (0, 2, 3, 4), waits=False)
    return _after_fill(((count,), (windows,)), (7, 7, 7), sizes.threads, 1 << sizes.place)


def _sort(
    sizes: Sizes, keys: Any, then: Any, addresses: tuple[int, ...], integers: tuple[int, ...],
    *, waits: bool,
) -> Places:  # fmt: skip
    """From what finds keys to an order, and what is done with its rows: two phases."""
    find, of_keys, numbers = keys
    do, of_then, numbers_of_then = then
    *room, order = addresses
    return (
        (Count(find, sizes), (*room, *of_keys), (*integers[:3], *numbers)),
        (
            Windows(do, sizes, waits),
            (*room, order, *of_then),
            (*integers, *numbers_of_then),
        ),
    )


class RoomToSort:
    """Memory that sorting needs while it goes on: one piece of memory, in front of what else a call
    needs, which a barrier's word starts.

    Args:
        rows: how many are sorted.
        window: rows of a window.
        ctas: how many CTAs there are.

    Attributes:
        chunks: rows of a chunk, and how many chunks there are: one for each CTA, two, or more.
        size: of it, in Int32.
        integers: rows of a chunk, chunks, rows of a window.
        vectors: of 16 bytes: the word with the totals behind it.
    """

    def __init__(self, rows: int, window: int, ctas: int) -> None:
        most, bins = 1 << SIZES.chunk, 1 << SIZES.place
        turns = -(-rows // (ctas * most))
        chunk = (-(-rows // (ctas * turns)) + 31) & ~31
        # Not ``min`` and ``max``, which take as long as all of the rest.
        if chunk < FEWEST_OF_CHUNK:
            chunk = FEWEST_OF_CHUNK
        if chunk > most:
            chunk = most
        chunks = -(-rows // chunk)
        self.chunk, self.chunks, self.integers = chunk, chunks, (chunk, chunks, window)
        self.size = WORD + (chunks + 1) * bins + 3 * rows
        self.vectors = (WORD + bins) // 4
        self._runs, self._keys = 4 * chunks * bins, 8 * rows

    def addresses(self, word: int) -> tuple[int, ...]:
        """Addresses of runs, counts and keys; totals are behind the word."""
        counts = word + 16 * self.vectors
        runs = counts + self._runs
        return runs, counts, runs + self._keys
