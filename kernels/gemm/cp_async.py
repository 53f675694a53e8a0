"""``cp.async`` loads: a thread's vectors of one operand's k-tiles, from global to shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int32, select_
from cutlass.cute.nvgpu import cpasync

from layoutconv.planning.kernel_spec import ASYNC_BYTES

from .operand import Column, Operand, Row
from .smem_index import SmemIndex
from .smem_tile import SharedTile

THREADS_PER_ROW = 4  # each moves 16 of 64 contiguous bytes; with more, each thread has more rows
THREADS_PER_LINE = 8  # a warp copies whole 128-byte lines: half as many requests to L2

Vector = tuple[int, int, Any, Any]  # row, column step from the thread's first; gmem; predicate
Vectors = list[Vector]


class CpAsyncLoad:
    """Loads tiles of one operand into shared memory by ``cp.async``, a few vectors per thread.

    If the operand is k-contiguous, a thread keeps its rows for the whole mainloop. Per k-tile it
    computes one delta, and per row one address and one predicate; if the k-tile lies within one
    tap, the row's other vectors follow at fixed distances, else each column of vectors has its own
    delta. Otherwise a thread keeps its columns, and computes rows per k-tile.

    Vectors of fewer than 4 bytes (odd channel counts) go through registers. Rows of the shared tile
    from ``used`` on become zeros. ``tiles`` is how many k-tiles are read ahead. If ``kept`` is set,
    index entries are read from shared memory.
    """

    tiles = 1

    def __init__(
        self,
        operand: Operand,
        shared: SharedTile,
        dtype: Any,
        threads: int,
        tid: Any,
        first: Any,
        used: int | None = None,
        threads_per_row: int = THREADS_PER_ROW,
    ) -> None:
        self.operand, self.shared, self.dtype = operand, shared, dtype
        self.threads_per_row = threads_per_row
        vector, (rows, columns) = operand.vector, self._extents()
        per_row = columns // vector
        across, row, column = self._place(threads, tid, rows, per_row)
        down = min(threads // across, rows)
        if rows % down or per_row % across:
            raise ValueError(f"{rows} rows of {per_row} vectors do not divide {threads} threads")
        # If a tile has fewer vectors than there are threads (8 columns), some threads copy nothing.
        self.busy = None if down * across == threads else tid < down * across
        self.used, self.apart = used, down
        # A thread's vectors as steps from its first, and the first one's place in the tile.
        self.row_steps = [i * down for i in range(rows // down)]
        self.column_steps = [j * across * vector for j in range(per_row // across)]
        self.row_number, self.column_number = row, column * vector
        self.start = shared.start(shared.logical(row, self.column_number))
        if operand.hoist_rows:
            self.rows = [operand.row(self._number(first, row + step)) for step in self.row_steps]
        whole = operand.uniform and operand.vector_extent % columns == 0
        steps = list(self.column_steps)
        # (first column step, all column steps) of each segment; one if k-tiles lie within taps
        self.segments = [(steps[0], steps)] if whole else [(step, [step]) for step in steps]
        if not operand.hoist_rows:
            first = first + self.column_number
            self.columns = [operand.column(first + step) for step, _ in self.segments]
        self.index = None
        self.kept: SmemIndex | None = None
        if operand.gather:
            self.index = cute.make_rmem_tensor((len(self.row_steps), len(self.segments)), Int32)
        self.bytes = vector * dtype.width // 8
        if self.bytes >= ASYNC_BYTES:
            cache = cute.nvgpu.LoadCacheMode
            mode = cache.GLOBAL if self.bytes == 16 else cache.ALWAYS
            op: Any = cpasync.CopyG2SOp(cache_mode=mode)
            bits = 8 * self.bytes
        else:
            op, bits = cute.nvgpu.CopyUniversalOp(), dtype.width
        self.atom = cute.make_copy_atom(op, dtype, num_bits_per_copy=bits)

    def _extents(self) -> tuple[int, int]:
        """Return the rows and columns of the operand's tile."""
        return self.shared.rows, self.shared.columns

    def _place(self, threads: int, tid: Any, rows: int, per_row: int) -> tuple[int, Any, Any]:
        """Return how many threads share a row, this thread's first row, and its vector there."""
        across = min(per_row, max(self.threads_per_row, threads // rows))
        while per_row % across:  # a row of three half lines, say
            across //= 2
        return across, tid // across, tid & (across - 1)

    def _number(self, first: Any, row: Any) -> Any:
        """The operand's row for row ``row`` of the tile; if unused, one past the operand's last."""
        if self.used is None:
            return first + row
        return select_(row < self.used, first + row, Int32(self.operand.row_count))

    def _rows_of(self, first_k: Any) -> list[Row]:
        """This thread's rows of a k-tile."""
        if self.operand.hoist_rows:
            return self.rows
        first = first_k + self.row_number
        return [self.operand.row(first + step) for step in self.row_steps]

    def columns_of(self, first_k: Any) -> list[Column]:
        """The first columns of this thread's segments of a k-tile."""
        if not self.operand.hoist_rows:
            return self.columns
        first = first_k + self.column_number
        return [self.operand.column(first + step) for step, _ in self.segments]

    def _vectors(
        self, first_k: Any, columns: list[Column] | None = None, some: range | None = None
    ) -> Iterator[Vector]:
        """Yield this thread's vectors of a k-tile, as ``Vector`` has them.

        ``columns``: the result of ``columns_of``, if it is known. ``some``: the numbers of the
        thread's rows to take, if not all.
        """
        columns = self.columns_of(first_k) if columns is None else columns
        rows = self._rows_of(first_k)
        for s, (column, (first, steps)) in enumerate(zip(columns, self.segments, strict=True)):
            for i in range(len(rows)) if some is None else some:
                row = rows[i]
                index = None if self.index is None else self.index[i, s]
                pointer, there = self.operand.locate(row, column, index)
                pred = cute.make_rmem_tensor(1, Boolean)
                pred[0] = there
                for step in steps:
                    vector = cute.make_tensor(pointer + (step - first), self.operand.vector_layout)
                    yield self.row_steps[i], step, vector, pred

    def read_ahead(self, first_k: Any, place: tuple[int, int] = (0, 0)) -> None:
        """Read the index buffer for the k-tile at ``first_k``, if the operand has one."""
        if self.index is None:
            return
        if self.kept is not None:
            self.kept.read(first_k, self.row_number, self.index[None, 0])
            return
        rows = self._rows_of(first_k)
        for s, column in enumerate(self.columns_of(first_k)):
            for i, row in enumerate(rows):
                self.index[i, s] = self.operand.load_index(row, column, written=False)

    def copy(self, first_k: Any, stage: Any, place: tuple[int, int] = (0, 0)) -> None:
        """Issue a k-tile's copies into a stage; a predicated-off vector becomes zeros."""
        self.issue(self._vectors(first_k), stage)

    def vectors(self, first_k: Any) -> Vectors:
        """Return this thread's vectors of a k-tile, for ``issue``; afterwards ``read_ahead`` may
        overwrite the index entries.
        """
        return list(self._vectors(first_k))

    def issue(self, vectors: Iterable[Vector], stage: Any) -> None:
        """Issue the copies of ``vectors`` into a stage."""
        if self.busy is None:
            self.copy_vectors(vectors, stage)
        else:
            self._copy_if_busy(vectors, stage)

    @cute.jit
    def _copy_if_busy(self, vectors: Iterable[Vector], stage: Any) -> None:
        if self.busy:
            self.copy_vectors(vectors, stage)

    def copy_rows(
        self,
        first_k: Any,
        stage: Any,
        columns: list[Column] | None = None,
        some: range | None = None,
    ) -> None:
        """Issue the copies of this thread's rows whose numbers are in ``some``; of all if None."""
        self.copy_vectors(self._vectors(first_k, columns, some), stage)

    def copy_vectors(self, vectors: Iterable[Vector], stage: Any) -> None:
        """Copy vectors into a stage; all copies of the class go through here."""
        for row_step, step, vector, pred in vectors:
            target = self._slot(row_step, step, stage)
            if self.bytes >= ASYNC_BYTES:
                cute.copy_atom_call(self.atom, vector, target, pred=pred)
                continue
            held = cute.make_fragment_like(vector)
            held.fill(0)
            cute.copy_atom_call(self.atom, vector, held, pred=pred)
            cute.autovec_copy(held, target)

    def _slot(self, row_step: int, column_step: int, stage: Any) -> Any:
        """The address in shared memory of a vector, by its steps from the thread's first."""
        displacement = self.shared.displacement(row_step, column_step)
        return self._at(self.shared.at(self.start, displacement, stage), self.operand.vector)

    def _at(self, address: Any, elements: int) -> Any:
        """View ``elements`` elements of shared memory at a byte address."""
        align = elements * self.dtype.width // 8
        pointer = cute.make_ptr(self.dtype, address, cute.AddressSpace.smem, assumed_align=align)
        return cute.make_tensor(pointer, cute.make_layout(((elements, 1),)))
