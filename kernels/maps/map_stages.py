"""The stages of a kernel map, and the workspace of sorting.

A chain is two launches, a fill and a cooperative launch. It fills a hash table, searches one for
rows in the order of their tap masks, or sorts an index buffer.
"""

from __future__ import annotations

from typing import Any

from layoutconv.base.caches import remembered

from .block_table import Fill, Insert, Reserve, Settle
from .cooperative import WORD, CooperativeKernel
from .per_rank import Chain, Places
from .row_order import Count, Gather, Sizes, Windows
from .sort_keys import Keys, KeysOfIndex
from .tap_blocks import TapLookup

FEWEST_OF_CHUNK = 256  # rows: a chunk counts 4096 places, so below this, fewer chunks are faster
SIZES = Sizes()


@remembered(128)
def filled(rank: int, threads: int, wide: bool) -> Chain:
    """Return the chain that inserts rows into a hash table.

    Addresses: slots, values, cells, the rows' slots, the word of the grid sync. Integers: rows,
    bits, the grid, CTAs, and those of ``Fill``.
    """
    steps = _to_fill(rank, wide, (0, 1, 2, 3), tuple(range(3 + rank)))
    return _after_fill(tuple((step,) for step in steps), (0, 1, 4), threads, 0)


def _to_fill(
    rank: int, wide: bool, addresses: tuple[int, ...], integers: tuple[int, ...]
) -> Places:
    """Return the parts that insert rows into a table, a stage each."""
    slots, values, cells, slot_of = addresses
    return (
        (Insert(rank, wide), (cells, slots, slot_of, values), integers),
        (Reserve(rank, wide), (slots, slot_of, values), integers[:1]),
        (Settle(rank, wide), (cells, slots, slot_of, values), integers[:1]),
    )


def _after_fill(
    stages: tuple[Places, ...], filled: tuple[int, int, int], threads: int, totals: int
) -> Chain:
    """Return the chain of a fill and the cooperative launch of ``stages``.

    ``filled`` has the positions of three addresses: two of a table, if there is one to fill, and
    that of the grid sync's word, with ``totals`` numbers behind it.
    """
    rank, word = stages[0][0][0].rank, filled[-1]
    # A thread keeps its centre's blocks in shared memory: 8 of 12 bytes, or 16 in four dimensions.
    cooperative = CooperativeKernel(stages, threads // 2 if rank == 4 else threads, word)
    last = cooperative.integers()
    return Chain(
        (
            (Fill(rank, (WORD + totals) // 4), filled, (last, last + 1)),
            (cooperative, tuple(range(word + 1)), tuple(range(last))),
        )
    )


@remembered(128)
def sorted_search(search: TapLookup, keys: Keys, sizes: Sizes, empty: bool) -> Chain:
    """Return the chain that searches a hash table, with rows in the order of their tap masks.

    A table that is ``empty`` is filled first. Addresses: slots, values, centres, natural, visits,
    order, index, runs, counts, keys; for a table to fill, its cells and the rows' slots; the word
    of the grid sync. Integers: rows, bits, 1, rows of a chunk, chunks, rows of a window, and the
    grid; for a table to fill, its rows; CTAs, and those of ``Fill``.
    """
    rank, word = search.rank, 12 if empty else 10
    grid = tuple(range(6, 7 + rank))
    counted = (keys, (2, 0, 4, 9), (0, 1, *grid))
    found = (search, (0, 1, 2, 3, 5, 6), (0, 1, 2, *grid))
    count, windows = _sort(sizes, counted, found, (7, 8, word, 5), (0, 3, 4, 5), waits=empty)
    stages: tuple[Places, ...] = ((count,), (windows,))
    if empty:
        of_table = 7 + rank, 1, *grid
        insert, reserve, settle = _to_fill(rank, search.wide, (0, 1, 10, 11), of_table)
        stages = (insert,), (count, reserve), (settle,), (windows,)
    return _after_fill(stages, (0, 1, word), sizes.threads, 1 << sizes.place)


@remembered(128)
def sorted_index(sizes: Sizes) -> Chain:
    """Return the chain that sorts the rows of an index buffer by their tap masks.

    Addresses: the index, visits, the sorted index, order, runs, counts, keys, the word of the grid
    sync. Integers: rows, taps, rows of a chunk, chunks, rows of a window, CTAs, and those of
    ``Fill``.
    """
    counted = (KeysOfIndex(1, sizes), (0, 1, 6), (0, 1))
    gathered = (Gather(1, sizes), (0, 3, 2), (0, 1))
    count, windows = _sort(sizes, counted, gathered, (4, 5, 7, 3), (0, 2, 3, 4), waits=False)
    return _after_fill(((count,), (windows,)), (7, 7, 7), sizes.threads, 1 << sizes.place)


def _sort(
    sizes: Sizes, keys: Any, then: Any, addresses: tuple[int, ...], integers: tuple[int, ...],
    *, waits: bool,
) -> Places:  # fmt: skip
    """Return two stages: the first computes sort keys with ``keys`` and counts them; the second
    sorts the rows, and runs ``then`` on each.
    """
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
    """The workspace of sorting: one piece of memory that begins with the word of the grid sync.

    Args:
        rows: how many to sort.
        window: rows per window.
        ctas: CTAs of the launch.
        sizes: of the sort; by default those of one map.

    Attributes:
        chunk, chunks: rows per chunk, and the number of chunks: about one, two or more per CTA,
            and fewer if rows are few.
        size: of the workspace, in Int32.
        integers: rows per chunk, chunks, rows per window.
        vectors: how many 16-byte vectors the word and the totals behind it take.
    """

    def __init__(self, rows: int, window: int, ctas: int, sizes: Sizes | None = None) -> None:
        sizes = sizes or SIZES
        most, bins = 1 << sizes.chunk, 1 << sizes.place
        turns = -(-rows // (ctas * most))
        chunk = (-(-rows // (ctas * turns)) + 31) & ~31
        # Not ``min`` and ``max``, which take as long as all the rest.
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
