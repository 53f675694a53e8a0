"""Column statistics: sums and sums of squares of a CTA's tile, computed as the epilogue stores it.

Each CTA writes a row of partial sums. There are no atomics: results are bitwise reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32, const_expr, range_constexpr

from layoutconv.planning.tile import TileConfig

from ..mma_atoms import load_matrices, multiply_16_bit
from ..smem_tile import sync

BLOCK = 16  # rows and columns that tensor cores sum at once
CHAINS = 4  # accumulators that a warp adds to in turns
COLUMNS_OF_LANES, LANES_OF_ROW = 8, 4  # wgmma: four lanes hold 8 columns of a row, a pair each
ONES = {Float16: 0x3C003C00, BFloat16: 0x3F803F80}


@dataclass
class PartialSums:
    """The position of a CTA's columns among all columns, and its row of partial sums, (2, all)."""

    partial: Any
    first: Any
    count: Any  # existing columns from ``first`` on
    all: Any

    def store(self, column: Any, kind: Any, value: Any) -> None:
        at = kind * self.all + self.first + column
        cute.make_tensor(self.partial + at, cute.make_layout(1))[0] = value


class SumsByRow:
    """Column sums of elements of any type: a thread sums its own columns over its rows."""

    def __init__(self, tile: TileConfig, vector: int) -> None:
        self.tile, self.vector = tile, vector
        self.sums = cute.make_rmem_tensor((vector, 2), Float32)
        self.sums.fill(0.0)

    def add(self, row: Any, there: Any) -> None:
        """Add a row's vector as stored; if it is not stored, it counts as zeros."""
        for i in range(self.vector):
            x = cutlass.select_(there, Float32(row[i]), Float32(0.0))
            self.sums[i, 0] = self.sums[i, 0] + x
            self.sums[i, 1] = self.sums[i, 1] + x * x

    @cute.jit
    def write(self, base: Any, tid: Any, columns: PartialSums) -> None:
        """Reduce the threads' sums in shared memory at ``base``, which must be free, and store."""
        across = const_expr(self.tile.n // self.vector)
        parts = const_expr(self.tile.mma_threads // across)
        shared = _shared(base, self.tile.n, parts)
        sync(self.tile)
        row, column = tid // across, (tid & (across - 1)) * self.vector
        for i in range_constexpr(self.vector):
            for kind in range_constexpr(2):
                shared[column + i, kind, row] = self.sums[i, kind]
        _finish(self.tile, shared, parts, tid, columns)


class SumsOfFragments:
    """Column sums of a ping-pong consumer's fragments: a lane sums its rows, in two of every eight
    columns.

    It accumulates over tiles. At the end the lanes of a warp reduce their sums by shuffles, and
    each warp writes its own row of partial sums.
    """

    def __init__(self, tile: TileConfig) -> None:
        self.groups = tile.n // COLUMNS_OF_LANES
        self.sums = cute.make_rmem_tensor((2, 2, self.groups), Float32)
        self.sums.fill(0.0)

    def add(self, group: int, pair: Any, there: Any) -> None:
        """Add two numbers of a row as stored; if they are not stored, they count as zeros."""
        for i in range(2):
            x = cutlass.select_(there, Float32(pair[i]), Float32(0.0))
            self.sums[i, 0, group] = self.sums[i, 0, group] + x
            self.sums[i, 1, group] = self.sums[i, 1, group] + x * x

    @cute.jit
    def write(self, tid: Any, columns: PartialSums) -> None:
        lane = tid % 32
        for group in range_constexpr(self.groups):
            for kind in range_constexpr(2):
                for i in range_constexpr(2):
                    total = self.sums[i, kind, group]
                    for step in range_constexpr(3):  # over the lanes with the same columns
                        total = total + cute.arch.shuffle_sync_bfly(total, LANES_OF_ROW << step)
                    column = COLUMNS_OF_LANES * group + 2 * lane + i
                    if lane < LANES_OF_ROW and column < columns.count:
                        columns.store(column, kind, total)


class SumsOfMatrices:
    """Column sums of fp16 and bf16 in a staged tile: tensor cores sum blocks of 16 x 16.

    The transpose of 8 columns times the columns has the sums of squares on its diagonal; rows of
    ones below the transpose give the sums. That takes a twelfth of the instructions of adding
    element by element.

    With ``statistics_by_producers``, the producer warps sum while the consumers store: the sums'
    reads do not queue behind the stores, and no consumer waits for the sums. Otherwise all warps
    that multiply sum.
    """

    def __init__(self, tile: TileConfig, dtype: Any, swizzle: tuple[int, int, int]) -> None:
        self.tile, self.dtype, self.swizzle = tile, dtype, swizzle
        self.warps = (
            tile.producer_threads if tile.statistics_by_producers else tile.mma_threads
        ) // 32
        self.groups = tile.n // BLOCK
        # Number of warps that share the rows of a group.
        self.parts = 1 if tile.statistics_by_producers else max(1, self.warps // self.groups)

    @cute.jit
    def write(self, base: Any, tid: Any, columns: PartialSums) -> None:
        """Sum the tile at ``base``, in which elements that are not stored have been zeroed."""
        tile = self.tile
        groups, warps, parts = const_expr(self.groups), const_expr(self.warps), self.parts
        warp, lane = tid // 32, tid % 32
        shared = _shared(base, tile.n, parts)
        found = []
        for turn in range_constexpr(-(-groups // warps)):
            number = warp + turn * warps
            group, part = number % groups, number // groups
            found.append((group, part, self._block_sums(base, group, part, lane)))
        if const_expr(parts > 1):
            sync(tile)
        # A lane on the diagonal has its column's sums.
        row, pair = lane // 4, lane % 4
        for turn in range_constexpr(len(found)):
            group, part, halves = found[turn]
            if (pair == row // 2) & (part < parts):
                for half in range_constexpr(2):
                    at = group * BLOCK + 8 * half + row
                    total, square = halves[half]
                    if const_expr(parts > 1):
                        shared[at, 0, part] = total
                        shared[at, 1, part] = square
                    else:
                        if at < columns.count:
                            columns.store(at, 0, total)
                            columns.store(at, 1, square)
        if const_expr(parts > 1):
            _finish(tile, shared, parts, tid, columns)

    def _block_sums(self, base: Any, group: Any, part: Any, lane: Any) -> Any:
        """Return the sum and the sum of squares of one column in each half of a group's 16. For a
        lane on the diagonal, it is the column whose number is the lane's row in the products.

        Products go to ``CHAINS`` accumulators in turns: on one, each would wait for the last.
        """
        ones, zeros = Int32(ONES[self.dtype]), [Float32(0.0)] * 4
        chains = [[zeros, zeros] for _ in range(CHAINS)]
        for step in range(self.tile.m // BLOCK // self.parts):
            row = (step * self.parts + part % self.parts) * BLOCK + lane % 16
            column = group * BLOCK + lane // 16 * 8
            block = load_matrices(self._address(base, row, column))
            for half in range(2):
                low, high = block[2 * half : 2 * half + 2]
                sums, stacked = chains[step % CHAINS], [low, ones, high, ones]
                sums[half] = multiply_16_bit(self.dtype, stacked, [low, high], sums[half])
        found = []
        for of_half in zip(*chains, strict=True):
            square, next_square, total, next_total = map(_added, zip(*of_half, strict=True))
            number = lane // 4
            found.append((_either(number, total, next_total), _either(number, square, next_square)))
        return found

    def _address(self, base: Any, row: Any, column: Any) -> Any:
        bits, start, shift = self.swizzle
        logical = Int32(base.toint()) + (row * self.tile.n + column) * 2
        return logical ^ ((logical >> shift) & (((1 << bits) - 1) << start))


def _shared(base: Any, n: int, parts: int) -> Any:
    """View sums in shared memory as (column, kind, part)."""
    pointer = cute.recast_ptr(base, dtype=Float32)
    return cute.make_tensor(pointer, cute.make_layout((n, 2, parts)))


def _added(values: tuple[Any, ...]) -> Any:
    first, *others = values
    for value in others:
        first = first + value
    return first


def _either(number: Any, even: Any, odd: Any) -> Any:
    return cutlass.select_(number % 2 == 0, even, odd)


@cute.jit
def _finish(tile: TileConfig, shared: Any, parts: int, tid: Any, columns: PartialSums) -> None:
    """Add up the parts in order, a thread per column and kind."""
    sync(tile)
    for turn in range_constexpr(-(-2 * tile.n // tile.mma_threads)):
        number = tid + turn * tile.mma_threads
        kind, column = number // tile.n, number % tile.n
        if (number < 2 * tile.n) & (column < columns.count):
            total = Float32(0.0)
            for part in cutlass.range(parts, unroll_full=True):
                total = total + shared[column, kind, part]
            columns.store(column, kind, total)
