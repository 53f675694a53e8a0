"""Parents: the cells of a coarser level that the cells of a finer one lie in, as taps of a filter.

A convolution whose filter is as large as its stride divides the grid into boxes: a cell x lies in
that of y = x // stride, at the tap of what remains. So the inverse of its kernel map, which a
decoder reads, needs no map to begin with: a row looks up one cell.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..common.cells import Cell, read_cell, vector_of
from ..common.dsl import Int32, Int64, cute, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .probe import answer
from .row_order import Sizes
from .sort_keys import key_of_taps
from .tap_blocks import Neighbours


class Parents(Neighbours):
    """The common part of kernels that look for the parent of a cell, at strides that they know."""

    def __init__(self, rank: int, steps: tuple[int, ...], wide: bool = False) -> None:
        super().__init__(rank, near=False, wide=wide)
        self.steps = steps

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.steps

    def parent(self, cell: Cell) -> tuple[Cell, Any]:
        """The parent of a cell, and at which of its taps the cell is, the last axis fastest."""
        found, tap = [cell[0]], Int32(0)
        for c, step in zip(cell[1:], self.steps, strict=True):
            quotient = c // step
            found.append(quotient)
            tap = tap * step + Int32(c - quotient * step)
        return found, tap


class KeysOfParents(Parents):
    """The sort key of every cell, of the one tap at which it is if its parent is there.

    Args:
        visits, weights: the order of the taps, as of ``TapOrder``.
    """

    def __init__(
        self, rank: int, steps: tuple[int, ...], sizes: Sizes, visits: tuple[int, ...],
        weights: tuple[int, ...], wide: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, steps, wide)
        self.sizes, self.visits, self.weights = sizes, visits, weights

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes, self.visits, self.weights

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16), ("int32", 4)

    def integers(self) -> int:
        return 3 + self.rank

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        cells, slots, keys = pointers
        _, bits, *grid = integers
        to, own = self.parent(read_cell(cells, row, self.rank))
        _, word, bit = self.block(slots, to, grid, bits)
        there = Int32(word >> Int64(bit)) & 1 != 0
        present = [there & (own == tap) for tap in self.visits]
        put(keys, row, key_of_taps(present, self.weights, self.sizes))


class RowsOfParents(Parents):
    """The index of the inverse: at the tap of a cell the row of its parent, at all others -1."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = ("int32", 4)
        return ("int64", 16), word, ("int32", 4 * vector_of(self.rank)), word, word

    def integers(self) -> int:
        return 3 + self.rank

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        slots, values, cells, order, index = pointers
        rows, bits, *grid = integers
        to, own = self.parent(read_cell(cells, Int64(at(order, row)), self.rank))
        first, word, bit = self.block(slots, to, grid, bits)
        value = answer(values, word, bit, first)
        column = index + row
        for tap in range_constexpr(prod(self.steps)):
            put(column, 0, select(own == tap, value, Int32(-1)))
            column = column + rows
