"""Rows read through an index and reduced: ``out[r, c] = op_j a[index[r, j], c] * b[...]``.

For operations that read rows of features and are no matrix product: pooling over a kernel map, the
gradients of pooling, depthwise convolutions of point clouds and their gradients, and reductions
over the rows of an image. They are bound by memory: a thread has a vector of channels of one row of
the result, adjacent threads have the vectors of a row, and several loads are in flight while the
next row numbers are looked up. Nothing is atomic: results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..common.compiled import compiled
from ..common.dsl import Boolean, Int32, Int64, Uint32, cute, cutlass, make_fake_tensor
from ..common.plain_types import AnyTuple
from ..common.walk import TYPES, read, select
from ..compile.store import load

THREADS = 256  # of a CTA
FLIGHT = 4  # rows that a thread has in flight
BYTES = 16  # of a vector of A


@dataclass(frozen=True)
class GatherShape:
    """The structure that a kernel is compiled for.

    Args:
        dtype: of A and B, a name such as "float16"; sums are in fp32, for float64 in fp64.
        out_dtype: of the result.
        op: "sum", "max" or "min".
        source: which rows of A a row reads: those of a "table", int32 (rows, taps), -1 for none;
            those of a "list", int32, from ``bounds[r, 0]`` to ``bounds[r, 1]`` for row r; "runs"
            are such lists of the rows 0, 1, 2, ... themselves.
        factor: the kind of B: "" for none; "taps", a row per tap; "rows", read through a table of
            its own.
        mean: the divisor of a sum: "" for none, "there" for the number of rows read, "constant"
            for a given number.
        winners: the type of the winning taps of a maximum or minimum, which are then written; for
            lists, of the winning rows.
        chosen: the type of such tap numbers, which say from which tap a row of A was taken: it is
            read at that tap alone.
        vector: channels of a thread.
        shared: whether the channels of a vector share one channel of A, of B.
    """

    dtype: str
    out_dtype: str
    op: str = "sum"
    source: str = "table"
    factor: str = ""
    mean: str = ""
    winners: str = ""
    chosen: str = ""
    vector: int = 1
    shared: tuple[bool, bool] = (False, False)


def load_gather(shape: GatherShape, arch: str) -> Callable[..., None]:
    """Load the kernel of a shape: from memory, from disk, or compiled now; no GPU is needed.

    Call it as ``build`` says; it launches on torch's current stream.
    """
    return load(("gather", shape, arch), partial(build, shape, arch), writes=(6, 7))


def build(shape: GatherShape, arch: str, dump: str | None = None) -> Any:
    """Compile a kernel: return a TVM-FFI function.

    ``f(a, index, bounds, b, index_b, chosen, out, winners, integers)``; unused arguments are None.
    ``a``, ``b``, ``chosen``, ``out`` and ``winners`` are (rows, channels) of any row stride, with
    contiguous channels, aligned to a vector (at most 16 bytes); ``index``, ``index_b`` and
    ``bounds``, int64, have any strides, and an index of lists has one mode. All have at least one
    element.
    ``integers`` are the vectors of a row that a CTA has, ``min(channels // vector, THREADS)``; the
    number of rows of the result into which a list is cut; the divisor of a constant mean; and how
    many channels of the result share a channel of A, and of B. With a folder ``dump``, the function
    has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    of_a, of_b = (1 if shared else shape.vector for shared in shape.shared)
    listed = shape.source == "list"
    return compiled(
        GatherReduce(shape),
        _matrix(shape.dtype, of_a),
        None if shape.source == "runs" else _index(1 if listed else 2),
        None if shape.source == "table" else _index(2, Int64),
        _matrix(shape.dtype, of_b) if shape.factor else None,
        _index(2) if shape.factor == "rows" else None,
        _matrix(shape.chosen, shape.vector) if shape.chosen else None,
        _matrix(shape.out_dtype, shape.vector),
        _matrix(shape.winners, shape.vector) if shape.winners else None,
        tuple(Int32(0) for _ in range(5)),
        arch=arch,
        dump=dump,
    )


class RowReads(NamedTuple):
    """The reads of a thread's row: operands, their indices, and the end of the row's taps."""

    operands: Any
    indices: Any
    row: Any
    channel: Any
    end: Any
    integers: Any


class GatherReduce:
    """The kernel of a ``GatherShape``."""

    def __init__(self, shape: GatherShape) -> None:
        self.shape = shape
        self.dtype, self.out_dtype = TYPES[shape.dtype], TYPES[shape.out_dtype]
        self.accumulator = TYPES["float64" if shape.dtype == "float64" else "float32"]
        self.neutral = {"sum": 0.0, "max": -float("inf"), "min": float("inf")}[shape.op]

    @cute.jit
    def __call__(
        self,
        a: Any,
        index: Any,
        bounds: Any,
        b: Any,
        index_b: Any,
        chosen: Any,
        out: Any,
        winners: Any,
        integers: AnyTuple,
        stream: Any,
    ) -> None:
        rows, channels = out.shape
        across = integers[0]
        vectors = channels // self.shape.vector
        per_cta = THREADS // across
        operands, indices, results = (a, b, chosen), (index, index_b), (out, winners)
        self.kernel(operands, indices, bounds, results, integers).launch(
            grid=[
                Int32((Int64(rows) + per_cta - 1) // per_cta),
                (vectors + across - 1) // across,
                1,
            ],
            block=[THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        operands: AnyTuple,
        indices: AnyTuple,
        bounds: Any,
        results: AnyTuple,
        integers: AnyTuple,
    ) -> None:
        rows, channels = results[0].shape
        across, parts = integers[0], integers[1]
        tid, _, _ = cute.arch.thread_idx()
        cta, block, _ = cute.arch.block_idx()
        row_in_cta = Int32(Uint32(tid) // Uint32(across))
        column = block * across + (tid - row_in_cta * across)
        per_cta = Int32(Uint32(THREADS) // Uint32(across))
        row = Int64(cta) * per_cta + row_in_cta
        channel = column * self.shape.vector
        if (row_in_cta < per_cta) & (row < Int64(rows)) & (channel < channels):
            begin, end = self.run(indices[0], bounds, row, parts)
            self.row(operands, indices, results, row, channel, begin, end, integers)

    def run(self, index: Any, bounds: Any, row: Any, parts: Any) -> tuple[Any, Any]:
        """Return the first and the end of a row's taps, or of its part of a list."""
        if self.shape.source == "table":
            return Int32(0), Int32(index.shape[1])
        segment = Int32(Uint32(row) // Uint32(parts))
        part = Int64(Int32(row) - segment * parts)
        at, step = (Int64(stride) for stride in bounds.stride)
        pointer = bounds.iterator + segment * at
        first, last = (read(pointer + i * step, Int64, 1)[0] for i in (0, 1))
        share = (last - first + parts - 1) // Int64(parts)  # last parts may be empty
        begin, end = (cutlass.min(first + (part + i) * share, last) for i in (0, 1))
        return Int32(begin), Int32(end)

    @cute.jit
    def row(
        self,
        operands: Any,
        indices: Any,
        results: Any,
        row: Any,
        channel: Any,
        begin: Any,
        end: Any,
        integers: Any,
    ) -> None:
        shape = self.shape
        acc = cute.make_rmem_tensor(shape.vector, self.accumulator)
        acc.fill(self.accumulator(self.neutral))
        winner = cute.make_rmem_tensor(shape.vector, Int32)
        winner.fill(-1)
        count = Int32(0)
        reads = RowReads(operands, indices, row, channel, end, integers)
        at = cute.make_rmem_tensor((FLIGHT, 2), Int32)
        self.look_up(indices, row, begin, end, at)
        for j in range(begin, end, FLIGHT):
            count = count + self.step(reads, j, at, acc, winner)
        self.finish(acc, count, integers[2])
        self.store(results, row, channel, acc, winner)

    def step(self, reads: RowReads, first: Any, at: Any, acc: Any, winner: Any) -> Any:
        """Reduce ``FLIGHT`` more taps, and count them; ``at`` moves on to the next taps."""
        operands, indices, row, channel, end, integers = reads
        taken = [(at[u, 0], at[u, 1]) for u in range(FLIGHT)]
        taps = [first + u for u in range(FLIGHT)]
        vectors = [
            self.read_tap(operands, rows, channel, tap, integers)
            for rows, tap in zip(taken, taps, strict=True)
        ]
        self.look_up(indices, row, first + FLIGHT, end, at)  # while the rows are in flight
        count = Int32(0)
        for rows, tap, values in zip(taken, taps, vectors, strict=True):
            there = self.is_there(rows)
            number = tap if self.shape.source == "table" else rows[0]
            self.combine(acc, winner, there, number, values)
            count = count + select(there, Int32(1), Int32(0))
        return count

    def look_up(self, indices: Any, row: Any, first: Any, end: Any, at: Any) -> None:
        """Look up the rows that the next taps read; -1 for none, and past the last tap."""
        for u in range(FLIGHT):
            j = first + u
            for i, index in enumerate(indices):
                if i == 1 and self.shape.factor != "rows":
                    at[u, i] = Int32(0)
                elif index is None:
                    at[u, i] = select(j < end, Int32(j), Int32(-1))
                else:
                    if self.shape.source == "table":
                        offset = row * Int64(index.stride[0]) + Int64(j) * Int64(index.stride[1])
                    else:
                        offset = Int64(j) * Int64(index.stride[0])
                    pointer = index.iterator + select(j < end, offset, Int64(0))
                    at[u, i] = select(j < end, read(pointer, Int32, 1)[0], Int32(-1))

    def is_there(self, taken: tuple[Any, Any]) -> Any:
        return (taken[0] >= 0) & (taken[1] >= 0)

    def read_tap(
        self, operands: Any, taken: tuple[Any, Any], channel: Any, tap: Any, integers: Any
    ) -> list[Any]:
        """Return a vector of products of one tap; if there is none, of the first rows in memory."""
        shape, there = self.shape, self.is_there(taken)
        a, b, chosen = operands
        values = self.vector(a, 0, select(there, taken[0], Int32(0)), channel, integers)
        if shape.factor:
            at = select(there, Int32(tap) if shape.factor == "taps" else taken[1], Int32(0))
            others = self.vector(b, 1, at, channel, integers)
            values = [x * y for x, y in zip(values, others, strict=True)]
        if shape.chosen:
            dtype, at = TYPES[shape.chosen], select(there, taken[0], Int32(0))
            numbers = read(self.pointer(chosen, at, channel, shape.vector), dtype, shape.vector)
            zero = self.accumulator(0.0)
            values = [
                select(Int32(numbers[i]) == Int32(tap), value, zero)
                for i, value in enumerate(values)
            ]
        return values

    def vector(self, tensor: Any, operand: int, at: Any, channel: Any, integers: Any) -> list[Any]:
        """Read a thread's channels of a row of A or B, in the accumulator's type."""
        count = self.shape.vector
        if self.shape.shared[operand]:
            own = Int32(Uint32(channel) // Uint32(integers[3 + operand]))
            value = self.accumulator(read(self.pointer(tensor, at, own, 1), self.dtype, 1)[0])
            return [value] * count
        values = read(self.pointer(tensor, at, channel, count), self.dtype, count)
        return [self.accumulator(values[i]) for i in range(count)]

    def pointer(self, tensor: Any, row: Any, channel: Any, vector: int) -> Any:
        offset = Int64(row) * Int64(tensor.stride[0]) + Int64(channel)
        return tensor.iterator + (cute.assume(offset, divby=vector) if vector > 1 else offset)

    def combine(self, acc: Any, winner: Any, there: Any, number: Any, values: list[Any]) -> None:
        """Reduce one more tap. NaN wins; among equals, the first wins."""
        for i, value in enumerate(values):
            if self.shape.op == "sum":
                acc[i] = select(there, acc[i] + value, acc[i])
                continue
            better = value > acc[i] if self.shape.op == "max" else value < acc[i]
            if self.shape.winners:
                # The first always wins: -inf does not exceed the initial value of a maximum.
                better = better | ((value != value) & (acc[i] == acc[i])) | (winner[i] < 0)
                winner[i] = select(there & Boolean(better), Int32(number), winner[i])
            else:
                better = better | (value != value)
            acc[i] = select(there & Boolean(better), value, acc[i])

    def finish(self, acc: Any, count: Any, divisor: Any) -> None:
        """Turn sums into means; the result is 0 if nothing was read."""
        for i in range(self.shape.vector):
            value = acc[i]
            if self.shape.mean:
                number = count if self.shape.mean == "there" else Int32(divisor)
                value = value / self.accumulator(select(count > 0, number, Int32(1)))
            acc[i] = select(count > 0, value, self.accumulator(0.0))

    def store(self, results: Any, row: Any, channel: Any, acc: Any, winner: Any) -> None:
        out, winners = results
        self.write(out, row, channel, acc, self.out_dtype)
        if self.shape.winners:
            self.write(winners, row, channel, winner, TYPES[self.shape.winners])

    def write(self, tensor: Any, row: Any, channel: Any, values: Any, dtype: Any) -> None:
        vector = self.shape.vector
        result = cute.make_rmem_tensor(vector, dtype)
        for i in range(vector):
            result[i] = dtype(values[i])
        pointer = self.pointer(tensor, row, channel, vector)
        cute.autovec_copy(result, cute.make_tensor(pointer, cute.make_layout(vector)))


def _matrix(dtype: str, vector: int) -> Any:
    """Return a placeholder of (rows, channels) whose rows start at multiples of a vector."""
    element = TYPES[dtype]
    align = min(BYTES, vector * element.width // 8)
    shape, stride = (cute.sym_int(), cute.sym_int()), (cute.sym_int64(), 1)
    return make_fake_tensor(element, shape, stride, assumed_align=align)


def _index(rank: int, element: Any = Int32) -> Any:
    shape, stride = (tuple(make() for _ in range(rank)) for make in (cute.sym_int, cute.sym_int64))
    return make_fake_tensor(element, shape, stride)
