"""The gradients of a dense convolution as GEMM views: of its activation, and of its filter.

A cell ``h`` of the activation meets tap ``t`` in voxel ``p`` of the output where ``h + near = p *
stride + t * dilation``. As a map from (voxel, tap) to cells this is im2col, the operand of the
forward pass and of the filter's gradient. The activation's gradient needs the inverse, from (cell,
tap) to voxels, which is affine on every class of cells that are equal modulo the stride.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import gcd, prod
from numbers import Integral
from typing import Any, NamedTuple

from ..algebra import ComposedLayout, E, Layout
from ..algebra.int_tuple import compact_stride, map_leaves
from ..algebra.stride import ScaledBasis
from ..base.caches import kept_in
from ..errors import ArgumentError, are_several, shown
from ..view.gemm_view import GemmView
from ..view.operands import runtime, static
from .dense_views import VIEWS, filter_in_groups, memories, without_groups
from .letters import Extents
from .problem import ConvProblem
from .stored_layouts import Channels, StoredLayout, in_groups


@kept_in(VIEWS)
def dgrad_views(
    problem: ConvProblem,
    filter_layout: Layout | None = None,
    *,
    activation_layout: Layout | None = None,
    output_layout: Layout | None = None,
    side_by_side: tuple[int, ...] = (),
    images_first: bool = False,
    empty: bool = True,
    alike: tuple[int, ...] = (),
) -> tuple[GemmView, ...]:
    """The gradient of the activation: a unit-stride problem per residue of the cells.

    Args:
        problem: the forward convolution.
        filter_layout: where ``(k, t, r, s, c)`` of the filter is stored; by default contiguous, as
            in the forward pass. Kernels read vectors along the sum, here over K: if K is the
            contiguous mode (the filter permuted to (C, T, R, S, K)), they need no transposition.
        activation_layout, output_layout: where the gradients of the activation and of the output
            are stored; all three layouts are as for :func:`fprop_view`.
        side_by_side: spatial modes of dilation 1 whose residues (stride phases) become columns of
            one view.
        alike: other modes whose residues become columns of one view if they have equally many taps:
            at most two views per mode, and one if the stride divides the taps.
        images_first: rows run over the images first, then over the cells of an image: neighbouring
            rows then lack the same taps, those outside the output, and a tile can skip them.
        empty: include the views of residues that no tap reaches; with a stride far beyond the
            filter, most residues are such.

    ``logical_divide`` of a spatial mode by the stride, ``(stride, H / stride):(1, stride)``, has a
    slice of cells per residue; the taps that reach it are ``stride / gcd(stride, dilation)`` apart.
    No product with a zero between voxels is formed. Every view writes its own cells of one result,
    and together they write all of it, unless views are left out with ``empty=False``: a residue
    that no tap reaches is a view with ``k`` = 0, of all cells in the modes after it. Residues come
    in the order of memory.

    Residues ``side_by_side`` share the rows that they read: without this, an M x N tile of few
    channels reads as much for half the products. A residue with fewer taps than another then has
    taps outside the filter, which read zero: 4 products for 3 with 3 taps and a stride of 2.
    Residues that are ``alike`` have no such taps: rows begin at the cells that the first ``stride``
    taps reach from a voxel, which the padding may put outside the activation. Columns of one
    channel read the same entry of a bias: a stride of 0 in the view's ``columns``.

    With as many taps as the stride and no padding, a gradient whose residues are alike is one plain
    matrix product. If the stride divides taps and extents, D is folded by it, and no bounds are
    left to check.

    A transposed convolution is these views of :meth:`ConvProblem.transposed`.

    The operands of ``execute(view, a, b, out)``: ``a`` the gradient of the output, contiguous (N,
    Z, P, Q, K); ``b`` the filter (K, T, R, S, C / groups); ``out`` contiguous (N, D, H, W, C).

    Raises :class:`~layoutconv.errors.ArgumentError` for layouts of another shape.

    >>> even, odd = dgrad_views(ConvProblem((2, 8, 16), (32, 3), stride=2, padding=1))
    >>> print(even)
    A: (N,Q,K):(Q*K,K,1) o (0,0,0) o ((W0,N),(K,S0)):((1@1,1@0),(1@2,-1@1))
    B: (K,S,C):(S*C,C,1) o (0,1,0) o (C,(K,S0)):(1@2,(1@0,2@1))
    D: (N,W,C):(W*C,C,1) o (0,0,0) o ((W0,N),C):((2@1,1@0),1@2)
    >>> even.k, odd.k  # one tap reaches the even cells, two the odd ones
    (32, 64)
    >>> [both] = dgrad_views(ConvProblem((2, 8, 16), (32, 3), 2, 1), side_by_side=(0,))
    >>> print(both)
    A: (N,Q,K):(Q*K,K,1) o (0,1,0) o ((W0,N),(K,S0)):((1@1,1@0),(1@2,-1@1))
    B: (K,S,C):(S*C,C,1) o (0,-1,0) o ((C,2),(K,S0)):((1@2,1@1),(1@0,2@1))
    D: (N,W,C):(W*C,C,1) o (0,0,0) o ((W0,N),(C,2)):((2@1,1@0),(1@2,1@1))
    columns: ((C,2)):((1,0))
    >>> [product] = dgrad_views(ConvProblem((2, 8, 16), (32, 2), 2), alike=(0,))
    >>> print(product.d.inner, product.d.outer)
    ((W0,N),(C,2)):((1@1,1@0),(1@3,1@2)) (N,W,C):(W*C,C,1) o 0 o (N,W0,2,C):(1@0,2@1,1@1,1@2)
    """
    stored = memories(problem, activation_layout, filter_layout, output_layout)
    side_by_side = _undilated("side_by_side", side_by_side, problem)
    alike = _undilated("alike", alike, problem)
    classes = [
        [_together(problem, mode)]
        if mode in side_by_side
        else (_alike if mode in alike else _residues)(problem, mode, empty)
        for mode in range(problem.rank)
    ]
    apart = {mode for mode in range(problem.rank) if mode not in side_by_side + alike}
    combined = _combined(problem, classes, apart)
    views = [_dgrad(problem, stored, some, images_first) for some in combined]
    return tuple(views if problem.groups > 1 else map(without_groups, views))


def _undilated(name: str, modes: Any, problem: ConvProblem) -> tuple[int, ...]:
    """Return spatial modes, after checking that they exist and have dilation 1."""
    found = tuple(modes) if are_several(modes) else (modes,)
    for mode in found:
        whole = isinstance(mode, Integral) and not isinstance(mode, bool)
        if not (whole and 0 <= mode < problem.rank and problem.dilation[mode] == 1):
            expected = f"spatial modes from 0 to {problem.rank - 1} with dilation 1"
            raise ArgumentError(name, expected, shown(modes))
    return found


def grouped_dgrad(
    problem: ConvProblem, x: StoredLayout, w: StoredLayout, y: StoredLayout, empty: bool = True
) -> Iterator[GemmView]:
    """Yield the views of ``dgrad_views`` with the group as third mode, even for one group."""
    residues = [_residues(problem, mode, empty) for mode in range(problem.rank)]
    for classes in _combined(problem, residues, range(problem.rank)):
        yield _dgrad(problem, (x, w, y), classes)


@kept_in(VIEWS)
def wgrad_view(
    problem: ConvProblem,
    *,
    activation_layout: Layout | None = None,
    filter_layout: Layout | None = None,
    output_layout: Layout | None = None,
) -> GemmView:
    """The gradient of the filter: a sum over the voxels of the output.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` the gradient of the output (N, Z,
    P, Q, K), ``b`` the activation (N, D, H, W, C), and the result is (K, T, R, S, C / groups).
    Neither operand is contiguous along the sum: ``a`` is along GEMM-M, ``b`` along GEMM-N.

    The layouts say where the activation, the gradient of the filter and that of the output are
    stored, as for :func:`fprop_view`.

    Raises :class:`~layoutconv.errors.ArgumentError` for layouts of another shape.

    >>> print(wgrad_view(ConvProblem((2, 8, 8, 16), (32, 3, 3), stride=2, padding=1)))
    A: (N,P,Q,K):(P*Q*K,Q*K,K,1) o 0 o (K,(Q,P,N)):(1@3,(1@2,1@1,1@0))
    B: (N,H,W,C):(H*W*C,W*C,C,1) o (0,-1,-1,0) o ((C,S,R),(Q,P,N)):((1@3,1@2,1@1),(2@2,2@1,1@0))
    D: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    """
    stored = memories(problem, activation_layout, filter_layout, output_layout)
    view = grouped_wgrad(problem, *stored)
    return view if problem.groups > 1 else without_groups(view)


def grouped_wgrad(
    problem: ConvProblem, x: StoredLayout, w: StoredLayout, y: StoredLayout
) -> GemmView:
    """Return the view with the group as third mode, even for one group."""
    extents = Extents.of(problem)
    N, *voxels, _ = extents.output
    modes = extents.spatial_modes
    sum_shape = (*reversed(voxels), N)
    at_voxel = (*(E(i) for i in modes), E(0))
    at_window = (*(problem.stride[i - 1] * E(i) for i in modes), E(0))
    filters, filter_group = y.split(extents.group_output, extents.groups)
    channels, group = x.split(extents.group_input, extents.groups)
    at_tap = (*channels.steps, *(problem.dilation[i - 1] * E(i) for i in modes))
    near = x.at(0, *(-near for near, _ in problem.padding))
    m_shape, m_steps = filters.mode
    n_shape = (*channels.shape, *reversed(extents.taps))
    digits, _ = w.split(extents.group_input, 1)
    return GemmView(
        a=in_groups(
            ComposedLayout(y.layout, y.origin, Layout((m_shape, sum_shape), (m_steps, at_voxel))),
            filter_group,
        ),
        b=in_groups(
            ComposedLayout(x.layout, near, Layout((n_shape, sum_shape), (at_tap, at_window))), group
        ),
        d=filter_in_groups(extents, w, digits.shape),
    )


class _Residue(NamedTuple):
    """The cells of a spatial mode that are equal modulo the stride, and the taps that reach them.

    The i-th cell meets the j-th tap in voxel ``voxel + i - j * voxel_step``.
    """

    cell: int  # the first; the others follow a stride apart
    cells: Any  # how many
    tap: int  # the first that reaches a cell of the class
    taps: Any  # how many, ``tap_step`` apart
    tap_step: int
    voxel: int  # where the first cell meets the first tap
    voxel_step: int
    residues: int = 1  # concatenated along N, each a cell and a tap further
    step: int | None = None  # between cells, if not the stride


def _together(problem: ConvProblem, mode: int) -> _Residue:
    """Return all cells of a spatial mode as one class: its stride phases, concatenated along N.

    The i-th cell of a residue meets tap ``tap + residue + j * stride`` in voxel ``voxel + i - j``,
    for every ``j`` for which some residue has such a tap.
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    last = (stride - 1 + near) // stride
    first = -((problem.taps[mode] - 1 - near) // stride)
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    return _Residue(
        cell=0,
        cells=runtime(-(-problem.spatial[mode] // stride), f"{cell_letter}0"),
        tap=near - stride * last,
        taps=static(last - first + 1, f"{tap_letter}0"),
        tap_step=stride,
        voxel=last,
        voxel_step=1,
        residues=stride,
    )


def _alike(problem: ConvProblem, mode: int, empty: bool = True) -> list[_Residue]:
    """Return the classes of residues with equally many taps: those with one tap more, the others.

    Cells count from one that tap 0 reaches from a voxel, at or before the first cell: up to
    ``near % stride`` cells of the padding are among them. Residue ``r`` meets the taps ``r + j *
    stride`` in voxel ``voxel + i - j``.
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    before, (least, more) = near % stride, divmod(problem.taps[mode], stride)
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    found = []
    for first, end, taps in ((0, more, least + 1), (more, stride, least)):
        cells = -(-(problem.spatial[mode] + before - first) // stride)
        if first == end or cells < 1 or not (taps or empty):
            continue
        found.append(
            _Residue(
                cell=first - before,
                cells=runtime(cells, f"{cell_letter}{first}"),
                tap=first if taps else 0,
                taps=static(taps, f"{tap_letter}{first}"),
                tap_step=stride,
                voxel=near // stride,
                voxel_step=1,
                residues=end - first,
            )
        )
    return found


def _combined(
    problem: ConvProblem, classes: Sequence[Sequence[_Residue]], apart: Container[int]
) -> Iterator[tuple[_Residue, ...]]:
    """Yield the classes of views, one of each mode; after one without taps, whole modes.

    Modes that are not ``apart``, whose residues are concatenated, are never whole.
    """
    before: list[tuple[_Residue, ...]] = [()]
    for mode, found in enumerate(classes):
        whole = [_whole(problem, mode)] if mode in apart and problem.spatial[mode] else found
        before = [
            (*some, of)
            for some in before
            for of in (found if all(each.taps for each in some) else whole)
        ]
    yield from before


def _whole(problem: ConvProblem, mode: int) -> _Residue:
    """Return all cells of a spatial mode as one class, whose taps do not matter."""
    letter = "DHW"[mode - problem.rank]
    return _Residue(0, runtime(problem.spatial[mode], letter), 0, 1, 1, 0, 1, step=1)


class PhaseClass(NamedTuple):
    """Cells per residue, residues concatenated in a view, and taps per residue."""

    cells: int
    residues: int
    taps: int


def classes_of(
    problem: ConvProblem, mode: int, *, alike: bool = False, empty: bool = False
) -> list[PhaseClass]:
    """Return the classes along a spatial mode: one per residue, or per set of ``alike`` residues.

    >>> classes_of(ConvProblem((1, 8, 1), (1, 3), stride=2, padding=1), 0)
    [PhaseClass(cells=4, residues=1, taps=1), PhaseClass(cells=4, residues=1, taps=2)]
    >>> classes_of(ConvProblem((1, 8, 1), (1, 4), stride=2, padding=1), 0, alike=True)
    [PhaseClass(cells=5, residues=2, taps=2)]
    """
    found = (_alike if alike else _residues)(problem, mode, empty)
    return [PhaseClass(int(of.cells), of.residues, int(of.taps)) for of in found]


def reached_residues(problem: ConvProblem, mode: int) -> list[int]:
    """Return the residues, modulo the stride, of a spatial mode's cells that some tap reaches.

    >>> reached_residues(ConvProblem((1, 9, 1), (1, 2), stride=4, padding=1), 0)
    [0, 3]
    """
    stride, near = problem.stride[mode], problem.padding[mode][0]
    apart = problem.dilation[mode]
    reached = {(tap * apart - near) % stride for tap in range(problem.taps[mode])}
    return sorted(cell for cell in reached if cell < problem.spatial[mode])


def _residues(problem: ConvProblem, mode: int, empty: bool = True) -> list[_Residue]:
    """Return the classes of cells of a spatial mode, except those without cells."""
    extent, filter_extent = problem.spatial[mode], problem.taps[mode]
    stride, dilation = problem.stride[mode], problem.dilation[mode]
    near, _ = problem.padding[mode]
    common = gcd(stride, dilation)
    tap_step = stride // common
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    found = []
    for cell in range(min(stride, extent)) if empty else reached_residues(problem, mode):
        reaching = [
            tap
            for tap in range(min(tap_step, filter_extent))
            if (cell + near - tap * dilation) % stride == 0
        ]
        first = reaching[0] if reaching else 0
        taps = len(range(first, filter_extent, tap_step)) if reaching else 0
        suffix = "" if stride == 1 else str(cell)
        found.append(
            _Residue(
                cell=cell,
                cells=runtime(len(range(cell, extent, stride)), cell_letter + suffix),
                tap=first,
                taps=static(taps, tap_letter + suffix),
                tap_step=tap_step,
                voxel=(cell + near - first * dilation) // stride,
                voxel_step=dilation // common,
            )
        )
    return found


def _dgrad(
    problem: ConvProblem,
    stored: tuple[StoredLayout, StoredLayout, StoredLayout],
    classes: tuple[_Residue, ...],
    images_first: bool = False,
) -> GemmView:
    """Return the view of the cells that belong to the given class in every spatial mode."""
    (x, w, y), extents = stored, Extents.of(problem)
    N, groups = extents.input[0], extents.groups
    filters, filter_group = y.split(extents.group_output, groups)
    channels, group = x.split(extents.group_input, groups)
    w_channels, _ = w.split(extents.group_input, 1)
    by_mode = [(i, classes[i - 1]) for i in extents.spatial_modes]
    reached: tuple[Any, ...] = tuple(c.taps for _, c in by_mode)
    back = tuple(-c.voxel_step * E(i) for i, c in by_mode)
    taps = tuple(c.tap_step * E(i) for i, c in by_mode)
    if not all(reached):  # an empty sum: some mode has no tap
        reached, back, taps = (runtime(0, "no_taps"),), back[:1], taps[:1]
    steps = [problem.stride[i - 1] if c.step is None else c.step for i, c in by_mode]
    rows = [(c.cells, step * E(i), E(i)) for step, (i, c) in zip(steps, by_mode, strict=True)]
    rows.insert(0 if images_first else len(rows), (N, E(0), E(0)))
    m_shape, cells, voxels = zip(*rows, strict=True)
    k_shape = (*filters.shape, *reached)
    of_filter = tuple(length * E(0) for length in compact_stride(filters.shape))
    beside = tuple((c.residues, E(i)) for i, c in by_mode if c.residues > 1)
    c_shape, c_steps = channels.beside(beside)
    n_shape, n_steps = w_channels.beside(beside)
    d = ComposedLayout(
        x.layout,
        x.at(0, *(c.cell for c in classes)),
        Layout((m_shape, c_shape), (cells, c_steps)),
    )
    return GemmView(
        a=in_groups(
            ComposedLayout(
                y.layout,
                y.at(0, *(c.voxel for c in classes)),
                Layout((m_shape, k_shape), (voxels, (*filters.steps, *back))),
            ),
            filter_group,
        ),
        b=in_groups(
            ComposedLayout(
                w.layout,
                w.at(0, *(c.tap for c in classes)),
                Layout((n_shape, k_shape), (n_steps, (*of_filter, *taps))),
            ),
            Channels((groups,), (extents.group_output * E(0),)),
        ),
        d=_folded(problem, in_groups(d, group), classes),
        columns=_columns(extents, classes),
    )


def _columns(extents: Extents, classes: tuple[_Residue, ...]) -> Layout | None:
    """Return the layout from columns to channels, with concatenated stride phases; else None."""
    residues, channels = prod(c.residues for c in classes), extents.group_input
    if residues == 1:
        return None
    step = 0 if extents.groups == 1 else channels
    return Layout(((channels, residues), extents.groups), ((1, 0), step))


def _folded(problem: ConvProblem, d: ComposedLayout, classes: tuple[_Residue, ...]) -> Any:
    """Return D after ``logical_divide`` by the stride of the modes with concatenated residues.

    A row then moves one mode, of whole strides, and a column another, so the kernel need not check
    bounds. This requires that the stride divides these modes and their taps; else D stays as it is.
    """
    apart = {i: c for i, c in enumerate(classes, start=1) if c.residues > 1}
    whole = all(
        c.residues == problem.stride[i - 1]
        and problem.spatial[i - 1] == c.cells * c.residues
        and problem.taps[i - 1] == c.taps * c.residues
        for i, c in apart.items()
    )
    if not apart or not whole:
        return d
    shape, steps, at = list[Any](), list[Any](), dict[tuple[int, bool], int]()
    for i, extent in enumerate(d.outer.shape):
        digits = [(extent, 1, False)]
        if i in apart:
            digits = [(apart[i].cells, apart[i].residues, True), (apart[i].residues, 1, False)]
        for length, step, is_row in digits:
            at[i, is_row] = len(shape)
            shape.append(length)
            steps.append(step * E(i))

    def moved(step: ScaledBasis) -> ScaledBasis:
        (mode,) = step.path
        residues = apart[mode].residues if mode in apart else 0
        if residues and int(step.value) >= residues:
            return ScaledBasis(int(step.value) // residues, (at[mode, True],))
        return ScaledBasis(step.value, (at[mode, False],))

    inner = Layout(d.inner.shape, map_leaves(moved, d.inner.stride))
    memory = ComposedLayout(d.outer, 0, Layout(tuple(shape), tuple(steps)))
    start = [0] * len(shape)
    for i, residue in enumerate(classes, start=1):
        if i not in apart:
            start[at[i, False]] = residue.cell
    return ComposedLayout(memory, tuple(start), inner)
