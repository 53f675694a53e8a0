"""Schedules of batched dot products: vectors, tiles, launches. Needs no compiler.

``D[l] = sum_k A[l, k] * B[l, k]``: every mode of the view but the sum is in the batch. A thread
takes a vector of the first batch loop (channels), a tile of another batch loop (voxels of a line,
taps) and of the first loop of the sum. It reads an element that several positions of its tile share
only once: along a loop of step 0, as a filter has from voxel to voxel, and in overlapping windows,
where two steps are in a ratio of small integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from layoutconv.algebra import Layout
from layoutconv.algebra.int_tuple import flatten
from layoutconv.algebra.symint import is_runtime

from ..view.gemm_view import GemmView
from .filter_gradient_schedule import FilterGradientShape, filter_gradient_of
from .loop_nest import Form, Nest, in_vectors, make_nest, shares_a, split, together
from .reduction_schedule import BYTES, LANES, THREADS, Launch, Types, schedule
from .view_rules import UnsupportedViewError
from .window_schedule import WindowShape, window_of

WARPS = 8  # per CTA
UNROLLED = 64  # products per element of the batch up to which the kernel unrolls the sum
ACCUMULATORS = 64  # per thread
CHANNELS = 32  # vectors of the first loop per CTA

Ratio = tuple[int, int]


@dataclass(frozen=True)
class DotShape:
    """The key of a depthwise kernel.

    ``nest`` is a structure, "n" for every argument; the extents of tiled loops count tiles.
    ``sums`` are the extents of an unrolled sum, () if the sum is a loop. A thread takes ``tile``
    elements of the batch loop ``tiled``, and ``depth`` of the first loop of the sum, at once;
    ``ragged`` says of each whether the last tile is partial. ``ratios`` are the ratios of A's and
    B's steps along the two loops, None where no two elements of a tile coincide. ``vectors`` and
    ``stored`` say whether A and B are read, and D is written, in vectors of ``vector`` elements;
    ``staged``, that B goes through shared memory. Without vectors of A, the elements of a vector
    share one of A, as filters do in a convolution of few terms. ``aligned`` are the alignments of
    A, B and D in bytes. ``epilogue`` is its structure.
    """

    nest: Nest
    dtype: str
    accumulator: str
    out_dtype: str
    vector: int
    vectors: tuple[bool, bool]
    stored: bool
    tiled: int
    tile: int
    depth: int
    ragged: tuple[bool, bool]
    sums: tuple[int, ...]
    ratios: tuple[Ratio | None, Ratio | None]
    staged: bool
    aligned: tuple[int, int, int]
    epilogue: str = ""

    @property
    def integers(self) -> int:
        """Return the number of integer arguments: those of the nest, and ten more."""
        return len(self.nest.arguments()) + 10

    def place(self, operand: int, t: int, u: int) -> int | tuple[int, int]:
        """Return a number that is equal for positions of a tile that read the same element."""
        ratio = self.ratios[operand]
        return (t, u) if ratio is None else ratio[0] * t + ratio[1] * u

    @cached_property
    def sharers(self) -> tuple[dict[int | tuple[int, int], list[tuple[int, int]]], ...]:
        """The positions (t, u) of a tile of A, and of B, grouped by the element they read."""
        found: list[dict[int | tuple[int, int], list[tuple[int, int]]]] = []
        for operand in (0, 1):
            places: dict[int | tuple[int, int], list[tuple[int, int]]] = {}
            for u in range(self.depth):
                for t in range(self.tile):
                    places.setdefault(self.place(operand, t, u), []).append((t, u))
            found.append(places)
        return tuple(found)


@dataclass(frozen=True)
class DotLaunch:
    """A kernel and its integers.

    For a ``DotShape``: the integers of its nest, rows, columns, log2 of the lanes and of the warps
    that share a row, channel vectors per CTA, the extents of the two tiled loops, and the steps of
    B, D and the columns between the elements of a vector. Sliding windows and filter gradients have
    integers of their own.
    """

    shape: DotShape | WindowShape | FilterGradientShape
    integers: tuple[int, ...]


@dataclass(frozen=True)
class DotSchedule:
    """The launches of a batch: the products and, if their sums are split, the reduction of pieces.

    The first passes ``workspace`` elements of the accumulator's type to the second; 0 for none.
    """

    products: DotLaunch
    finish: tuple[Launch, ...]
    workspace: int


def dot_nest(view: GemmView, columns: int = 0) -> Nest:
    """Return the loops of a view with one row and one column: l is kept, k is summed.

    With ``columns``, the number that the first mode of l counts, a fourth operand has the column
    of each element as its offset.

    Raises ``UnsupportedViewError`` for another view, and for one with an index buffer.

    >>> from layoutconv.conv import ConvProblem
    >>> from layoutconv.conv.depthwise_views import depthwise_fprop_view
    >>> view = depthwise_fprop_view(ConvProblem((2, 8, 8, 16), (16, 3, 3), padding=1, groups=16))
    >>> nest = dot_nest(view)
    >>> nest.outer, nest.inner  # C, Q, P, N and S, R
    ((16, 8, 8, 2), (3, 3))
    """
    if len(view.a.shape) != 3 or view.m != 1 or view.n != 1:
        raise UnsupportedViewError(f"expected a view of (1, 1, k, l), got {view.m} x {view.n}")
    if view.k:
        operands = [("a", view.a, 1), ("b", view.b, 1), ("d", view.d, None)]
        if columns:
            number = Layout((1, 1, (columns, view.l // columns)), (0, 0, (1, 0)))
            operands.append(("columns", number, None))
        nest = make_nest(operands)
        return _columns_first(nest, columns) if columns else nest
    # An empty sum: one product of operands that are out of bounds.
    nest = make_nest([("d", view.d, None)])
    (d,) = nest.memories
    bounds = tuple(replace(form, operand=2) for form in nest.bounds(0))
    none = (0,) * len(nest.outer)
    absent = tuple(Form(operand, 0, 0, none, ()) for operand in (0, 1))
    memories = tuple(Form(operand, None, 0, none, ()) for operand in (0, 1))
    return Nest(nest.outer, (), (*memories, replace(d, operand=2), *absent, *bounds))


def _columns_first(nest: Nest, columns: int) -> Nest:
    """Return the nest with the loop of all columns first, if D is contiguous along it and A still.

    Loops are in the order of A's memory otherwise.
    """
    a, _, d, column = nest.memories
    for i, extent in enumerate(nest.outer):
        if (extent, column.outer[i], d.outer[i], a.outer[i]) == (columns, 1, 1, 0):
            return nest.ordered((i, *(j for j in range(len(nest.outer)) if j != i)))
    return nest


def schedule_dot(
    view: GemmView,
    dtype: str,
    out_dtype: str,
    aligned: tuple[int, int, int] = (16, 16, 16),
    sm_count: int = 132,
    epilogue: str = "",
) -> DotSchedule:
    """Return the launches of a view of one row and one column.

    Args:
        view: of modes (1, k, l), (1, k, l) and (1, 1, l), with at least one l; k may be 0.
        dtype: of A and B, "float16", "bfloat16", "float32" or "float64". Sums are in float32, for
            float64 in float64; float32 is multiplied in full precision.
        out_dtype: of D, one of the same.
        aligned: bytes, at most 16, that the starts of A, B and D are multiples of.
        sm_count: of the GPU; decides how long sums are split.
        epilogue: structure of the epilogue that the kernel applies, without statistics; only for
            sums over taps, see ``fuses``.

    Raises ``UnsupportedViewError`` for another view, for an index buffer, for 2^31 or more rows of
    vectors or coordinates of a mode, and for an epilogue after sums that are not over taps.
    """
    accumulator = "float64" if dtype == "float64" else "float32"
    types = Types(dtype, accumulator, out_dtype)
    if _static(view):
        nest = dot_nest(view, _columns(view))
        _check(nest)
        window = window_of(nest, types, aligned, sm_count, epilogue)
        if window is not None:
            return DotSchedule(DotLaunch(*window), (), 0)
        if view.k <= UNROLLED:
            launch, _ = _one(nest, types, aligned, sm_count, True, epilogue)
            return DotSchedule(launch, (), 0)
    if epilogue:
        raise UnsupportedViewError(f"expected a sum over taps before an epilogue, got k = {view.k}")
    nest = dot_nest(view)
    _check(nest)
    gradient = filter_gradient_of(nest, types, aligned, sm_count) if view.k else None
    if gradient is not None:
        launch = DotLaunch(gradient.shape, gradient.integers)
        if gradient.pieces < 2:
            return DotSchedule(launch, (), 0)
        finish = schedule(gradient.finish, *types.of_finish, (16, aligned[2]), sm_count)
        return DotSchedule(launch, tuple(finish), gradient.pieces * prod(nest.outer))
    launch, pieces = _one(nest, types, aligned, sm_count, not view.k)
    if pieces < 2:
        return DotSchedule(launch, (), 0)
    first, second = split(nest, pieces, min(1, len(nest.inner) - 1))
    launch, _ = _one(first, types.of_parts, (*aligned[:2], 16), sm_count, False)
    finish = schedule(second, *types.of_finish, (16, aligned[2]), sm_count)
    return DotSchedule(launch, tuple(finish), prod(first.outer))


def fuses(view: GemmView) -> bool:
    """Return whether kernels apply an epilogue to the sums of a view: only to sums over taps.

    >>> from layoutconv.conv import ConvProblem
    >>> from layoutconv.conv.depthwise_views import depthwise_fprop_view, depthwise_wgrad_view
    >>> problem = ConvProblem((2, 8, 8, 16), (16, 3, 3), padding=1, groups=16)
    >>> fuses(depthwise_fprop_view(problem)), fuses(depthwise_wgrad_view(problem))
    (True, False)
    """
    if not _static(view):
        return False
    nest = dot_nest(view, _columns(view))
    types = Types("float32", "float32", "float32")
    return view.k <= UNROLLED or window_of(nest, types, (4, 4, 4), 1, "") is not None


def _static(view: GemmView) -> bool:
    """Return whether the sum is not empty and all its extents are static."""
    return bool(view.k) and not any(map(is_runtime, flatten(view.a.shape[1])))


def _columns(view: GemmView) -> int:
    """Return the number of D's columns: the first mode of l counts them, see ``Scale``."""
    problems = view.a.shape[2]
    first = problems[0] if isinstance(problems, tuple) else problems
    return prod(map(int, flatten(first)))


