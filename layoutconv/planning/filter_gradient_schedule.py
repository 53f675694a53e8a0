"""Schedule of depthwise wgrad: sums over voxels whose results are filter taps. No compiler.

A thread owns a vector of channels and a row of taps, and keeps all their sums in registers. It
walks over rows of outputs in runs of several outputs along W. For each run it loads the elements of
A, the gradient of the output, and every element of B that some tap reads, each once, as in
``window_schedule``.

The threads of one CTA take the rows of taps of a filter, and hit each other's rows of B in L1.
Further threads of the CTA take other rows of outputs; their sums are reduced through shared memory,
in a fixed order. CTAs that take *pieces* of the outputs write to a workspace, which a second launch
adds up.
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

LANES = 16  # channel vectors per CTA, at most
RUN = 8  # outputs of a thread at once, at most
LEAST = 4  # rows of outputs per thread, at least, for another piece to pay
RAGGED = 1.3  # relative time of predicated products


@dataclass(frozen=True)
class FilterGradientShape(OfVectors):
    """The key of a kernel.

    Outer loop 1 of ``nest`` counts tiles of ``tile`` taps, the first inner loop runs of ``run``
    outputs. ``ragged`` says of each whether the last is partial. ``ratio`` is the reduced ratio of
    B's steps along taps and outputs; ``moving``, the forms of B's bounds that change along them.
    ``aligned`` are the alignments of A, B and D in bytes.
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
        """Return the number of integer arguments: those of the nest, and thirteen more."""
        return len(self.nest.arguments()) + 13

    @property
    def places(self) -> Places:
        """The elements of B that a run reads, each with the (tap, output) pairs that read it."""
        found = meetings(self.ratio[::-1], self.run, self.tile)
        return tuple((place, tuple(pair[::-1] for pair in pairs)) for place, pairs in found)

    @property
    def smem_bytes(self) -> int:
        """Return the shared memory for the sums of a CTA's threads, in bytes."""
        return CTA * self.tile * self.vector * BYTES[self.accumulator]


@dataclass(frozen=True)
class FilterGradient:
    """A kernel, its integers, its number of pieces, and the nest that adds these up."""

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
    """Return the kernel for a nest of A, B and D; None where it has none.

    Its integers are those of the nest, then: channel vectors, in all and per CTA; rows of taps, in
    all and per CTA; threads that share their sums, along rows and along runs of outputs; slices of
    the runs; rows of outputs per piece; the extents of taps and outputs; B's step from place to
    place; D's step between the elements of a vector; elements per piece. A single piece is written
    to D directly.
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
    """Return the loop of the sum that runs lie along, channels per vector, taps and outputs per
    thread, the ratio of B's steps, and the bounds that move along them.

    None if A depends on the tap, or if B has no single ratio of steps along taps and outputs.
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
    """Return the nest with another inner loop first."""

    def order(values: tuple[int, ...]) -> tuple[int, ...]:
        return (values[loop], *values[:loop], *values[loop + 1 :])

    forms = tuple(replace(form, inner=order(form.inner)) for form in nest.forms)
    return Nest(nest.outer, order(nest.inner), forms)


def _run(nest: Nest, tile: int, vector: int, size: int) -> tuple[float, int, Ratio] | None:
    """Return the cost of an output, the outputs of a thread at once, and the ratio of B's steps."""
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
    """Return channel vectors and rows of taps per CTA, threads for each pair, and CTAs for all."""
    vectors, rows = outer[0], prod(outer[1:])
    channel_blocks = -(-vectors // LANES)
    channels = -(-vectors // channel_blocks)
    row_blocks = -(-rows // (CTA // channels))
    filters = -(-rows // row_blocks)
    return channels, filters, CTA // (channels * filters), channel_blocks * row_blocks


@dataclass(frozen=True)
class _Cut:
    """The split of the outputs: threads of a CTA along rows and along runs, slices of the runs,
    rows per piece."""

    row_threads: int
    run_threads: int
    of_runs: int
    of_rows: int


def _cut(runs: int, rows: int, threads: int, most: int) -> _Cut:
    """Split the outputs over at most ``most`` CTAs, one wave; ``threads`` of each share sums."""
    row_threads = min(threads, rows)
    run_threads = min(threads // row_threads, runs)
    turns = -(-runs // run_threads)
    pieces = max(1, min(most, turns * -(-rows // row_threads) // LEAST))
    of_runs = min(turns, pieces)
    of_runs = -(-turns // -(-turns // of_runs))  # as many as take equally many turns
    of_rows = -(-rows // max(1, min(rows, pieces // of_runs)))
    return _Cut(row_threads, run_threads, of_runs, of_rows)


def _partial(nest: Nest, pieces: int) -> tuple[Nest, Nest]:
    """Return the nest that writes a compact workspace instead of D, and the one that reduces it."""
    compact = tuple(accumulate((1, *nest.outer[:-1]), mul))
    target = Form(2, None, 0, compact, (0,) * len(nest.inner))
    kept = [form for form in nest.forms if form.operand != 2]
    kept.insert(2, target)
    finish = [Form(0, None, 0, compact, (prod(nest.outer),))]
    finish += [replace(f, operand=1, inner=(0,)) for f in nest.forms if f.operand == 2]
    return replace(nest, forms=tuple(kept)), Nest(nest.outer, (pieces,), tuple(finish))
