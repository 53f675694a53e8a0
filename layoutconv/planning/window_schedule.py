"""Sliding windows: the schedule of depthwise sums over taps. Needs no compiler.

A thread owns a vector of channels and a tile of outputs along one loop, mostly W. The first loop of
the sum, a row of taps, runs along it, too. The outputs of a tile and the taps of a row read few
places of A, ``tile + taps - 1`` of them at stride 1. The thread loads and converts each place once
per row of taps, and multiplies it with all taps that use it while it is in registers. A bit mask,
computed once for all rows of taps, says which places are in bounds.

The filter of the CTA's channels lies in shared memory, in the accumulator's type. A CTA computes
several blocks of outputs in turn, so copying the filter takes a small part of its time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, prod

from .kernel_spec import carveout
from .loop_nest import Nest, in_vectors, shares_a, together
from .reduction_schedule import BYTES, Types

CTA = 256  # threads
CTAS_PER_SM = 2  # with at most 128 registers per thread
LANES = 32  # vectors of the first loop per CTA, at most
FILTER_BYTES = 48 << 10  # of a CTA's shared memory
LONGEST = 64  # taps of a row: rows are unrolled
UNROLLED = 1024  # products per thread; with more, rows of taps become a loop
WIDE = 3  # taps up to which a thread takes 16 bytes of channels: it is memory-bound there
ACCUMULATORS = 32  # per thread
TILE = 8  # outputs per thread, at most
CHUNK = 8  # taps of a row whose places are loaded before they are multiplied
LOADED = 288  # bytes of places that a thread holds at once, in registers
ROW = 20  # instructions of a row of taps, beside those of its places and products
STAGING = 0.3  # time to copy a filter, relative to a block of outputs

Ratio = tuple[int, int]
Places = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True)
class OfVectors:
    """The key of a kernel whose threads own vectors of channels and use shared memory.

    ``nest`` is a structure, "n" for every argument. ``stored``: D is written in vectors.
    """

    nest: Nest
    dtype: str
    accumulator: str
    out_dtype: str
    vector: int
    stored: bool

    @property
    def smem_bytes(self) -> int:
        """Return the shared memory of a CTA, in bytes."""
        raise NotImplementedError

    @property
    def carveout(self) -> int:
        """The percentage of an SM's shared memory that its CTAs take; the rest is L1 cache."""
        return carveout(CTAS_PER_SM, self.smem_bytes)


@dataclass(frozen=True)
class WindowShape(OfVectors):
    """The key of a sliding window's kernel.

    The loop ``tiled`` of ``nest`` counts tiles of ``tile`` outputs, of which the last is partial if
    ``ragged``. ``sums`` are the extents of the sum; a thread takes the first, a row of taps, at
    once, and ``unrolled`` says whether the others are unrolled, too. ``ratio`` is the reduced ratio
    of A's steps along outputs and taps. ``moving`` are the forms of A's bounds that change along
    the tile. ``pitch`` is the distance of two taps in shared memory, in elements. ``epilogue`` is
    its structure; ``aligned`` are the alignments of A, B and D in bytes.
    """

    tiled: int
    tile: int
    ragged: bool
    sums: tuple[int, ...]
    unrolled: bool
    ratio: Ratio
    moving: tuple[int, ...]
    pitch: int
    epilogue: str
    aligned: tuple[int, int, int]

    @property
    def integers(self) -> int:
        """Return the number of integer arguments: those of the nest, and eight more."""
        return len(self.nest.arguments()) + 8

    @cached_property
    def places(self) -> Places:
        """The places of A that a row of taps reads, each with the (output, tap) pairs using it."""
        return meetings(self.ratio, self.tile, self.sums[0])

    @property
    def smem_bytes(self) -> int:
        """Return the shared memory of the filter, in bytes."""
        return prod(self.sums) * self.pitch * BYTES[self.accumulator]


