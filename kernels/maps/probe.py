"""Hash probing: each centre looks up the rows of its taps, and writes them to the index buffer."""

from __future__ import annotations

from typing import Any

from ..common.cells import Cell, read_cell
from ..common.dsl import Int32, Int64, Uint32, Uint64, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import at, put, read, select
from .block_table import EDGES, count_of, upto
from .cooperative import Arrays
from .tap_blocks import RowLookup
from .tap_tables import LINES, VECTOR, head_size, read_geometry

FLIGHT = 4  # taps that a thread looks up at once; of lines, ``LINES``


class Search(RowLookup):
    """Search for the rows of centres' taps, with one thread per centre and per row of the index.

    At every tap a warp writes 128 contiguous bytes. With an order, thread i searches around the
    centre ``order[i]``, so the threads of a warp mostly find the same taps.

    Args:
        steps: the positions of the taps of a line; None for taps that are looked up one by one.
        shorter: whether there are filters of shorter lines, which are the first of ``steps``.
    """

    def __init__(
        self, rank: int, near: bool, steps: tuple[int, ...] | None = None, wide: bool = False,
        unit: bool = False, shorter: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(rank, near, wide, unit)
        self.steps, self.shorter = steps, shorter

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.steps, self.shorter

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
        rows, bits, ordered, *grid = integers
        rank = self.rank
        words: Any
        places: Any
        words, places = arrays if self.near else (None, None)
        if ordered != 0:
            row = Int64(at(order, i))
        (of_lines, taps, width), stride, low, span = read_geometry(table, rank)
        start = self.start_of(read_cell(centres, row, rank), stride, low)
        if cutlass.const_expr(self.near):
            self.look_around(slots, start, span, grid, bits, tid, arrays)
        if cutlass.const_expr(self.steps is not None):
            counts = Int32(of_lines), Int32(width)
            self.lines(arrays, tid, start, values, table, counts, index + i, rows)
        else:
            where = self.packed(start, rank)
            for turn in range((Int32(taps) + FLIGHT - 1) // FLIGHT):
                asked = []
                for u in range_constexpr(FLIGHT):
                    tap = turn * FLIGHT + u
                    entry = select(tap < taps, tap, Int32(taps) - 1) * (1 + rank) + head_size(rank)
                    if cutlass.const_expr(self.near):
                        corner, bit = self.corner_and_bit(where + at(table, entry), rank)
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

    @cute.jit
    def lines(
        self, arrays: AnyList, tid: Any, start: AnyList, values: Any, table: Any, counts: AnyTuple,
        column: Any, rows: Any,
    ) -> None:  # fmt: skip
        """Have all reads of ``LINES`` lines of taps in flight before writing the first result.

        A loop over lines: their code as often as there are lines took a third of the compiler's
        time, and a line adds one read of the table, and a shift and a mask for each axis.
        """
        words, places = arrays
        of_lines, width = counts
        axes, (fewest, most) = self.rank - 1, self.widths()
        where, first = self.packed(start, axes), table + head_size(self.rank)
        kind, reach = self.part_kind, self.cells_of_line(width)
        to, ahead = column, read(first, Int32, VECTOR)
        for turn in cutlass.range((of_lines + LINES - 1) // LINES, unroll=1):
            answers = []
            places_of = [where + ahead[u] for u in range(LINES)]
            following = read(first + cute.assume((turn + 1) * VECTOR, divby=VECTOR), Int32, VECTOR)
            for u in range_constexpr(LINES):
                ahead[u] = following[u]
            for u in range_constexpr(LINES):
                line = turn * LINES + u
                corner, bit = self.corner_and_bit(places_of[u], axes)
                pair = [(words[tid, corner + n], places[tid, corner + n]) for n in range(2)]
                kept = select(line < of_lines, reach, kind(0))
                answers.append(self.line(values, pair, bit, start, kept))
            for u in range_constexpr(LINES):
                if turn * LINES + u < of_lines:
                    for n in range_constexpr(fewest):
                        put(to, 0, answers[u][n])
                        to = to + rows
                    for n in range_constexpr(fewest, most):
                        if n < width:
                            put(to, 0, answers[u][n])
                            to = to + rows

    def widths(self) -> tuple[int, int]:
        """Return the fewest taps of a line, and the most."""
        most = len(self.steps or ())
        return 1 if self.shorter else most, most

    def cells_of_line(self, width: Any) -> Any:
        """Return a part of a block that has all cells that a line of so many taps may reach."""
        kind = self.part_kind
        every = kind(2**kind.width - 1)
        return every >> (kind.width - kind(width)) if self.shorter else every

    @property
    def part_kind(self) -> Any:
        """The type of a part of a block's cells that has the whole of a line."""
        return Uint32 if EDGES[self.rank][-1] < 5 else Uint64

    def line(self, values: Any, pair: Any, bit: Any, start: Cell, kept: Any) -> list[Any]:
        """Return the rows of the taps of a line along the last axis, which starts in a block and
        may go on in the next: ``pair``. ``bit`` is that of the line's first cell in a block. Cells
        that are not ``kept`` count as absent.

        The place of a cell's row is one behind that of the cell before, if that is present; in the
        second block it starts again from the first cell of its line.
        """
        edge = 1 << EDGES[self.rank][-1]
        kind = self.part_kind
        far = edge - kind(Int32(start[-1]) & (edge - 1))  # cells of the first block
        taps = self.steps or ()
        (cells, place), (others, behind) = ((self.part(kind, word, bit), p) for word, p in pair)
        shift = kind(bit & (kind.width - 1))
        own = shift + (edge - far)
        place = place + cells[1] + count_of(cells[0] & ((kind(1) << own) - 1))
        behind = behind + others[1] + count_of(others[0] & ((kind(1) << shift) - 1))
        there = (cells[0] >> own) & (kind(2**kind.width - 1) >> (kind.width - far))
        there = (there | (((others[0] >> shift) << 1) << (far - 1))) & kept
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
