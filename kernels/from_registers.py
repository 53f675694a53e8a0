"""From accumulators to memory without shared memory: four lanes turn what they hold of a row.

Of Hopper's accumulators four lanes hold a row of 8 columns, a pair each. Of four times as many
columns each lane gives the others what they have not, in four shuffles for each row, and holds 8
columns in a row then: 16 bytes of 16 bits each, which it stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from .convert import converted
from .epilogue import STORE_BYTES, Epilogue, Extras
from .kept_index import KeptRows
from .operand import Operand
from .statistics import Columns, SumsOfFragments

LANES = 4  # of a row
BITS = 16  # of an element of D: a pair is a word


class RegisterEpilogue(Epilogue):
    """Writes a CTA's tile through the layout of D, of 16 bits, each warpgroup its own rows.

    Steps need no more than the column.
    """

    def suits(self) -> bool:
        """Whether that is so: vectors are whole, and nothing else is read; teams may count."""
        whole = self.vector * BITS == 8 * STORE_BYTES and self.dtype.width == BITS
        counts = self.steps.statistics and self.tile.teams == 1
        return whole and not (self.by_row or counts or self.atomic)

    def count(self) -> None:
        """From here on, statistics of all that is stored are kept, if they are asked for."""
        self.sums = SumsOfFragments(self.tile) if self.steps.statistics else None

    @cute.jit
    def write_sums(self, d: Operand, row: Any, tid: Any, extras: Extras):
        """A warp's row of partial sums, of that number and those of warps before it."""
        if const_expr(self.sums is not None):
            here = extras.statistics + Int64(row + tid // 32) * (2 * extras.all_columns)
            columns = Columns(here, extras.first_column, d.col_count, extras.all_columns)
            self.sums.write(tid, columns)

    @cute.jit
    def __call__(
        self,
        acc: Any,
        mma: Any,
        d: Operand,
        m0: Any,
        n0: Any,
        tid: Any,
        extras: Extras,
        kept: KeptRows | None,
        done: Callable[[], None],
    ):
        """``kept``: if there is one, what D's index buffer has for the tile's rows; ``done`` is
        called when that has been read."""
        where = mma.get_slice(tid).partition_C(
            cute.make_identity_tensor((self.tile.m, self.tile.n))
        )
        (_, halves, groups), down, across = where.shape
        lane = tid % LANES
        numbers = [[where[(0, h, 0), i, 0][0] for h in range(halves)] for i in range(down)]
        rows = [[d.row(m0 + number) for number in some] for some in numbers]
        entries = [[None if kept is None else kept[number] for number in some] for some in numbers]
        done()
        counted: Any = const_expr(self.sums if self.steps.statistics else None)
        stored = [[self._exists(d, row) for row in some] for some in rows]
        bits = const_expr(8 * STORE_BYTES)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        for j in range_constexpr(across):
            for block in range_constexpr(0, groups, LANES):
                first = n0 + where[(0, 0, block), 0, j][1]  # of the lane's pairs
                column = d.column(first + (self.vector - 2) * lane)
                steps = self._columns_of(first, halves, d.col_count, extras)
                for i in range_constexpr(down):
                    words = self._words(acc, (i, j), block, halves, steps, extras)
                    if const_expr(counted is not None):
                        pairs = cute.recast_tensor(words, self.dtype)
                        for at in range_constexpr(halves * LANES):
                            group = j * groups + block + at // halves
                            pair = pairs[2 * at], pairs[2 * at + 1]
                            counted.add(group, pair, stored[i][at % halves])
                    for h in range_constexpr(halves):
                        own = [words[h + halves * g] for g in range(LANES)]
                        out = cute.make_rmem_tensor((LANES,), Int32)
                        for g, word in enumerate(_turned(own, lane)):
                            out[g] = word
                        entry = entries[i][h]
                        if const_expr(entry is not None and column.valid is not None):
                            entry = cutlass.select_(column.valid, entry, Int32(-1))
                        offset, there = d.offset(rows[i][h], column, entry)
                        vector = cute.recast_tensor(out, self.dtype)
                        self._store(atom, vector, d.at(d.pointer, offset), there)

    def _exists(self, d: Operand, row: Any) -> Any:
        """Whether a row is stored, if that is asked for: whether its first column is."""
        return d.offset(row, d.column(Int32(0)))[1] if self.steps.statistics else None

    def _words(
        self, acc: Any, at: tuple[int, int], block: int, halves: int, columns: Any, extras: Extras
    ) -> Any:
        """A block of a thread's accumulators after the steps, as words: (halves, LANES)."""
        values = cute.make_rmem_tensor((2, halves, LANES), acc.element_type)
        for g in range(LANES):
            for h in range(halves):
                for pair in range(2):
                    values[pair, h, g] = acc[(pair, h, block + g), *at]
        x = values.load()
        if self.by_fragment:
            x = self.steps(x.to(self.work), extras.numbers, columns)
        out = cute.make_rmem_tensor((2, halves, LANES), self.dtype)
        out.store(converted(x, self.dtype))
        return cute.make_tensor(
            cute.recast_ptr(out.iterator, dtype=Int32), cute.make_layout(halves * LANES)
        )

    def _columns_of(self, first: Any, halves: int, count: int, extras: Extras) -> Any:
        """The numbers of columns, at the places of a block."""
        held = []
        for pointer in extras.columns if self.by_fragment else ():
            values = cute.make_rmem_tensor((2, halves, LANES), self.work)
            for g in range(LANES):
                for pair in range(2):
                    found = self._column(pointer, first + (2 * LANES * g + pair), count, extras)
                    for h in range(halves):
                        values[pair, h, g] = found
            held.append(values)
        return lambda number: held[number].load()


def _turned(words: list[Any], lane: Any) -> list[Any]:
    """Word ``lane`` of each of four lanes, in their order; each has four words."""
    for bit in (1, 2):
        upper = (lane & bit) != 0
        for low in (g for g in range(LANES) if not g & bit):
            high = low | bit
            sent = cutlass.select_(upper, words[low], words[high])
            got = cute.arch.shuffle_sync_bfly(sent, bit)
            words[low], words[high] = (
                cutlass.select_(upper, got, words[low]),
                cutlass.select_(upper, words[high], got),
            )
    return words
