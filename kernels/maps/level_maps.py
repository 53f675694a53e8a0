"""Kernel maps of all levels of a network by one call: the tables of cells, and the maps in them.

Built one after the other, the maps of a network each take two launches and three grid syncs,
however few rows a deep level has. Here the maps of all levels are jobs of two launches. Each map
has the rows, and their order, that ``HashTable.search_sorted`` and ``sort_index`` return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.memory import maker

from . import map_stages, per_rank
from .block_table import EDGES
from .box_filter import box_filter
from .box_inverse import KeysOfBoxInverse, RowsOfBoxInverse, number_of
from .build_map import MOST_KNOWN, WORD_BITS, HashTable, TableMemory
from .cooperative import SHARED_BYTES, WORD, bytes_of_arrays, ctas_for
from .device_tables import device_table
from .level_stages import MOST_PER_SM, THREADS, MapKind, all_levels
from .map_stages import RoomToSort
from .parents import KeysOfParents, RowsOfParents
from .per_rank import Chain
from .probe import Search
from .row_order import Sizes
from .sort_keys import Keys
from .tap_blocks import NEAREST, geometry, grid_of_taps, key_kind
from .tap_tables import (
    bits_in_block,
    steps_of,
    table_of_codes,
    table_of_lines,
    table_of_visits,
)
from .taps_like import TapsLike

WINDOW = 11  # binary logarithm of the most rows of a window, with ``MOST_ROWS`` rows at most
BESIDE = 1024  # bytes of shared memory that the system reserves per CTA
PIECE = 128  # granularity of shared memory, in bytes
MOST_LEVELS = 8  # a kernel takes their numbers, and those of three maps for each, as arguments
# Rows of a level. Larger maps keep a GPU busy by themselves, in CTAs that have an SM alone. All
# maps of five levels of 90, 184 and 497 thousand rows took 161, 295 and 587 us together on an H200,
# and 382, 412 and 527 us one after the other.
MOST_ROWS = 1 << 18


class WantedMap(NamedTuple):
    """A map to build.

    Attributes:
        taps: of the filter.
        centres, table: levels: rows of the first read cells of the second. If ``inverse``, this is
            the inverse of such a map: rows of ``centres`` feed cells of ``table``.
    """

    taps: TapsLike
    centres: int
    table: int
    inverse: bool = False


def suits(tables: Sequence[HashTable], wanted: Sequence[WantedMap]) -> bool:
    """Return whether one call should build all maps: every level has rows, at most ``MOST_ROWS``;
    the grids have keys of one kind; and kernels can be compiled for the filters.
    """
    plan = plan_of([table.grid for table in tables], wanted)
    return plan is not None and plan.suits(tables)


def divides(taps: TapsLike) -> bool:
    """Return whether taps fill a box as large as their stride, and are few enough.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> divides(Taps.strided(2, 2, 2)), divides(Taps.strided(2, 3, 2, 1))
    (True, False)
    """
    box = tuple(product(*map(range, taps.stride))) if max(taps.stride) <= MOST_KNOWN else None
    return len(taps.offsets) <= MOST_KNOWN and taps.offsets == box


@remembered(64)
def inverts(taps: TapsLike) -> bool:
    """Return whether kernels can build the inverse of a strided map from cells alone: it needs a
    box of few taps, and each input must feed outputs that span no more than a block per axis.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> inverts(Taps.strided(3, 3, 2, 1)), inverts(Taps.strided(3, 3, 2, 2, dilation=2))
    (True, False)
    """
    found = box_filter(taps)
    if found is None or len(taps.offsets) > MOST_KNOWN:
        return False
    edges = zip(found.size, found.stride, EDGES[len(taps.stride)], strict=True)
    return all(-(-k // s) <= 1 << b for k, s, b in edges)


def finds(taps: TapsLike) -> bool:
    """Return whether ``sorted_maps`` can build a map of such taps: a grid of few near taps.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> finds(Taps.centred(3, 3)), finds(Taps.centred(3, 5))
    (True, False)
    """
    return _known(taps) is not None


@remembered(64)
def _known(taps: TapsLike) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """Return the known taps, their least offsets and spans; None if no kernel is made for them."""
    low, span, near = geometry(taps.offsets, len(taps.stride))
    few = near and len(taps.offsets) <= MOST_KNOWN and span[-1] < WORD_BITS
    box = grid_of_taps(taps.offsets) if few else None
    return None if box is None else (box, low, span)


def sorted_maps(
    tables: Sequence[HashTable], wanted: Sequence[WantedMap]
) -> list[tuple[Tensor, Tensor]]:
    """Fill all tables, and return for each map its index, sorted by taps, and the row order.

    Call it if :func:`suits`. Launches go to torch's current stream, and nothing waits for them.
    """
    plan = plan_of([table.grid for table in tables], wanted)
    assert plan is not None
    return plan.run(tables)


def plan_of(grids: Sequence[tuple[int, ...]], wanted: Sequence[WantedMap]) -> LevelPlan | None:
    """Return the plan of these maps, for levels in grids ``(batch_size, ...)``; None if a map has
    taps that no kernel is made for.
    """
    known = all(inverts(each.taps) if each.inverse else finds(each.taps) for each in wanted)
    few = len(grids) <= MOST_LEVELS and 0 < len(wanted) <= 3 * MOST_LEVELS
    if not (known and few and len(set(map(key_kind, grids))) == 1):
        return None
    return LevelPlan(len(grids[0]) - 1, key_kind(grids[0]), len(grids), tuple(wanted))


class LevelPlan:
    """The launches that build the maps of levels, for any numbers of rows.

    Attributes:
        chain: the launches.
    """

    def __init__(
        self, rank: int, of_grids: tuple[bool, bool], levels: int, wanted: tuple[WantedMap, ...]
    ) -> None:
        groups, turns = _by_kind(wanted)
        self._sizes = sizes_of_sorts()
        self.chain, self._needs, self._taps = _chain(rank, of_grids, levels, groups, self._sizes)
        self._tables: dict[int, Tensor] = {}  # of taps, by device
        self._places = [turns.index(number) for number in range(len(wanted))]
        maps = [wanted[i] for i in turns]  # as a launch has them
        self._maps = [(m.centres, len(m.taps.offsets), m.taps.order.window) for m in maps]

    def suits(self, tables: Sequence[HashTable]) -> bool:
        """Return whether every level has rows, and none has more than ``MOST_ROWS``."""
        rows = [table.rows for table in tables if 0 not in table.grid]
        return len(rows) == len(tables) and 0 < min(rows) <= max(rows) <= MOST_ROWS

    def run(self, tables: Sequence[HashTable]) -> list[tuple[Tensor, Tensor]]:
        """Launch, and return the result of :func:`sorted_maps`."""
        cells, sizes = tables[0].indices, self._sizes
        device, make, bins = cells.get_device(), maker(cells.device), 1 << sizes.place
        of_levels = [table.rows for table in tables]
        rows = [of_levels[level] for level, _, _ in self._maps]
        every = sum(rows)
        ctas = ctas_of_sm(self._needs, shared_bytes(device)) * ctas_for(every, device)
        sorting = [
            RoomToSort(count, window(count), max(1, ctas * count // every), sizes)
            for count, (_, _, window) in zip(rows, self._maps, strict=True)
        ]

        # Filled memory: the tables, which keep it, then a word and totals for each map.
        tabled = list(accumulate([4 * table.vectors for table in tables], initial=WORD))
        filled = tabled[-1] + (WORD + bins) * len(rows)
        # Workspace, in an order that aligns each: counts, runs (Int64), keys, and the rows' slots.
        runs_at = bins * sum([sort.chunks for sort in sorting])
        keys_at = runs_at + 2 * every
        slots_at = keys_at + every
        whole = make((filled,), (1,), torch.int32)
        workspace = make((slots_at + sum(of_levels),), (1,), torch.int32)
        word, start = whole.data_ptr(), workspace.data_ptr()
        addresses, integers = list[int](), list[int]()
        memories, turn, slots = list[TableMemory](), 0, start + 4 * slots_at
        for table, count, at in zip(tables, of_levels, tabled, strict=False):
            memory = table.memory_at(whole, at)
            memories.append(memory)
            addresses += table.indices.data_ptr(), memory.slots, memory.values, slots
            after = turn + max(1, ctas * count // sum(of_levels))
            integers += table.rows, table.bits, *table.grid, turn, after
            turn, slots = after, slots + 4 * count
        totals, counts, runs, keys = (
            word + 4 * tabled[-1], start, start + 4 * runs_at, start + 4 * keys_at,
        )  # fmt: skip
        found: list[tuple[Tensor, Tensor]] = []
        taps = self._tables.get(device)
        if taps is None:
            taps = self._tables[device] = device_table(self._taps, cells.device)
        tensors = [cells, *[table.indices for table in tables[1:]], whole, workspace, taps]
        chunk = window = 0
        for count, sort, of in zip(rows, sorting, self._maps, strict=True):
            index = make((count, of[1]), (1, count), torch.int32)
            order = make((count,), (1,), torch.int32)
            found.append((index, order))
            tensors += index, order
            addresses += order.data_ptr(), index.data_ptr(), totals, runs, counts, keys
            windows = -(-count // sort.integers[2])
            integers += *sort.integers, chunk, chunk + sort.chunks, window, window + windows
            chunk, window = chunk + sort.chunks, window + windows
            totals, counts = totals + 4 * (WORD + bins), counts + 4 * sort.chunks * bins
            runs, keys = runs + 8 * count, keys + 4 * count
        numbers = *integers, ctas, filled // 4 + 1, 0
        every_address = *addresses, taps.data_ptr(), word
        per_rank.launch(self.chain, tuple(tensors), every_address, numbers)
        for table, memory in zip(tables, memories, strict=True):
            table.memory = memory
        return [found[place] for place in self._places]


def load_kernels(
    wanted: Sequence[WantedMap], grids: Sequence[tuple[int, ...]], *cells: Tensor
) -> None:
    """Launch the kernels of such maps in a dry run, which loads kernels and runs none."""
    tables = [HashTable(own, grid[1:], grid[0]) for own, grid in zip(cells, grids, strict=True)]
    if suits(tables, wanted):
        sorted_maps(tables, wanted)


def sizes_of_sorts() -> Sizes:
    """Return the sizes of all sorts of a call."""
    of_one = map_stages.SIZES
    return replace(
        of_one, window=min(WINDOW, of_one.window), chunk=min(WINDOW, of_one.chunk),
        threads=min(THREADS, of_one.threads),
    )  # fmt: skip


@remembered(64)
def _by_kind(wanted: tuple[WantedMap, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Group maps by taps and ``inverse``. Return the groups, and the positions of their maps in
    ``wanted``, in turn."""
    groups: dict[Any, list[int]] = {}
    for i, each in enumerate(wanted):
        groups.setdefault((each.taps, each.inverse), []).append(i)
    kinds = tuple(
        _Group(taps, inverse, tuple((wanted[i].centres, wanted[i].table) for i in some))
        for (taps, inverse), some in groups.items()
    )
    return kinds, tuple(i for some in groups.values() for i in some)


