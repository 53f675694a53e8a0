"""Reductions ``target[r] = reduce_s source[r, s]``: a tree of a fixed shape, without atomics.

A thread takes vectors along the kept or the reduced loops, whichever are contiguous, and loops over
its share of the reduction with several loads in flight. Lanes of a warp combine through shuffles,
warps of a CTA through shared memory, and CTAs through a workspace, which is one more reduction
(``loops.split``). The numbers of lanes and warps that share a result are arguments, as are all
extents and steps: a kernel is compiled for a number of loops, types, and a vector.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from layoutconv.planning.machine import starts_early
from layoutconv.planning.reduction_schedule import LANES, WARPS, ReduceShape

from ..common.compiled import compiled
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import RuntimeIntegers
from ..common.walk import TYPES, Walk, bind, read, select


def share_of_row(tid: Any, lanes: Any, warps: Any, threads: int) -> tuple[Any, Any, Any]:
    """Return a thread's row, its part of the row, and the binary logarithm of the number of parts.

    2^lanes lanes of 2^warps warps share a row, in a CTA of so many ``threads``.
    """
    cta, _, _ = cute.arch.block_idx()
    warp, lane = tid >> 5, tid & 31
    team = lanes + warps
    part = ((warp & ((1 << warps) - 1)) << lanes) + (lane & ((1 << lanes) - 1))
    row = cta * (Int32(threads) >> team) + ((warp >> warps) << (5 - lanes))
    return row + (lane >> lanes), part, team


class Reduction:
    """The kernel of a shape and of an operation on two values of the accumulator's type.

    ``neutral`` is the operation's neutral element; with ``mean`` the result is divided by the last
    integer. ``early``: a programmatic dependent launch. While it waits for the kernel before it, it
    runs once without loads and stores, which fills the instruction cache (98 rows of partial sums,
    behind a convolution: 1.5 us instead of 2.3).
    """

    def __init__(
        self,
        shape: ReduceShape,
        combine: Callable[[Any, Any], Any],
        neutral: float,
        mean: bool,
        early: bool,
    ) -> None:
        self.shape, self.function, self.neutral, self.mean = shape, combine, neutral, mean
        self.accumulator, self.early = TYPES[shape.accumulator], early
        self.kept = 1 if shape.inner else shape.vector  # results of a thread

    def combine(self, a: Any, b: Any) -> Any:
        return self.accumulator(self.function(a, b))

    @cute.jit
    def __call__(
        self, source: cute.Tensor, target: cute.Tensor, integers: AnyTuple, stream: Any
    ) -> None:
        args = bind(self.shape.nest, integers)
        rows, _, lanes, warps, _, _ = Walk(self.shape.nest, args).further
        per_cta = Int64(WARPS * LANES) >> (lanes + warps)
        self.kernel(source.iterator, target.iterator, args).launch(
            grid=[Int32((rows + per_cta - 1) // per_cta), 1, 1],
            block=[WARPS * LANES, 1, 1],
            stream=stream,
            use_pdl=self.early,
        )

    @cute.kernel
    def kernel(self, source: Any, target: Any, args: RuntimeIntegers) -> None:
        let_dependents_start(self.early)
        shape = self.shape
        walk = Walk(shape.nest, args)
        rows, columns, lanes, warps = (Int32(n) for n in walk.further[:4])
        tid, _, _ = cute.arch.thread_idx()
        row, part, team = share_of_row(tid, lanes, warps, WARPS * LANES)
        at_row = walk.outer(select(row < rows, row, rows - 1))
        writes = self.writes(walk, at_row, (row < rows) & (part == 0))
        flight = const_expr(shape.flight)
        rounds = (columns + (Int32(flight) << team) - 1) >> (team + flight.bit_length() - 1)
        acc = cute.make_rmem_tensor(shape.vector, self.accumulator)
        smem = cutlass.memory.SmemAllocator().allocate_tensor(
            self.accumulator, cute.make_layout((LANES, self.kept, WARPS)), byte_alignment=16
        )
        turns = const_expr(2 if self.early else 1)
        for turn in cutlass.range(turns, unroll=1):
            real = turn == turns - 1
            if real:
                wait_for_others(self.early)  # before it reads memory; the above reads none
            acc.fill(self.accumulator(self.neutral))
            for i in range(select(real, rounds, 0)):
                self.step(walk, source, at_row, (i * flight << team) + part, team, columns, acc)
            self.meet(acc, smem, tid, lanes, warps)
            if real & writes:
                self.store(walk, target, at_row, acc)

    @cute.jit
    def meet(self, acc: Any, smem: Any, tid: Any, lanes: Any, warps: Any) -> None:
        """Combine the values of all threads that share a row, in the first of them."""
        warp, lane = tid >> 5, tid & 31
        if const_expr(self.shape.inner):
            self.fold(acc)
        if lanes > 0:
            self.shuffle(acc, lane, lanes)
        if warps > 0:
            cute.arch.sync_threads()  # until all have read what it held
            for j in range_constexpr(self.kept):
                smem[lane, j, warp] = acc[j]
            cute.arch.sync_threads()
            if (warp & ((1 << warps) - 1)) == 0:
                for w in range(1, Int32(1) << warps):
                    for j in range_constexpr(self.kept):
                        acc[j] = self.combine(acc[j], smem[lane, j, warp + w])

    def step(
        self, walk: Walk, source: Any, at_row: Any, first: Any, team: Any, columns: Any, acc: Any
    ) -> None:
        """Combine ``flight`` more vectors, ``2^team`` columns apart.

        Without a branch, so that the loads overlap: past the last column, the last is read again.
        """
        vectors, valid = [], []
        for u in range(self.shape.flight):
            column = first + (Int32(u) << team)
            there = column < columns
            values = walk.inner(at_row, select(there, column, columns - 1))
            inside = walk.inside(values, 0)
            pointer = walk.pointer(source, values, 0, inside, self.shape.vector)
            vectors.append(read(pointer, TYPES[self.shape.dtype], self.shape.vector))
            valid.append(there if inside is None else there & inside)
        for vector, there in zip(vectors, valid, strict=True):
            for j in range(self.shape.vector):
                value = self.combine(acc[j], self.accumulator(vector[j]))
                acc[j] = select(there, value, acc[j])

    def fold(self, acc: Any) -> None:
        """Combine a thread's vector into one value: neighbours first."""
        values = [acc[j] for j in range(self.shape.vector)]
        while len(values) > 1:
            values = [self.combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        acc[0] = values[0]

    def shuffle(self, acc: Any, lane: Any, lanes: Any) -> None:
        """Combine the lanes that share a row; all get the same value."""
        for j in range(self.kept):
            for bit in range(5):
                other = self.accumulator(cute.arch.shuffle_sync_bfly(acc[j], 1 << bit))
                low = (lane >> bit) & 1 == 0  # the lower lane's value comes first, in both
                both = self.combine(select(low, acc[j], other), select(low, other, acc[j]))
                acc[j] = select(Int32(bit) < lanes, both, acc[j])

    def writes(self, walk: Walk, at_row: Any, first: Any) -> Any:
        inside = walk.inside(at_row, 1)
        return first if inside is None else first & inside

    def store(self, walk: Walk, target: Any, at_row: Any, acc: Any) -> None:
        """Finish, convert and write a vector, or elements that are a step apart."""
        count, step = walk.further[4:]
        out_dtype = TYPES[self.shape.out_dtype]
        result = cute.make_rmem_tensor(self.kept, out_dtype)
        for j in range(self.kept):
            value = acc[j] / self.accumulator(count) if self.mean else acc[j]
            result[j] = out_dtype(value)
        if self.shape.stored:
            pointer = walk.pointer(target, at_row, 1, None, self.kept)
            cute.autovec_copy(result, cute.make_tensor(pointer, cute.make_layout(self.kept)))
            return
        pointer = walk.pointer(target, at_row, 1, None)
        for j in range(self.kept):
            cute.make_tensor(pointer + j * step, cute.make_layout(1))[0] = result[j]


def maximum(a: Any, b: Any) -> Any:
    """Return the larger; NaN if either is NaN."""
    return select((a > b) | (a != a), a, b) if a.dtype.is_float else select(a > b, a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller; NaN if either is NaN."""
    return select((a < b) | (a != a), a, b) if a.dtype.is_float else select(a < b, a, b)


OPERATIONS = {"sum": operator.add, "mean": operator.add, "max": maximum, "min": minimum}


def build(
    shape: ReduceShape,
    combine: Callable[[Any, Any], Any],
    neutral: float,
    mean: bool,
    arch: str,
    dump: str | None = None,
) -> Any:
    """Compile a kernel: return a TVM-FFI function ``f(source, target, integers)`` of flat tensors.

    ``integers`` are those that ``schedule.schedule`` made. With a folder ``dump``, the function has
    ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    kernel = Reduction(shape, combine, neutral, mean, starts_early(arch))
    tensors = [
        make_fake_tensor(TYPES[dtype], (cute.sym_int64(),), (1,), assumed_align=aligned)
        for dtype, aligned in zip((shape.dtype, shape.out_dtype), shape.aligned, strict=True)
    ]
    return compiled(
        kernel,
        *tensors,
        tuple(Int64(0) for _ in range(shape.integers)),
        arch=arch,
        dump=dump,
    )
