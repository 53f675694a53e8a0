"""Base class of the kernels of norms and column sums: a CTA reduces a block of columns over a part
of the rows, and merges the sums of its threads.

A thread reads a vector of a row, so adjacent threads read adjacent vectors; the rows of threads in
a CTA stride over the rows of the part, with several loads in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layoutconv.planning.norm_schedule import FLIGHT, LOG_THREADS, NormShape

from ..common.dsl import Constexpr, Float32, Int32, Int64, cute, cutlass, range_constexpr
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyList
from ..common.walk import TYPES, at, put, read, select
from ..maps.cooperative import least
from ..maps.per_rank import PerRank

THREADS = 1 << LOG_THREADS
OF_ALL = "vector", "early", "images"  # fields that all kernels but group merges read


class ThreadPlace(NamedTuple):
    """The position of a thread in its launch."""

    tid: Any
    row: Any  # of threads in the CTA, one of ``step`` with these columns
    step: Any
    log_step: Any
    log_across: Any
    column: Any  # the first of its vector, or 0 past the last
    is_column: Any
    part: Any
    image: Any
    first: Any  # row of the part
    end: Any
    single: Any  # a thread's column of the block when parts are merged, or 0
    is_single: Any
    log_wide: Any  # binary logarithm of the columns of a block


class RowReduction(PerRank):
    """Base of kernels whose CTAs reduce a part of the rows and a block of columns.

    Its first integers are those of a ``Schedule``; for images, that of one image, and then the
    number of images. Parts are numbered through all images.
    """

    threads = THREADS
    more = 0  # integers behind these
    single = False  # whether one part merges all parts
    # The fields of the shape that the kernel reads, which are its key; None for all.
    reads: tuple[str, ...] | None = None

    def __init__(self, shape: NormShape) -> None:
        super().__init__(0)
        self.shape = shape if self.reads is None else shape.only(*self.reads)
        self.vector = self.shape.vector

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, self.shape

    def integers(self) -> int:
        return 5 + self.shape.images + self.more

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        _, columns, log_across, _, parts = integers[:5]
        wide = Int64(self.vector) << log_across
        blocks = Int32((columns + wide - 1) // wide)
        images = Int32(integers[5]) if self.shape.images else 1
        self.kernel(pointers, integers).launch(
            grid=[blocks, 1 if self.single else Int32(parts), images],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.shape.early,
        )

    def of_features(self) -> tuple[str, int]:
        """Return the type and alignment of features."""
        return self.shape.dtype, self.vector * TYPES[self.shape.dtype].width // 8

    def enter(self, integers: Any) -> ThreadPlace:
        """Return the position of a thread, after which it may touch memory.

        Dependent kernels start once every CTA is here, so they take no CTA's place on an SM.
        """
        let_dependents_start(self.shape.early)
        place = self.place(integers)
        wait_for_others(self.shape.early)
        return place

    def place(self, integers: Any) -> ThreadPlace:
        """Return the position of a thread."""
        rows, columns, log_across, share, parts = integers[:5]
        tid, _, _ = cute.arch.thread_idx()
        block, part, image = cute.arch.block_idx()
        log_across = Int32(log_across)
        log_step = Int32(LOG_THREADS) - log_across
        log_wide = log_across + (self.vector.bit_length() - 1)
        start = Int64(block) << log_wide
        column = start + (tid & ((Int32(1) << log_across) - 1)) * self.vector
        single = start + (tid & ((Int32(1) << log_wide) - 1))
        first = Int64(part) * share
        end = least(first + share, rows)
        if self.shape.images:
            part, start_of_image = image * Int32(parts) + part, Int64(image) * rows
            first, end = first + start_of_image, end + start_of_image
        return ThreadPlace(
            tid=tid,
            row=tid >> log_across,
            step=Int64(1) << log_step,
            log_step=log_step,
            log_across=log_across,
            column=select(column < columns, column, Int64(0)),
            is_column=column < columns,
            part=part,
            first=first,
            end=end,
            image=image,
            single=select(single < columns, single, Int64(0)),
            is_single=(single < columns) & ((tid >> log_wide) == 0),
            log_wide=log_wide,
        )

    def turns(self, place: ThreadPlace) -> Any:
        """Return the number of a thread's turns, of ``FLIGHT`` rows each."""
        step = place.step * FLIGHT
        return Int32((place.end - place.first - place.row + step - 1) // step)

    def last_first(self, turns: Any, number: Any) -> Any:
        """Count turns from the last: the rows that were read last come first."""
        return turns - 1 - number

    def rows(self, place: ThreadPlace, turn: Any, there: Any) -> list[tuple[Any, Any, Any]]:
        """Return the rows of a turn, with the part's first in place of those outside; and whether
        each is inside the part, and counts.
        """
        found = []
        for u in range(FLIGHT):
            row = place.first + place.row + (Int64(turn) * FLIGHT + u) * place.step
            inside = row < place.end
            row = select(inside, row, place.first)
            valid = inside & (at(there, row) != 0) if self.shape.masked else inside
            found.append((row, inside, valid))
        return found

    def pointer(self, base: Any, place: ThreadPlace, row: Any, columns: Any) -> Any:
        """Return a pointer to a thread's columns of a row."""
        offset = row * columns + place.column
        return base + (cute.assume(offset, divby=self.vector) if self.vector > 1 else offset)

    def load(self, base: Any, place: ThreadPlace, row: Any, columns: Any) -> Any:
        """Read a thread's columns of a row, in the stored type."""
        return read(self.pointer(base, place, row, columns), base.dtype, self.vector)

    def widened(self, loaded: Any) -> list[Any]:
        """Convert loaded values to float32, which takes twice the registers of 16 bits."""
        return [Float32(loaded[j]) for j in range(self.vector)]

    def read(self, base: Any, place: ThreadPlace, row: Any, columns: Any) -> list[Any]:
        """Read a thread's columns of a row in float32."""
        return self.widened(self.load(base, place, row, columns))

    @cute.jit
    def write(
        self, base: Any, place: Constexpr, row: Any, inside: Any, columns: Any, values: AnyList
    ) -> None:  # fmt: skip
        """Write a thread's columns of a row, rounded once."""
        if inside & place.is_column:
            result = cute.make_rmem_tensor(self.vector, base.dtype)
            for j in range_constexpr(self.vector):
                result[j] = base.dtype(values[j])
            pointer = self.pointer(base, place, row, columns)
            cute.autovec_copy(result, cute.make_tensor(pointer, cute.make_layout(self.vector)))

    def registers(self, count: int) -> list[Any]:
        """Return ``count`` vectors of zeros in registers."""
        found = [cute.make_rmem_tensor(self.vector, Float32) for _ in range(count)]
        for one in found:
            one.fill(0.0)
        return found

    def shared(self, count: int, vector: int = 1) -> list[Any]:
        """Allocate ``count`` arrays in shared memory, with a vector per thread."""
        smem = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((vector, THREADS))
        return [smem.allocate_tensor(Float32, layout, byte_alignment=16) for _ in range(count)]

    @cute.jit
    def leave_sums(self, held: AnyList, found: Any, place: Constexpr, columns: Any) -> None:
        """Add up the threads' sums, and write them for the merge of parts: (parts, number, C)."""
        arrays = self.shared(len(held), self.vector)
        for array, own in zip(arrays, held, strict=True):
            for j in range_constexpr(self.vector):
                array[j, place.tid] = own[j]
        self.add_up(arrays, merge_sums, place.tid, place.log_across, place.log_step)
        start = (Int64(place.part) * len(held)) * columns + place.column
        if (place.row == 0) & place.is_column:
            for number in range_constexpr(len(held)):
                for j in range_constexpr(self.vector):
                    put(found, start + number * columns + j, arrays[number][j, place.tid])

    @cute.jit
    def add_up(
        self, arrays: AnyList, merge: Constexpr, tid: Any, log_each: Any, log_all: Any
    ) -> None:
        """Tree reduction of threads in shared memory: every ``1 << log_each``-th into the first.

        ``merge(arrays, to, of)`` merges two threads; there are ``1 << log_all`` to merge.
        """
        for level in range(log_all):
            cute.arch.sync_threads()
            half = Int32(1) << (log_all - 1 - level)
            if (tid >> log_each) < half:
                merge(arrays, tid, tid + (half << log_each))
        cute.arch.sync_threads()


def of_moments(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return count, mean and squares about it of two samples together."""
    (n, mean, squares), (more, its, those) = one, other
    both = n + more
    weight = more / select(both > 0.0, both, Float32(1.0))
    away = its - mean
    return both, mean + away * weight, squares + those + away * away * n * weight


def merge_moments(arrays: list[Any], to: Any, of: Any) -> None:
    """Merge the moments of another thread's columns into a thread's."""
    counts, means, squares = arrays
    one, other = counts[0, to], counts[0, of]
    for j in range(cute.size(means.shape[0])):
        first, second = (
            (n[0], n[1], n[2])
            for n in ((one, means[j, to], squares[j, to]), (other, means[j, of], squares[j, of]))
        )
        both, means[j, to], squares[j, to] = of_moments(first, second)
    counts[0, to] = both


def merge_sums(arrays: list[Any], to: Any, of: Any) -> None:
    """Add the sums of another thread's columns to a thread's."""
    for array in arrays:
        for j in range(cute.size(array.shape[0])):
            array[j, to] = array[j, to] + array[j, of]


def aligned(dtype: str) -> tuple[str, int]:
    """Return the type and alignment of a tensor that is read element by element."""
    return dtype, TYPES[dtype].width // 8


def as_float(bits: Any) -> Any:
    """Return the float32 that has these bits."""
    held = cute.make_rmem_tensor(1, Int32)
    held[0] = Int32(bits)
    return cute.recast_tensor(held, Float32)[0]
