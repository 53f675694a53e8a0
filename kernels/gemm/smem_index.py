"""The kernel-map tile in shared memory: a CTA's index entries of A and D.

``active_taps.py`` reads A's entries anyway. Producers that read them again from global memory, one
k-tile ahead, waited for the caches: a tenth of a kernel map's time with 64 channels on an H200, a
quarter with 32 channels. D's entries, the rows to store to, are loaded at the same time, so that
the epilogue does not wait for them.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec

from ..common.runtime_integers import Extent
from .operand import Operand

WORD_BYTES = 4


def keep_index(
    spec: KernelSpec, smem: Any, load: Any, d: Operand, first: Any, tid: Any
) -> SmemRows | None:
    """Allocate shared memory for the tile's index entries; load and return those of D.

    ``load`` loads A from row ``first`` on. From now on it reads its index entries here, once
    ``active_taps`` has written them.
    """
    tile, rows = spec.tile, None
    if d.gather:
        rows = SmemRows(smem, tile.m)
        rows.fill(d, first, tile.threads, tid)
    entries = spec.kept - (tile.m if d.gather else 0)
    load.kept = SmemIndex(smem, entries, tile.m, load.apart, load.operand.vector_extent)
    return rows


class SmemIndex:
    """A's index entries: every tap, of ``channels`` columns, for the ``rows`` rows of a tile.

    A producer thread copies every ``apart``-th row. Its entries of one tap are contiguous here, so
    that it reads them as vectors.
    """

    def __init__(self, smem: Any, entries: int, rows: int, apart: int, channels: int) -> None:
        self.words = smem.allocate_array(Int32, entries, byte_alignment=VECTOR_BYTES)
        self.rows, self.apart, self.channels = rows, apart, channels

    @property
    def each(self) -> int:
        """Return the rows per thread."""
        return self.rows // self.apart

    def keep(self, tap: Any, row: Any, entry: Any, mine: Any) -> None:
        """Write the entry of a tap for a row of the tile, if ``mine``."""
        of_thread, thread = divmod(Int32(row), Extent(self.apart))
        _write(self.words + (tap * self.rows + thread * self.each + of_thread), entry, mine)

    def read(self, column: Any, row: Any, entries: Any) -> None:
        """Read the entries of a column's tap for a thread's rows; ``row`` is its first."""
        tap = divmod(column, Extent(self.channels))[0]
        vector = min(self.each & -self.each, VECTOR_BYTES // WORD_BYTES)
        at = cute.assume(tap * self.rows + row * self.each, divby=vector)
        kept = cute.make_tensor(self.words + at, cute.make_layout(self.each))
        cute.autovec_copy(kept, entries)


class SmemRows:
    """D's index entries for the ``rows`` rows of a tile."""

    def __init__(self, smem: Any, rows: int) -> None:
        self.words = smem.allocate_array(Int32, rows, byte_alignment=VECTOR_BYTES)
        self.rows = rows

    def fill(self, d: Operand, first: Any, threads: int, tid: Any) -> None:
        """Load the entries with all threads of the CTA; readers synchronise first."""
        column = d.column(Int32(0))
        for before in range(0, self.rows, threads):
            row = before + tid
            entry = d.load_index(d.row(first + row), column, written=True)
            _write(self.words + row, entry, row < self.rows)

    def __getitem__(self, row: Any) -> Any:
        return cute.make_tensor(self.words + row, cute.make_layout(1))[0]


@cute.jit
def _write(pointer: Any, entry: Any, mine: Any) -> None:
    if mine:
        cute.make_tensor(pointer, cute.make_layout(1))[0] = entry
