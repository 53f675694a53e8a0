"""The cells of all coarser levels of a cloud, from its own, by the launches of one level.

A box filter leads from a cell to a box of few cells of the next level, and from there on to a box
of each level behind it: to one cell, x // stride, if the filter is as large as its stride, and to
two on an axis, at every level, if it has 3 taps at stride 2. So cells of the finest level mark
those of all others in one occupancy bitmap, a level behind the other, each in blocks of its own;
then blocks are counted and written, whichever level they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, product
from math import prod
from typing import Any

import torch
from torch import Tensor

from layoutconv.base.caches import remembered
from layoutconv.base.memory import maker
from layoutconv.base.torch_internals import in_shape

from ..common.cells import inside, key_of, per_axis, read_cell, vector_of
from ..common.dsl import Int32, Int64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, select
from . import occupancy_bitmap, per_rank
from .block_table import Fill
from .box_filter import AxisCells, Box, BoxFilter, boxes_of, cells_in
from .occupancy_bitmap import BLOCK, TAPS_AT_ONCE, CountBits, Mark, WriteCells
from .per_rank import Chain, check_cells

MOST_LEVELS = 8
MOST_MARKS = 64  # that a thread makes, of all levels: 8 levels of 2 x 2 x 2 cells

Grid = tuple[int, ...]
Filters = tuple[BoxFilter, ...]


@remembered(64)
def levels_at_once(filters: Filters) -> int:
    """Return of how many levels, the first ones, a thread marks all that one cell reaches.

    >>> levels_at_once((BoxFilter((2, 2, 2), (3, 3, 3), (1, 1, 1)),) * 9)
    8
    >>> levels_at_once((BoxFilter((1, 1, 1), (3, 3, 3), (1, 1, 1)),) * 9)  # 27 cells, then 125
    1
    """
    marks = accumulate(map(cells_in, boxes_of(filters[:MOST_LEVELS])))
    return sum(count <= MOST_MARKS for count in marks)


def suits(rows: int, filters: Filters, grids: Sequence[Grid]) -> bool:
    """Return whether levels of these grids, each an occupancy bitmap, are made together."""
    if not rows or not 0 < len(grids) <= levels_at_once(filters):
        return False
    for grid, most in zip(grids, _most_of(filters), strict=False):
        size = prod(grid)
        if not size or not occupancy_bitmap.suits(size, min(rows * most, size)):
            return False
    return True


@remembered(64)
def _most_of(filters: Filters) -> list[int]:
    """The most cells of each level that one cell reaches."""
    return [cells_in(box) for box in boxes_of(filters)]


def cells_of_levels(
    indices: Tensor,
    filters: Filters,
    grids: Sequence[Grid],
    capacities: Sequence[int] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The cells of coarser levels that a cloud reaches, on the cloud's GPU.

    Args:
        indices: int32 (rows, 1 + rank), as of ``output_coords.reached``, of any strides.
        filters: of each level, from the one before it.
        grids: of each level ``(batch_size, *spatial_shape)``, which :func:`suits`.
        capacities: how many rows each has, 1 or more. Without them each has as many as there are,
            which waits for the GPU once for all of them.

    Returns of each level what ``reached`` returns: its cells, in lexicographic order, and how many
    there are, int64 ().
    """
    rank, count = len(grids[0]) - 1, len(grids)
    indices, make = check_cells("indices", indices, rank), maker(indices.device)
    blocks = [-(-prod(grid) // (64 * BLOCK)) for grid in grids]
    starts = list(accumulate(blocks, initial=0))
    words = starts[-1] * BLOCK
    room = make((2 * words + starts[-1],), (1,), torch.int32)
    counter = make((2 * -(-count // 2),), (1,), torch.int64)  # which outlives the room
    bits = room.data_ptr()
    of_bits = bits, bits + 8 * words, counter.data_ptr()
    levels = list(zip(starts, blocks, grids, strict=False))
    marks = []
    for (first, _, grid), (stride, size, before) in zip(levels, filters, strict=True):
        marks += [first * BLOCK, *stride, *[extent - 1 for extent in size], *before, *grid]
    vectors = counter.numel() // 2
    counting = words, words // 2 + vectors, 0, indices.shape[0], *marks, *starts[:-1]
    counted, write, both = kernels_by(filters)
    tensors, addresses = (indices, room, counter), (*of_bits, indices.data_ptr())
    known = capacities is not None
    if capacities is None:
        per_rank.launch(counted, tensors, addresses, counting)
        capacities = counter[:count].tolist()
    found = [make((rows, 1 + rank), (1 + rank, 1), torch.int32) for rows in capacities]
    to = tuple(cells.data_ptr() for cells in found)
    writing = list[int]()
    for (first, many, grid), rows in zip(levels, capacities, strict=True):
        writing += first, many, rows, *grid
    if known:
        per_rank.launch(both, (*tensors, *found), (*addresses, *to), (*counting, *writing))
    elif any(capacities):
        # The first of a launch's tensors says what it is on, and is a matrix.
        per_rank.launch(write, (indices, *tensors[1:], *found), (*of_bits, *to), (words, *writing))
    return found, [in_shape(counter, (), (), level) for level in range(count)]


def load_kernels(indices: Tensor, filters: Filters, fixed: bool) -> None:
    """Launch what ``cells_of_levels`` does, of nothing: for a dry run, which loads kernels and runs
    none. ``fixed`` says whether there are capacities."""
    count, write, both = kernels_by(filters)
    for kernel in (both,) if fixed else (count, write):
        per_rank.launch(kernel, (indices,), (), ())


@remembered(64)
def kernels_by(filters: Filters) -> tuple[Chain, WriteLevels, Chain]:
    """The kernels of levels that filters lead to, of :func:`kernels_of`."""
    return kernels_of(len(filters[0].stride), boxes_of(filters))


@remembered(16)
def kernels_of(rank: int, boxes: tuple[Box, ...]) -> tuple[Chain, WriteLevels, Chain]:
    """To count cells, to write them, and both.

    Addresses of bits, the blocks' cells, all cells, indices, and what is written for each level;
    integers words, those of ``Fill``, rows; of each level its first word, filter and grid; the
    first block of each; and of each its first block, blocks, capacity and grid.
    """
    levels = len(boxes)
    mark, blocks, write = MarkLevels(rank, boxes), CountLevels(levels), WriteLevels(rank, levels)
    of_mark = tuple(range(3, 3 + mark.integers()))
    of_blocks = tuple(range(of_mark[-1] + 1, of_mark[-1] + 1 + levels))
    of_write = tuple(range(of_blocks[-1] + 1, of_blocks[-1] + write.integers()))
    count = (
        (Fill(1, -(-levels // 2)), (0, 0, 2), (1, 2)),
        (mark, (3, 0), of_mark),
        (blocks, (0, 1, 2), (0, *of_blocks)),
    )
    to = tuple(range(4, 4 + levels))
    return Chain(count), write, Chain((*count, (write, (0, 1, 2, *to), (0, *of_write))))


class MarkLevels(Mark):
    """The bits of what a cloud reaches of each level, one behind the other: to 0.

    Integers: rows; of each level its first word; of the filter the stride, the last tap and how far
    the first one is before; and its grid.

    Args:
        boxes: the cells of each level that one cell reaches: as many marks of a thread.
    """

    def __init__(self, rank: int, boxes: tuple[Box, ...]) -> None:
        super().__init__(rank)
        self.boxes = boxes

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, tuple(tuple(map(tuple, box)) for box in self.boxes)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16)

    def integers(self) -> int:
        return 1 + len(self.boxes) * (2 + 4 * self.rank)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        cells, bits = pointers
        rows, *of_levels = integers
        row, tid = self.row_of_thread()
        cell = read_cell(cells, cutlass.min(row, rows - 1), self.rank)
        self.mark_all(bits, self.above(cell, of_levels), row < rows, tid & 31)

    def mark_all(
        self, bits: Any, marks: Iterator[tuple[Any, Any, Any]], is_row: Any, lane: Any
    ) -> None:
        """Mark bits, some at once. Where the next ones are is found after that: four levels of 8
        cells then take 58 registers, not 144.
        """
        while some := list(islice(marks, TAPS_AT_ONCE)):
            self.mark(bits, [new_mark(*each, is_row, lane) for each in some])

    def above(self, cell: Any, of_levels: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
        """Where a cell is in each level: words, bits in them, and whether it is there."""
        there, rank = None, self.rank
        batch, *last = cell
        further = [Int64(0)] * rank  # cells before the last one of an axis
        width = 2 + 4 * rank
        for level, box in enumerate(self.boxes):
            first, *rest = of_levels[level * width : (level + 1) * width]
            *geometry, grid = per_axis(rest, rank, 3)
            axes = zip(box, last, further, *geometry, grid[1:], strict=True)
            last, further, signs = map(list, zip(*(reached(*axis) for axis in axes), strict=True))
            within = inside([batch, *last], grid)
            for sign in signs:
                within = within if sign is None else within & (sign >= 0)
            there = within if there is None else there & within
            for key, is_cell in cells_of([batch, *last], further, box, grid):
                is_marked = there if is_cell is None else there & is_cell
                word = select(is_marked, first + (key >> 6), Int64(0))
                yield word, key & 63, is_marked


def new_mark(word: Any, bit: Any, there: Any, is_row: Any, lane: Any) -> tuple[Any, Any, Any]:
    """A word, the bit to mark there, and whether to: not where the lane before has the same.

    Rows of a warp are neighbours, most often, and lie in one cell of a coarse level: all of them
    would find it unmarked at once, and wait for each other.
    """
    there = there & is_row
    own = select(there, (Int32(word) << 6) | Int32(bit), Int32(-1))
    before = cute.arch.shuffle_sync_up(own, 1)
    return word, Int64(1) << bit, there & ((before != own) | (lane == 0))


def reached(
    axis: AxisCells, last: Any, further: Any, stride: Any, end: Any, before: Any, extent: Any
) -> tuple[Any, Any, Any]:
    """The interval of an axis that one of the level before leads to: its last cell, how many are
    before that, and a number that is negative if it is empty, None if it never is.

    An interval of several cells is cut to the grid; a single cell may be outside.
    """
    start = last + before
    last = start // stride
    if axis == (1, True):
        return last, further, None
    # The taps of cell ``last - j`` reach it, if j strides are not more than this.
    reach = end + further - (start - last * stride)
    if axis.most == 1:
        return last, Int64(0), reach
    count = Int64(int(axis.always))
    for j in range(int(axis.always), axis.most):
        count = count + select(reach - j * stride >= 0, Int64(1), Int64(0))
    first = cutlass.max(last - count + 1, Int64(0))
    last = cutlass.min(last, extent - 1)
    return last, last - first, last - first


def cells_of(last: Any, further: Any, box: Box, grid: Any) -> list[tuple[Any, Any]]:
    """The keys of a box of cells, the last of which is given, and whether each is there; None of
    the last."""
    strides = [Int64(1)]
    for extent in reversed(grid[2:]):
        strides.insert(0, strides[0] * extent)
    key, found = key_of(last, grid), list[tuple[Any, Any]]()
    for steps in product(*(range(axis.most) for axis in box)):
        own, there = key, None
        for step, stride, more in zip(steps, strides, further, strict=True):
            if step:
                own, is_cell = own - step * stride, more >= step
                there = is_cell if there is None else there & is_cell
        found.append((own, there))
    return found


class CountLevels(CountBits):
    """Count how many cells every block has, and all those of a level, in counters side by side.

    Integers: words; the first block of each level.
    """

    def __init__(self, levels: int) -> None:
        super().__init__(0)
        self.levels = levels

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.levels

    def integers(self) -> int:
        return 1 + self.levels

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        bits, sums, count = pointers
        _, *starts = integers
        cta, _, _ = cute.arch.block_idx()
        level, first = Int64(0), Int64(0)
        for number in range_constexpr(1, self.levels):
            level = select(cta >= starts[number], Int64(number), level)
            first = select(cta >= starts[number], starts[number], first)
        self.block(bits + first * BLOCK, sums + first, count + level, cta - Int32(first))


class WriteLevels(WriteCells):
    """The cells of each level, in order, as many as there is room for; padding behind them.

    Integers: words; of each level its first block, its blocks, the room and the grid.
    """

    def __init__(self, rank: int, levels: int) -> None:
        super().__init__(rank)
        self.levels = levels

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.levels

    def tensors(self) -> tuple[tuple[str, int], ...]:
        bits, sums, count, cells = super().tensors()
        return bits, sums, count, *[cells] * self.levels

    def integers(self) -> int:
        return 1 + self.levels * (4 + self.rank)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        bits, sums, count, *cells = pointers
        _, *of_levels = integers
        cta, _, _ = cute.arch.block_idx()
        width = 4 + self.rank
        level, address = Int64(0), Int64(cells[0].toint())
        own = of_levels[:width]
        for number in range_constexpr(1, self.levels):
            other = of_levels[number * width : (number + 1) * width]
            here = cta >= other[0]
            level = select(here, Int64(number), level)
            address = select(here, Int64(cells[number].toint()), address)
            own = [select(here, b, a) for a, b in zip(own, other, strict=True)]
        first, blocks, room, *grid = own
        dtype, aligned = self.tensors()[-1]
        to = cute.make_ptr(TYPES[dtype], address, cute.AddressSpace.gmem, assumed_align=aligned)
        some = [bits + first * BLOCK, sums + first, count + level, to]
        self.block(some, cta - Int32(first), blocks, room, grid)
