"""The gradient of a depthwise filter: sums over voxels, see ``filter_gradient_schedule``.

A thread keeps the sums of a row of taps for a vector of channels:

    for run of outputs along W: masks of its places
        for row of outputs in its slice: load the run of A and the places of B -> multiply
    add up the slices of a CTA in shared memory, in order; store to D, or to a piece

Nothing is atomic: results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, const_expr, range_constexpr

from layoutconv.planning.filter_gradient_schedule import FilterGradientShape
from layoutconv.planning.window_schedule import CTA, CTAS_PER_SM

from ..common.masked_load import load_masked, masks
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import RuntimeIntegers
from ..common.walk import TYPES, Values, Walk, select
from .depthwise_entry import DepthwiseEntry
from .depthwise_store import EpilogueReads, Store


class FilterGradientKernel(DepthwiseEntry):
    """The kernel of a ``FilterGradientShape``."""

    def __init__(self, shape: FilterGradientShape) -> None:
        self.shape = shape
        self.dtype, self.accumulator = TYPES[shape.dtype], TYPES[shape.accumulator]
        self.store = Store("", shape.out_dtype, shape.accumulator, shape.vector, shape.stored)

    def start(
        self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple, stream: Any
    ) -> None:
        walk = Walk(self.shape.nest, args)
        present, channels, filters, of_cta, _, _, of_runs, of_rows = walk.further[:8]
        rows = self.rows(walk, Int64)
        self.kernel(pointers, args).launch(
            grid=[
                Int32(of_runs * ((rows + of_rows - 1) // of_rows)),
                Int32((present + channels - 1) // channels),
                Int32((filters + of_cta - 1) // of_cta),
            ],
            block=[CTA, 1, 1],
            min_blocks_per_mp=CTAS_PER_SM,
            preferred_smem_carveout=self.shape.carveout,
            stream=stream,
        )

    def rows(self, walk: Walk, kind: Any) -> Any:
        """Return the number of rows of outputs."""
        rows = kind(1)
        for name in walk.named.inner[1:]:
            rows = rows * kind(walk.args.values[name])
        return rows

    @cute.kernel
    def kernel(self, pointers: AnyTuple, args: RuntimeIntegers) -> None:
        shape = self.shape
        a, b, target = pointers
        walk = Walk(shape.nest, args)
        present, channels, filters, of_cta, row_threads, run_threads, of_runs, of_rows, taps = (
            Int32(n) for n in walk.further[:9]
        )
        threads = row_threads * run_threads
        tid, _, _ = cute.arch.thread_idx()
        piece, block, filter_block = cute.arch.block_idx()
        group = Int32(Uint32(tid) // Uint32(channels))
        part = Int32(Uint32(group) // Uint32(of_cta))
        channel = block * channels + tid - group * channels
        filter_row = filter_block * of_cta + group - part * of_cta
        here = (channel < present) & (filter_row < filters) & (part < threads)
        row_piece = Int32(Uint32(piece) // Uint32(of_runs))
        begin = row_piece * of_rows
        end = cutlass.min(begin + of_rows, self.rows(walk, Int32))
        end = select(here, end, Int32(0))

        zero = Int32(0)
        indices = [
            select(here, channel, zero),
            *walk.indices(walk.named.outer[1:], select(here, filter_row, zero)),
        ]
        first = indices[1] * shape.tile
        indices[1] = first
        at_row = walk.outer_at(indices)
        valid = [first + u < taps for u in range(shape.tile)]
        acc = cute.make_rmem_tensor((shape.vector, shape.tile), self.accumulator)
        acc.fill(0.0)
        runs = Int32(args.values[walk.named.inner[0]])
        along_runs = Int32(Uint32(part) // Uint32(row_threads))
        rows = begin + part - along_runs * row_threads, end, row_threads
        first_run = (piece - row_piece * of_runs) * run_threads + along_runs
        for run in range(first_run, runs, of_runs * run_threads):
            self.walk_run(walk, a, b, at_row, valid, run, rows, acc)

        smem = cutlass.memory.SmemAllocator().allocate_tensor(
            self.accumulator,
            cute.make_layout((CTA, shape.vector, shape.tile)),
            byte_alignment=16,
        )
        if part > 0:
            for u in range_constexpr(shape.tile):
                for j in range_constexpr(shape.vector):
                    smem[tid, j, u] = acc[j, u]
        cute.arch.sync_threads()
        if part == 0:
            for other in range(1, threads):
                for u in range_constexpr(shape.tile):
                    for j in range_constexpr(shape.vector):
                        acc[j, u] = acc[j, u] + smem[tid + other * (channels * of_cta), j, u]
        written = [here & (part == 0) & condition for condition in valid]
        to = target + cute.assume(Int64(piece) * walk.further[12], divby=shape.vector)
        steps = walk.further[11], None
        self.store(walk, to, EpilogueReads((), (), ()), 1, at_row, written, acc, steps)

    @cute.jit
    def walk_run(
        self, walk: Any, a: Any, b: Any, at_row: Any, valid: Any, run: Any, rows: Any, acc: Any
    ) -> None:
        """Add the products of a run of outputs, in all rows of a thread."""
        first = run * self.shape.run
        start = walk.moved(at_row, [first, *[0] * (len(walk.named.inner) - 1)])
        there = [first + q < Int32(walk.further[9]) for q in range(self.shape.run)]
        of_a = self.masks_of_a(there)
        of_b = self.masks_of_b(walk, start, valid, there)
        begin, end, step = rows
        for row in range(begin, end, step):
            self.products(walk, (a, b), start, row, there, (of_a, of_b), acc)

    def masks_of_a(self, there: list[Any]) -> list[Any]:
        """Return the mask of the outputs of a run that exist."""
        return masks(there if self.shape.ragged[1] else [Boolean(True)] * len(there))

    def masks_of_b(
        self, walk: Walk, start: Values, valid: list[Any], there: list[Any]
    ) -> list[Any]:
        """Return the mask of places that are needed and inside the bounds that they move along."""
        shape, found = self.shape, []
        of_taps, of_outputs = shape.ragged
        for _, wanted in shape.places:
            meets: Any = None if of_taps or of_outputs else Boolean(True)
            for u, q in wanted if meets is None else ():
                both = valid[u] & there[q]
                meets = both if meets is None else meets | both
            u, q = wanted[0]
            values = walk.tile(start, 1, u, q)
            inside = walk.inside(values, 1, shape.moving) if shape.moving else None
            found.append(meets if inside is None else meets & inside)
        return masks(found)

    def products(
        self, walk: Walk, pointers: tuple[Any, Any], start: Values, row: Any, there: list[Any],
        words: tuple[list[Any], list[Any]], acc: Any,
    ) -> None:  # fmt: skip
        """Add all products of a run in a row; ``words`` are the masks of A and of B."""
        shape, vector = self.shape, self.shape.vector
        of_a, of_b = words
        values = walk.moved(start, [0, *walk.indices(walk.named.inner[1:], row)])
        still = [i for i in range(len(values)) if i not in shape.moving]
        inside = walk.inside(values, 1, still)
        if inside is not None:
            of_b = [select(inside, word, Int32(0)) for word in of_b]
        bases = [
            base + cute.assume(Int64(values[walk.memory[i]]), divby=vector)
            for i, base in enumerate(pointers)
        ]
        (form,) = (f for f in walk.named.memories if f.operand == 0)
        step = Int32(walk.args.values[form.inner[0]])
        left = [load_masked(bases[0], step, q, vector, of_a, q) for q in range(shape.run)]
        step = Int32(walk.further[10])
        right = [
            load_masked(bases[1], step, place, vector, of_b, bit)
            for bit, (place, _) in enumerate(shape.places)
        ]
        sums = [[acc[j, u] for j in range(vector)] for u in range(shape.tile)]
        a_values = [self.converted(x) for x in left]
        for x, (_, wanted) in zip(right, shape.places, strict=True):
            b_values = self.converted(x)
            for u, q in wanted:
                for j in range(vector):
                    total = sums[u][j] + a_values[q][j] * b_values[j]
                    if const_expr(shape.ragged[1] and q > 0):
                        total = select(there[q], total, sums[u][j])
                    sums[u][j] = total
        for u in range(shape.tile):
            for j in range(vector):
                acc[j, u] = sums[u][j]

    def converted(self, x: Any) -> list[Any]:
        return [self.accumulator(x[j]) for j in range(self.shape.vector)]
