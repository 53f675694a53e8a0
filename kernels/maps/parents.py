"""Parents: the cells of a coarser level that the cells of a finer one lie in, as taps of a filter.

A convolution whose filter is as large as its stride divides the grid into boxes: a cell x lies in
that of y = x // stride, at the tap of what remains. So the inverse of its kernel map, which a
decoder reads, needs no map to begin with: a row looks up one cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ..common.cells import Cell
from ..common.dsl import Int32, Int64
from ..common.plain_types import AnyList, AnyTuple
from .inverse_rows import InverseRows, KeysOfInverse, RowsOfInverse
from .probe import answer
from .row_order import Sizes


class Parents(InverseRows):
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


class KeysOfParents(KeysOfInverse, Parents):
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
        return *super().key, self.visits

    def present(self, cell: Cell, slots: Any, grid: AnyList, bits: Any) -> list[Any]:
        to, own = self.parent(cell)
        _, word, bit = self.block(slots, to, grid, bits)
        there = Int32(word >> Int64(bit)) & 1 != 0
        return [there & (own == tap) for tap in self.visits]


class RowsOfParents(RowsOfInverse, Parents):
    """The index of the inverse: at the tap of a cell the row of its parent, at all others -1."""

    def answers(
        self, cell: Cell, table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterator[tuple[Any, Any]]:
        slots, values, grid, bits = table
        to, own = self.parent(cell)
        first, word, bit = self.block(slots, to, grid, bits)
        value = answer(values, word, bit, first)
        for tap in range(prod(self.steps)):
            yield own == tap, value
