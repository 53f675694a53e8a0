"""Forward convolution as GEMM views: dense, and of a grid gathered through index buffers.

GEMM-M runs over ``(Q, P, Z, N)`` and GEMM-K over ``(C, S, R, T)``: orders are colexicographic, so
neighbouring GEMM rows are neighbouring voxels of one image, and neighbouring columns are contiguous
channels. CUTLASS's example 59 writes the same sets as ``(N,(Z,P,Q))`` and ``(C,(T,R,S))``, with the
image fastest: the two matrices differ by a permutation of rows and columns, the convolutions do
not differ.
"""

from __future__ import annotations

from typing import Any

from ..algebra import ComposedLayout, E, Layout
from ..base.caches import BoundedCache, kept_in
from ..errors import ArgumentError
from ..view.gemm_view import GemmView
from ..view.operands import filter_operand, flat_index, indexed_grid, indexed_images, row_count
from .letters import Extents
from .problem import ConvProblem
from .stored_layouts import Channels, StoredLayout, in_groups

# The views of all passes as these functions make them; ``ops/dense_passes`` caches those of calls.
VIEWS: BoundedCache[Any, Any] = BoundedCache("views", entries=256, nbytes=4 << 20)


def fprop_view(
    problem: ConvProblem,
    *,
    activation_layout: Layout | None = None,
    filter_layout: Layout | None = None,
    output_layout: Layout | None = None,
    batch_index: Any = None,
    images: int | None = None,
) -> GemmView:
    """Forward convolution of a tensor in NDHWC (NHWC, NWC) memory, as implicit GEMM.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (N, D, H, W, C), ``b`` (K, T, R,
    S, C), and the result is (N, Z, P, Q, K). ``view.a`` is the im2col matrix of Chellapilla et al.
    (2006), which is never stored.

    With groups, ``b`` is (K, T, R, S, C / groups), and the view has a third mode: one product per
    group.

    Args:
        problem: the convolution.
        activation_layout, filter_layout, output_layout: where ``(n, d, h, w, c)``, ``(k, t, r, s,
            c)`` and ``(n, z, p, q, k)`` are stored, if not as above. The channel's mode may be
            nested, as :func:`interleaved` makes it; the operand then has a mode for each of its
            digits. Strides of ``a`` and of the result become kernel arguments, except that of the
            channel's first digit. No two elements of the result may share an offset.
        batch_index: int32, N entries: the image of ``a`` that is image n of the problem; -1 stands
            for an image of zeros.
        images: the number of images of ``a``; by default the number of index entries.

    Raises :class:`~layoutconv.errors.ArgumentError` for layouts of another shape, channel digits
    that do not divide one another, or an index of another dtype or length.

    >>> print(fprop_view(ConvProblem((2, 8, 8, 16), (32, 3, 3), stride=2, padding=1)).describe())
    A: (N,H,W,C):(H*W*C,W*C,C,1) o (0,-1,-1,0) o ((Q,P,N),(C,S,R)):((2@2,2@1,1@0),(1@3,1@2,1@1))
    B: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    D: (N,P,Q,K):(P*Q*K,Q*K,K,1) o 0 o ((Q,P,N),K):((1@2,1@1,1@0),1@3)
    runtime: N=2 H=8 W=8 P=4 Q=4
    static: C=16 K=32 R=3 S=3
    >>> print(fprop_view(ConvProblem((2, 8, 16), (32, 3), groups=4)))
    A: (N,W,C):(W*C,C,1) o (0,0,0) o ((Q,N),(Cg,S),G):((1@1,1@0),(1@2,1@1),Cg@2)
    B: (K,S,Cg):(S*Cg,Cg,1) o 0 o (Kg,(Cg,S),G):(1@0,(1@2,1@1),Kg@0)
    D: (N,Q,K):(Q*K,K,1) o 0 o ((Q,N),Kg,G):((1@1,1@0),1@2,Kg@2)
    """
    if batch_index is None:
        if images is not None:
            raise ArgumentError("images", "None without a batch_index", images)
        return _dense(problem, activation_layout, filter_layout, output_layout)
    x = Extents.of(problem)
    index = flat_index("batch_index", batch_index, x.input[0])
    stored = (row_count("images", images, x.input[0]), *x.input[1:])
    a = StoredLayout.of("activation_layout", activation_layout, stored)
    assert isinstance(a.layout, Layout)
    return _fprop(
        problem,
        a._replace(layout=indexed_images(index, a.layout, x.input[0])),
        StoredLayout.of("filter_layout", filter_layout, x.filter),
        StoredLayout.of("output_layout", output_layout, x.output),
    )


@kept_in(VIEWS)
def _dense(problem: ConvProblem, *layouts: Layout | None) -> GemmView:
    return _fprop(problem, *memories(problem, *layouts))


