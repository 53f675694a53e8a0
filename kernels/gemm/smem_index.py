"""The kernel-map tile in shared memory: a CTA's entries of the index buffers of A and D.

The entries of A are read anyway to find active taps (``active_taps.py``). Producers that read them
again from global memory, a k-tile ahead, waited for the caches: a tenth of the time of a kernel map
with 64 channels on an H200, a quarter with 32 channels. The entries of D, the rows to store to, are
loaded at the same time, so that the epilogue does not wait for them.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec

from ..common.arguments import Extent
from .operand import Operand

WORD_BYTES = 4


def keep_index(
    spec: KernelSpec, smem: Any, load: Any, d: Operand, first: Any, tid: Any
) -> SmemRows | None:
    """Allocate shared memory for what a tile takes of index buffers; read that of D.

    ``load`` is that of A, from row ``first`` on: it reads its entries there from now on.
    """
    tile, rows = spec.tile, None
    if d.gather:
        rows = SmemRows(smem, tile.m)
        rows.fill(d, first, tile.threads, tid)
    entries = spec.kept - (tile.m if d.gather else 0)
    load.kept = SmemIndex(smem, entries, tile.m, load.apart, load.operand.vector_extent)
    return rows


class SmemIndex:
    """The entries of every tap for ``rows`` rows of a tile, of ``channels`` columns a tap.

    A producer's thread copies rows that lie ``apart`` rows apart. Its entries of a tap lie side by
    side here, so that it reads them at once.
    """

    def __init__(self, smem: Any, entries: int, rows: int, apart: int, channels: int) -> None:
        self.words = smem.allocate_array(Int32, entries, byte_alignment=VECTOR_BYTES)
        self.rows, self.apart, self.channels = rows, apart, channels

    @property
    def each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.apart

    def keep(self, tap: Any, row: Any, entry: Any, mine: Any) -> None:
        """Write the entry of a tap for a row of the tile, if it is this thread's to write."""
        of_thread, thread = divmod(Int32(row), Extent(self.apart))
        _write(self.words + (tap * self.rows + thread * self.each + of_thread), entry, mine)

    def read(self, column: Any, row: Any, entries: Any) -> None:
        """Read the entries of a column's tap for a thread's rows, from its first on."""
        tap = divmod(column, Extent(self.channels))[0]
        vector = min(self.each & -self.each, VECTOR_BYTES // WORD_BYTES)
        at = cute.assume(tap * self.rows + row * self.each, divby=vector)
        kept = cute.make_tensor(self.words + at, cute.make_layout(self.each))
        cute.autovec_copy(kept, entries)


class SmemRows:
    """The entries of D's index buffer for ``rows`` rows of a tile."""

    def __init__(self, smem: Any, rows: int) -> None:
        self.words = smem.allocate_array(Int32, rows, byte_alignment=VECTOR_BYTES)
        self.rows = rows

    def fill(self, d: Operand, first: Any, threads: int, tid: Any) -> None:
        """All threads do; who reads waits for them."""
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
