"""Rows read through an index and reduced: ``out[r, c] = op_j a[index[r, j], c] * b[...]``.

What reads rows of features and is no matrix product: pooling over a kernel map, the gradients of
pooling, depthwise convolutions of point clouds and their gradients, and reductions over the rows of
an image. Memory is all there is to save: a thread has a vector of channels of one row of the
result, threads side by side have the vectors of a row, and several loads are in flight while the
rows to read next are looked up. There are no atomics: results are the same in every run.
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
FLIGHT = 4  # rows that a thread reads before it waits for one
BYTES = 16  # of a vector of A


@dataclass(frozen=True)
class GatherShape:
    """The structure that a kernel is compiled for.

    Args:
        dtype: of A and B, a name such as "float16"; sums are in fp32, of float64 in fp64.
        out_dtype: of the result.
        op: "sum", "max" or "min".
        source: where a row's rows of A are: in a "table", int32 (rows, taps), -1 for none; in a
            "list", int32, of which row r has those from ``bounds[r, 0]`` to ``bounds[r, 1]``;
            "runs" are such lists, of the rows 0, 1, 2, ... themselves.
        factor: what B is: "" for none; "taps", a row for each tap; "rows", read through a table of
            its own.
        mean: what a sum is divided by: "" nothing, "there" how many rows were read, "constant" a
            number.
        winners: the type of the numbers of the taps that win, of a maximum or a minimum, which
            are then written; of lists, of the rows.
        chosen: the type of such numbers that say which tap a row of A was taken from: it is read
            at that tap alone.
        vector: channels of a thread.
        shared: whether the channels of a vector have one channel of A, of B, in common.
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
    """The kernel of a shape: from memory, from disk, or compiled now; no GPU is needed.

    It is called as ``build`` says, and launches on torch's current stream.
    """
    return load(("gather", shape, arch), partial(build, shape, arch), writes=(6, 7))


def build(shape: GatherShape, arch: str, dump: str | None = None) -> Any:
    """The compiled kernel, a TVM-FFI function.

    ``f(a, index, bounds, b, index_b, chosen, out, winners, integers)``; what a kernel does not have
    is None. ``a``, ``b``, ``chosen``, ``out`` and ``winners`` are (rows, channels) of any row
    stride, channels side by side, aligned to a vector (at most 16 bytes); ``index``, ``index_b``
    and ``bounds``, int64, are of any strides, an index of one mode for lists. All have at least one
    element.
    ``integers`` are how many vectors of a row a CTA has, ``min(channels // vector, THREADS)``; into
    how many rows of the result a list is cut; the divisor of a constant mean; and how many channels
    of the result a channel of A, and one of B, is read for. With a folder ``dump``, the function
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


class Reads(NamedTuple):
    """A row of a thread: the operands, where its rows of them are, and the end of its taps."""

    operands: Any
    indices: Any
    row: Any
    channel: Any
    end: Any
    integers: Any


class GatherReduce:
    """The kernel of a shape."""

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
        """From where to where a row's taps, or its part of a list, go."""
        if self.shape.source == "table":
            return Int32(0), Int32(index.shape[1])
        segment = Int32(Uint32(row) // Uint32(parts))
        part = Int64(Int32(row) - segment * parts)
        at, step = (Int64(stride) for stride in bounds.stride)
        pointer = bounds.iterator + segment * at
        first, last = (read(pointer + i * step, Int64, 1)[0] for i in (0, 1))
        share = (last - first + parts - 1) // Int64(parts)  # so that the last parts may be empty
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
        reads = Reads(operands, indices, row, channel, end, integers)
        at = cute.make_rmem_tensor((FLIGHT, 2), Int32)
        self.look_up(indices, row, begin, end, at)
        for j in range(begin, end, FLIGHT):
            count = count + self.step(reads, j, at, acc, winner)
        self.finish(acc, count, integers[2])
        self.store(results, row, channel, acc, winner)

    def step(self, reads: Reads, first: Any, at: Any, acc: Any, winner: Any) -> Any:
        """``FLIGHT`` more taps; how many of them there are. ``at`` moves on to the next."""
        operands, indices, row, channel, end, integers = reads
        taken = [(at[u, 0], at[u, 1]) for u in range(FLIGHT)]
        taps = [first + u for u in range(FLIGHT)]
        vectors = [
            self.read_tap(operands, rows, channel, tap, integers)
            for rows, tap in zip(taken, taps, strict=True)
        ]
        self.look_up(indices, row, first + FLIGHT, end, at)  # while the rows are on their way
        count = Int32(0)
        for rows, tap, values in zip(taken, taps, vectors, strict=True):
            there = self.is_there(rows)
            number = tap if self.shape.source == "table" else rows[0]
            self.combine(acc, winner, there, number, values)
            count = count + select(there, Int32(1), Int32(0))
        return count

    def look_up(self, indices: Any, row: Any, first: Any, end: Any, at: Any) -> None:
        """Which rows the next taps read, -1 for none, and past the last tap."""
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
        """A vector of products of one tap; where there is none, of what memory begins with."""
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
        """A thread's channels of a row of A or B, in the accumulator's type."""
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
        """One more tap. NaN wins; of equals, the first."""
        for i, value in enumerate(values):
            if self.shape.op == "sum":
                acc[i] = select(there, acc[i] + value, acc[i])
                continue
            better = value > acc[i] if self.shape.op == "max" else value < acc[i]
            if self.shape.winners:
                # The first, whatever it is: -inf is no better than what a maximum bounds with.
                better = better | ((value != value) & (acc[i] == acc[i])) | (winner[i] < 0)
                winner[i] = select(there & Boolean(better), Int32(number), winner[i])
            else:
                better = better | (value != value)
            acc[i] = select(there & Boolean(better), value, acc[i])

    def finish(self, acc: Any, count: Any, divisor: Any) -> None:
        """Sums become means; what nothing was read for is 0."""
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
    """(rows, channels), of which rows start at multiples of a vector."""
    element = TYPES[dtype]
    align = min(BYTES, vector * element.width // 8)
    shape, stride = (cute.sym_int(), cute.sym_int()), (cute.sym_int64(), 1)
    return make_fake_tensor(element, shape, stride, assumed_align=align)


def _index(rank: int, element: Any = Int32) -> Any:
    shape, stride = (tuple(make() for _ in range(rank)) for make in (cute.sym_int, cute.sym_int64))
    return make_fake_tensor(element, shape, stride)