def memories(
    problem: ConvProblem,
    activation_layout: Layout | None,
    filter_layout: Layout | None,
    output_layout: Layout | None,
) -> tuple[StoredLayout, StoredLayout, StoredLayout]:
    """Return where the activation, the filter and the output are stored."""
    x = Extents.of(problem)
    return (
        StoredLayout.of("activation_layout", activation_layout, x.input),
        StoredLayout.of("filter_layout", filter_layout, x.filter),
        StoredLayout.of("output_layout", output_layout, x.output),
    )


def gather_fprop_view(
    problem: ConvProblem,
    gather_index: Any = None,
    scatter_index: Any = None,
    *,
    in_rows: int | None = None,
    out_rows: int | None = None,
) -> GemmView:
    """Forward convolution of a grid whose cells are stored in any order: CUTLASS's example 59.

    Args:
        problem: the convolution of the whole grid.
        gather_index: int32, N*D*H*W entries: for each cell its row of ``a``, a contiguous
            (in_rows, C) tensor; -1 reads as zeros. None: ``a`` is the dense (N, D, H, W, C).
        scatter_index: int32, N*Z*P*Q entries: for each cell its row of the result, a contiguous
            (out_rows, K) tensor; no row may occur twice, and -1 is not written. None: the result is
            the dense (N, Z, P, Q, K).
        in_rows, out_rows: the number of stored rows; by default the number of index entries.

    Raises :class:`~layoutconv.errors.ArgumentError` for an index of another dtype or length.

    >>> import numpy as np
    >>> cells = np.array([0, -1, 1, 2], dtype=np.int32)
    >>> view = gather_fprop_view(ConvProblem((1, 4, 8), (16, 3), padding=1), cells, in_rows=3)
    >>> print(view.a.outer)
    (in_rows,C):(C,1) o 0 o (N*W,C):(gather*1@0,1@1) o 0 o (N,W,C):(W@0,1@0,1@1)
    """
    x = Extents.of(problem)
    a, b, d = memories(problem, None, None, None)
    if gather_index is not None:
        grid = indexed_grid("gather_index", gather_index, x.input, "in_rows", in_rows)
        a = a._replace(layout=grid)
    if scatter_index is not None:
        grid = indexed_grid("scatter_index", scatter_index, x.output, "out_rows", out_rows)
        d = d._replace(layout=grid)
    return _fprop(problem, a, b, d)


def _fprop(problem: ConvProblem, a: StoredLayout, b: StoredLayout, d: StoredLayout) -> GemmView:
    """Return the view, given where the activation, the filter and the output are stored."""
    view = grouped_fprop(problem, a, b, d)
    return view if problem.groups > 1 else without_groups(view)


def grouped_fprop(
    problem: ConvProblem, a: StoredLayout, b: StoredLayout, d: StoredLayout
) -> GemmView:
    """Return the view with the group as third mode, even for one group."""
    x = Extents.of(problem)
    N, *voxels, _ = x.output
    modes = x.spatial_modes
    channels, group = a.split(x.group_input, x.groups, b.digits)
    filters, filter_group = d.split(x.group_output, x.groups)
    m_shape, k_shape = (*reversed(voxels), N), (*channels.shape, *reversed(x.taps))
    m_steps = (*(problem.stride[i - 1] * E(i) for i in modes), E(0))
    k_steps = (*channels.steps, *(problem.dilation[i - 1] * E(i) for i in modes))
    near = a.at(0, *(-near for near, _ in problem.padding))
    m_cells = (*(E(i) for i in modes), E(0))
    n_shape, n_steps = filters.mode
    return GemmView(
        a=in_groups(
            ComposedLayout(a.layout, near, Layout((m_shape, k_shape), (m_steps, k_steps))), group
        ),
        b=filter_in_groups(x, b, channels.shape),
        d=in_groups(
            ComposedLayout(d.layout, d.origin, Layout((m_shape, n_shape), (m_cells, n_steps))),
            filter_group,
        ),
    )


def filter_in_groups(x: Extents, memory: StoredLayout, digits: tuple[Any, ...]) -> ComposedLayout:
    """Return the filter as ``(k, (c, s, r, t), group)``, with the given digits of the channel."""
    assert isinstance(memory.layout, Layout)
    channels = digits, memory.steps(digits)
    operand = filter_operand(x.group_output, x.taps, x.group_input, memory.layout, channels)
    return in_groups(operand, Channels((x.groups,), (x.group_output * E(0),)))


def without_groups(view: GemmView) -> GemmView:
    """Return a view of one group without its third mode."""

    def two_modes(layout: Any) -> ComposedLayout:
        return ComposedLayout(layout.outer, layout.offset, layout.inner[:2])

    columns = None if view.columns is None else view.columns[:1]
    return GemmView(two_modes(view.a), two_modes(view.b), two_modes(view.d), columns=columns)
