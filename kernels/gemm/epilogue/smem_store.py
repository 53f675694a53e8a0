"""The smem-staged store: accumulators go through shared memory, and rows are stored in vectors.

The epilogue's steps and the conversion run before or after the exchange in shared memory. With
cluster split-K it is a DSMEM reduction: CTAs read the partial sums in each other's shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import warp

from layoutconv.planning.tile import NARROW, TileConfig

from ...common.runtime_integers import Extent
from ..operand import Column, Operand, Row
from ..smem_index import SmemRows
from ..smem_tile import release_tile, sync, wait_for_tile
from .column_entries import ColumnEntries
from .column_statistics import BLOCK, PartialSums, SumsByRow, SumsOfMatrices
from .convert import converted
from .held_columns import HeldColumns
from .ops import Places, Steps

STORE_BYTES = 16
BATCH = 4  # rows a thread reads at once: the loads overlap, and the rows fit in registers


@dataclass
class EpilogueIO:
    """Tensors and numbers that an epilogue reads and writes besides D.

    ``numbers`` are the steps' scalars. ``columns`` points to vectors (per column or row),
    ``sources`` to tensors like D. ``entries`` maps a column to its entry in a vector.
    ``first_column``: where the group's columns start. ``statistics`` points to the CTA's own row of
    partial sums, (2, all columns). ``rows``: D's index entries for the tile, if in shared memory.
    ``held``: the per-column values of a thread's columns, if in registers.
    """

    numbers: tuple[Any, ...]
    columns: tuple[Any, ...]
    sources: tuple[Any, ...]
    statistics: Any
    entries: ColumnEntries
    first_column: Any
    all_columns: Any
    rows: SmemRows | None = None
    held: HeldColumns | None = None


class SmemStore:
    """Stores a CTA's tile, (m, n), through D's layout: dense rows, or rows scattered by an index
    buffer.

    Timeline::

        steps by column | stage in smem | barrier | by row: (DSMEM sum) steps, convert, store

    Steps that need only the column run on the accumulators. If a step reads a tensor like D (a
    residual), all steps run on rows, after the exchange. 8-bit results are staged unconverted and
    converted after the exchange.

    If a tile has all columns and D's rows are contiguous, the tile is one run in memory, stored in
    vectors of ``run`` elements, however few columns there are.

    Cluster split-K: each CTA stages its partial sums, and finishes ``m / cluster_k`` rows: for
    these, it adds up the partial sums of all CTAs in rank order.
    """

    def __init__(
        self,
        tile: TileConfig,
        dtype: Any,
        accumulator: Any,
        vector: int,
        steps: Steps,
        *,
        atomic: bool,
        run: int = 0,
    ) -> None:
        self.tile, self.dtype, self.vector = tile, dtype, vector
        self.steps, self.atomic, self.run = steps, atomic, run
        floating = accumulator if accumulator.is_float else Float32
        self.work = floating if steps else accumulator
        self.by_row = steps.by_row or tile.cluster_k > 1
        self.counts_columns = any(program.reads("column") for program in steps.programs)
        self.by_fragment = bool(steps) and not self.by_row
        self.staged = staged_type(dtype, self.work, steps)
        if tile.cluster_k > 1:
            self.staged = accumulator
        matrices = self.staged is dtype and dtype in (cutlass.Float16, cutlass.BFloat16)
        matrices = matrices and tile.n >= BLOCK
        self.sums_by_row = steps.statistics and not matrices
        # Producer warps sum columns while consumers store.
        self.sums_beside = steps.statistics and matrices and tile.statistics_by_producers

    def shared_layout(self) -> tuple[Any, Any]:
        """(m, n) with n contiguous; the swizzle spreads a warp's fragments over the banks."""
        layout = cute.make_ordered_layout((self.tile.m, self.tile.n), order=(1, 0))
        return layout, cute.make_swizzle(*self._swizzle())

    def _swizzle(self) -> tuple[int, int, int]:
        """The swizzle of byte addresses: a 16-byte vector's number, XORed with its row's."""
        vectors = self.tile.n * self.staged.width // 8 // STORE_BYTES  # per row
        row_bits = vectors.bit_length() - 1
        return min(3, row_bits), 4, row_bits

    def hold(
        self, mma: Any, tid: Any, d: Operand, extras: EpilogueIO, registers: int
    ) -> HeldColumns | None:
        """Return registers for a thread's per-column values; None if the steps read none, or if
        they do not fit in a thread's ``registers``.
        """
        tensors = len(extras.columns) if self.by_fragment else 0
        if not tensors:
            return None
        held = HeldColumns(self.tile, mma.get_slice(tid), d.pointer, self.work, tensors, registers)
        return held if held.fits else None

    def fetch(self, d: Operand, extras: EpilogueIO, n0: Any) -> None:
        """Load the held per-column values of a tile whose columns begin at ``n0``.

        On Hopper, consumers call it before their first wait. Ampere's mainloop calls it before its
        last wait, when fragments no longer take registers.
        """
        if extras.held is not None:
            at = partial(self._column, count=d.col_count, extras=extras)
            extras.held.fetch(n0, lambda number, column: at(extras.columns[number], column))

    @cute.jit
    def __call__(
        self,
        acc: Any,
        mma: Any,
        d: Operand,
        base: Any,
        m0: Any,
        n0: Any,
        tid: Any,
        extras: EpilogueIO,
    ) -> None:
        """Store a tile through shared memory at ``base``, which the mainloop no longer uses."""
        layout, swizzle = self.shared_layout()
        smem = cute.make_tensor(cute.recast_ptr(base, swizzle, dtype=self.staged), layout)
        x = acc.load()
        if const_expr(self.by_fragment):
            places = self._by_fragment(mma, tid, n0, d, extras)
            x = self.steps(x.to(self.work), extras.numbers, places, self.staged)
        else:
            x = converted(x, self.staged)
        turned = cute.make_fragment_like(acc, self.staged)
        turned.store(x)
        self._stage(turned, mma, smem, tid)
        if const_expr(self._in_table(d)):
            self._fill(self._row_table(base), d, m0, tid)
        if const_expr(self.tile.cluster_k > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            sync(self.tile)
        if const_expr(self.sums_beside and not self._may_count(d)):
            release_tile(self.tile)
        if const_expr(self.run):
            self._store_run(smem, d, m0, tid)
        else:
            self._store_rows(smem, base, d, (m0, n0), tid, extras)

    def _stage(self, turned: Any, mma: Any, smem: Any, tid: Any) -> None:
        """Write a thread's results to shared memory: 16-bit ``wgmma`` ones by ``stmatrix.x4``."""
        if self.tile.warp_specialized and self.staged.width == 16 and self.tile.n > NARROW:
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(num_matrices=4), self.staged)
            copy = cute.make_tiled_copy_C(atom, mma)
            thread = copy.get_slice(tid)
            cute.copy(copy, thread.retile(turned), thread.partition_D(smem))
        else:
            cute.autovec_copy(turned, mma.get_slice(tid).partition_C(smem))

    @cute.jit
    def _store_rows(
        self, smem: Any, base: Any, d: Operand, first: tuple[Any, Any], tid: Any, extras: EpilogueIO
    ) -> None:
        """Write rows as vectors; sum their columns, if a step asks for statistics."""
        (m0, n0), table = first, self._row_table(base)
        across = const_expr(self.tile.n // self.vector)
        threads = cute.make_ordered_layout((self.tile.mma_threads // across, across), order=(1, 0))
        bits = const_expr(self.vector * self.dtype.width)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        read = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), self.staged, num_bits_per_copy=self.staged.width
        )
        copy = cute.make_tiled_copy_tv(read, threads, cute.make_layout((1, self.vector)))
        source = copy.get_slice(tid).partition_S(self._own_rows(smem))
        shares = [copy.get_slice(tid).partition_S(t) for t in self._own_rows_of_all(smem)]
        coordinates = cute.make_identity_tensor((self.tile.m, self.tile.n))
        where = copy.get_slice(tid).partition_S(self._own_rows(coordinates))
        first = n0 + where[(0, 0), 0, 0][1]
        column = d.column(first)
        by_vector = self._by_vector(first, d.col_count, extras)
        by_row: Any = SumsByRow(self.tile, self.vector) if self.sums_by_row else None
        count = const_expr(cute.size(where, mode=[1]))
        for start in range_constexpr(0, count, BATCH):
            batch = const_expr(range(start, min(start + BATCH, count)))
            numbers = [where[(0, 0), i, 0][0] for i in batch]
            rows = [self._row(d, table, m0, number) for number in numbers]
            index = _index(d, rows, column, extras.rows, numbers)
            places = [d.offset(row, column, at) for row, at in zip(rows, index, strict=True)]
            sources = [self._sources(d, *place, extras) for place in places]
            vectors = cute.make_rmem_tensor((self.vector, len(batch)), self.staged)
            for i in range_constexpr(len(batch)):
                if const_expr(self.tile.cluster_k > 1):
                    self._add_up([t[None, batch[i], 0] for t in shares], vectors[None, i])
                else:
                    cute.autovec_copy(source[None, batch[i], 0], vectors[None, i])
            for i in range_constexpr(len(batch)):
                offset, there = places[i]
                y = vectors[None, i].load()
                if const_expr(self.by_row):
                    of_row = self._of_row(by_vector, d, m0 + numbers[i], sources[i], extras)
                    y = self.steps(y.to(self.work), extras.numbers, of_row, self.dtype)
                else:
                    y = converted(y, self.dtype)
                out = cute.make_rmem_tensor((self.vector,), self.dtype)
                out.store(y)
                if const_expr(self.sums_by_row):
                    by_row.add(out, there)
                elif const_expr(self.steps.statistics and self._may_count(d)):
                    self._clear(source[None, batch[i], 0], there)
                self._store(atom, out, d.at(d.pointer, offset), there)
        if const_expr(self.tile.cluster_k > 1):  # no CTA exits while others read its smem
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        if const_expr(self.sums_by_row):
            by_row.write(base, tid, self._columns(d, n0, extras))
        elif const_expr(self.sums_beside):
            if const_expr(self._may_count(d)):
                release_tile(self.tile)
        elif const_expr(self.steps.statistics):
            sync(self.tile)
            self._sums().write(base, tid, self._columns(d, n0, extras))

    @cute.jit
    def _store_run(self, smem: Any, d: Operand, m0: Any, tid: Any) -> None:
        """Write the rows, which are contiguous in memory, as one run of whole vectors.

        D may end within a vector, whose elements are then stored one by one.
        """
        columns, vector, threads = const_expr(d.col_count), self.run, self.tile.mma_threads
        count = const_expr(self.tile.m * columns // vector)  # vectors of the tile
        rows = cutlass.min(Int32(d.row_count - m0), Int32(self.tile.m))
        left = rows * columns  # elements from the tile's first row on
        first_row = d.pointer + cute.assume(Int64(m0) * columns, divby=vector)
        bits = const_expr(vector * self.dtype.width)
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype, num_bits_per_copy=bits)
        for part in range_constexpr(-(-count // threads)):
            number = tid + part * threads
            first = number * vector
            if (number < count) & (first < left):
                held = cute.make_rmem_tensor((vector,), self.staged)
                for i in range_constexpr(vector):
                    row, column = divmod(first + i, Extent(columns))
                    held[i] = smem[row, column]
                out = cute.make_rmem_tensor((vector,), self.dtype)
                out.store(converted(held.load(), self.dtype))
                pointer = first_row + cute.assume(Int64(first), divby=vector)
                if first + vector <= left:
                    whole = cute.make_layout(((vector, 1),))
                    source = cute.make_tensor(out.iterator, whole)
                    cute.copy_atom_call(atom, source, cute.make_tensor(pointer, whole))
                else:
                    for i in range_constexpr(vector - 1):
                        if first + i < left:
                            cute.make_tensor(pointer + i, cute.make_layout(1))[0] = out[i]

    @cute.jit
    def sum_beside(self, d: Operand, base: Any, n0: Any, tid: Any, extras: EpilogueIO) -> None:
        """Sum columns in the producer's threads, if ``sums_beside``; others have ``tid`` < 0."""
        if tid >= 0:
            wait_for_tile(self.tile)
            self._sums().write(base, tid, self._columns(d, n0, extras))

    def _sums(self) -> SumsOfMatrices:
        return SumsOfMatrices(self.tile, self.dtype, self._swizzle())

    def _columns(self, d: Operand, n0: Any, extras: EpilogueIO) -> PartialSums:
        """The CTA's columns among all columns."""
        first, count = extras.first_column + n0, d.col_count - n0
        return PartialSums(extras.statistics, first, count, extras.all_columns)

    # -- the rows of D ---------------------------------------------------------------------------

    def _in_table(self, d: Operand) -> bool:
        """Return whether threads share a table of row addresses: not if one multiplication gives
        a row's address, or if D is gathered or compares bounds at each access.
        """
        return d.row_step is None and not d.gather and not d.live

    def _row_table(self, base: Any) -> Any:
        """The row table, (offset and mask, row), in shared memory behind the staged tile."""
        turned = self.tile.m * self.tile.n * self.staged.width // 64
        pointer = cute.recast_ptr(base, dtype=Int64) + turned
        return cute.make_tensor(pointer, cute.make_layout((2, self.tile.m)))

    @cute.jit
    def _fill(self, table: Any, d: Operand, m0: Any, tid: Any) -> None:
        for part in range_constexpr(-(-self.tile.m // self.tile.mma_threads)):
            number = tid + part * self.tile.mma_threads
            row = d.row(m0 + number)
            offset, mask = Int64(row.linear), Int64(row.mask)
            if number < self.tile.m:
                table[0, number] = offset
                table[1, number] = mask

    def _row(self, d: Operand, table: Any, m0: Any, number: Any) -> Row:
        """Row ``number`` of the CTA's tile, from the table or computed now."""
        if not self._in_table(d):
            return d.row(m0 + number)
        word = Int64 if d.mask_bits > 32 else Int32
        return Row(table[0, number], None, word(table[1, number]), None)

    # -- what the steps read ---------------------------------------------------------------------

    def _by_fragment(self, mma: Any, tid: Any, n0: Any, d: Operand, extras: EpilogueIO) -> Places:
        """Values that steps read at a thread's accumulators, which depend on the column only."""
        thread, shape = mma.get_slice(tid), (self.tile.m, self.tile.n)
        first = n0 + thread.partition_C(cute.make_identity_tensor(shape))[0][1]
        columns = cute.make_layout(shape, stride=(0, 1))  # column numbers: all rows are alike
        layout = thread.partition_C(cute.make_tensor(d.pointer, columns)).layout

        def filled(kind: Any, at: Callable[[Any], Any]) -> Any:
            found: dict[Any, Any] = {}
            values = cute.make_rmem_tensor(layout.shape, kind)
            for i in range(cute.size(layout)):
                step = layout(i)
                if step not in found:
                    found[step] = at(step)
                values[i] = found[step]
            return values.load()

        def vector(number: int) -> Any:
            if extras.held is not None:
                return filled(self.work, partial(extras.held.read, number))
            at = partial(self._column, extras.columns[number], count=d.col_count, extras=extras)
            return filled(self.work, lambda step: at(first + step))

        return Places(
            vector, lambda: filled(Int32, lambda step: Int32(extras.entries(first + step)))
        )

    def _by_vector(self, first: Any, count: int, extras: EpilogueIO) -> Places:
        """Values that steps read at a thread's vector of columns, the same in every row."""
        held: dict[int, Any] = {}
        for number, pointer in enumerate(extras.columns if self.by_row else ()):
            if number not in self.steps.per_row:
                held[number] = values = cute.make_rmem_tensor((self.vector,), self.work)
                for i in range(self.vector):
                    values[i] = self._column(pointer, first + i, count, extras)
        numbers = cute.make_rmem_tensor((self.vector,), Int32)
        if self.counts_columns:
            for i in range(self.vector):
                numbers[i] = Int32(extras.entries(first + i))
        return Places(lambda number: held[number].load(), numbers.load)

    def _of_row(
        self, of_columns: Places, d: Operand, number: Any, sources: list[Any], extras: EpilogueIO
    ) -> Places:
        """Values that steps read at a thread's vector of columns in row ``number`` of D, whose
        ``sources`` are loaded.
        """
        row = cutlass.min(Int32(number), Int32(d.row_count - 1))

        def vector(which: int) -> Any:
            if which not in self.steps.per_row:
                return of_columns.vector(which)
            at = cute.make_tensor(extras.columns[which] + row, cute.make_layout(1))
            return self._all(self.work(at[0]), self.work)

        def source(which: int) -> Any:
            return sources[which].load().to(self.work)

        return Places(vector, of_columns.column, source, lambda: self._all(row, Int32))

    def _all(self, value: Any, kind: Any) -> Any:
        """Fill a vector with one value."""
        values = cute.make_rmem_tensor((self.vector,), kind)
        values.fill(value)
        return values.load()

    def _column(self, pointer: Any, column: Any, count: int, extras: EpilogueIO) -> Any:
        """Read a column's value; columns past the last get the last one's."""
        past = Int32(count - 1 - column) >> 31  # all ones past the last column
        column = (column & ~past) | (Int32(count - 1) & past)
        at = cute.make_tensor(pointer + extras.entries(column), cute.make_layout(1))
        return self.work(at[0])

    def _sources(self, d: Operand, offset: Any, there: Any, extras: EpilogueIO) -> list[Any]:
        """Load a vector of each tensor like D at D's offset; at offset 0 if D has no element there.

        The caller issues the loads of all rows of a batch before it stores any: no load moves above
        a store that may alias, so each load would be waited for.
        """
        found = []
        for tensor in extras.sources if self.by_row else ():
            pointer = d.at(tensor, cutlass.select_(there, Int64(offset), Int64(0)))
            values = cute.make_rmem_tensor((self.vector,), pointer.dtype)
            cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(self.vector)), values)
            found.append(values)
        return found

    # -- sums that CTAs share --------------------------------------------------------------------

    def _own_rows(self, tensor: Any) -> Any:
        """The rows of a tensor (m, n) that this CTA finishes."""
        if self.tile.cluster_k == 1:
            return tensor
        rows = self.tile.m // self.tile.cluster_k
        return cute.local_tile(tensor, (rows, self.tile.n), (cute.arch.block_idx_in_cluster(), 0))

    def _own_rows_of_all(self, smem: Any) -> list[Any]:
        """The rows that this CTA finishes, in the shared memory of every CTA of the cluster."""
        if self.tile.cluster_k == 1:
            return []
        pointers = [
            cute.arch.map_dsmem_ptr(smem.iterator, Int32(part))
            for part in range(self.tile.cluster_k)
        ]
        return [self._own_rows(cute.make_tensor(p, smem.layout)) for p in pointers]

    def _add_up(self, parts: list[Any], total: Any) -> None:
        """Add up a vector over a cluster in rank order, so that results are reproducible."""
        held = [cute.make_fragment_like(total) for _ in parts]
        for part, values in zip(parts, held, strict=True):
            cute.autovec_copy(part, values)
        found = held[0].load()
        for values in held[1:]:
            found = found + values.load()
        total.store(found)

    # -- what is written -------------------------------------------------------------------------

    @cute.jit
    def _store(self, atom: Any, out: Any, pointer: Any, there: Any) -> None:
        if const_expr(self.atomic):
            if there:
                for i in range_constexpr(self.vector):
                    cute.arch.atomic_add(pointer + i, out[i], scope="gpu", sem="relaxed")
        else:
            pred = cute.make_rmem_tensor(1, cutlass.Boolean)
            pred[0] = there
            layout = cute.make_layout(((self.vector, 1),))
            cute.copy_atom_call(
                atom,
                cute.make_tensor(out.iterator, layout),
                cute.make_tensor(pointer, layout),
                pred=pred,
            )

    def _may_count(self, d: Operand) -> bool:
        """Return whether elements that are not stored may be nonzero. Rows past the last are zero
        unless a step changes that.
        """
        return bool(d.gather or d.live or d.fields or d.strays or not self.steps.keep_zero)

    @cute.jit
    def _clear(self, staged: Any, there: Any) -> None:
        """Zero the staged elements that are not stored, so that statistics ignore them."""
        if not there:
            zeros = cute.make_fragment_like(staged)
            zeros.fill(0)
            cute.autovec_copy(zeros, staged)


def _index(
    d: Operand, rows: list[Row], column: Column, kept: SmemRows | None, numbers: list[Any]
) -> list[Any]:
    """Return D's index entries for ``rows``, which have these ``numbers`` in the tile; None without
    an index buffer.
    """
    if kept is not None:
        found = [kept[number] for number in numbers]
        if column.valid is None:
            return found
        return [cutlass.select_(column.valid, entry, Int32(-1)) for entry in found]
    return [d.load_index(row, column, written=True) if d.gather else None for row in rows]


def staged_type(dtype: Any, work: Any, steps: Steps) -> Any:
    """The staged tile's type: D's, unless steps or a saturating conversion follow the exchange."""
    return work if steps.sources or dtype.width == 8 else dtype