def window_of(
    nest: Nest,
    types: Types,
    aligned: tuple[int, int, int],
    sm_count: int,
    epilogue: str,
) -> tuple[WindowShape, tuple[int, ...]] | None:
    """Return the kernel and its integers for a nest of A, B, D and D's columns; None if unsuitable.

    The sum's extents are static. The integers are those of the nest, then: channel vectors, in all
    and per CTA; blocks of outputs that a CTA takes in turn; the extent of the tiled loop; A's step
    from place to place; the steps of B, D and columns between the elements of a vector.
    """
    b_forms = [form for form in nest.forms if form.operand == 1]
    if not nest.outer or not nest.inner or len(b_forms) != 1 or any(b_forms[0].outer[1:]):
        return None
    if shares_a(nest):
        return None
    size, _, out_size = (BYTES[name] for name in types)
    taps = nest.inner[0]
    most = min(aligned[0], 16) // size if taps <= WIDE else min(4, aligned[0] // size)
    vector = together(nest, 0, False, min(8, most))
    stored = vector * out_size <= min(16, aligned[2]) and together(nest, 2, False, vector) == vector
    whole = in_vectors(nest, False, vector)
    lanes = _lanes(prod(nest.inner), vector, types.accumulator)
    found = _tiling(whole, vector, size, sm_count)
    if not lanes or found is None or taps > LONGEST:
        return None
    loop, tile, ratio = found
    tiles, tiled, extent = _ordered(whole, loop, tile)
    step = whole.memories[0].outer[loop] // ratio[0]
    if max(abs(step), extent, prod(tiles.outer)) >= 2**31:
        return None
    moving = tuple(
        i
        for i, form in enumerate(whole.forms)
        if form.bound is not None and form.operand == 0 and (form.outer[loop] or form.inner[0])
    )
    if any(any(whole.forms[i].inner[1:]) for i in moving):
        return None
    shape = WindowShape(
        *(tiles.structure(), *types, vector, stored),
        tiled=tiled,
        tile=tile,
        ragged=extent % tile != 0,
        sums=tuple(nest.inner),
        unrolled=prod(nest.inner) * vector * tile <= UNROLLED,
        ratio=ratio,
        moving=moving,
        pitch=lanes * vector + 16 // BYTES[types.accumulator],  # taps begin in different banks
        epilogue=epilogue,
        aligned=(vector * size, size, vector * out_size if stored else out_size),
    )
    vectors = whole.outer[0]
    blocks = -(-vectors // min(vectors, lanes))
    channels = -(-vectors // blocks)
    turns = _turns(prod(tiles.outer[1:]), channels, blocks, sm_count)
    steps = (form.outer[0] for form in nest.memories[1:])
    return shape, (*tiles.arguments(), vectors, channels, turns, extent, step, *steps)


def _lanes(terms: int, vector: int, accumulator: str) -> int:
    """Return the channel vectors per CTA whose filter fits in shared memory; 0 if below four."""
    lanes = LANES
    while lanes >= 4:
        if terms * (lanes * vector * BYTES[accumulator] + 16) <= FILTER_BYTES:
            return lanes
        lanes //= 2
    return 0


def _tiling(nest: Nest, vector: int, size: int, sm_count: int) -> tuple[int, int, Ratio] | None:
    """Return the loop along which windows overlap, outputs per thread, and A's ratio of steps."""
    taps = nest.inner[0]
    # A tile has about four times the loads in flight that one output has.
    enough = 4 * prod(nest.outer) // (CTA * sm_count)
    most = min(TILE, max(1, ACCUMULATORS // vector), max(2, enough))
    found = []
    for loop in range(1, len(nest.outer)):
        if not nest.memories[0].outer[loop]:
            continue
        for tile in range(2, min(most, nest.outer[loop]) + 1):
            ratio = ratio_of(nest, 0, loop)
            if ratio is None:
                continue
            held = len(meetings(ratio, tile, min(taps, CHUNK)))
            if tile == 2 or held * vector * size <= LOADED:
                cost = _instructions(taps, ratio, tile, vector) * -(-nest.outer[loop] // tile)
                found.append((cost / nest.outer[loop], loop, tile, ratio))
    return min(found)[1:] if found else None


def _instructions(taps: int, ratio: Ratio, tile: int, vector: int) -> int:
    """Return the instructions per row of taps: products, loads and conversions, overhead."""
    places = len(meetings(ratio, tile, taps))
    return tile * taps * vector + places * (vector + 4) + taps + ROW


def meetings(ratio: Ratio, tile: int, depth: int) -> Places:
    """Return the places that elements of two loops share, each with the pairs that read it.

    >>> meetings((1, 1), 2, 2)
    ((0, ((0, 0),)), (1, ((0, 1), (1, 0))), (2, ((1, 1),)))
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for t, u in product(range(tile), range(depth)):
        found.setdefault(ratio[0] * t + ratio[1] * u, []).append((t, u))
    return tuple((place, tuple(found[place])) for place in sorted(found))


def ratio_of(nest: Nest, operand: int, loop: int) -> Ratio | None:
    """Return the reduced ratio of an operand's steps along a loop and the sum's first loop.

    None if its forms differ in the ratio, or if one of the loops does not move them.
    """
    pairs = [(f.outer[loop], f.inner[0]) for f in nest.forms if f.operand == operand]
    ratios = {_reduced(*pair) for pair in pairs if any(pair)}
    if len(ratios) != 1:
        return None
    ((along, down),) = ratios
    return (along, down) if along and down else None


def _reduced(along: int, down: int) -> Ratio:
    """Return two steps divided by their common divisor, the first not negative."""
    divisor = gcd(along, down) * (-1 if along < 0 else 1)
    return along // divisor, down // divisor


def _ordered(nest: Nest, loop: int, tile: int) -> tuple[Nest, int, int]:
    """Return the nest in tiles, the position of the tiled loop in it, and that loop's extent.

    Right after the channels come the loops whose neighbours read the same rows, such as H: a CTA
    then takes outputs of several rows, and their overlapping windows hit in L1.
    """
    a = nest.memories[0]

    def meets(i: int) -> bool:
        step = abs(a.outer[i])
        return any(down and step % abs(down) == 0 and step <= 4 * abs(down) for down in a.inner[1:])

    rest = [i for i in range(1, len(nest.outer)) if i != loop]
    order = [0, *(i for i in rest if meets(i)), loop, *(i for i in rest if not meets(i))]

    extents = [-(-nest.outer[i] // tile) if i == loop else nest.outer[i] for i in order]
    tiles = replace(nest.ordered(order), outer=tuple(extents))
    return tiles, order.index(loop), nest.outer[loop]


def _turns(others: int, channels: int, blocks: int, sm_count: int) -> int:
    """Return the number of blocks of outputs per CTA, for few waves and few copies of B."""
    ctas, slots = -(-others // (CTA // channels)), CTAS_PER_SM * sm_count

    def time(turns: int) -> float:
        waves = -(-(-(-ctas // turns) * blocks) // slots)
        return waves * (turns + STAGING)

    most = max(1, -(-ctas * blocks // slots))
    return min(range(1, min(most, 64) + 1), key=time)
