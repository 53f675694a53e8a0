"""Sums of the columns of a matrix, such as a bias's gradient: ``out[c] = sum_r x[r, c]``.

Two kernels, like those of a norm of rows: the CTAs of the first write the sums of their part of the
rows, and those of the second merge them, in the order of the parts. Nothing is atomic, so results
are the same in every run. Sums are in fp32, and rounded once.
"""

from __future__ import annotations

from typing import Any

from layoutconv.planning.norm_schedule import NormShape

from ..common.dsl import Float32, Int32, cute
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, put, select
from ..maps.per_rank import Chain
from .merged_parts import OfParts
from .row_parts import OF_ALL, RowReduction, ThreadPlace


class PartSums(RowReduction):
    """Sum the rows of a part. Tensors: the matrix, and sums (parts, C) in fp32."""

    reads = (*OF_ALL, "dtype")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        return self.of_features(), ("float32", 4)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        x, found = pointers
        place, columns = self.enter(integers), integers[1]
        (held,) = self.registers(1)
        for turn in range(self.turns(place)):
            self.take(x, place, turn, columns, held)
        self.leave_sums([held], found, place, columns)

    def take(self, x: Any, place: ThreadPlace, turn: Any, columns: Any, held: Any) -> None:
        """Add the rows of a turn; all are read before one is added."""
        rows = self.rows(place, turn, None)
        values = [self.read(x, place, row, columns) for row, *_ in rows]
        for value, (_, inside, _) in zip(values, rows, strict=True):
            for j in range(self.vector):
                held[j] = held[j] + select(inside, value[j], Float32(0.0))


class MergeColumns(OfParts):
    """Add up the sums of all parts, and round. Tensors: the sums (parts, C), and the result (C,),
    of the dtype of the shape's parameters.
    """

    count, single, reads = 1, True, (*OF_ALL, "parameters")

    def tensors(self) -> tuple[tuple[str, int], ...]:
        dtype = self.shape.parameters
        return ("float32", 4), (dtype, TYPES[dtype].width // 8)

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        found, out = pointers
        place, columns, parts = self.enter(integers), integers[1], Int32(integers[4])
        (total,), _ = self.sums_of(found, place, columns, parts)
        if place.is_single:
            put(out, place.single, TYPES[self.shape.parameters](total))


def column_sums(shape: NormShape) -> Chain:
    """Return the launches. Tensors: the matrix, the parts' sums and the result. Integers: those of
    a ``Schedule``.
    """
    of_schedule = tuple(range(5))
    parts, merge = PartSums(shape), MergeColumns(shape)
    return Chain(((parts, (0, 1), of_schedule), (merge, (1, 2), of_schedule)))
