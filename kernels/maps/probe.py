"""Hash probing: each centre looks up the rows of its taps, and writes them to the index buffer."""

from __future__ import annotations

from typing import Any

from ..common.cells import Cell, per_axis, read_cell, vector_of
from ..common.dsl import Int32, Int64, Uint32, Uint64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, select
from .block_table import EDGES, count_of, upto
from .cooperative import Arrays
from .tap_blocks import Neighbours

# Taps that a thread looks up at once; and lines of known taps, whose kernel keeps nothing to locate
# them.
FLIGHT = 4
LINES = 3


class Search(Neighbours):
    """Search for the rows of centres' taps, with one thread per centre and per row of the index.

    At every tap a warp writes 128 contiguous bytes. With an order, thread i searches around the
    centre ``order[i]``, so the threads of a warp mostly find the same taps.
    """

    def tensors(self) -> tuple[tuple[str, int], ...]:
        word = ("int32", 4)
        cell = "int32", 4 * vector_of(self.rank)
        return ("int64", 16), word, cell, word, word, word

    def integers(self) -> int:
        return 5 + 4 * self.rank

    def shared(self, threads: int) -> Arrays:
        """Return arrays for each thread's blocks: cells and first places, if taps are near."""
        shape = threads, 1 << self.rank
        return [(Int64, shape), (Int32, shape)] if self.near else []

    @cute.jit
    def row(
        self, row: Any, tid: Any, pointers: AnyList, integers: AnyTuple, arrays: AnyList
    ) -> None:
        i = row  # row of the index; the centre's is ``order[i]``, if there is an order
        slots, values, centres, table, order, index = pointers
        rows, bits, taps, ordered, *rest = integers
        rank = self.rank
        stride, low, span, grid = per_axis(rest, rank, 3)
        words: Any
        places: Any
        words, places = arrays if self.near else (None, None)
        if ordered != 0:
            row = Int64(at(order, i))
        start = self.start_of(read_cell(centres, row, rank), stride, low)
        if cutlass.const_expr(self.near):
            self.keep(words, places, tid, self.corners(slots, start, span, grid, bits))
        if cutlass.const_expr(self.known is not None):
            self.known_rows(words, places, tid, start, values, index + i, rows)
        else:
            where = self.packed(start)
            for turn in range((Int32(taps) + FLIGHT - 1) // FLIGHT):
                asked = []
                for u in range_constexpr(FLIGHT):
                    tap = turn * FLIGHT + u
                    entry = select(tap < taps, tap, Int32(taps) - 1) * (1 + rank)
                    if cutlass.const_expr(self.near):
                        corner, bit = self.corner_and_bit(where + at(table, entry))
                        asked.append((words[tid, corner], bit, places[tid, corner]))
                    else:
                        cell = [start[0]]
                        for axis in range_constexpr(rank):
                            offset = at(table, entry + 1 + axis)
                            cell.append(start[1 + axis] - low[axis] + offset)
                        asked.append(self.ask(slots, cell, grid, bits))
                answers = [answer(values, *one) for one in asked]
                for u in range_constexpr(FLIGHT):
                    tap = turn * FLIGHT + u
                    if tap < taps:
                        put(index, Int64(tap) * rows + i, answers[u])

    def known_rows(
        self, words: Any, places: Any, tid: Any, start: Any, values: Any, column: Any, rows: Any
    ) -> None:
        """Have all reads of ``LINES`` lines of taps in flight before writing the first result."""
        lines = self.places_of(list(dict.fromkeys(tap[:-1] for tap in self.known or ())), start)
        for first in range(0, len(lines), LINES):
            answers = []
            for corner, bit in lines[first : first + LINES]:
                pair = [(words[tid, corner + u], places[tid, corner + u]) for u in range(2)]
                answers += self.line(values, pair, bit, start)
            for value in answers:
                put(column, 0, value)
                column = column + rows

    def line(self, values: Any, pair: Any, bit: Any, start: Cell) -> list[Any]:
        """Return the rows of the known taps of a line along the last axis, which starts in a block
        and may go on in the next: ``pair``. ``bit`` is that of the line's first cell in a block.

        The place of a cell's row is one behind that of the cell before, if that is present; in the
        second block it starts again from the first cell of its line.
        """
        edge = 1 << EDGES[self.rank][-1]
        kind = Uint32 if edge < 32 else Uint64
        far = edge - kind(Int32(start[-1]) & (edge - 1))  # cells of the first block
        taps = sorted({tap[-1] for tap in self.known or ()})
        (cells, place), (others, behind) = ((self.part(kind, word, bit), p) for word, p in pair)
        shift = kind(bit & (kind.width - 1))
        own = shift + (edge - far)
        place = place + cells[1] + count_of(cells[0] & ((kind(1) << own) - 1))
        behind = behind + others[1] + count_of(others[0] & ((kind(1) << shift) - 1))
        there = (cells[0] >> own) & (kind(2**kind.width - 1) >> (kind.width - far))
        there = there | (((others[0] >> shift) << 1) << (far - 1))
        found = []
        for c in range(taps[-1] + 1):
            one = Int32(there >> kind(c)) & 1
            if c in taps:
                found.append(self.row_at(values, place, one != 0))
            place = select(far == c + 1, behind, place + one)
        return found

    def part(self, kind: Any, word: Any, bit: Any) -> tuple[Any, Any]:
        """Return the 32 bits of a block's cells that contain ``bit``, and the cells before them."""
        if kind.width == 64:
            return Uint64(word), Int32(0)
        low, high = Uint32(word), Uint32(Uint64(word) >> 32)
        return select(bit < 32, low, high), select(bit < 32, Int32(0), count_of(low))

    @cute.jit
    def row_at(self, values: Any, place: Any, there: Any) -> Any:
        """Return the value at a place, -1 unless ``there``. The read does not wait for others."""
        value = Int32(-1)
        if there:
            value = at(values, Int64(place))
        return value

    def keep(self, words: Any, places: Any, tid: Any, found: Any) -> None:
        for corner, (first, word) in enumerate(found):
            words[tid, corner] = word
            places[tid, corner] = first

    @cute.jit
    def ask(self, slots: Any, cell: AnyList, grid: AnyList, bits: Any) -> Any:
        first, word, bit = self.block(slots, cell, grid, bits)
        return word, bit, first


def answer(values: Any, word: Any, bit: Any, place: Any) -> Any:
    """Return a cell's row, or -1. An absent cell reads the first row, so no read is conditional."""
    word = upto(word, bit)
    there = word < 0
    value = at(values, select(there, Int64(place + count_of(word) - 1), Int64(0)))
    return select(there, value, Int32(-1))
