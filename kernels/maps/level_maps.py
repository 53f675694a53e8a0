"""Kernel maps of all levels of a network by one call: tables of cells, and what is found in them.

As many maps as a network asks for, one after the other, take the latency of each: two launches and
three grid syncs, however few the rows of a deep level are. Here those of all levels are jobs of two
launches. Each map has the rows, in the order, that ``HashTable.search_sorted`` and ``sort_index``
find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.memory import maker

from . import map_stages, per_rank
from .block_table import EDGES
from .box_filter import box_filter
from .box_inverse import KeysOfBoxInverse, RowsOfBoxInverse
from .build_map import MOST_KNOWN, WORD_BITS, HashTable, Taps
from .cooperative import SHARED_BYTES, WORD, ctas_for, size_of
from .level_stages import MOST_PER_SM, THREADS, Kind, all_levels
from .map_stages import RoomToSort
from .parents import KeysOfParents, RowsOfParents
from .per_rank import Chain
from .probe import Search
from .row_order import Sizes
from .sort_keys import Keys
from .tap_blocks import NEAREST, box_of, geometry, kind_of

WINDOW = 11  # the binary logarithm of the most rows of a window, of ``MOST_ROWS`` at most
BESIDE = 1024  # bytes of shared memory that the system takes of each CTA
PIECE = 128  # bytes: a CTA has as many of these as its shared memory needs
MOST_LEVELS = 8  # whose numbers, and those of three maps for each, are arguments of a kernel
# Of a level: more keep a GPU busy by themselves, in CTAs that have an SM alone. All maps of five
# levels took 161, 295 and 587 us together on an H200, of 90, 184 and 497 thousand rows, and 382,
# 412 and 527 one after the other.
MOST_ROWS = 1 << 18


class Wanted(NamedTuple):
    """A map to find.

    Attributes:
        taps: of the filter.
        centres, table: levels: rows of one, which read cells of the other; if ``inverse``, the
            inverse of such a map, of rows of ``centres`` that feed cells of ``table``.
    """

    taps: Taps
    centres: int
    table: int
    inverse: bool = False


def suits(tables: Sequence[HashTable], wanted: Sequence[Wanted]) -> bool:
    """Return whether one call should find all maps: of grids of one kind, with rows in every level,
    but not too many, and of filters that kernels are compiled for.
    """
    there = all(0 < table.rows <= MOST_ROWS and 0 not in table.grid for table in tables)
    return there and knows([table.grid for table in tables], wanted)


def knows(grids: Sequence[tuple[int, ...]], wanted: Sequence[Wanted]) -> bool:
    """Return whether one kernel finds these maps of levels in grids ``(batch_size, ...)``."""
    alike = len(set(map(kind_of, grids))) == 1 and len(grids) <= MOST_LEVELS
    known = all(
        inverts(each.taps) if each.inverse else _known(each.taps) is not None for each in wanted
    )
    return alike and known and 0 < len(wanted) <= 3 * MOST_LEVELS


def kernel_of(grids: Sequence[tuple[int, ...]], wanted: Sequence[Wanted]) -> Chain:
    """The kernel that finds maps that :func:`knows` says it knows."""
    groups, _ = _by_kind(tuple(wanted))
    kind, sizes = kind_of(grids[0]), sizes_of_sorts()
    return _chain(len(grids[0]) - 1, kind, len(grids), groups, sizes)[0]


def divides(taps: Taps) -> bool:
    """Return whether taps are the cells of a box as large as their stride, and few enough.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> divides(Taps.strided(2, 2, 2)), divides(Taps.strided(2, 3, 2, 1))
    (True, False)
    """
    box = tuple(product(*map(range, taps.stride))) if max(taps.stride) <= MOST_KNOWN else None
    return len(taps.offsets) <= MOST_KNOWN and taps.offsets == box


@remembered(64)
def inverts(taps: Taps) -> bool:
    """Return whether kernels find the inverse of a strided map by itself: of a box of few taps,
    each of whose inputs feeds outputs that lie as near to each other as a block's cells.

    >>> from layoutconv.sparse.maps.taps import Taps
    >>> inverts(Taps.strided(3, 3, 2, 1)), inverts(Taps.strided(3, 3, 2, 2, dilation=2))
    (True, False)
    """
    found = box_filter(taps)
    if found is None or len(taps.offsets) > MOST_KNOWN:
        return False
    edges = zip(found.size, found.stride, EDGES[len(taps.stride)], strict=True)
    return all(-(-k // s) <= 1 << b for k, s, b in edges)


@remembered(64)
def _known(taps: Taps) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """The known taps, their least offsets, and their spans; None if no kernel knows them."""
    low, span, near = geometry(taps.offsets, len(taps.stride))
    few = near and len(taps.offsets) <= MOST_KNOWN and span[-1] < WORD_BITS
    box = box_of(taps.offsets) if few else None
    return None if box is None else (box, low, span)


def sorted_maps(
    tables: Sequence[HashTable], wanted: Sequence[Wanted]
) -> list[tuple[Tensor, Tensor]]:
    """Fill all tables, and return of each map its index, sorted by taps, and the order of its rows.

    Of what :func:`suits`. Launches go to torch's current stream, and nothing waits for them.
    """
    cells = tables[0].indices
    device, make = cells.get_device(), maker(cells.device)
    kinds, turns = _by_kind(tuple(wanted))
    maps = [wanted[i] for i in turns]  # as a launch has them
    rows = [tables[each.centres].rows for each in maps]
    windows = [each.taps.order.window(count) for each, count in zip(maps, rows, strict=True)]
    sizes = sizes_of_sorts()
    chain, needs = _chain(tables[0].rank, kind_of(tables[0].grid), len(tables), kinds, sizes)
    of_levels = [table.rows for table in tables]
    ctas = ctas_of_sm(needs, shared_bytes(device)) * ctas_for(sum(rows), device)
    sorting = [
        RoomToSort(count, window, share, sizes)
        for count, window, share in zip(rows, windows, shares(rows, ctas), strict=True)
    ]
    room = _Room(tables, sorting, rows, sizes, make)
    found = [
        (
            make((count, len(each.taps.offsets)), (1, count), torch.int32),
            make((count,), (1,), torch.int32),
        )
        for each, count in zip(maps, rows, strict=True)
    ]

    addresses, integers = room.of_levels(tables), list[int]()
    for table, (first, end) in zip(tables, _ends(shares(of_levels, ctas)), strict=True):
        integers += [table.rows, table.bits, *table.grid, first, end]
    for (index, order), place in zip(found, room.of_maps, strict=True):
        addresses += [order.data_ptr(), index.data_ptr(), *place]
    at = 0
    for kind in kinds:
        some = slice(at, at + len(kind.levels))
        of_chunks = _ends([sort.chunks for sort in sorting[some]])
        counts = (-(-n // window) for n, window in zip(rows[some], windows[some], strict=True))
        for sort, a, b in zip(sorting[some], of_chunks, _ends(list(counts)), strict=True):
            integers += [*sort.integers, *a, *b]
        at = some.stop
    tensors = (
        cells,
        *(t.indices for t in tables[1:]),
        room.whole,
        room.workspace,
        *(t for f in found for t in f),
    )
    numbers = (*integers, ctas, room.vectors + 1, 0)
    per_rank.launch(chain, tensors, (*addresses, room.word), numbers)
    for table, memory in zip(tables, room.memories, strict=True):
        table.memory = memory
    return [each for _, each in sorted(zip(turns, found, strict=True), key=lambda pair: pair[0])]


def load_kernels(
    wanted: Sequence[Wanted], grids: Sequence[tuple[int, ...]], *cells: Tensor
) -> None:
    """Launch what finds maps of such cells, in a dry run, which loads kernels and runs none."""
    tables = [HashTable(own, grid[1:], grid[0]) for own, grid in zip(cells, grids, strict=True)]
    if suits(tables, wanted):
        sorted_maps(tables, wanted)


def shares(rows: Sequence[int], ctas: int) -> list[int]:
    """Return how many virtual CTAs each of several jobs has: by its rows, and one at least.

    >>> shares([900, 90, 9], 100)
    [90, 9, 1]
    """
    return [max(1, ctas * count // sum(rows)) for count in rows]


def _ends(counts: Sequence[int]) -> list[tuple[int, int]]:
    """The first of each of some runs that follow each other, and the one behind its last."""
    return list(pairwise(accumulate(counts, initial=0)))


def sizes_of_sorts() -> Sizes:
    """The sizes of all sorts of a call."""
    of_one = map_stages.SIZES
    return replace(
        of_one, window=min(WINDOW, of_one.window), chunk=min(WINDOW, of_one.chunk),
        threads=min(THREADS, of_one.threads),
    )  # fmt: skip


@remembered(64)
def _by_kind(wanted: tuple[Wanted, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Maps in groups of a kind, as (taps, whether inverses, their levels); and which these are,
    in turn."""
    groups: dict[Any, list[int]] = {}
    for i, each in enumerate(wanted):
        groups.setdefault((each.taps, each.inverse), []).append(i)
    kinds = tuple(
        _Group(taps, inverse, tuple((wanted[i].centres, wanted[i].table) for i in some))
        for (taps, inverse), some in groups.items()
    )
    return kinds, tuple(i for some in groups.values() for i in some)


