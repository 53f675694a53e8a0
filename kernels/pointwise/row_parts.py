"""The CTAs of norms and of sums of columns: each has a part of the rows and columns, and
merges its threads' sums.

A thread has a vector of a row, so that neighbours read neighbours; each row of a CTA's threads has
every so many-th row, several loads in flight.
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
OF_ALL = "vector", "early", "images"  # fields of a shape that all but merged groups read


class Place(NamedTuple):
    """A thread among those of its launch."""

    tid: Any
    row: Any  # among those of its CTA that have its columns, ``step`` of them
    step: Any
    log_step: Any
    log_across: Any
    column: Any  # the first of its vector, or 0 past the last
    is_column: Any
    part: Any
    image: Any
    first: Any  # row of the part
    end: Any
    single: Any  # the one of the block's columns that it has where parts are merged, or 0
    is_single: Any
    log_wide: Any  # the logarithm of the columns of a block


class OfRows(PerRank):
    """A kernel whose CTAs have a part of the rows and a block of columns.

    Its first integers are those of a ``Schedule``; of images, that of one of them, and then how
    many there are. Parts are numbered through all images.
    """

    threads = THREADS
    more = 0  # integers behind these
    single = False  # whether one part has what all have left
    # The fields of the shape that it reads, and is told apart by; None for all.
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
        """A tensor of features, as an address has it."""
        return self.shape.dtype, self.vector * TYPES[self.shape.dtype].width // 8

    def enter(self, integers: Any) -> Place:
        """Return the place of a thread, from where on it may touch memory.

        Dependents start once every CTA has, so that they take no place of one.
        """
        let_dependents_start(self.shape.early)
        place = self.place(integers)
        wait_for_others(self.shape.early)
        return place

    def place(self, integers: Any) -> Place:
        """The place of a thread."""
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
        return Place(
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

    def turns(self, place: Place) -> Any:
        """The turns of a thread, which reads ``FLIGHT`` rows in each."""
        step = place.step * FLIGHT
        return Int32((place.end - place.first - place.row + step - 1) // step)

    def last_first(self, turns: Any, number: Any) -> Any:
        """A turn of so many, counted from the last: what was read last is taken first."""
        return turns - 1 - number

    def rows(self, place: Place, turn: Any, there: Any) -> list[tuple[Any, Any, Any]]:
        """The rows of a turn, whether each is inside the part, its first in place of it, and
        whether it counts.
        """
        found = []
        for u in range(FLIGHT):
            row = place.first + place.row + (Int64(turn) * FLIGHT + u) * place.step
            inside = row < place.end
            row = select(inside, row, place.first)
            valid = inside & (at(there, row) != 0) if self.shape.masked else inside
            found.append((row, inside, valid))
        return found

    def pointer(self, base: Any, place: Place, row: Any, columns: Any) -> Any:
        """The columns of a thread in a row."""
        offset = row * columns + place.column
        return base + (cute.assume(offset, divby=self.vector) if self.vector > 1 else offset)

    def load(self, base: Any, place: Place, row: Any, columns: Any) -> Any:
        """The columns of a thread in a row, as they are stored."""
        return read(self.pointer(base, place, row, columns), base.dtype, self.vector)

    def widened(self, loaded: Any) -> list[Any]:
        """The same in float32: those of 16 bits take twice the registers then."""
        return [Float32(loaded[j]) for j in range(self.vector)]

    def read(self, base: Any, place: Place, row: Any, columns: Any) -> list[Any]:
        """The columns of a thread in a row, in float32."""
        return self.widened(self.load(base, place, row, columns))

    @cute.jit
    def write(
        self, base: Any, place: Constexpr, row: Any, inside: Any, columns: Any, values: AnyList
    ) -> None:  # fmt: skip
        """The columns of a thread in a row, rounded once."""
        if inside & place.is_column:
            result = cute.make_rmem_tensor(self.vector, base.dtype)
            for j in range_constexpr(self.vector):
                result[j] = base.dtype(values[j])
            pointer = self.pointer(base, place, row, columns)
            cute.autovec_copy(result, cute.make_tensor(pointer, cute.make_layout(self.vector)))

    def registers(self, count: int) -> list[Any]:
        """So many vectors of zeros."""
        found = [cute.make_rmem_tensor(self.vector, Float32) for _ in range(count)]
        for one in found:
            one.fill(0.0)
        return found

    def shared(self, count: int, vector: int = 1) -> list[Any]:
        """So many arrays of a vector to a thread, in shared memory."""
        smem = cutlass.memory.SmemAllocator()
        layout = cute.make_layout((vector, THREADS))
        return [smem.allocate_tensor(Float32, layout, byte_alignment=16) for _ in range(count)]

    @cute.jit
    def leave_sums(self, held: AnyList, found: Any, place: Constexpr, columns: Any) -> None:
        """Add up what threads hold, and leave it to who merges parts: (parts, number, C)."""
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
        """Merge what threads have in shared memory, of every ``1 << log_each``-th into the first.

        ``merge(arrays, to, of)`` is of two threads; there are ``1 << log_all`` to merge.
        """
        for level in range(log_all):
            cute.arch.sync_threads()
            half = Int32(1) << (log_all - 1 - level)
            if (tid >> log_each) < half:
                merge(arrays, tid, tid + (half << log_each))
        cute.arch.sync_threads()


def of_moments(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Count, mean and squares about it, of two samples together."""
    (n, mean, squares), (more, its, those) = one, other
    both = n + more
    weight = more / select(both > 0.0, both, Float32(1.0))
    away = its - mean
    return both, mean + away * weight, squares + those + away * away * n * weight


def merge_moments(arrays: list[Any], to: Any, of: Any) -> None:
    """Merge the moments of a thread's columns with those of another's."""
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
    """A tensor that is read element by element, as an address has it."""
    return dtype, TYPES[dtype].width // 8


def as_float(bits: Any) -> Any:
    """The float32 that has these bits."""
    held = cute.make_rmem_tensor(1, Int32)
    held[0] = Int32(bits)
    return cute.recast_tensor(held, Float32)[0]
