"""Depthwise convolution as batched dot products, ``D[l] = sum_k A[l, k] * B[l, k]``.

There are no tensor cores: each product is used once, so the kernel is bound by memory. A thread has
a vector of channels and a tile of cells (or of taps), and loads shared elements once, see
``depthwise_schedule``. ``depthwise_window`` does sums over taps whose windows overlap. Other short
sums are unrolled, with the filter in shared memory, channels contiguous. Long sums, over voxels,
are loops that lanes, warps and CTAs share as in ``reduce``, without atomics.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, const_expr, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from layoutconv.planning.depthwise_schedule import CHANNELS, WARPS, DotShape
from layoutconv.planning.filter_gradient_schedule import FilterGradientShape
from layoutconv.planning.reduction_schedule import LANES
from layoutconv.planning.window_schedule import WindowShape

from ..common.compiled import compiled
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import Extent, RuntimeIntegers
from ..common.walk import TYPES, Values, Walk, read, select
from .depthwise_entry import DepthwiseEntry
from .depthwise_store import EpilogueReads, Store, epilogue_arguments
from .depthwise_wgrad import FilterGradientKernel
from .depthwise_window import Window
from .reduce import share_of_row

Shape = DotShape | WindowShape | FilterGradientShape
THREADS = WARPS * LANES


def build(
    shape: DotShape | WindowShape | FilterGradientShape, arch: str, dump: str | None = None
) -> Any:
    """Compile a kernel: return a TVM-FFI function of flat tensors.

    ``f(a, b, out, integers, numbers, vectors, sources)``: the last three are the operands of an
    epilogue, tuples, or None for none. With a folder ``dump``, the function has ``__ptx__`` (str)
    and ``__cubin__`` (bytes).
    """
    types = shape.dtype, shape.dtype, shape.out_dtype
    tensors = [
        make_fake_tensor(TYPES[dtype], (cute.sym_int64(),), (1,), assumed_align=aligned)
        for dtype, aligned in zip(types, shape.aligned, strict=True)
    ]
    return compiled(
        KERNELS[type(shape)](shape),
        *tensors,
        tuple(Int64(0) for _ in range(shape.integers)),
        *epilogue_arguments(shape.epilogue, shape.vector if shape.stored else 1),
        arch=arch,
        dump=dump,
    )


class Dot(DepthwiseEntry):
    """The kernel of a ``DotShape``."""

    def __init__(self, shape: DotShape) -> None:
        self.shape = shape
        self.dtype, self.out_dtype = TYPES[shape.dtype], TYPES[shape.out_dtype]
        self.accumulator = TYPES[shape.accumulator]
        self.short = bool(shape.sums)
        self.terms = 1
        for extent in shape.sums:
            self.terms *= extent
        of_d = shape.accumulator, shape.vector, shape.stored
        self.store = Store(shape.epilogue, shape.out_dtype, *of_d)

    def start(
        self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple, stream: Any
    ) -> None:
        rows, _, lanes, warps, channels = Walk(self.shape.nest, args).further[:5]
        if self.short:
            vectors = args.values["0"]
            others = rows // vectors
            per_cta = THREADS // channels
            self.short_sums(pointers, args, reads).launch(
                grid=[
                    Int32((others + per_cta - 1) // per_cta),
                    Int32((vectors + channels - 1) // channels),
                    1,
                ],
                block=[THREADS, 1, 1],
                stream=stream,
            )
        else:
            per_cta = Int64(THREADS) >> (lanes + warps)
            self.long_sums(pointers, args).launch(
                grid=[Int32((rows + per_cta - 1) // per_cta), 1, 1],
                block=[THREADS, 1, 1],
                stream=stream,
            )

    # -- sums over taps --------------------------------------------------------------------------

    @cute.kernel
    def short_sums(self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple) -> None:
        shape = self.shape
        a, b, target = pointers
        walk = Walk(shape.nest, args)
        channels, vectors = Int32(walk.further[4]), Int32(args.values["0"])
        tid, _, _ = cute.arch.thread_idx()
        cta, block, _ = cute.arch.block_idx()
        others = Int32(walk.further[0]) // vectors
        row_in_cta = Int32(Uint32(tid) // Uint32(channels))
        lane = tid - row_in_cta * channels
        channel = block * channels + lane
        per_cta = Int32(Uint32(THREADS) // Uint32(channels))
        other = cta * per_cta + row_in_cta
        there = (channel < vectors) & (other < others) & (row_in_cta < per_cta)
        staged = None
        if const_expr(shape.staged):
            staged = cutlass.memory.SmemAllocator().allocate_tensor(
                self.dtype,
                cute.make_layout((CHANNELS * shape.vector, self.terms)),
                byte_alignment=16,
            )
            elements = channels * shape.vector
            first = block * elements
            for i in range(tid, elements * self.terms, THREADS):
                term, element = self.place_in_filter(i)
                if first + element < vectors * shape.vector:
                    staged[element, term] = self.filter_at(walk, b, first + element, term)
            cute.arch.sync_threads()

        indices, at_row = self.row(
            walk, select(there, channel, Int32(0)), select(there, other, Int32(0))
        )
        acc = cute.make_rmem_tensor((shape.vector, shape.tile), self.accumulator)
        acc.fill(0.0)
        valid = self.valid_cells(walk, indices)
        # A thread without work reads existing elements.
        self.taps(walk, a, b, staged, select(there, lane, Int32(0)), at_row, valid, acc)
        self.write(walk, target, at_row, there, valid, acc, EpilogueReads.of(*reads))

    def place_in_filter(self, i: Any) -> tuple[Any, Any]:
        """Return term and channel of a linear index; terms run fastest, as in a filter's memory."""
        element, term = divmod(i, Extent(self.terms))
        return term, element

    def filter_at(self, walk: Walk, b: Any, element: Any, term: Any) -> Any:
        """Read one element of B."""
        indices: Values = []
        for extent in self.shape.sums[:-1]:
            term, index = divmod(term, Extent(extent))
            indices.append(index)
        indices = [*indices, term] if walk.named.inner else []
        values = walk.outer_at([Int32(0) for _ in walk.named.outer])
        values = walk.moved(values, indices)
        at = walk.memory[1]
        values[at] = values[at] + Int64(element) * walk.further[7]
        return read(walk.pointer(b, values, 1, None), self.dtype, 1)[0]

    def taps(
        self,
        walk: Walk,
        a: Any,
        b: Any,
        staged: Any,
        lane: Any,
        at_row: Values,
        valid: list[Any],
        acc: Any,
    ) -> None:
        """Compute all products of a thread, one row of taps after the other."""
        depth, rest = self.shape.depth, self.shape.sums[1:]
        for number, reverse in enumerate(product(*(range(e) for e in reversed(rest)))):
            indices = [0, *reversed(reverse)] if walk.named.inner else []
            values = walk.moved(at_row, indices)
            left = self.operand(walk, a, 0, values, valid, [None] * depth)
            if staged is None:
                right = self.operand(walk, b, 1, values, valid, [None] * depth)
            else:
                right = {
                    self.shape.place(1, 0, u): self.staged_vector(staged, lane, number * depth + u)
                    for u in range(depth)
                }
            self.multiply(left, right, [None] * depth, acc)

    def staged_vector(self, staged: Any, lane: Any, term: int) -> list[Any]:
        """Read a thread's vector of the filter at a tap."""
        vector = self.shape.vector
        layout = CHANNELS * vector * term
        pointer = staged.iterator + cute.assume(lane * vector + layout, divby=vector)
        values = read(pointer, self.dtype, vector)
        return [self.accumulator(values[j]) for j in range(vector)]

    # -- sums over voxels ------------------------------------------------------------------------

    @cute.kernel
    def long_sums(self, pointers: AnyTuple, args: RuntimeIntegers) -> None:
        shape = self.shape
        a, b, target = pointers
        walk = Walk(shape.nest, args)
        rows, columns, lanes, warps = (Int32(n) for n in walk.further[:4])
        tid, _, _ = cute.arch.thread_idx()
        row, part, team = share_of_row(tid, lanes, warps, THREADS)
        warp, lane = tid >> 5, tid & 31
        indices, at_row = self.row(walk, select(row < rows, row, rows - 1), None)
        valid = self.valid_cells(walk, indices)
        acc = cute.make_rmem_tensor((shape.vector, shape.tile), self.accumulator)
        acc.fill(0.0)
        for i in range(part, columns, Int32(1) << team):
            self.voxels(walk, a, b, at_row, i, valid, acc)

        if lanes > 0:
            for bit in range_constexpr(5):
                for j in range_constexpr(shape.vector * shape.tile):
                    other = self.accumulator(cute.arch.shuffle_sync_bfly(acc[j], 1 << bit))
                    acc[j] = select(Int32(bit) < lanes, acc[j] + other, acc[j])
        smem = cutlass.memory.SmemAllocator().allocate_tensor(
            self.accumulator, cute.make_layout((LANES, shape.vector, WARPS)), byte_alignment=16
        )
        if warps > 0:
            first = (warp & ((1 << warps) - 1)) == 0
            for t in range_constexpr(shape.tile):
                for j in range_constexpr(shape.vector):
                    smem[lane, j, warp] = acc[j, t]
                cute.arch.sync_threads()
                if first:
                    for w in range(1, Int32(1) << warps):
                        for j in range_constexpr(shape.vector):
                            acc[j, t] = acc[j, t] + smem[lane, j, warp + w]
                cute.arch.sync_threads()
        there = (row < rows) & (part == 0)
        self.write(walk, target, at_row, there, valid, acc, EpilogueReads((), (), ()))

    def voxels(
        self, walk: Walk, a: Any, b: Any, at_row: Values, i: Any, valid: list[Any], acc: Any
    ) -> None:
        """Compute the products of one tile of the sum."""
        depth = self.shape.depth
        indices = walk.indices(walk.named.inner, i)
        indices[0] = indices[0] * depth
        there = [None] * depth
        if self.shape.ragged[1]:
            there = [None, *(indices[0] + u < Int32(walk.further[6]) for u in range(1, depth))]
        values = walk.moved(at_row, indices)
        left = self.operand(walk, a, 0, values, valid, there)
        right = self.operand(walk, b, 1, values, valid, there)
        self.multiply(left, right, there, acc)

    # -- both ------------------------------------------------------------------------------------

    def row(self, walk: Walk, linear: Any, other: Any) -> tuple[Values, Values]:
        """Return the indices of a row's loops, at the start of its tile, and all forms there."""
        if other is None:
            indices = walk.indices(walk.named.outer, linear)
        else:
            indices = [linear, *walk.indices(walk.named.outer[1:], other)]
        tiled = self.shape.tiled
        indices[tiled] = indices[tiled] * self.shape.tile
        return indices, walk.outer_at(indices)

    def valid_cells(self, walk: Walk, indices: Values) -> list[Any]:
        """Return for each element of a tile whether it is in its loop; None if it always is."""
        first = indices[self.shape.tiled]
        if not self.shape.ragged[0]:
            return [None] * self.shape.tile
        return [
            None,
            *(first + t < Int32(walk.further[5]) for t in range(1, self.shape.tile)),
        ]

    def operand(
        self,
        walk: Walk,
        base: Any,
        number: int,
        values: Values,
        valid: list[Any],
        there: list[Any],
    ) -> dict[Any, list[Any]]:
        """Load a tile's elements of an operand, by place: vectors of the accumulator's type."""
        shape, loaded = self.shape, {}
        for place, sharers in shape.sharers[number].items():
            t, u = sharers[0]
            at = walk.tile(values, shape.tiled, t, u)
            inside = walk.inside(at, number)
            wanted = self.any_of(valid, there, sharers)
            if wanted is not None:
                inside = wanted if inside is None else inside & wanted
            if shape.vectors[number]:
                pointer = walk.pointer(base, at, number, inside, shape.vector)
                parts = [read(pointer, self.dtype, shape.vector)]
            elif number == 0:
                parts = [read(walk.pointer(base, at, number, inside), self.dtype, 1)]
            else:
                step = Int64(walk.further[7])
                pointer = walk.pointer(base, at, number, inside)
                if inside is not None:
                    step = select(inside, step, Int64(0))
                parts = [read(pointer + j * step, self.dtype, 1) for j in range(shape.vector)]
            loaded[place] = inside, parts
        result = {}
        for place, (inside, parts) in loaded.items():
            vector = [self.accumulator(p[j]) for p in parts for j in range(cute.size(p))]
            if inside is not None:
                vector = [select(inside, v, self.accumulator(0.0)) for v in vector]
            result[place] = vector * (shape.vector // len(vector))  # one of A may be shared
        return result

    def any_of(self, valid: list[Any], there: list[Any], sharers: list[tuple[int, int]]) -> Any:
        """Return whether any element that shares a place is needed; None if one always is."""
        found: Any = None
        for t, u in sharers:
            conditions = [c for c in (valid[t], there[u]) if c is not None]
            if not conditions:
                return None
            both = conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]
            found = both if found is None else found | both
        return found

    def multiply(
        self, left: dict[Any, list[Any]], right: dict[Any, list[Any]], there: list[Any], acc: Any
    ) -> None:
        """Add the products of a tile."""
        shape = self.shape
        for u in range(shape.depth):
            for t in range(shape.tile):
                a, b = left[shape.place(0, t, u)], right[shape.place(1, t, u)]
                for j in range(shape.vector):
                    total = acc[j, t] + a[j] * b[j]
                    acc[j, t] = total if there[u] is None else select(there[u], total, acc[j, t])

    def write(
        self, walk: Walk, target: Any, at_row: Values, there: Any, valid: list[Any], acc: Any,
        reads: EpilogueReads,
    ) -> None:  # fmt: skip
        """Write the elements of a thread's tile that are ``there``, in D and in the loop."""
        valid = [there if condition is None else there & condition for condition in valid]
        steps = walk.further[8], walk.further[9]
        self.store(walk, target, reads, self.shape.tiled, at_row, valid, acc, steps)


KERNELS: dict[type, Callable[[Any], Any]] = {
    DotShape: Dot,
    WindowShape: Window,
    FilterGradientShape: FilterGradientKernel,
}
