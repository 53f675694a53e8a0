"""The schedule of depthwise sums over voxels, whose results are the taps of filters. No compiler.

A thread has a vector of channels and a row of taps, all of whose sums it keeps. It walks over rows
of outputs with a run of several outputs along W: of a row it loads the run of A, the gradient of
the output, and the places of B that it meets at some tap, each once, as in ``window_schedule``.

The rows of taps of a filter are threads of one CTA, which find each other's rows of B in L1.
Further threads of a CTA take other rows of outputs; sums meet in shared memory, in a fixed order.
CTAs, which are *pieces* of the outputs, meet in a workspace that a second launch adds up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from operator import mul

from .loop_nest import Form, Nest, in_vectors, together
from .reduction_schedule import BYTES, Types
from .window_schedule import (
    ACCUMULATORS,
    CTA,
    CTAS_PER_SM,
    LOADED,
    ROW,
    WIDE,
    OfVectors,
    Places,
    Ratio,
    meetings,
    ratio_of,
)

LANES = 16  # vectors of channels of a CTA, at most
RUN = 8  # outputs of a thread at once, at most
LEAST = 4  # rows of outputs that a thread takes at least, for a piece to pay
RAGGED = 1.3  # time of products that are asked whether they are there


@dataclass(frozen=True)
class FilterGradientShape(OfVectors):
    """The key of a kernel.

    Loop 1 of ``nest`` over what is kept counts tiles of ``tile`` taps, the first of what is summed
    runs of ``run`` outputs. ``ragged`` says of taps and of runs whether the last has fewer.
    ``ratio`` are the steps of B along taps and outputs by their common divisor; ``moving``, the
    forms of its bounds that change along them. ``aligned`` is what A, B and D start at a multiple
    of, in bytes.
    """

    tile: int
    run: int
    ragged: tuple[bool, bool]
    ratio: Ratio
    moving: tuple[int, ...]
    aligned: tuple[int, int, int]
    epilogue: str = ""

    @property
    def integers(self) -> int:
        """Return how many integers the kernel takes: those of the nest, and thirteen more."""
        return len(self.nest.arguments()) + 13

    @property
    def places(self) -> Places:
        """The places of B that a run meets, each with the (tap, output) that meet there."""
        found = meetings(self.ratio[::-1], self.run, self.tile)
        return tuple((place, tuple(pair[::-1] for pair in pairs)) for place, pairs in found)

    @property
    def smem_bytes(self) -> int:
        """Return what the sums of a CTA's threads take."""
        return CTA * self.tile * self.vector * BYTES[self.accumulator]


@dataclass(frozen=True)
class FilterGradient:
    """A kernel, its integers, how many pieces it makes, and the nest that adds them up."""

    shape: FilterGradientShape
    integers: tuple[int, ...]
    pieces: int
    finish: Nest


