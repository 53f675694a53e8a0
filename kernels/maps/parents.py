"""Parents: the coarser cell that a cell lies in, and the tap of the filter at which it lies there.

A convolution whose filter is as large as its stride divides the grid into boxes: a cell x lies in
the box of y = x // stride, at the tap of the remainder. So the inverse of its kernel map, which a
decoder reads, is found without the forward map: a row looks up one cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ..common.cells import Cell
from ..common.dsl import Int32, Int64
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import select
from .inverse_rows import InverseRows, KeysOfInverse, RowsOfInverse
from .probe import answer
from .row_order import Sizes


class Parents(InverseRows):
    """Base of kernels that look up the parent of a cell, for strides known at compile time."""

    def __init__(self, rank: int, steps: tuple[int, ...], wide: bool = False) -> None:
        super().__init__(rank, near=False, wide=wide)
        self.steps = steps

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.steps

    def parent(self, cell: Cell) -> tuple[Cell, Any]:
        """Return the parent of a cell, and the number of the cell's tap, the last axis fastest."""
        found, tap = [cell[0]], Int32(0)
        for c, step in zip(cell[1:], self.steps, strict=True):
            quotient = c // step
            found.append(quotient)
            tap = tap * step + Int32(c - quotient * step)
        return found, tap


class KeysOfParents(KeysOfInverse, Parents):
    """The sort key of every cell, from its one tap if its parent exists."""

    def __init__(self, rank: int, steps: tuple[int, ...], sizes: Sizes, wide: bool = False) -> None:
        super().__init__(rank, steps, wide)
        self.sizes = sizes

    def word(self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList) -> Any:
        (slots, grid, bits), (cell, _) = table, at_cell
        to, own = self.parent(cell)
        _, word, bit = self.block(slots, to, grid, bits)
        there = Int32(word >> Int64(bit)) & 1 != 0
        return select(there, Int64(1) << Int64(own), Int64(0))


class RowsOfParents(RowsOfInverse, Parents):
    """The index of the inverse: the parent's row at the tap of a cell, -1 at all others."""

    def answers(
        self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterator[tuple[Any, Any]]:
        (slots, values, grid, bits), (cell, _) = table, at_cell
        to, own = self.parent(cell)
        first, word, bit = self.block(slots, to, grid, bits)
        value = answer(values, word, bit, first)
        for tap in range(prod(self.steps)):
            yield own == tap, value
