"""Depthwise sums over taps as a sliding window in registers, see ``window_schedule``.

A thread computes ``tile`` outputs along W for a vector of channels. For a row of taps it loads the
places of A that these outputs need, each once and under a bit of a mask, and the row of the filter
from shared memory, where it has the accumulator's type:

    copy the filter of the CTA's channels to shared memory, barrier
    for turn: for row of taps: load places -> load the row -> convert and multiply; epilogue, store

Threads share nothing but the filter, so one barrier is enough. Neighbouring rows of outputs belong
to threads of one CTA, which find the rows of A that they share in L1.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr

from layoutconv.planning.window_schedule import CHUNK, CTA, CTAS_PER_SM, WindowShape

from ..common.masked_load import load_masked, masks
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import Extent, RuntimeIntegers
from ..common.walk import TYPES, Values, Walk, read, select
from .depthwise_entry import DepthwiseEntry
from .depthwise_store import EpilogueReads, Store


class Window(DepthwiseEntry):
    """The kernel of a ``WindowShape``."""

    def __init__(self, shape: WindowShape) -> None:
        self.shape = shape
        self.dtype, self.accumulator = TYPES[shape.dtype], TYPES[shape.accumulator]
        self.terms = prod(shape.sums)
        self.aligned = min(shape.vector, 128 // self.accumulator.width)  # of the filter
        self.store = Store(
            shape.epilogue, shape.out_dtype, shape.accumulator, shape.vector, shape.stored
        )

    def start(
        self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple, stream: Any
    ) -> None:
        walk = Walk(self.shape.nest, args)
        there, channels, turns = walk.further[:3]
        others = Int64(1)
        for name in walk.named.outer[1:]:
            others = others * args.values[name]
        per_cta = CTA // channels
        self.kernel(pointers, args, reads).launch(
            grid=[
                Int32((others + per_cta * turns - 1) // (per_cta * turns)),
                Int32((there + channels - 1) // channels),
                1,
            ],
            block=[CTA, 1, 1],
            min_blocks_per_mp=CTAS_PER_SM,
            preferred_smem_carveout=self.shape.carveout,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple) -> None:
        shape = self.shape
        a, b, target = pointers
        walk, read = Walk(shape.nest, args), EpilogueReads.of(*reads)
        present, channels, turns = (Int32(n) for n in walk.further[:3])
        others = Int32(1)
        for name in const_expr(walk.named.outer[1:]):
            others = others * Int32(args.values[name])
        tid, _, _ = cute.arch.thread_idx()
        cta, block, _ = cute.arch.block_idx()
        row_in_cta = Int32(Uint32(tid) // Uint32(channels))
        lane = tid - row_in_cta * channels
        per_cta = Int32(Uint32(CTA) // Uint32(channels))
        staged = cutlass.memory.SmemAllocator().allocate_tensor(
            self.accumulator, cute.make_layout((shape.pitch, self.terms)), byte_alignment=16
        )
        first = block * channels
        self.stage(walk, b, staged, first, cutlass.min(channels, present - first), tid)
        cute.arch.sync_threads()

        channel = first + lane
        here = (channel < present) & (row_in_cta < per_cta)
        weights = staged.iterator + cute.assume(lane * shape.vector, divby=self.aligned)
        for turn in range(turns):
            other = (cta * turns + turn) * per_cta + row_in_cta
            there = here & (other < others)
            if there:
                self.block(walk, a, weights, target, read, channel, other)

    @cute.jit
    def stage(self, walk: Any, b: Any, staged: Any, first: Any, channels: Any, tid: Any) -> None:
        """Copy the filter of some vectors of channels; where it can, a thread stays at one tap."""
        vector = const_expr(self.shape.vector)
        beside = const_expr(min(self.terms, CTA))
        groups = const_expr(CTA // beside)
        group, term_0 = divmod(tid, Extent(beside))
        elements = select(group < groups, channels * vector, Int32(0))
        for term in range(term_0, self.terms, beside):
            start = self.tap_of(walk, b, term, first * vector)
            for element in range(group, elements, groups):
                self.copy(walk, staged, start, element, term)

    def tap_of(self, walk: Walk, b: Any, term: Any, element: Any) -> Any:
        """Return a pointer to a tap of the filter for a channel."""
        values = walk.moved(walk.outer_at([Int32(0) for _ in walk.named.outer]), self.taps_at(term))
        return walk.pointer(b, values, 1, None) + Int64(element) * walk.further[5]

    def copy(self, walk: Walk, staged: Any, start: Any, element: Any, term: Any) -> None:
        """Copy one channel of a tap to shared memory."""
        pointer = start + Int64(element) * walk.further[5]
        staged[element, term] = self.accumulator(read(pointer, self.dtype, 1)[0])

    def taps_at(self, term: Any) -> Values:
        """Return the indices of the sum's loops for a linear index."""
        indices: Values = []
        for extent in self.shape.sums[:-1]:
            term, index = divmod(term, Extent(extent))
            indices.append(index)
        return [*indices, term]

    @cute.jit
    def block(
        self, walk: Any, a: Any, weights: Any, target: Any, reads: Any, channel: Any, other: Any
    ) -> None:
        """Compute and store the outputs of a thread."""
        shape = self.shape
        indices = [channel, *walk.indices(walk.named.outer[1:], other)]
        first = indices[shape.tiled] * shape.tile
        indices[shape.tiled] = first
        at_row = walk.outer_at(indices)
        valid = [first + t < Int32(walk.further[3]) for t in range(shape.tile)]
        words = self.masks(walk, at_row, valid)
        acc = cute.make_rmem_tensor((shape.vector, shape.tile), self.accumulator)
        acc.fill(0.0)
        rest = shape.sums[1:]
        if const_expr(shape.unrolled):
            for number, reverse in enumerate(product(*(range(e) for e in reversed(rest)))):
                self.row(walk, a, weights, at_row, words, [*reversed(reverse)], number, acc)
        else:
            for number in cutlass.range(prod(rest), unroll=1):
                taps = self.taps_at(number * shape.sums[0])[1:]
                self.row(walk, a, weights, at_row, words, taps, number, acc)
        step, column = walk.further[6:8]
        self.store(walk, target, reads, shape.tiled, at_row, valid, acc, (step, column))

    def masks(self, walk: Walk, at_row: Values, valid: list[Any]) -> list[Any]:
        """Return the mask of places that are needed and inside the bounds that they move along."""
        moving = self.shape.moving
        found = []
        for _, wanted in self.shape.places:
            t, u = wanted[0]
            there = valid[min(t for t, _ in wanted)] if self.shape.ragged else None
            if moving:
                inside = walk.inside(walk.tile(at_row, self.shape.tiled, t, u), 0, moving)
                there = inside if there is None else there & inside
            found.append(cutlass.Boolean(True) if there is None else there)
        return masks(found)

    def filter_at(self, weights: Any, u: int) -> list[Any]:
        """Read a thread's channels of a tap of the row."""
        values = read(weights + u * self.shape.pitch, self.accumulator, self.shape.vector)
        return [values[j] for j in range(self.shape.vector)]

    def row(
        self, walk: Walk, a: Any, weights: Any, at_row: Values, words: list[Any], taps: Values,
        number: Any, acc: Any,
    ) -> None:  # fmt: skip
        """Add all products of a row of taps, in chunks of the row."""
        shape, vector = self.shape, self.shape.vector
        values = walk.moved(at_row, [0, *taps])
        still = [i for i in range(len(values)) if i not in shape.moving]
        inside = walk.inside(values, 0, still)
        if inside is not None:
            words = [select(inside, word, Int32(0)) for word in words]
        start = a + cute.assume(Int64(values[walk.memory[0]]), divby=vector)
        step = Int32(walk.further[4])
        weights = weights + cute.assume(
            Int32(number * (shape.sums[0] * shape.pitch)), divby=self.aligned
        )
        loaded: dict[int, Any] = {}
        sums = [[acc[j, t] for j in range(vector)] for t in range(shape.tile)]
        for begin in range(0, shape.sums[0], CHUNK):
            chunk = range(begin, min(begin + CHUNK, shape.sums[0]))
            places = [
                (bit, place, [(t, u) for t, u in wanted if u in chunk])
                for bit, (place, wanted) in enumerate(shape.places)
            ]
            places = [entry for entry in places if entry[2]]
            for bit, place, _ in places:
                if bit not in loaded:
                    loaded[bit] = load_masked(start, step, place, vector, words, bit)
            right = {u: self.filter_at(weights, u) for u in chunk}
            for bit, _, wanted in places:
                x = loaded[bit]
                left = [self.accumulator(x[j]) for j in range(vector)]
                for t, u in wanted:
                    for j in range(vector):
                        sums[t][j] = sums[t][j] + left[j] * right[u][j]
        for t in range(shape.tile):
            for j in range(vector):
                acc[j, t] = sums[t][j]
