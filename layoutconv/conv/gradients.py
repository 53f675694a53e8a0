"""The gradients of a dense convolution as GEMM views: of its activation, and of its filter.

A cell ``h`` of the activation meets tap ``t`` in voxel ``p`` of the output where ``h + near = p *
stride + t * dilation``. As a map from (voxel, tap) to cells this is im2col, the operand of the
forward pass and of the filter's gradient. The activation's gradient needs the inverse, from (cell,
tap) to voxels, which is affine on every class of cells that are equal modulo the stride.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from numbers import Integral
from typing import Any

from ..algebra import ComposedLayout, E, Layout
from ..algebra.int_tuple import compact_stride, map_leaves
from ..algebra.stride import ScaledBasis
from ..base.caches import kept_in
from ..errors import ArgumentError, are_several, shown
from ..view.gemm_view import GemmView
from ..view.operands import runtime
from .dense_views import VIEWS, filter_in_groups, memories, without_groups
from .letters import Extents
from .problem import ConvProblem
from .stored_layouts import Channels, StoredLayout, in_groups
from .stride_phases import StridePhase, classes_by_view, concatenated, of_equal_taps, phases_of


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
        [concatenated(problem, mode)]
        if mode in side_by_side
        else (of_equal_taps if mode in alike else phases_of)(problem, mode, empty)
        for mode in range(problem.rank)
    ]
    apart = {mode for mode in range(problem.rank) if mode not in side_by_side + alike}
    combined = classes_by_view(problem, classes, apart)
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
    residues = [phases_of(problem, mode, empty) for mode in range(problem.rank)]
    for classes in classes_by_view(problem, residues, range(problem.rank)):
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


def _dgrad(
    problem: ConvProblem,
    stored: tuple[StoredLayout, StoredLayout, StoredLayout],
    classes: tuple[StridePhase, ...],
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


def _columns(extents: Extents, classes: tuple[StridePhase, ...]) -> Layout | None:
    """Return the layout from columns to channels, with concatenated stride phases; else None."""
    residues, channels = prod(c.residues for c in classes), extents.group_input
    if residues == 1:
        return None
    step = 0 if extents.groups == 1 else channels
    return Layout(((channels, residues), extents.groups), ((1, 0), step))


def _folded(problem: ConvProblem, d: ComposedLayout, classes: tuple[StridePhase, ...]) -> Any:
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
