"""Schedules of reductions: vectors, lanes and warps per result, launches. Needs no compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from .loop_nest import Nest, in_vectors, split, together
from .view_rules import UnsupportedViewError

WARPS = 16  # per CTA
LANES = 32
SECTOR_BYTES = 32  # of memory, read at once
FLIGHT = 8  # loads that a thread issues before it waits for one
FEW = 4  # the same for threads that have few loads, at most two such batches
THREADS = 1024  # per SM that saturate memory, with FLIGHT loads each
LEAST = 16  # sequential loads per thread, at least, after a split into two launches
LONGEST = 32  # loads per thread beyond which a second launch pays
BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip


class Types(NamedTuple):
    """The dtypes of a kernel: of its operands, accumulators and results."""

    dtype: str
    accumulator: str
    out_dtype: str

    @property
    def of_parts(self) -> Types:
        """The dtypes of the launch that writes partial sums."""
        return self._replace(out_dtype=self.accumulator)

    @property
    def of_finish(self) -> Types:
        """The dtypes of the launch that adds up partial sums."""
        return self._replace(dtype=self.accumulator)


@dataclass(frozen=True)
class ReduceShape:
    """The key of a reduction's kernel, besides the operation.

    ``nest`` is a structure, "n" for every argument. ``inner`` says whether vectors, of ``vector``
    elements, lie along the reduced loop; ``stored``, whether a thread writes its results as one
    vector. ``aligned`` are the alignments of source and target in bytes. A thread has ``flight``
    loads in flight.
    """

    nest: Nest
    dtype: str
    accumulator: str
    out_dtype: str
    inner: bool
    vector: int
    stored: bool
    aligned: tuple[int, int]
    flight: int = FLIGHT

    @property
    def integers(self) -> int:
        """Return the number of integer arguments: those of the nest, and six more."""
        return len(self.nest.arguments()) + 6


@dataclass(frozen=True)
class Launch:
    """A kernel and its integers: those of its nest, rows, columns, log2 of the lanes and of the
    warps that share a row, the divisor of a mean, and the step between results of a thread.

    It writes ``workspace`` elements of the accumulator's type for the next launch; if 0, the
    result.
    """

    shape: ReduceShape
    integers: tuple[int, ...]
    workspace: int


def schedule(
    nest: Nest,
    dtype: str,
    accumulator: str,
    out_dtype: str,
    aligned: tuple[int, int],
    sm_count: int,
) -> list[Launch]:
    """Return the launches of a reduction: one, or two for long sums of few results.

    ``aligned`` are the alignments of source and target in bytes.

    Raises ``UnsupportedViewError`` for 2^31 or more results or coordinates of a mode.

    >>> from layoutconv.algebra import Layout
    >>> from layoutconv.planning.loop_nest import make_nest
    >>> def launches(r, s):
    ...     nest = make_nest([("x", Layout((r, s), (1, r)), 1), ("out", Layout(r), None)])
    ...     return schedule(nest, "float32", "float32", "float16", (16, 16), 132)
    >>> [launch.shape.vector for launch in launches(10**6, 8)]
    [4]
    >>> [launch.workspace for launch in launches(64, 10**6)]  # pieces, then the sum of those
    [2112, 0]
    """
    types = Types(dtype, accumulator, out_dtype)
    launch, loads, threads = _one(nest, types, aligned, sm_count)
    pieces = min(THREADS * sm_count // threads, loads // LEAST)
    columns = launch.integers[-5]
    pieces = max(pieces if loads > LONGEST else 1, -(-columns >> 28))
    if pieces < 2:
        return [launch]
    first, second = split(nest, pieces)
    partial, _, _ = _one(first, types.of_parts, (aligned[0], 16), sm_count)
    finish, _, _ = _one(second, types.of_finish, (16, aligned[1]), sm_count)
    count = (*finish.integers[:-2], prod(nest.inner), finish.integers[-1])
    return [
        replace(partial, workspace=prod(first.outer)),
        replace(finish, integers=count),
    ]


def _one(
    nest: Nest, types: Types, aligned: tuple[int, int], sm_count: int
) -> tuple[Launch, int, int]:
    """Return a reduction in one launch, its loads per thread, and its threads."""
    size, _, out_size = (BYTES[name] for name in types)
    inner = _vectors_are_reduced(nest)
    limit = min(8, aligned[0] // size, 8 if inner else 16 // out_size)
    vector = together(nest, 0, inner, limit)
    step = nest.memories[-1].outer[0] if nest.outer else 0  # between elements of a vector
    kept = 1 if inner else vector
    stored = kept == 1 or (kept * out_size <= aligned[1] and together(nest, 1, False, kept) == kept)
    vectors = in_vectors(nest, inner, vector)
    rows, columns = prod(vectors.outer), prod(vectors.inner)
    if rows >= 2**31 or any(f.bound is not None and f.bound >= 2**31 for f in nest.forms):
        raise UnsupportedViewError("expected fewer than 2^31 results and coordinates of a mode")

    sector = 1 if inner else max(1, SECTOR_BYTES // (vector * size))  # vectors to read side by side
    lanes, warps = _sharing(rows, columns, inner, sector, sm_count)
    loads = -(-columns >> (lanes + warps))
    shape = ReduceShape(
        nest=vectors.structure(),
        **types._asdict(),
        inner=inner,
        vector=vector,
        stored=stored,
        aligned=(vector * size, (kept if stored else 1) * out_size),
        flight=FEW if loads <= 2 * FEW else FLIGHT,
    )
    further = (rows, columns, lanes, warps, prod(nest.inner), step)
    launch = Launch(shape, (*vectors.arguments(), *further), 0)
    return launch, loads, rows << (lanes + warps)


def _sharing(rows: int, columns: int, inner: bool, sector: int, sm_count: int) -> tuple[int, int]:
    """Return the binary logarithms of the lanes and of the warps that share a result.

    Lanes share one if results do not fill a warp, or if vectors lie along the reduced loop. While
    threads are few, more of them share one, so that loads overlap: first warps, since the lanes of
    a warp then read one run of memory, then lanes, as long as neighbours read whole sectors.

    >>> [_sharing(rows, 16, False, 2, 132) for rows in (1 << 10, 1 << 14, 1 << 18)]  # of 16 slices
    [(0, 2), (0, 2), (0, 0)]
    >>> _sharing(1 << 10, 256, True, 1, 132)
    (5, 3)
    """
    fewest = LANES if inner else max(LANES // rows, 1)
    most = LANES // min(rows, LANES, sector)
    lanes, warps = min((columns - 1).bit_length(), fewest.bit_length() - 1), 0
    while not _are_enough(rows, columns, lanes + warps, inner, sm_count):
        if 2 << warps <= WARPS:
            warps += 1
        elif 2 << lanes <= most:
            lanes += 1
        else:
            break
    return lanes, warps


def _are_enough(rows: int, columns: int, shared: int, inner: bool, sm_count: int) -> bool:
    """Return whether 2^shared threads per result are enough for loads to overlap.

    Where vectors lie along the kept loop, a thread with a batch of ``FEW`` loads needs no help, nor
    one with two batches among half of ``THREADS``: further threads cost more than they bring.
    """
    loads, threads = -(-columns >> shared), rows << shared
    if loads <= 1 or threads >= THREADS * sm_count:
        return True
    two = loads <= 2 * FEW and 2 * threads >= THREADS * sm_count
    return not inner and (loads <= FEW or two)


def _vectors_are_reduced(nest: Nest) -> bool:
    """Return whether the loop of the smallest memory step is a reduced one."""
    kept, reduced = (
        [abs(step) for step in steps[:1] if step]
        for steps in (nest.memories[0].outer, nest.memories[0].inner)
    )
    return bool(reduced) and (not kept or reduced[0] < kept[0])
