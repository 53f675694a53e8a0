"""The stages of the maps of all levels of a network: two launches, a fill and a cooperative one.

Each level has a table to fill. Maps search these tables: around a level's own cells, at a stride
from the next coarser level, or, for inverse maps, from the cells that feed others. All maps are
sorted by the same code, and maps whose taps lie alike are searched by the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .block_table import Fill, Insert, Reserve, Settle
from .cooperative import CooperativeKernel
from .job_stages import OneOf, Turn, stages_of
from .per_rank import Chain
from .probe import Search
from .row_order import Count, Sizes, Windows

# Per CTA: 8 warps hide less latency than 32, but an SM runs four such CTAs, with separate barriers.
# Windows of 704 rows, as in a lidar sweep, give 32 warps less than a row per thread.
THREADS = 256
MOST_PER_SM = 4  # CTAs, which share all registers

Positions = tuple[int, ...]


class MapKind(NamedTuple):
    """Maps of one kind: parts that compute sort keys and sorted rows, the same for all levels.

    Attributes:
        keys, then: parts, as for ``Count`` and ``Windows``: ``Keys`` and ``Search``, or those of
            inverses.
        of_keys, of_then: where their tables of taps begin.
        levels: for each map the levels of its centres and of its table.
    """

    keys: Any
    then: Any
    of_keys: int
    of_then: int
    levels: tuple[tuple[int, int], ...]


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


class _MapPositions(NamedTuple):
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


class _PositionAllocator:
    """Allocator of positions, in order: addresses of levels and of maps, and integers of both."""

    def __init__(self) -> None:
        self.addresses = self.integers = 0

    def level(self, rank: int) -> _Level:
        a, i = self._take(4, LEVEL_INTEGERS + 1 + rank)
        cells, slots, values, slot_of = a
        return _Level(cells, slots, values, slot_of, i[0], i[1], i[2:-2], i[-2:])

    def map(self) -> _MapPositions:
        a, i = self._take(MAP_ADDRESSES, MAP_INTEGERS)
        order, found, word, runs, counts, keys = a
        return _MapPositions(
            order, found, word, runs, counts, keys, i[0], i[1], i[2], i[3:5], i[5:]
        )

    def _take(self, addresses: int, integers: int) -> tuple[Positions, Positions]:
        a, i = self.addresses, self.integers
        self.addresses, self.integers = a + addresses, i + integers
        return tuple(range(a, self.addresses)), tuple(range(i, self.integers))


def all_levels(
    rank: int, wide: bool, levels: int, kinds: tuple[MapKind, ...], sizes: Sizes
) -> Chain:
    """Return the launches that fill the tables of levels and build sorted maps from them.

    Addresses: for each level cells, slots, values, the rows' slots; for each map its order, index,
    word, runs, counts, keys; the tables of taps; the word of the grid sync. Integers: for each
    level rows, bits, the grid and ``ENDS`` of its rows; for each map rows per chunk, chunks, rows
    per window, ``ENDS`` of its chunks and of its windows; CTAs, and those of ``Fill``.
    """
    given = _PositionAllocator()
    tables = [given.level(rank) for _ in range(levels)]
    insert, reserve, settle = _to_fill(rank, wide, tables)
    maps = [(kind, tables[a], tables[b], given.map()) for kind in kinds for a, b in kind.levels]
    taps, word = given.addresses, given.addresses + 1
    counts, windows = _counts(maps, taps, sizes), _windows(maps, taps, sizes)
    stages = stages_of(((insert,), (counts, reserve), (settle,), (windows,)))
    places = tuple((stage.place,) for stage in stages)
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
    fixed = ((),) * len(tables)
    return (
        Turn(Insert(rank, wide), tuple(
            ((t.cells, t.slots, t.slot_of, t.values), (t.rows, t.bits, *t.grid, *t.ends))
            for t in tables
        ), fixed),
        Turn(Reserve(rank, wide), tuple(
            ((t.slots, t.slot_of, t.values), (t.rows, *t.ends)) for t in tables
        ), fixed),
        Turn(Settle(rank, wide), tuple(
            ((t.cells, t.slots, t.slot_of, t.values), (t.rows, *t.ends)) for t in tables
        ), fixed),
    )  # fmt: skip


_Sought = list[
    tuple[MapKind, _Level, _Level, _MapPositions]
]  # with the levels of its centres and its table


def _counts(maps: _Sought, taps: int, sizes: Sizes) -> Turn:
    """Return the turn that computes sort keys, and sorts chunks by them."""
    parts, numbers = _distinct([kind.keys for kind, *_ in maps])
    jobs = []
    for _, own, table, to in maps:
        keys = own.cells, table.slots, taps, to.keys
        of_keys = own.rows, to.chunk, to.chunks, own.rows, table.bits, *table.grid
        jobs.append(((to.runs, to.counts, to.word, *keys), (*of_keys, *to.of_chunks)))
    fixed = tuple((kind.of_keys, n) for (kind, *_), n in zip(maps, numbers, strict=True))
    return Turn(Count(OneOf(parts, 2), sizes), tuple(jobs), fixed)


def _windows(maps: _Sought, taps: int, sizes: Sizes) -> Turn:
    """Return the turn that sorts windows, and searches for their rows."""
    parts, numbers = _distinct(_of_lines([kind.then for kind, *_ in maps]))
    jobs = []
    for _, own, table, to in maps:
        then = table.slots, table.values, own.cells, taps, to.order, to.found
        of_sort = own.rows, to.chunk, to.chunks, to.window
        # Any integer but 0 says that there is an order.
        of_then = own.rows, table.bits, to.window, *table.grid
        jobs.append((
            (to.runs, to.counts, to.word, to.order, *then),
            (*of_sort, *of_then, *to.of_windows),
        ))  # fmt: skip
    fixed = tuple((kind.of_then, n) for (kind, *_), n in zip(maps, numbers, strict=True))
    return Turn(Windows(OneOf(parts, 3), sizes, True), tuple(jobs), fixed)


def _of_lines(parts: list[Any]) -> list[Any]:
    """Return parts of which those that search lines of adjacent taps are one, for the longest."""
    lines = {part.steps for part in parts if _is_of_lines(part)}
    if len(lines) < 2:
        return parts
    longest = max(lines, key=len)
    return [
        Search(p.rank, p.near, longest, p.wide, p.unit, shorter=True) if _is_of_lines(p) else p
        for p in parts
    ]


def _is_of_lines(part: Any) -> bool:
    return isinstance(part, Search) and part.steps == tuple(range(len(part.steps or ())))


def _distinct(parts: list[Any]) -> tuple[tuple[Any, ...], list[int]]:
    """Return the parts that differ, and for each given one which of these it is."""
    found = {part.key: part for part in parts}
    keys = list(found)
    return tuple(found.values()), [keys.index(part.key) for part in parts]