class _Group(NamedTuple):
    taps: Taps
    inverse: bool
    levels: tuple[tuple[int, int], ...]


@remembered(32)
def _chain(
    rank: int, of_grids: tuple[bool, bool], levels: int, groups: tuple[_Group, ...], sizes: Sizes
) -> tuple[Chain, int]:
    """The launches of such maps, and the bytes of shared memory that a CTA takes."""
    kinds = tuple(_kind(rank, of_grids, group, sizes) for group in groups)
    chain = all_levels(rank, of_grids[0], levels, kinds, sizes)
    return chain, size_of(chain.parts[1][0].shared())


def ctas_of_sm(needs: int, shared: int) -> int:
    """Return how many CTAs of such shared memory an SM of so much has at once.

    >>> [ctas_of_sm(48_000, kb << 10) for kb in (228, 164, 100, 48)]  # sm_90, sm_80, sm_86, sm_75
    [4, 3, 2, 1]
    """
    pieces = -(-needs // PIECE)
    return max(1, min(MOST_PER_SM, shared // (pieces * PIECE + BESIDE)))


def _kind(rank: int, of_grids: tuple[bool, bool], group: _Group, sizes: Sizes) -> Kind:
    """The parts of a kernel that find maps of a group."""
    taps, inverse, levels = group
    (wide, small), order = of_grids, taps.order
    if inverse and divides(taps):
        of_parents = KeysOfParents(rank, taps.stride, sizes, order.visits, order.weights, wide)
        return Kind(of_parents, RowsOfParents(rank, taps.stride, wide), (), levels)
    if inverse:
        return _inverse(rank, of_grids, group, sizes)
    found = _known(taps)
    assert found is not None
    box, low, span = found
    unit = small and not wide and set(taps.stride) == {1} and max(map(abs, low)) <= NEAREST
    in_turn = tuple(box[tap] for tap in order.visits)
    keys = Keys(rank, True, sizes, in_turn, order.weights, wide, unit)
    numbers = len(taps.offsets), *taps.stride, *low, *span
    return Kind(keys, Search(rank, True, box, wide, unit), numbers, levels)


def _inverse(rank: int, of_grids: tuple[bool, bool], group: _Group, sizes: Sizes) -> Kind:
    """The parts of a kernel that find inverses of a box filter of any size."""
    (wide, small), order, offsets = of_grids, group.taps.order, group.taps.offsets
    found = box_filter(group.taps)
    assert found is not None
    near = all(0 <= c <= NEAREST for c in found.before)  # so that what leaves 32 bits is below 0
    unit = small and not wide and near
    taps = tuple(tuple(map(sum, zip(o, found.before, strict=True))) for o in offsets)
    in_turn = tuple(taps[tap] for tap in order.visits)
    keys = KeysOfBoxInverse(rank, found, in_turn, sizes, order.weights, wide, unit)
    return Kind(keys, RowsOfBoxInverse(rank, found, taps, wide, unit), (), group.levels)


@remembered(64)
def shared_bytes(device: int) -> int:
    """The shared memory of an SM."""
    if device < 0:
        return SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_multiprocessor", SHARED_BYTES))


class _Room:
    """The memory of a call, but for what it returns: what is filled, which tables keep, and the
    workspace of sorting.

    Attributes:
        whole, workspace: both pieces.
        word: of the grid sync; at the beginning.
        vectors: of 16 bytes that are filled.
        memories: of the tables.
        of_maps: of each map its word, runs, counts and keys.
    """

    def __init__(
        self, tables: Sequence[HashTable], sorting: Sequence[RoomToSort], rows: Sequence[int],
        sizes: Sizes, make: Any,
    ) -> None:  # fmt: skip
        bins = 1 << sizes.place
        tabled = list(accumulate((4 * t.vectors for t in tables), initial=WORD))
        words = list(accumulate([WORD + bins] * len(rows), initial=tabled[-1]))
        # As aligned as they have to be: counts, runs, which are Int64, keys, and slots of rows.
        counts = list(accumulate((s.chunks * bins for s in sorting), initial=0))
        runs = list(accumulate((2 * count for count in rows), initial=counts[-1]))
        keys = list(accumulate(rows, initial=runs[-1]))
        slots_of = list(accumulate((t.rows for t in tables), initial=keys[-1]))
        self.whole = make((words[-1],), (1,), torch.int32)
        self.workspace = make((slots_of[-1],), (1,), torch.int32)
        self.word, self.vectors = self.whole.data_ptr(), words[-1] // 4
        self.memories = [t.memory_at(self.whole, at) for t, at in zip(tables, tabled, strict=False)]
        start = self.workspace.data_ptr()
        self._slots_of = [start + 4 * at for at in slots_of]
        places = zip(words, runs, counts, keys, strict=True)
        self.of_maps = [
            [self.word + 4 * word, *(start + 4 * at for at in some)] for word, *some in places
        ][:-1]

    def of_levels(self, tables: Sequence[HashTable]) -> list[int]:
        """Addresses of cells, slots, values and the rows' slots."""
        found = []
        of_rows = zip(tables, self.memories, self._slots_of, strict=False)
        for table, memory, slot_of in of_rows:
            found += [table.indices.data_ptr(), memory.slots, memory.values, slot_of]
        return found