def _check(nest: Nest) -> None:
    if any(f.bound is not None and f.bound >= 2**31 for f in nest.forms):
        raise UnsupportedViewError("expected fewer than 2^31 coordinates of a mode")


def _one(
    nest: Nest,
    types: Types,
    aligned: tuple[int, int, int],
    sm_count: int,
    short: bool,
    epilogue: str = "",
) -> tuple[DotLaunch, int]:
    """Return a launch for all products, and the number of pieces to split the sums into."""
    size, _, out_size = (BYTES[name] for name in types)
    shares = shares_a(nest)
    along, most = (2, aligned[2] // out_size) if shares else (0, aligned[0] // size)
    vector = together(nest, along, False, min(8, most))
    b_side_by_side = vector * size <= aligned[1] and together(nest, 1, False, vector) == vector
    stored = vector * out_size <= min(16, aligned[2]) and together(nest, 2, False, vector) == vector
    steps = [(f.outer[0] if f.outer else 0) for f in nest.memories[1:]]
    whole = _with_loops(in_vectors(nest, False, vector), short)
    tiled = _tiled(whole)
    depth = _depth(whole, short)
    most = max(1, min(8, ACCUMULATORS // vector))
    # A tile has about four times the loads in flight that one element has.
    enough = 4 * prod(whole.outer) // (THREADS * sm_count) if short else most
    tile = _tile(whole.outer[tiled], most, max(enough, 1)) if tiled else 1
    extents = whole.outer[tiled], (whole.inner or (1,))[0]
    outer = list(whole.outer)
    outer[tiled] = -(-outer[tiled] // tile)
    inner = (-(-extents[1] // depth), *whole.inner[1:]) if whole.inner else ()
    tiles = Nest(tuple(outer), inner, whole.forms)
    rows, columns = prod(tiles.outer), prod(tiles.inner)
    if max(rows, *whole.outer) >= 2**31 or columns >= 2**30:
        raise UnsupportedViewError("expected fewer than 2^31 rows of vectors, and 2^30 products")

    b_forms = [f for f in whole.forms if f.operand == 1]
    staged = short and len(b_forms) == 1 and not any(b_forms[0].outer[1:])
    shape = DotShape(
        nest=tiles.structure(),
        **types._asdict(),
        vector=vector,
        vectors=(not shares, b_side_by_side),
        stored=stored,
        tiled=tiled,
        tile=tile,
        depth=depth,
        ragged=(extents[0] % tile != 0, extents[1] % depth != 0),
        sums=tuple(whole.inner) if short and whole.inner else (1,) if short else (),
        ratios=(_ratio(whole, 0, tiled, tile, depth), _ratio(whole, 1, tiled, tile, depth)),
        staged=staged,
        aligned=(
            size if shares else vector * size,
            vector * size if b_side_by_side else size,
            vector * out_size if stored else out_size,
        ),
        epilogue=epilogue,
    )
    lanes, warps, pieces = (0, 0, 1) if short else _team(tiles, rows, columns, sm_count)
    channels = min(tiles.outer[0], CHANNELS)
    further = (rows, columns, lanes, warps, channels, *extents, *steps, *[0] * (3 - len(steps)))
    return DotLaunch(shape, (*tiles.arguments(), *further)), pieces


def _with_loops(nest: Nest, short: bool) -> Nest:
    """Return a nest that has a loop over rows, and one over products where sums are not short."""
    if not nest.outer:
        nest = replace(nest, outer=(1,), forms=tuple(replace(f, outer=(0,)) for f in nest.forms))
    if not nest.inner and not short:  # a sum over a single voxel
        nest = replace(nest, inner=(1,), forms=tuple(replace(f, inner=(0,)) for f in nest.forms))
    return nest


def _tiled(nest: Nest) -> int:
    """Return the batch loop, past the first, with the most reuse of operands; 0 for none."""

    def gain(loop: int) -> tuple[int, int]:
        steps = [abs(form.outer[loop]) for form in nest.memories[:2]]
        return steps.count(0), -sum(steps)

    found = [i for i in range(1, len(nest.outer)) if nest.outer[i] > 1]
    best = max(found, key=gain, default=0)
    return best if best and gain(best)[0] else 0


def _tile(extent: int, most: int, enough: int) -> int:
    """Return how many elements of a loop a thread takes: few tiles, and those full.

    At most ``enough``: larger tiles would leave too few threads to fill the GPU.
    """
    if extent <= min(most, 3):
        return extent
    most = min(most, extent, enough)
    return min(range(max(1, min(4, most)), most + 1), key=lambda t: (-(-extent // t) * t, t))


def _depth(nest: Nest, short: bool) -> int:
    """Return how many elements of the sum's first loop a thread takes at once."""
    if not nest.inner:
        return 1
    extent = nest.inner[0]
    return extent if short or extent <= 8 else 4


def _ratio(nest: Nest, operand: int, tiled: int, tile: int, depth: int) -> Ratio | None:
    """Return the reduced ratio of the steps along the two tiled loops, if elements coincide."""
    pairs = [
        (form.outer[tiled] if tiled else 0, form.inner[0] if form.inner else 0)
        for form in nest.forms
        if form.operand == operand
    ]
    moving = [pair for pair in pairs if any(pair)]
    ratios = {(t // (gcd(t, u) or 1), u // (gcd(t, u) or 1)) for t, u in moving} or {(0, 0)}
    if len({max(ratio, (-ratio[0], -ratio[1])) for ratio in ratios}) > 1:
        return None
    along, down = max(ratios)
    places = {along * t + down * u for t in range(tile) for u in range(depth)}
    return (along, down) if len(places) < tile * depth else None


def _team(nest: Nest, rows: int, columns: int, sm_count: int) -> tuple[int, int, int]:
    """Return log2 of the lanes and of the warps that share a row, and the pieces of the sums."""
    enough = THREADS * sm_count
    longest = nest.inner[-1] if len(nest.inner) == 1 else max(nest.inner[1:])
    lanes = max(LANES // rows, 1).bit_length() - 1
    while lanes < 5 and (rows << (lanes + 3)) * longest < enough:
        lanes += 1
    lanes = min(lanes, (columns - 1).bit_length())
    warps = 0
    while (
        1 << warps < WARPS
        and rows << (lanes + warps) < enough
        and columns >> (lanes + warps + 1) >= 1
    ):
        warps += 1
    turns = -(-columns >> (lanes + warps))
    pieces = min(enough // (rows << (lanes + warps)), turns // 4, longest)
    return lanes, warps, pieces if turns > 16 else 1
