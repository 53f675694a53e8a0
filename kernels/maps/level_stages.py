"""The stages of the maps of all levels of a network: two launches, a fill and a cooperative one.

Each level has a table to fill. Maps search these tables: around a level's own cells, at a stride
from the next coarser level, or, for inverse maps, from the cells that feed others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .block_table import Fill, Insert, Reserve, Settle
from .cooperative import CooperativeKernel
from .job_stages import Jobs, Turn
from .per_rank import Chain
from .row_order import Count, Sizes, Windows

# Per CTA: 8 warps hide less latency than 32, but an SM runs four such CTAs, with separate barriers.
# Windows of 704 rows, as in a lidar sweep, give 32 warps less than a row per thread.
THREADS = 256
MOST_PER_SM = 4  # CTAs, which share all registers

Positions = tuple[int, ...]


class Kind(NamedTuple):
    """Maps of one kind: parts that compute sort keys and sorted rows, the same for all levels.

    Attributes:
        keys, then: parts, as for ``Count`` and ``Windows``: ``Keys`` and ``Search`` of known taps,
            or those of inverses.
        geometry: for known taps their count, stride, least offsets and spans; else empty.
        levels: for each map the levels of its centres and of its table.
    """

    keys: Any
    then: Any
    geometry: Positions
    levels: tuple[tuple[int, int], ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that determines its parts of a kernel."""
        return self.keys.key, self.then.key, self.geometry, self.levels


class _Level(NamedTuple):
    """Positions of a level's arguments among those of a launch."""

    cells: int
    slots: int
    values: int
    slot_of: int
    rows: int
    bits: int
    grid: Positions
    ends: Positions


class _Map(NamedTuple):
    """Positions of a map's arguments."""

    order: int
    found: int
    word: int
    runs: int
    counts: int
    keys: int
    chunk: int
    chunks: int
    window: int
    of_chunks: Positions
    of_windows: Positions


LEVEL_INTEGERS = 4  # of a level, and one more for each mode of the grid
MAP_ADDRESSES, MAP_INTEGERS = 6, 7


class _Positions:
    """Allocator of positions, in order: addresses of levels and of maps, and integers of both."""

    def __init__(self) -> None:
        self.addresses = self.integers = 0

    def level(self, rank: int) -> _Level:
        a, i = self._take(4, LEVEL_INTEGERS + 1 + rank)
        cells, slots, values, slot_of = a
        return _Level(cells, slots, values, slot_of, i[0], i[1], i[2:-2], i[-2:])

    def map(self) -> _Map:
        a, i = self._take(MAP_ADDRESSES, MAP_INTEGERS)
        order, found, word, runs, counts, keys = a
        return _Map(order, found, word, runs, counts, keys, i[0], i[1], i[2], i[3:5], i[5:])

    def _take(self, addresses: int, integers: int) -> tuple[Positions, Positions]:
        a, i = self.addresses, self.integers
        self.addresses, self.integers = a + addresses, i + integers
        return tuple(range(a, self.addresses)), tuple(range(i, self.integers))


def all_levels(rank: int, wide: bool, levels: int, kinds: tuple[Kind, ...], sizes: Sizes) -> Chain:
    """Return the launches that fill the tables of levels and build sorted maps from them.

    Addresses: for each level cells, slots, values, the rows' slots; for each map its order, index,
    word, runs, counts, keys; the word of the grid sync. Integers: for each level rows, bits, the
    grid and ``ENDS`` of its rows; for each map rows per chunk, chunks, rows per window, ``ENDS`` of
    its chunks and of its windows; CTAs, and those of ``Fill``.
    """
    given = _Positions()
    tables = [given.level(rank) for _ in range(levels)]
    insert, reserve, settle = _to_fill(rank, wide, tables)
    counts, windows = [], []
    for kind in kinds:
        maps = [(tables[a], tables[b], given.map()) for a, b in kind.levels]
        counts.append(_counts(kind, maps, sizes))
        windows.append(_windows(kind, maps, sizes))
    stages = Jobs((insert,)), Jobs((*counts, reserve)), Jobs((settle,)), Jobs(tuple(windows), True)
    word, places = given.addresses, tuple((stage.place,) for stage in stages)
    kernel = CooperativeKernel(places, sizes.threads, word, MOST_PER_SM)
    last = kernel.integers()
    return Chain(
        (
            (Fill(1), (word, word, word), (last, last + 1)),
            (kernel, tuple(range(word + 1)), tuple(range(last))),
        )
    )


def _to_fill(rank: int, wide: bool, tables: list[_Level]) -> tuple[Turn, Turn, Turn]:
    """Return the turns that insert rows into tables."""
    return (
        Turn(Insert(rank, wide), tuple(
            ((t.cells, t.slots, t.slot_of, t.values), (t.rows, t.bits, *t.grid, *t.ends))
            for t in tables
        )),
        Turn(Reserve(rank, wide), tuple(
            ((t.slots, t.slot_of, t.values), (t.rows, *t.ends)) for t in tables
        )),
        Turn(Settle(rank, wide), tuple(
            ((t.cells, t.slots, t.slot_of, t.values), (t.rows, *t.ends)) for t in tables
        )),
    )  # fmt: skip


_Sought = list[tuple[_Level, _Level, _Map]]  # centres, table, map


def _counts(kind: Kind, maps: _Sought, sizes: Sizes) -> Turn:
    """Return the turn that computes sort keys, and sorts chunks by them."""
    jobs = []
    for own, table, to in maps:
        # Known taps need no table; any address of its type will do.
        visits = (to.keys,) if kind.geometry else ()
        keys = own.cells, table.slots, *visits, to.keys
        numbers = own.rows, to.chunk, to.chunks, own.rows, table.bits, *table.grid
        jobs.append(((to.runs, to.counts, to.word, *keys), (*numbers, *to.of_chunks)))
    return Turn(Count(kind.keys, sizes), tuple(jobs), tuple(enumerate(kind.geometry, 5)))


def _windows(kind: Kind, maps: _Sought, sizes: Sizes) -> Turn:
    """Return the turn that sorts windows, and searches for their rows."""
    jobs = []
    for own, table, to in maps:
        natural = (to.order,) if kind.geometry else ()
        then = table.slots, table.values, own.cells, *natural, to.order, to.found
        numbers = own.rows, to.chunk, to.chunks, to.window, own.rows, table.bits, *table.grid
        jobs.append(((to.runs, to.counts, to.word, to.order, *then), (*numbers, *to.of_windows)))
    fixed = (kind.geometry[0], 1, *kind.geometry[1:]) if kind.geometry else ()
    return Turn(Windows(kind.then, sizes, True), tuple(jobs), tuple(enumerate(fixed, 6)))
