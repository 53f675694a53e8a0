"""Kernel maps of sparse convolution: the row of the cell that each tap of a row points to.

``HashTable`` inserts a cloud's rows once; searches then look up the taps of filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.memory import maker
from layoutconv.base.torch_internals import in_shape

from . import map_stages, per_rank
from .block_table import table_size
from .cooperative import WORD, ctas_for
from .device_tables import Table, device_table
from .hash_table import EMPTY
from .map_stages import RoomToSort, filled, sorted_index, sorted_search
from .per_rank import Chain, check_cells, check_grid, check_per_axis, check_table
from .probe import Search
from .row_order import Sizes
from .sort_keys import Keys
from .tap_blocks import NEAREST, geometry, grid_of_taps, key_kind
from .tap_tables import (
    bits_in_block,
    steps_of,
    table_of_codes,
    table_of_lines,
    table_of_taps,
    table_of_visits,
)
from .taps_like import TapOrderLike, TapsLike

MOST_KNOWN = 64  # taps that fit in a word, or whose lines a kernel may be compiled for
WORD_BITS = 64  # the cells of a line fit in a word


class HashTable:
    """Hash table of a cloud's cells, which maps a cell to its row, on the cloud's GPU.

    Args:
        indices: int32 (rows, 1 + rank), ``(batch, z, y, x)``, of 1 to 4 spatial axes, in any order.
            A row with a negative batch is padding: it is in no cell.
        spatial_shape: extents ``(D, H, W)`` of the grid.
        batch_size: number of grids. All of them together have fewer than 2^63 cells.

    Rows outside the grid are left out; if several rows have one cell, the lowest row wins.
    ``status`` reports both. Launches go to torch's current stream, and nothing waits for them.
    Results do not depend on the order in which threads run.

    Raises ``ArgumentError`` for another type or shape of ``indices`` and for an invalid grid.
    """

    def __init__(self, indices: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
        self.grid = grid = check_grid(spatial_shape, batch_size)
        self.rank = rank = len(grid) - 1
        self._given, self.indices = indices, check_cells("indices", indices, rank)
        self.rows = rows = indices.shape[0]
        self._wide, self._small = key_kind(grid)
        self.bits, self._of_slots, self.vectors = table_size(rows, self._wide)
        self._device = device = indices.device
        self._make = maker(device)
        self._memory: TableMemory | None = None

    @property
    def memory(self) -> TableMemory:
        """The table, filled on first use; ``search_sorted`` fills and searches it in one call."""
        if self._memory is None:
            found = TableMemory(self._make, self.rows, self._of_slots, self.vectors)
            if self.rows:
                slot_of = self._make((WORD + self.rows,), (1,), torch.int32)
                tensors = self.indices, found.whole, slot_of
                word = slot_of.data_ptr()
                addresses = (
                    found.slots, found.values, self.indices.data_ptr(), word + 4 * WORD, word,
                )  # fmt: skip
                ctas = ctas_for(self.rows, slot_of.get_device())
                integers = (
                    self.rows, self.bits, *self.grid, ctas, found.vectors + 1, found.of_slots,
                )  # fmt: skip
                chain = filled(self.rank, map_stages.SIZES.threads, self._wide)
                per_rank.launch(chain, tensors, addresses, integers)
            else:
                found.whole.fill_(EMPTY)
            self._memory = found
        return self._memory

    @memory.setter
    def memory(self, memory: TableMemory) -> None:
        """Take a table that another launch fills; never replace one that CUDA graphs may read."""
        if self._memory is None:
            self._memory = memory

    def memory_at(self, room: Tensor, start: int) -> TableMemory:
        """Return memory for the table inside ``room``, from its Int32 number ``start`` on."""
        return TableMemory(lambda *_: room, self.rows, self._of_slots, self.vectors, start=start)

    @property
    def status(self) -> Tensor:
        """int32 (2,), on the cloud's device: errors in the cloud.

        First the lowest row whose cell an earlier row has, plus 1; then the lowest row outside the
        grid that is not padding, plus 1. Each is 0 if there is no such row.
        """
        last = self.memory.last
        return self.memory.whole[last : last + 2] + 1

    def verdict(self) -> tuple[int, int, bool]:
        """Return ``status`` and whether there is padding; this waits for the GPU."""
        memory, rows = self.memory, self.rows
        last = memory.last
        batches = in_shape(self.indices, (rows,), (1 + self.rank,))
        torch.amin(batches, 0, out=in_shape(memory.whole, (), (), last + 3))
        repeated, outside, _, least = in_shape(memory.whole, (4,), (1,), last).tolist()
        return repeated + 1, outside + 1, least < 0

    def search(
        self, centres: Tensor, stride: Sequence[int], offsets: Sequence[Sequence[int]]
    ) -> Tensor:
        """Return the rows of the cells ``(batch, centre * stride + offset)``.

        Args:
            centres: int32 (centres, 1 + rank), on the same device. A row with a negative batch
                finds nothing.
            stride: one integer per axis.
            offsets: one int32 per axis for each of the V taps.

        Returns int32 (centres, V) of strides ``(1, centres)``: -1 where no row has the cell.
        """
        centres, plan = self._asked(centres, stride, offsets)
        rows, count = centres.shape[0], plan.count
        index = self._make((rows, count), (1, rows or 1), torch.int32)
        if self._finds(rows, count):
            memory = self.memory
            addresses = (
                memory.slots, memory.values, centres.data_ptr(), plan.natural_at,
                plan.natural_at, index.data_ptr(),
            )  # fmt: skip
            integers = rows, self.bits, 0, *self.grid
            tensors = centres, memory.whole, plan.natural, index
            per_rank.launch(plan.search, tensors, addresses, integers)
        else:
            index.fill_(-1)
        return index

    def search_own(self, offsets: Sequence[Sequence[int]]) -> Tensor:
        """``search(indices, (1, ...), offsets)``."""
        return self.search(self.indices, (1,) * self.rank, offsets)

    def search_sorted(self, centres: Tensor, taps: TapsLike) -> tuple[Tensor, Tensor]:
        """Return the result of ``search`` with its rows sorted by their taps, and the row order.

        One call does both: a row's tap mask is known before any row number is read, so every entry
        is written once, in its sorted place. Returns int32 (centres, V), with the strides of
        ``search``, and int32 (centres,).
        """
        cells, make, own = self.indices, self._make, self.rows
        at_cells = at_centres = cells.data_ptr()
        if centres is self._given:
            centres, rows = cells, own
        else:
            centres = check_cells("centres", centres, self.rank, self._device)
            at_centres, rows = centres.data_ptr(), centres.shape[0]
        plan = _sorted_plan(taps, self.rank, self._device, self._wide, self._small)
        count = plan.count
        index = make((rows, count), (1, rows or 1), torch.int32)
        if not (rows and count and own) or 0 in self.grid:
            index.fill_(-1)
            return index, torch.arange(rows, dtype=torch.int32, device=index.device)
        found = make((rows,), (1,), torch.int32)
        ctas = ctas_for(max(rows, own), cells.get_device())
        sorting = RoomToSort(rows, taps.order.window(rows), ctas)
        memory, empty, size = self._memory, self._memory is None, sorting.size
        if memory is None:
            # Put this call's workspace behind the table: an allocation costs the host 1 us.
            memory = TableMemory(make, own, self._of_slots, self.vectors, size + own)
            room, word = memory.whole, memory.end
            behind: tuple[int, ...] = at_cells, word + 4 * size, word
            fills: tuple[int, ...] = own, ctas, memory.vectors + sorting.vectors, memory.of_slots
        else:
            room = make((size,), (1,), torch.int32)
            word = room.data_ptr()
            behind, fills = (word,), (ctas, sorting.vectors, 0)
        tensors = centres, memory.whole, room, found, index, cells, plan.natural, plan.visits
        addresses = (
            memory.slots, memory.values, at_centres, plan.natural_at, plan.visits_at,
            found.data_ptr(), index.data_ptr(), *sorting.addresses(word), *behind,
        )  # fmt: skip
        integers = (
            rows, self.bits, 1, *sorting.integers, *self.grid, *fills,
        )  # fmt: skip
        chain = plan.chains.get(empty) or plan.sorted(empty)
        per_rank.launch(chain, tensors, addresses, integers)
        self._memory = memory  # only after its fill was launched
        return index, found

    def _asked(self, centres: Tensor, stride: Any, offsets: Any) -> tuple[Tensor, TapArguments]:
        if centres is self._given or centres is self.indices:
            centres = self.indices
        else:
            centres = check_cells("centres", centres, self.rank, self._device)
        if type(stride) is not tuple:
            stride = check_per_axis("stride", stride, self.rank)
        if type(offsets) is not tuple:
            offsets = check_table("offsets", offsets, self.rank)
        kind = self._wide, self._small
        return centres, _plan(offsets, stride, self.rank, self._device, *kind)

    def _finds(self, rows: int, count: int) -> bool:
        """Return whether there are centres, taps, rows and cells to search."""
        return bool(rows and count and self.rows) and 0 not in self.grid


class TableMemory:
    """The memory of a table: slots, and the rows of cells.

    It is one allocation, filled with -1 at once: slots are then EMPTY with absent cells, and rows
    hold the greatest unsigned number, from which atomic minima start.

    Args:
        of_slots, vectors: how many 16-byte vectors the slots and the whole table take.
        more: how many Int32 to allocate behind the table, for others.
        start: how many Int32 lie before the table.

    Attributes:
        slots, values, end: addresses.
        last: the position of the first Int32 behind the rows.
    """

    def __init__(
        self, make: Callable[..., Tensor], rows: int, of_slots: int, vectors: int, more: int = 0,
        start: int = 0,
    ) -> None:  # fmt: skip
        self.of_slots, self.vectors = of_slots, vectors
        self.whole = make((4 * vectors + more,), (1,), torch.int32)
        self.slots = slots = self.whole.data_ptr() + 4 * start
        self.last = start + 4 * of_slots + rows
        self.values, self.end = slots + 16 * of_slots, slots + 16 * vectors


def sort_index(index: Tensor, order: TapOrderLike) -> tuple[Tensor, Tensor]:
    """Return an index, int32 (rows, V), with its rows sorted by their taps, and the row order."""
    rows, taps = index.shape
    across, make = index.T.contiguous(), maker(index.device)
    found, places = (
        make((rows, taps), (1, rows or 1), torch.int32),
        make((rows,), (1,), torch.int32),
    )
    ctas = ctas_for(rows, index.get_device())
    sorting = RoomToSort(rows, order.window(rows), ctas)
    room = make((sorting.size,), (1,), torch.int32)
    word = room.data_ptr()
    pairs = tuple(zip(order.visits, order.weights, strict=True))
    table = device_table(pairs, index.device)
    tensors = across, table, found, room, places
    addresses = (
        across.data_ptr(), table.data_ptr(), found.data_ptr(), places.data_ptr(),
        *sorting.addresses(word), word,
    )  # fmt: skip
    integers = rows, taps, *sorting.integers, ctas, sorting.vectors, 0
    per_rank.launch(sorted_index(map_stages.SIZES), tensors, addresses, integers)
    return found, places


@remembered(128)
def _search(rank: int, near: bool, steps: tuple[int, ...] | None, wide: bool, unit: bool) -> Search:
    return Search(rank, near, steps, wide, unit)


@remembered(128)
def _keys(rank: int, near: bool, sizes: Sizes, fits: bool, wide: bool, unit: bool) -> Keys:
    return Keys(rank, near, sizes, fits, wide, unit)


class TapArguments:
    """The tap arguments of kernels, made once per set of taps, stride, device and kind of keys.

    ``natural`` is the table of a filter's lines, if its taps fill a grid, and are few and near; of
    its taps otherwise. ``visits`` has the codes of sort keys, if taps fit in a block; otherwise the
    taps in the order in which sort keys take them.
    """

    def __init__(
        self, taps: Table, step: tuple[int, ...], order: TapOrderLike | None, rank: int,
        device: Any, wide: bool, small: bool,
    ) -> None:  # fmt: skip
        low, span, near = geometry(taps, rank)
        unit = small and not wide and near and max(map(abs, low)) <= NEAREST
        self.count = len(taps)
        few = len(taps) <= MOST_KNOWN and span[-1] < WORD_BITS
        box = grid_of_taps(taps) if near and few else None
        natural = table_of_lines(taps, step, box) if box else table_of_taps(taps, step, near)
        self.natural = self.visits = device_table(natural, device)
        self.search = _search(rank, near, steps_of(box) if box else None, wide, unit)
        self.chains: dict[bool, Chain] = {}  # by whether they fill the table first
        if order is not None:
            fit = bits_in_block(box, rank) if box else None
            visits = (
                table_of_visits(taps, step, near, order) if fit is None
                else table_of_codes(taps, step, fit, order)
            )  # fmt: skip
            self.visits = device_table(visits, device)
            self._keys = _keys(rank, near, map_stages.SIZES, fit is not None, wide, unit)
        self.natural_at, self.visits_at = self.natural.data_ptr(), self.visits.data_ptr()

    def sorted(self, empty: bool) -> Chain:
        found = self.chains[empty] = sorted_search(self.search, self._keys, map_stages.SIZES, empty)
        return found


@remembered(128)
def _plan(
    offsets: Table, stride: tuple[int, ...], rank: int, device: Any, wide: bool,
    small: bool = True, order: Any = None,
) -> TapArguments:  # fmt: skip
    step = check_per_axis("stride", stride, rank)
    return TapArguments(
        check_table("offsets", offsets, rank), step, order, rank, device, wide, small
    )


@remembered(128)
def _sorted_plan(
    taps: TapsLike, rank: int, device: Any, wide: bool, small: bool = True
) -> TapArguments:
    """Look up the plan by the ``taps`` object: tuples of numbers would be hashed at every call."""
    return _plan.__wrapped__(taps.offsets, taps.stride, rank, device, wide, small, taps.order)
