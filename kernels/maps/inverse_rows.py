"""Inverse maps found from cells alone: a row's look-ups tell which taps it has.

``parents`` does this for filters as large as their stride, ``box_inverse`` for other box filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..common.cells import Cell, read_cell
from ..common.dsl import Int32, Int64, cute
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .row_order import Sizes
from .sort_keys import key_of_word
from .tap_blocks import KeyLookup, RowLookup, TapLookup
from .tap_tables import head_size


class InverseRows(TapLookup):
    """Base of kernels that look up the outputs that an input feeds; one thread per input.

    Their arguments are those of ``Keys`` and ``Search``, so that one launch may have all of them.
    """


class KeysOfInverse(KeyLookup, InverseRows):
    """The sort key of every input, from the taps at which it feeds an output that exists."""

    sizes: Sizes

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.sizes

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        cells, slots, table, keys = pointers
        _, bits, *grid = integers
        codes, *low = read_cell(table, 1, self.rank)
        at_cell = read_cell(cells, row, self.rank), low
        word = self.word(at_cell, (slots, grid, bits), tid, arrays)
        put(keys, row, key_of_word(word, table + head_size(self.rank), codes, self.sizes))

    def word(self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList) -> Any:
        """Return a word with a bit for each tap: whether the input feeds an output at it.

        ``at_cell`` has the input's cell, and the least offset of the taps.
        """
        raise NotImplementedError


class RowsOfInverse(RowLookup, InverseRows):
    """The index of the inverse: an input's taps hold the rows of its outputs, all others -1."""

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        slots, values, cells, taps, order, index = pointers
        rows, bits, _, *grid = integers
        cell = read_cell(cells, Int64(at(order, row)), self.rank)
        _, *low = read_cell(taps, 1, self.rank)
        answers = self.answers((cell, low), (slots, values, grid, bits), tid, arrays)
        self.write(index, row, rows, answers)

    def answers(
        self, at_cell: tuple[Cell, Cell], table: AnyTuple, tid: Any, arrays: AnyList
    ) -> Iterable[tuple[Any, Any]]:
        """Yield for each tap whether the input is at it, and the row of the output it feeds."""
        raise NotImplementedError

    def write(self, index: Any, row: Any, rows: Any, answers: Iterable[tuple[Any, Any]]) -> None:
        column = None  # computed late: an address would occupy registers during the look-ups
        for is_met, answer in answers:
            column = index + row if column is None else column + rows
            put(column, 0, select(is_met, answer, Int32(-1)))
