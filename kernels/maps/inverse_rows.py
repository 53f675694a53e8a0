"""Inverse maps found from cells alone: a row's look-ups tell which taps it has.

``parents`` does this for filters as large as their stride, ``box_inverse`` for other box filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..common.cells import Cell, read_cell, vector_of
from ..common.dsl import Int32, Int64, cute
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .row_order import Sizes
from .sort_keys import key_of_taps
from .tap_blocks import Neighbours


class InverseRows(Neighbours):
    """Base of kernels that look up the outputs that an input feeds; one thread per input."""

    def integers(self) -> int:
        return 3 + self.rank


class KeysOfInverse(InverseRows):
    """The sort key of every input, from the taps at which it feeds an output that exists."""

    sizes: Sizes
    weights: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes, self.weights

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return ("int32", 4 * vector_of(self.rank)), ("int64", 16), ("int32", 4)

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        cells, slots, keys = pointers
        _, bits, *grid = integers
        present = self.present(read_cell(cells, row, self.rank), slots, grid, bits)
        put(keys, row, key_of_taps(present, self.weights, self.sizes))

    def present(self, cell: Cell, slots: Any, grid: AnyList, bits: Any) -> list[Any]:
        """Return for each tap, the most significant first, whether the input feeds an output."""
        raise NotImplementedError


class RowsOfInverse(InverseRows):
    """The index of the inverse: an input's taps hold the rows of its outputs, all others -1."""

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = ("int32", 4)
        return ("int64", 16), word, ("int32", 4 * vector_of(self.rank)), word, word

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        slots, values, cells, order, index = pointers
        rows, bits, *grid = integers
        cell = read_cell(cells, Int64(at(order, row)), self.rank)
        table = slots, values, grid, bits
        answers = self.answers(cell, table, tid, arrays)
        self.write(index, row, rows, answers)

    def answers(
        self, cell: Cell, table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterable[tuple[Any, Any]]:
        """Yield for each tap whether the input is at it, and the row of the output it feeds."""
        raise NotImplementedError

    def write(self, index: Any, row: Any, rows: Any, answers: Iterable[tuple[Any, Any]]) -> None:
        column = None  # computed late: an address would occupy registers during the look-ups
        for is_met, answer in answers:
            column = index + row if column is None else column + rows
            put(column, 0, select(is_met, answer, Int32(-1)))