class _Group(NamedTuple):
    taps: TapsLike
    inverse: bool
    levels: tuple[tuple[int, int], ...]


@remembered(32)
def _chain(
    rank: int, of_grids: tuple[bool, bool], levels: int, groups: tuple[_Group, ...], sizes: Sizes
) -> tuple[Chain, int, tuple[int, ...]]:
    """Return the launches of such maps, the bytes of shared memory of a CTA, and the tables."""
    kinds, taps = kinds_of(rank, of_grids, groups, sizes)
    chain = all_levels(rank, of_grids[0], levels, kinds, sizes)
    return chain, bytes_of_arrays(chain.parts[1][0].shared()), taps


def kinds_of(
    rank: int, of_grids: tuple[bool, bool], groups: tuple[_Group, ...], sizes: Sizes
) -> tuple[tuple[MapKind, ...], tuple[int, ...]]:
    """Return the parts of a kernel that build the maps of each group, and the tables of taps that
    they read, one behind the other."""
    kinds, tables = list[MapKind](), list[int]()
    for taps, inverse, levels in groups:
        make = _searched if not inverse else _parents if divides(taps) else _inverse
        keys, then, of_keys, of_then = make(rank, of_grids, taps, sizes)
        starts = len(tables), len(tables) + len(of_keys)
        kinds.append(MapKind(keys, then, *starts, levels))
        tables += *of_keys, *of_then
    return tuple(kinds), tuple(tables)


