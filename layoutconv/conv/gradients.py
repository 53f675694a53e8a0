"""The gradients of a dense convolution as GEMM views: of its activation, and of its filter.

A cell ``h`` of the activation meets tap ``t`` in voxel ``p`` of the output where ``h + near = p *
stride + t * dilation``. Read as a map from (voxel, tap) to cells this is im2col, the operand of the
forward pass and of the filter's gradient. The activation's gradient reads it the other way round,
from (cell, tap) to voxels, which is affine on every class of cells that are equal modulo the
stride.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from ..algebra import ComposedLayout, E, Layout
from ..errors import ArgumentError
from ..gemm_view import GemmView
from ..operands import filter_operand, row_major, runtime, static
from .extents import Extents
from .problem import ConvProblem


@lru_cache(maxsize=1024)
def dgrad_views(problem: ConvProblem, filter_layout: Layout | None = None) -> tuple[GemmView, ...]:
    """The gradient of the activation: a unit-stride problem per residue of the cells.

    Args:
        problem: the forward convolution.
        filter_layout: where ``(k, t, r, s, c)`` of the filter is stored; by default contiguous, as
            in the forward pass. Kernels read vectors along the sum, over K here: with K the
            contiguous mode (the filter permuted to (C, T, R, S, K)) they need no transposition.

    ``logical_divide`` of a spatial mode by the stride, ``(stride, H / stride):(1, stride)``, has a
    slice of cells per residue; the taps that reach one are ``stride / gcd(stride, dilation)``
    apart. No product with a zero between voxels is formed. Every view writes its own cells of
    one result, and together they write all: a residue that no tap reaches is a view with ``k`` = 0,
    an empty sum. Residues come in the order of memory.

    A transposed convolution is these views of :meth:`ConvProblem.transposed`.

    The operands of ``execute(view, a, b, out)``: ``a`` the gradient of the output, contiguous (N,
    Z, P, Q, K); ``b`` the filter (K, T, R, S, C); ``out`` contiguous (N, D, H, W, C).

    Raises :class:`~layoutconv.errors.ArgumentError` for a filter layout of another shape.

    >>> even, odd = dgrad_views(ConvProblem((2, 8, 16), (32, 3), stride=2, padding=1))
    >>> print(even)
    A: (N,Q,K):(Q*K,K,1) o (0,0,0) o ((W0,N),(K,S0)):((1@1,1@0),(1@2,-1@1))
    B: (K,S,C):(S*C,C,1) o (0,1,0) o (C,(K,S0)):(1@2,(1@0,2@1))
    D: (N,W,C):(W*C,C,1) o (0,0,0) o ((W0,N),C):((2@1,1@0),1@2)
    >>> even.k, odd.k  # one tap reaches the even cells, two the odd ones
    (32, 64)
    """
    x = Extents.of(problem)
    if filter_layout is None:
        filter_layout = row_major((x.output[-1], *x.taps, x.input[-1]))
    if filter_layout.shape != (problem.K, *problem.taps, problem.C):
        expected = f"the shape (K, *taps, C) = {(problem.K, *problem.taps, problem.C)}"
        raise ArgumentError("filter_layout", expected, filter_layout)
    residues = [_residues(problem, mode) for mode in range(problem.rank)]
    return tuple(_dgrad(problem, filter_layout, classes) for classes in product(*residues))


@lru_cache(maxsize=1024)
def wgrad_view(problem: ConvProblem) -> GemmView:
    """The gradient of the filter: a sum over the voxels of the output.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` the gradient of the output (N, Z,
    P, Q, K), ``b`` the activation (N, D, H, W, C), and the result is (K, T, R, S, C). Neither
    operand is contiguous along the sum: ``a`` is along GEMM-M, ``b`` along GEMM-N.

    >>> print(wgrad_view(ConvProblem((2, 8, 8, 16), (32, 3, 3), stride=2, padding=1)))
    A: (N,P,Q,K):(P*Q*K,Q*K,K,1) o 0 o (K,(Q,P,N)):(1@3,(1@2,1@1,1@0))
    B: (N,H,W,C):(H*W*C,W*C,C,1) o (0,-1,-1,0) o ((C,S,R),(Q,P,N)):((1@3,1@2,1@1),(2@2,2@1,1@0))
    D: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    """
    x = Extents.of(problem)
    (N, *voxels, K), C = x.output, x.input[-1]
    channel, modes = len(x.input) - 1, x.spatial_modes
    sum_shape = (*reversed(voxels), N)
    at_voxel = (*(E(i) for i in modes), E(0))
    at_window = (*(problem.stride[i - 1] * E(i) for i in modes), E(0))
    at_tap = (E(channel), *(problem.dilation[i - 1] * E(i) for i in modes))
    near = (0, *(-near for near, _ in problem.padding), 0)
    windows = Layout(((C, *reversed(x.taps)), sum_shape), (at_tap, at_window))
    return GemmView(
        a=ComposedLayout(row_major(x.output), 0, Layout((K, sum_shape), (E(channel), at_voxel))),
        b=ComposedLayout(row_major(x.input), near, windows),
        d=filter_operand(K, x.taps, C),
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


def _residues(problem: ConvProblem, mode: int) -> list[_Residue]:
    """The classes of cells of a spatial mode, those without cells left out."""
    extent, filter_extent = problem.spatial[mode], problem.taps[mode]
    stride, dilation = problem.stride[mode], problem.dilation[mode]
    near, _ = problem.padding[mode]
    common = gcd(stride, dilation)
    tap_step = stride // common
    cell_letter, tap_letter = (letters[mode - problem.rank] for letters in ("DHW", "TRS"))
    found = []
    for cell in range(min(stride, extent)):
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


def _dgrad(problem: ConvProblem, memory: Layout, classes: tuple[_Residue, ...]) -> GemmView:
    """The view of the cells that belong to one class in every spatial mode."""
    x = Extents.of(problem)
    N, C, K = x.input[0], x.input[-1], x.output[-1]
    channel = len(x.input) - 1
    by_mode = [(i, classes[i - 1]) for i in x.spatial_modes]
    m_shape = (*(c.cells for _, c in by_mode), N)
    k_shape: tuple[Any, ...] = (K, *(c.taps for _, c in by_mode))
    cells = (*(problem.stride[i - 1] * E(i) for i, _ in by_mode), E(0))
    voxels = (*(E(i) for i, _ in by_mode), E(0))
    back = (E(channel), *(-c.voxel_step * E(i) for i, c in by_mode))
    taps = (E(0), *(c.tap_step * E(i) for i, c in by_mode))
    if not all(c.taps for c in classes):  # an empty sum, of no tap in no mode
        k_shape, back, taps = (K, runtime(0, "no_taps")), back[:2], taps[:2]
    return GemmView(
        a=ComposedLayout(
            row_major(x.output),
            (0, *(c.voxel for c in classes), 0),
            Layout((m_shape, k_shape), (voxels, back)),
        ),
        b=ComposedLayout(
            memory,
            (0, *(c.tap for c in classes), 0),
            Layout((C, k_shape), (E(channel), taps)),
        ),
        d=ComposedLayout(
            row_major(x.input),
            (0, *(c.cell for c in classes), 0),
            Layout((m_shape, C), (cells, E(channel))),
        ),
    )