def filter_gradient_of(
    nest: Nest,
    types: Types,
    aligned: tuple[int, int, int],
    sm_count: int,
) -> FilterGradient | None:
    """The kernel of a nest of A, B and D; None where it has none.

    Its integers are those of the nest, then: vectors of channels, those of a CTA, rows of taps,
    those of a CTA, threads that share their sums along rows and along runs of outputs, slices of
    the runs, rows of outputs of a piece, the extents of taps and outputs, B's step from place to
    place, D's step between the elements of a vector, elements of a piece. Of one piece, these are
    written to D.
    """
    window = _window(nest, BYTES[types.dtype], aligned)
    if window is None:
        return None
    loop, vector, tile, run, ratio, moving = window
    nest = _first(nest, loop)
    whole = in_vectors(nest, False, vector)
    taps, outputs = nest.outer[1], nest.inner[0]
    outer = (whole.outer[0], -(-taps // tile), *whole.outer[2:])
    runs, rows = -(-outputs // run), prod(nest.inner[1:])
    if max(prod(outer), runs * rows) >= 2**30:
        return None
    channels, filters, threads, blocks = _cta(outer)
    cut = _cut(runs, rows, threads, CTAS_PER_SM * sm_count // blocks)
    pieces = cut.of_runs * -(-rows // cut.of_rows)
    target, finish, room = nest, Nest((), (), ()), aligned[2]
    if pieces > 1:
        target, finish = _partial(nest, pieces)
        types, room = types.of_parts, 16
    size, out_size = BYTES[types.dtype], BYTES[types.out_dtype]
    stored = together(target, 2, False, vector) == vector
    stored = stored and (pieces > 1 or vector * out_size <= min(16, room))
    tiles = Nest(outer, (runs, *nest.inner[1:]), in_vectors(target, False, vector).forms)
    shape = FilterGradientShape(
        *(tiles.structure(), *types, vector, stored),
        tile=tile,
        run=run,
        ragged=(taps % tile != 0, outputs % run != 0),
        ratio=ratio,
        moving=moving,
        aligned=(vector * size, vector * size, min(16, vector * out_size) if stored else out_size),
    )
    numbers = (
        outer[0], channels, prod(outer[1:]), filters, cut.row_threads, cut.run_threads, cut.of_runs,
        cut.of_rows, taps, outputs, whole.memories[1].outer[1] // ratio[0],
        target.memories[2].outer[0], prod(nest.outer),
    )  # fmt: skip
    return FilterGradient(shape, (*tiles.arguments(), *numbers), pieces, finish)


def _window(
    nest: Nest, size: int, aligned: tuple[int, int, int]
) -> tuple[int, int, int, int, Ratio, tuple[int, ...]] | None:
    """The loop of the sum that runs lie along, channels of a vector, taps and outputs of a thread,
    the ratio of B's steps, and the bounds that move; None where A is not the same for all taps, or
    taps and outputs do not meet in B.
    """
    a_forms = [form for form in nest.forms if form.operand == 0]
    if len(nest.outer) < 2 or not nest.inner or len(a_forms) != 1 or any(a_forms[0].outer[1:]):
        return None
    taps, most = nest.outer[1], min(aligned[:2]) // size
    vector = together(nest, 0, False, min(8, most if taps <= WIDE else min(4, most)))
    vector = together(nest, 1, False, vector)
    whole = in_vectors(nest, False, vector)
    tile = -(-taps // -(-taps // min(8, ACCUMULATORS // vector)))
    found = [
        (*best, loop)
        for loop in range(len(whole.inner))
        if (best := _run(_first(whole, loop), tile, vector, size)) is not None
    ]
    if not found:
        return None
    _, run, ratio, loop = min(found)
    whole = _first(whole, loop)
    moving = tuple(
        i
        for i, form in enumerate(whole.forms)
        if form.bound is not None and form.operand == 1 and (form.outer[1] or form.inner[0])
    )
    steps = abs(whole.memories[0].inner[0]), abs(whole.memories[1].outer[1])
    if not all(0 < step < 2**31 for step in steps):
        return None
    if any(any(whole.forms[i].inner[1:]) for i in moving):
        return None
    return loop, vector, tile, run, ratio, moving


def _first(nest: Nest, loop: int) -> Nest:
    """The nest with another loop first of those over what is summed."""

    def order(values: tuple[int, ...]) -> tuple[int, ...]:
        return (values[loop], *values[:loop], *values[loop + 1 :])

    forms = tuple(replace(form, inner=order(form.inner)) for form in nest.forms)
    return Nest(nest.outer, order(nest.inner), forms)


def _run(nest: Nest, tile: int, vector: int, size: int) -> tuple[float, int, Ratio] | None:
    """Return what an output costs, how many a thread takes at once, and the ratio of B's steps."""
    outputs, found = nest.inner[0], []
    ratio = ratio_of(nest, 1, 1)
    if ratio is None:
        return None
    for run in range(2, min(RUN, outputs) + 1):
        loads = len(meetings(ratio, tile, run)) + run
        if run == 2 or loads * vector * size <= LOADED:
            products = tile * run * vector * (RAGGED if outputs % run else 1)
            cost = products + loads * (vector + 4) + ROW
            found.append((cost * -(-outputs // run) / outputs, -run))
    return (min(found)[0], -min(found)[1], ratio) if found else None


def _cta(outer: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Vectors of channels, rows of taps and threads of each of a CTA; CTAs of all of those."""
    vectors, rows = outer[0], prod(outer[1:])
    channel_blocks = -(-vectors // LANES)
    channels = -(-vectors // channel_blocks)
    row_blocks = -(-rows // (CTA // channels))
    filters = -(-rows // row_blocks)
    return channels, filters, CTA // (channels * filters), channel_blocks * row_blocks


@dataclass(frozen=True)
class _Cut:
    """Cut outputs: threads of a CTA along rows and along runs, slices of the runs, rows of
    a piece."""

    row_threads: int
    run_threads: int
    of_runs: int
    of_rows: int


def _cut(runs: int, rows: int, threads: int, most: int) -> _Cut:
    """Cut for ``most`` CTAs, which are one wave; ``threads`` of each are there to share sums."""
    row_threads = min(threads, rows)
    run_threads = min(threads // row_threads, runs)
    turns = -(-runs // run_threads)
    pieces = max(1, min(most, turns * -(-rows // row_threads) // LEAST))
    of_runs = min(turns, pieces)
    of_runs = -(-turns // -(-turns // of_runs))  # as many as take equally many turns
    of_rows = -(-rows // max(1, min(rows, pieces // of_runs)))
    return _Cut(row_threads, run_threads, of_runs, of_rows)


def _partial(nest: Nest, pieces: int) -> tuple[Nest, Nest]:
    """The nest with a compact target instead of D, and the sum of such targets."""
    compact = tuple(accumulate((1, *nest.outer[:-1]), mul))
    target = Form(2, None, 0, compact, (0,) * len(nest.inner))
    kept = [form for form in nest.forms if form.operand != 2]
    kept.insert(2, target)
    finish = [Form(0, None, 0, compact, (prod(nest.outer),))]
    finish += [replace(f, operand=1, inner=(0,)) for f in nest.forms if f.operand == 2]
    return replace(nest, forms=tuple(kept)), Nest(nest.outer, (pieces,), tuple(finish))