def ctas_of_sm(needs: int, shared: int) -> int:
    """Return how many CTAs fit on an SM at once, by the shared memory of both.

    >>> [ctas_of_sm(48_000, kb << 10) for kb in (228, 164, 100, 48)]  # sm_90, sm_80, sm_86, sm_75
    [4, 3, 2, 1]
    """
    pieces = -(-needs // PIECE)
    return max(1, min(MOST_PER_SM, shared // (pieces * PIECE + BESIDE)))


# Parts that compute sort keys and sorted rows, and their tables of taps.
_Parts = tuple[Any, Any, tuple[int, ...], tuple[int, ...]]


def _searched(rank: int, of_grids: tuple[bool, bool], taps: TapsLike, sizes: Sizes) -> _Parts:
    """Return the parts of maps that search around their centres."""
    (wide, small), found = of_grids, _known(taps)
    assert found is not None
    box, low, _ = found
    unit = small and not wide and max(map(abs, low)) <= NEAREST
    of_all, fit = (taps.offsets, taps.stride), bits_in_block(box, rank)
    codes = (
        table_of_visits(*of_all, True, taps.order) if fit is None
        else table_of_codes(*of_all, fit, taps.order)
    )  # fmt: skip
    keys = Keys(rank, True, sizes, fit is not None, wide, unit)
    then = Search(rank, True, steps_of(box), wide, unit)
    return keys, then, codes, table_of_lines(*of_all, box)


def _parents(rank: int, of_grids: tuple[bool, bool], taps: TapsLike, sizes: Sizes) -> _Parts:
    """Return the parts of inverses of a filter as large as its stride."""
    wide, every = of_grids[0], list(range(len(taps.offsets)))
    codes = table_of_codes(taps.offsets, taps.stride, every, taps.order)
    keys = KeysOfParents(rank, taps.stride, sizes, wide)
    return keys, RowsOfParents(rank, taps.stride, wide), codes, codes


def _inverse(rank: int, of_grids: tuple[bool, bool], taps: TapsLike, sizes: Sizes) -> _Parts:
    """Return the parts of inverses of a box filter of any size."""
    (wide, small), found = of_grids, box_filter(taps)
    assert found is not None
    near = all(0 <= c <= NEAREST for c in found.before)  # so that an overflow is negative
    unit = small and not wide and near
    places = tuple(tuple(map(sum, zip(o, found.before, strict=True))) for o in taps.offsets)
    numbers = [number_of(found, place) for place in places]
    codes = table_of_codes(taps.offsets, taps.stride, numbers, taps.order)
    keys = KeysOfBoxInverse(rank, found, sizes, wide, unit)
    return keys, RowsOfBoxInverse(rank, found, places, wide, unit), codes, codes


@remembered(64)
def shared_bytes(device: int) -> int:
    """Return the shared memory of an SM, in bytes."""
    if device < 0:
        return SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_multiprocessor", SHARED_BYTES))
