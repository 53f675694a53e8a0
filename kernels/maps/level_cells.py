"""The cells of all coarser levels of a cloud, from its own, by the launches of one level.

A box filter leads from a cell to a small box of cells of the next level, and from there to a box of
each level behind it: to one cell, x // stride, if the filter is as large as its stride, and to two
per axis, at every level, if it has 3 taps at stride 2. So the cells of the finest level mark those
of all others in one occupancy bitmap, one level behind the other, each in blocks of its own. Two
more kernels count and write the blocks of all levels alike.
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

from ..common.cells import coordinates_per_access, inside, key_of, per_axis, read_cell
from ..common.dsl import Int32, Int64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, select
from . import occupancy_bitmap, per_rank
from .block_table import Fill
from .box_filter import AxisCells, Box, BoxFilter, boxes_of, cells_in
from .occupancy_bitmap import BLOCK, TAPS_AT_ONCE, CountBits, Mark, WriteCells
from .per_rank import Chain, check_cells

MOST_LEVELS = 8
MOST_MARKS = 64  # that a thread makes, over all levels: 8 levels of 2 x 2 x 2 cells

Grid = tuple[int, ...]
Filters = tuple[BoxFilter, ...]


@remembered(64)
def levels_at_once(filters: Filters) -> int:
    """Return for how many levels, from the first on, a thread can mark all that one cell reaches.

    >>> levels_at_once((BoxFilter((2, 2, 2), (3, 3, 3), (1, 1, 1)),) * 9)
    8
    >>> levels_at_once((BoxFilter((1, 1, 1), (3, 3, 3), (1, 1, 1)),) * 9)  # 27 cells, then 125
    1
    """
    marks = accumulate(map(cells_in, boxes_of(filters[:MOST_LEVELS])))
    return sum(count <= MOST_MARKS for count in marks)


def suits(rows: int, filters: Filters, grids: Sequence[Grid]) -> bool:
    """Return whether these levels, each an occupancy bitmap of its grid, are found together."""
    if not rows or not 0 < len(grids) <= levels_at_once(filters):
        return False
    for grid, most in zip(grids, _most_of(filters), strict=False):
        size = prod(grid)
        if not size or not occupancy_bitmap.suits(size, min(rows * most, size)):
            return False
    return True


@remembered(64)
def _most_of(filters: Filters) -> list[int]:
    """Return the most cells of each level that one cell reaches."""
    return [cells_in(box) for box in boxes_of(filters)]


def cells_of_levels(
    indices: Tensor,
    filters: Filters,
    grids: Sequence[Grid],
    capacities: Sequence[int] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the cells of coarser levels that a cloud reaches, on the cloud's GPU.

    Args:
        indices: int32 (rows, 1 + rank), as for ``output_coords.reached``, of any strides.
        filters: one per level, each from the level before it.
        grids: ``(batch_size, *spatial_shape)`` of each level, for which :func:`suits` is true.
        capacities: the number of rows to return for each level, 1 or more. Without them each has
            as many as there are cells, for which the host waits once for all levels.

    Returns for each level what ``reached`` returns: its cells, in lexicographic order, and how many
    there are, int64 ().
    """
    rank, count = len(grids[0]) - 1, len(grids)
    indices, make = check_cells("indices", indices, rank), maker(indices.device)
    blocks = [-(-prod(grid) // (64 * BLOCK)) for grid in grids]
    starts = list(accumulate(blocks, initial=0))
    words = starts[-1] * BLOCK
    room = make((2 * words + starts[-1],), (1,), torch.int32)
    counter = make((2 * -(-count // 2),), (1,), torch.int64)  # separate, since it outlives the room
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
        # The first tensor of a launch names the device, and must be a matrix.
        per_rank.launch(write, (indices, *tensors[1:], *found), (*of_bits, *to), (words, *writing))
    return found, [in_shape(counter, (), (), level) for level in range(count)]


def load_kernels(indices: Tensor, filters: Filters, fixed: bool) -> None:
    """Launch, with empty arguments, the kernels of ``cells_of_levels``: for a dry run, which loads
    kernels and runs none. ``fixed`` says whether there are capacities."""
    count, write, both = kernels_by(filters)
    for kernel in (both,) if fixed else (count, write):
        per_rank.launch(kernel, (indices,), (), ())


@remembered(64)
def kernels_by(filters: Filters) -> tuple[Chain, WriteLevels, Chain]:
    """Return the kernels of the levels that filters lead to, as :func:`kernels_of`."""
    return kernels_of(len(filters[0].stride), boxes_of(filters))


@remembered(16)
def kernels_of(rank: int, boxes: tuple[Box, ...]) -> tuple[Chain, WriteLevels, Chain]:
    """Return the kernels that count cells, that write them, and that do both.

    Addresses: bits, the cell counts of blocks, of levels, indices, and each level's output.
    Integers: words, those of ``Fill``, rows; each level's first word, filter and grid; the first
    block of each; and each level's first block, blocks, capacity and grid.
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
    """Mark the cells that a cloud reaches, level behind level, by clearing their bits.

    Integers: rows; for each level its first word; the filter's stride, last tap and padding; and
    its grid.

    Args:
        boxes: the cells of each level that one cell reaches: a thread makes a mark for each.
    """

    def __init__(self, rank: int, boxes: tuple[Box, ...]) -> None:
        super().__init__(rank)
        self.boxes = boxes

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, tuple(tuple(map(tuple, box)) for box in self.boxes)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * coordinates_per_access(self.rank)), ("int64", 16)

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
        """Mark bits, ``TAPS_AT_ONCE`` at a time. The next ones are computed only afterwards: four
        levels of 8 cells then take 58 registers, not 144.
        """
        while some := list(islice(marks, TAPS_AT_ONCE)):
            self.mark(bits, [new_mark(*each, is_row, lane) for each in some])

    def above(self, cell: Any, of_levels: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the marks of a cell in each level: a word, a bit in it, and whether it is there."""
        there, rank = None, self.rank
        batch, *last = cell
        further = [Int64(0)] * rank  # cells before the last one, per axis
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
    """Return a word, the bit to mark there, and whether to: not if the lane before has the same.

    Rows of a warp are mostly neighbours, and lie in one cell of a coarse level: without this, all
    of them would find it unmarked at once, and their atomics would serialize.
    """
    there = there & is_row
    own = select(there, (Int32(word) << 6) | Int32(bit), Int32(-1))
    before = cute.arch.shuffle_sync_up(own, 1)
    return word, Int64(1) << bit, there & ((before != own) | (lane == 0))


def reached(
    axis: AxisCells, last: Any, further: Any, stride: Any, end: Any, before: Any, extent: Any
) -> tuple[Any, Any, Any]:
    """Map an interval of an axis to the next level. Return its last cell, the number of cells
    before that, and a number that is negative if the interval is empty; None if it never is.

    An interval of several cells is cut to the grid; a single cell may lie outside.
    """
    start = last + before
    last = start // stride
    if axis == (1, True):
        return last, further, None
    # Cell ``last - j`` has a tap that reaches the interval if j strides do not exceed this.
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
    """Return the keys of a box of cells, from its ``last`` one back, and whether each is there;
    None for the last."""
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
    """Count the cells of every block, and of each level, in adjacent counters.

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
    """Write the cells of each level, in order, up to its capacity, and padding behind them.

    Integers: words; for each level its first block, blocks, capacity and grid.
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
