"""Norms of each voxel over its channels, channels last: ``y = x / |x| * w + b``.

The channels-first RMS norm of video decoders is this norm with the weight times the root of the
number of channels. A row is a voxel, and ``2 ** log_lanes`` lanes of a warp share it: each holds
``turns`` vectors of the row in registers, and shuffles add up the squares. A row is read once,
written once and rounded once; sums are in fp32.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from layoutconv.planning.channel_schedule import AT_ONCE, THREADS, ChannelNormShape

from ..common.dsl import Float32, Int32, Int64, cute, range_constexpr
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyList, AnyTuple
from ..common.walk import TYPES, read, select
from ..maps.per_rank import PerRank
from .row_parts import as_float

_math: Any = cute.math


class ChannelNorm(PerRank):
    """Norm over channels.

    Tensors: rows (rows, C), weight and bias (C,), and the result. Integers: rows, columns, CTAs,
    and the float32 bits of the factor of the weight and of the least length to divide by.
    """

    threads = THREADS

    def __init__(self, shape: ChannelNormShape) -> None:
        super().__init__(0)
        self.shape, self.vector = shape, shape.vector

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self).__name__, astuple(self.shape)

    def tensors(self) -> tuple[tuple[str, int], ...]:
        of_rows = self.shape.dtype, self.vector * TYPES[self.shape.dtype].width // 8
        return (of_rows,) * 4

    def integers(self) -> int:
        return 5

    def start(self, pointers: Any, integers: Any, stream: Any) -> None:
        self.kernel(pointers, integers).launch(
            grid=[Int32(integers[2]), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
            use_pdl=self.shape.early,
        )

    @cute.kernel
    def kernel(self, pointers: AnyList, integers: AnyTuple) -> None:
        let_dependents_start(self.shape.early)
        x, weight, bias, out = pointers
        rows, columns, ctas = integers[0], Int32(integers[1]), Int64(integers[2])
        shape = self.shape
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        lane = tid & ((1 << shape.log_lanes) - 1)
        starts = [(lane + (turn << shape.log_lanes)) * self.vector for turn in range(shape.turns)]
        wait_for_others(shape.early)
        scale, offset = (
            [self.columns_of(base, Int64(0), columns, start) for start in starts]
            for base in (weight, bias)
        )
        share, least = as_float(integers[3]), as_float(integers[4])
        each = THREADS >> shape.log_lanes
        step = ctas * each
        # All threads of a CTA take as many turns, since lanes of a warp meet in shuffles.
        turns = Int32((rows - Int64(block) * each + step * AT_ONCE - 1) // (step * AT_ONCE))
        first = Int64(block) * each + (tid >> shape.log_lanes)
        for turn in range(turns):
            start = first + Int64(turn) * (step * AT_ONCE)
            self.rows_of(x, out, start, step, rows, columns, starts, (scale, offset, share, least))

    def pointer(self, base: Any, row: Any, columns: Any, start: Any) -> Any:
        """Return a pointer to a vector of a row, with the alignment that makes it one access."""
        return base + cute.assume(row * columns + start, divby=self.vector)

    def columns_of(self, base: Any, row: Any, columns: Any, start: Any) -> list[Any]:
        """Read a vector of a row in float32; past the last column, read the first instead."""
        place = self.pointer(base, row, columns, select(start < columns, start, Int32(0)))
        found = read(place, base.dtype, self.vector)
        return [Float32(found[j]) for j in range(self.vector)]

    def rows_of(
        self, x: Any, out: Any, first: Any, step: Any, rows: Any, columns: Any, starts: Any,
        held: Any,
    ) -> None:  # fmt: skip
        """Write the results of a turn; all its rows are read before one is summed."""
        scale, offset, share, least = held
        places = []
        for u in range(AT_ONCE):
            row = first + step * u
            places.append((select(row < rows, row, Int64(0)), row < rows))
        values = [
            [self.columns_of(x, row, columns, start) for start in starts] for row, _ in places
        ]
        for (row, inside), of_row in zip(places, values, strict=True):
            factor = share / self.length(of_row, starts, columns, least)
            for turn, start in enumerate(starts):
                result = []
                for j in range(self.vector):
                    y = of_row[turn][j] * (factor * scale[turn][j])
                    result.append(y + offset[turn][j] if self.shape.biased else y)
                place = self.pointer(out, row, columns, start)
                self.write(place, inside & (start < columns), result)

    def length(self, of_row: Any, starts: Any, columns: Any, least: Any) -> Any:
        """Return the length of a row, but at least ``least``."""
        total = Float32(0.0)
        for vector, start in zip(of_row, starts, strict=True):
            own = Float32(0.0)
            for value in vector:
                own = own + value * value
            total = total + select(start < columns, own, Float32(0.0))
        for bit in range(self.shape.log_lanes):
            total = total + Float32(cute.arch.shuffle_sync_bfly(total, 1 << bit))
        length = _math.sqrt(total)
        return select(length < least, least, length)  # NaN stays NaN

    @cute.jit
    def write(self, place: Any, inside: Any, values: AnyList) -> None:
        if inside:
            result = cute.make_rmem_tensor(self.vector, place.dtype)
            for j in range_constexpr(self.vector):
                result[j] = place.dtype(values[j])
            cute.autovec_copy(result, cute.make_tensor(place, cute.make_layout(self.vector)))
