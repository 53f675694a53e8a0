"""Segmented sums of the partial sums of taps: ``out[k, t, c] = sum_i parts[i, k, c]``.

The last step of a filter's gradient: the chunks of its taps lie one behind the other,
``lengths[t]`` of tap t. A CTA has one tap and a block of columns ``(k, c)``; its threads are rows
of a matrix, which stride over the chunks with several loads in flight, and meet in shared memory.
Every sum has a fixed order: results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from layoutconv.planning.machine import starts_early

from ..common.compiled import compiled
from ..common.dsl import Int32, Int64, Uint32, cute, cutlass, make_fake_tensor, range_constexpr
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.walk import TYPES, at, put, read, select
from ..compile.store import load

LOG_THREADS = 8  # of a CTA
THREADS = 1 << LOG_THREADS
LOG_FLIGHT = 2
FLIGHT = 1 << LOG_FLIGHT  # chunks that a thread has in flight
BYTES = 16  # of a vector
# log2 of the rows of threads: about half the chunks of an average tap, as some taps have many more.
FEWEST, MOST = 2, 5


@dataclass(frozen=True)
class SegmentShape:
    """The structure that a kernel is compiled for.

    Args:
        dtype: of the parts and of sums, "float32" or "float64".
        out_dtype: of the result.
        vector: columns of a thread, a divisor of all columns: ``columns_per_load``.
    """

    dtype: str
    out_dtype: str
    vector: int


def load_segment_sum(shape: SegmentShape, arch: str) -> Callable[..., None]:
    """Load the kernel of a shape: from memory, from disk, or compiled now; no GPU is needed.

    Call it as ``build`` says; it launches on torch's current stream.
    """
    return load(("segment sum", shape, arch), partial(build, shape, arch), writes=(2,))


def build(shape: SegmentShape, arch: str, dump: str | None = None) -> Any:
    """Compile a kernel: return a TVM-FFI function ``f(parts, lengths, out)``.

    ``parts`` (chunks, K, C) are contiguous and start at a multiple of 16 bytes; ``lengths`` are
    int64 (taps,); ``out`` is the memory of (K, taps, C), a vector. None of them is empty. Chunks
    past the sum of ``lengths`` belong to no tap, and are not read. With a folder ``dump``, the
    function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    extents = tuple(cute.sym_int() for _ in range(3))
    strides = cute.sym_int64(), cute.sym_int64(), 1
    return compiled(
        SegmentSum(shape, starts_early(arch)),
        make_fake_tensor(TYPES[shape.dtype], extents, strides, assumed_align=BYTES),
        make_fake_tensor(Int64, (cute.sym_int(),), (1,)),
        make_fake_tensor(TYPES[shape.out_dtype], (cute.sym_int64(),), (1,)),
        arch=arch,
        dump=dump,
    )


class SegmentSum:
    """The kernel of a ``SegmentShape``."""

    def __init__(self, shape: SegmentShape, early: bool) -> None:
        self.shape, self.early = shape, early
        self.dtype, self.out_dtype = TYPES[shape.dtype], TYPES[shape.out_dtype]

    @cute.jit
    def __call__(self, parts: Any, lengths: Any, out: Any, stream: Any) -> None:
        chunks, K, C = parts.shape
        (taps,) = lengths.shape
        rows = Int32(FEWEST)
        for log in range_constexpr(FEWEST + 1, MOST + 1):
            rows = select(chunks >= (taps << (log + 1)), Int32(log), rows)
        across = Int32(LOG_THREADS) - rows
        vectors = (K * C) // self.shape.vector
        self.kernel(parts.iterator, lengths.iterator, out.iterator, K * C, C, rows).launch(
            grid=[(vectors + (Int32(1) << across) - 1) >> across, taps, 1],
            block=[THREADS, 1, 1],
            stream=stream,
            use_pdl=self.early,
        )

    @cute.kernel
    def kernel(
        self, parts: Any, lengths: Any, out: Any, columns: Any, C: Any, log_rows: Any
    ) -> None:
        """Add up a tap: ``2^log_rows`` rows of threads, each thread with a vector of columns."""
        let_dependents_start(self.early)
        wait_for_others(self.early)
        vector, across = self.shape.vector, Int32(LOG_THREADS) - log_rows
        tid, _, _ = cute.arch.thread_idx()
        block, tap, _ = cute.arch.block_idx()
        _, taps, _ = cute.arch.grid_dim()
        smem = cutlass.memory.SmemAllocator()
        counts = smem.allocate_tensor(Int32, cute.make_layout(THREADS // 32), byte_alignment=16)
        sums = smem.allocate_tensor(
            self.dtype, cute.make_layout((vector, THREADS)), byte_alignment=16
        )
        length = Int32(at(lengths, tap))
        start = self.before(lengths, tap, tid, counts)

        rows, row = Int32(1) << log_rows, tid >> across
        first_column = (block << across) * vector
        column = first_column + (tid & ((Int32(1) << across) - 1)) * vector
        column = select(column < columns, column, Int32(0))
        acc = cute.make_rmem_tensor(vector, self.dtype)
        acc.fill(self.dtype(0.0))
        turn = log_rows + LOG_FLIGHT
        for i in range((length - row + (Int32(1) << turn) - 1) >> turn):
            self.add(parts, start, row + (i << turn), rows, length, columns, column, acc)
        cute.autovec_copy(acc, sums[None, tid])
        cute.arch.sync_threads()

        # One column per thread, so that writes are contiguous.
        own = first_column + tid
        if (tid < (Int32(vector) << across)) & (own < columns):
            total = self.dtype(0.0)
            for i in range(rows):
                total = total + sums[(i * vector << across) + tid]
            k = Int32(Uint32(own) // Uint32(C))
            put(out, (Int64(k) * taps + tap) * Int64(C) + (own - k * C), self.out_dtype(total))

    @cute.jit
    def before(self, lengths: Any, tap: Any, tid: Any, counts: Any) -> Any:
        """Return the number of chunks of earlier taps, which all threads count together."""
        found = Int32(0)
        for i in range(tid, tap, THREADS):
            found = found + Int32(at(lengths, i))
        for bit in range_constexpr(5):
            found = found + cute.arch.shuffle_sync_bfly(found, 1 << bit)
        if (tid & 31) == 0:
            counts[tid >> 5] = found
        cute.arch.sync_threads()
        found = Int32(0)
        for warp in range_constexpr(THREADS // 32):
            found = found + counts[warp]
        return found

    def add(
        self,
        parts: Any,
        start: Any,
        first: Any,
        rows: Any,
        length: Any,
        columns: Any,
        column: Any,
        acc: Any,
    ) -> None:
        """Add ``FLIGHT`` more chunks, ``rows`` apart.

        There is no branch, so that loads overlap: past the last chunk, the last is read again.
        """
        vector = self.shape.vector
        values, valid = [], []
        for u in range(FLIGHT):
            chunk = first + u * rows
            there = chunk < length
            place = start + select(there, chunk, length - 1)
            offset = Int64(place) * Int64(columns) + Int64(column)
            offset = cute.assume(offset, divby=vector) if vector > 1 else offset
            values.append(read(parts + offset, self.dtype, vector))
            valid.append(there)
        for found, there in zip(values, valid, strict=True):
            for j in range(vector):
                acc[j] = select(there, acc[j] + found[j], acc[j])
