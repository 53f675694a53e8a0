"""Second stage of the reductions of norms and column sums: a kernel first merges the partial
results (parts) that the CTAs of the kernel before it wrote.
"""

from __future__ import annotations

from typing import Any

from layoutconv.planning.norm_schedule import LOG_THREADS

from ..common.dsl import Constexpr, Float32, Int32, Int64, cute
from ..common.walk import at, select
from .row_parts import THREADS, RowReduction, ThreadPlace, merge_moments, merge_sums, of_moments

# Parts that a thread has in flight, as each comes from L2: with 64 columns a thread has 32 parts,
# which one after the other take longer than the rows of a part.
PARTS_AT_ONCE = 8


class OfParts(RowReduction):
    """Base of kernels that begin by merging the partial results of their columns.

    Attributes:
        count: how many sums a part has per column, if it has sums.
    """

    count = 2

    @property
    def reads_ranks(self) -> bool:
        """Return whether parts are the messages of ranks."""
        return False

    def moments_of(
        self, moments: Any, place: ThreadPlace, columns: Any, parts: Any, eps: Any
    ) -> tuple[Any, Any]:
        """Return the moments of a thread's single column, and the shared-memory arrays that merged
        them.
        """
        of_threads = self.merged_moments(moments, place, columns, parts, eps)
        arrays = self.among_threads(of_threads, merge_moments, place)
        return tuple(array[0, place.tid] for array in arrays), arrays

    def sums_of(self, sums: Any, place: ThreadPlace, columns: Any, parts: Any) -> tuple[Any, Any]:
        """Return the sums (parts, count, C) of a thread's single column, and the shared-memory
        arrays that merged them.
        """
        of_threads = self.merged_sums(sums, place, columns, parts)
        arrays = self.among_threads(of_threads, merge_sums, place)
        return tuple(array[0, place.tid] for array in arrays), arrays

    def among_threads(self, of_threads: Any, merge: Any, place: ThreadPlace) -> list[Any]:
        """Merge the threads of the same columns, in shared memory."""
        arrays = self.shared(len(of_threads))
        for array, own in zip(arrays, of_threads, strict=True):
            array[0, place.tid] = own
        self.add_up(arrays, merge, place.tid, place.log_wide, Int32(LOG_THREADS) - place.log_wide)
        return arrays

    @cute.jit
    def merged_moments(
        self, moments: Any, place: Constexpr, columns: Any, parts: Any, eps: Any
    ) -> Any:
        """Merge the moments of a thread's column over its share of the parts."""
        merged = Float32(0.0), Float32(0.0), Float32(0.0)
        for turn in range(self.turns_of_parts(place, parts)):
            merged = self.with_moments(merged, moments, place, columns, (turn, parts), eps)
        return merged

    def with_moments(
        self, merged: Any, moments: Any, place: ThreadPlace, columns: Any, turn: Any, eps: Any
    ) -> Any:
        """Merge the moments of a turn's parts into ``merged``."""
        some = self.parts_of(place, *turn)
        found = []
        for part, _ in some:
            of_part = Int64(part) * (2 * columns + 1)
            own = of_part + place.single
            found.append(
                (at(moments, of_part + 2 * columns), at(moments, own), at(moments, own + columns))
            )
        nothing = Float32(0.0)
        for (_, there), of_part in zip(some, found, strict=True):
            n, mean, squares = self.as_squares(of_part, eps)
            given = (
                select(there, n, nothing), select(there, mean, merged[1]),
                select(there, squares, nothing),
            )  # fmt: skip
            merged = of_moments(merged, given)
        return merged

    def turns_of_parts(self, place: ThreadPlace, parts: Any) -> Any:
        """Return the number of a thread's turns, of ``PARTS_AT_ONCE`` parts each."""
        first, step = place.tid >> place.log_wide, Int32(THREADS) >> place.log_wide
        return (parts - first + step * PARTS_AT_ONCE - 1) // (step * PARTS_AT_ONCE)

    def parts_of(self, place: ThreadPlace, turn: Any, parts: Any) -> list[tuple[Any, Any]]:
        """Return a turn's parts, the thread's first in place of absent ones; and if each exists."""
        first, step = place.tid >> place.log_wide, Int32(THREADS) >> place.log_wide
        found = []
        for number in range(PARTS_AT_ONCE):
            part = first + (turn * PARTS_AT_ONCE + number) * step
            found.append((select(part < parts, part, first), part < parts))
        return found

    def as_squares(self, moments: tuple[Any, ...], eps: Any) -> tuple[Any, ...]:
        """Return the moments of a part; ranks send an inverse deviation in place of squares."""
        if not self.reads_ranks:
            return moments
        n, mean, inverse = moments
        variance = 1.0 / (inverse * inverse) - eps
        is_none = (n <= 0.0) | (variance <= 0.0)  # NaN stays NaN
        return n, mean, select(is_none, Float32(0.0), n * variance)

    @cute.jit
    def merged_sums(self, sums: Any, place: Constexpr, columns: Any, parts: Any) -> Any:
        """Add up the sums of a thread's column over its share of the parts."""
        merged = self.nothing()
        for turn in range(self.turns_of_parts(place, parts)):
            merged = self.with_sums(merged, sums, place, columns, (turn, parts))
        return merged

    def nothing(self) -> tuple[Any, ...]:
        """Return zeros: the sums of no part."""
        return tuple(Float32(0.0) for _ in range(self.count))

    def with_sums(self, merged: Any, sums: Any, place: ThreadPlace, columns: Any, turn: Any) -> Any:
        """Add the sums of a turn's parts to ``merged``."""
        some = self.parts_of(place, *turn)
        found = []
        for part, _ in some:
            own = Int64(part) * self.count * columns + place.single
            found.append(tuple(at(sums, own + number * columns) for number in range(self.count)))
        for (_, there), of_part in zip(some, found, strict=True):
            pairs = zip(merged, of_part, strict=True)
            merged = tuple(total + select(there, one, Float32(0.0)) for total, one in pairs)
        return merged
