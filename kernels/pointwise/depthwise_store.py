"""The epilogue of depthwise kernels: a thread applies the steps to its sums, converts and stores.

A thread has several vectors of channels, each at another position of D. A column is a channel.
Per-column operands are read once for all vectors, unless the vectors belong to several filters of
the same channels, which are different columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr

from ..common.walk import TYPES, Values, Walk, at, read
from ..gemm.epilogue.convert import converted
from ..gemm.epilogue.ops import Places, Steps

GMEM = cute.AddressSpace.gmem
COLUMN = 3  # the operand of a nest whose offset is the column of D


@dataclass(frozen=True)
class EpilogueReads:
    """The operands that an epilogue reads: scalars, and pointers to tensors.

    ``vectors`` have a number per column, or one for the only row; ``sources`` have D's layout.
    """

    numbers: tuple[Any, ...]
    vectors: tuple[Any, ...]
    sources: tuple[Any, ...]

    @classmethod
    def of(cls, numbers: Any, vectors: Any, sources: Any) -> EpilogueReads:
        """Convert a kernel's arguments, where an empty tuple must be None."""
        return cls(numbers or (), vectors or (), sources or ())


def epilogue_arguments(structure: str, vector: int) -> tuple[Any, Any, Any]:
    """Return placeholders of an epilogue's numbers, vectors and sources, to compile with; sources
    are aligned to ``vector`` elements.
    """
    steps = Steps(structure)

    def address(name: str, elements: int) -> Any:
        dtype = TYPES[name]
        align = min(16, elements * dtype.width // 8)
        return cute.runtime.make_ptr(dtype, 0, GMEM, assumed_align=align)

    return (
        tuple(cutlass.Float32(0) for _ in range(steps.numbers)) or None,
        tuple(address(name, 1) for name in steps.vectors) or None,
        tuple(address(name, vector) for name in steps.sources) or None,
    )


class Store:
    """Steps, conversion and stores of a thread's ``tile`` vectors along a loop.

    ``stored`` means that a vector is contiguous in D.
    """

    def __init__(
        self, epilogue: str, out_dtype: str, accumulator: str, vector: int, stored: bool
    ) -> None:
        self.steps = Steps(epilogue)
        self.out_dtype, self.accumulator = TYPES[out_dtype], TYPES[accumulator]
        self.vector, self.stored = vector, stored

    @cute.jit
    def __call__(
        self, walk: Any, target: Any, reads: Any, tiled: Any, at_row: Any, valid: Any, acc: Any,
        steps: Any,
    ) -> None:  # fmt: skip
        """Write vector ``t`` of ``acc`` if ``valid[t]`` and it is in D's bounds. ``at_row`` has all
        forms at the first vector; ``steps`` are those of D and of columns from element to element.
        """
        shared = self._shared(walk, tiled)
        of_columns = self._of_columns(walk, reads, at_row, steps[1]) if const_expr(shared) else None
        for t in range_constexpr(len(valid)):
            values = walk.tile(at_row, tiled, t, 0)
            inside = walk.inside(values, 2)
            if valid[t] if inside is None else valid[t] & inside:
                self._one(walk, target, reads, values, of_columns, acc, t, steps)

    def _shared(self, walk: Walk, tiled: int) -> bool:
        """Return whether vectors along a loop share their columns: the loop's column step is 0."""
        return not self.steps or walk.named.memories[COLUMN].outer[tiled] == 0

    def _one(
        self, walk: Walk, target: Any, reads: EpilogueReads, values: Values,
        of_columns: Places | None, acc: Any, t: int, steps: Any,
    ) -> None:  # fmt: skip
        step, between = steps
        if of_columns is None:
            of_columns = self._of_columns(walk, reads, values, between)
        vector = self.vector
        sums = cute.make_rmem_tensor(vector, self.accumulator)
        for j in range(vector):
            sums[j] = acc[j, t]
        x = sums.load()
        if self.steps:
            source = self._of_d(walk, reads, values, step)
            places = Places(of_columns.vector, of_columns.column, source, of_columns.row)
            x = self.steps(x, reads.numbers, places, self.out_dtype)
        else:
            x = converted(x, self.out_dtype)
        result = cute.make_rmem_tensor(vector, self.out_dtype)
        result.store(x)
        if self.stored:
            pointer = walk.pointer(target, values, 2, None, vector)
            cute.autovec_copy(result, cute.make_tensor(pointer, cute.make_layout(vector)))
            return
        pointer = walk.pointer(target, values, 2, None)
        for j in range(vector):
            to = cute.make_tensor(pointer + j * Int64(step), cute.make_layout(1))
            to[0] = result[j]

    def _of_columns(self, walk: Walk, reads: EpilogueReads, at_row: Values, step: Any) -> Places:
        """Return the per-column and per-row operands of a thread's columns."""
        steps = self.steps
        first = Int64(at_row[walk.memory[COLUMN]]) if steps else None
        held = []
        for number, pointer in enumerate(reads.vectors):
            places = [Int64(0)] * self.vector
            if number not in steps.per_row:
                places = [first + j * Int64(step) for j in range(self.vector)]
            values = cute.make_rmem_tensor(self.vector, self.accumulator)
            for j, place in enumerate(places):
                values[j] = self.accumulator(at(pointer, place))
            held.append(values.load())

        def column() -> Any:
            return self._filled(lambda j: Int32(first + j * Int64(step)))

        return Places(held.__getitem__, column, row=lambda: self._filled(lambda _: Int32(0)))

    def _filled(self, value: Callable[[int], Any]) -> Any:
        values = cute.make_rmem_tensor(self.vector, Int32)
        for j in range(self.vector):
            values[j] = value(j)
        return values.load()

    def _of_d(
        self, walk: Walk, reads: EpilogueReads, values: Values, step: Any
    ) -> Callable[[int], Any]:
        """Return a function that reads the sources at a place of D."""

        def source(number: int) -> Any:
            base, vector = reads.sources[number], self.vector
            if self.stored:
                pointer = walk.pointer(base, values, 2, None, vector)
                return read(pointer, pointer.dtype, vector).load().to(self.accumulator)
            pointer = walk.pointer(base, values, 2, None)
            found = cute.make_rmem_tensor(vector, self.accumulator)
            for j in range(vector):
                found[j] = self.accumulator(at(pointer, j * Int64(step)))
            return found.load()

        return source
