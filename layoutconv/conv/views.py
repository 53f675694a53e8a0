"""Forward convolution as GEMM views: dense, and of a grid gathered through index buffers.

GEMM-M runs over ``(Q, P, Z, N)`` and GEMM-K over ``(C, S, R, T)``: orders are colexicographic, so
neighbouring GEMM rows are neighbouring voxels of one image and neighbouring columns are channels
that lie side by side in memory. CUTLASS's example 59 writes the same sets as ``(N,(Z,P,Q))`` and
``(C,(T,R,S))``, the image fastest: as matrices the two differ by a permutation of rows and columns,
as convolutions not at all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..algebra import ComposedLayout, E, Layout
from ..gemm_view import GemmView, OperandLayout
from ..operands import filter_operand, indexed_grid, row_major
from .extents import Extents
from .problem import ConvProblem


@lru_cache(maxsize=1024)
def fprop_view(problem: ConvProblem) -> GemmView:
    """Forward convolution of a tensor in NDHWC (NHWC, NWC) memory, as implicit GEMM.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (N, D, H, W, C), ``b`` (K, T, R,
    S, C), and the result is (N, Z, P, Q, K). ``view.a`` is the im2col matrix of Chellapilla et al.
    (2006), never stored.

    >>> print(fprop_view(ConvProblem((2, 8, 8, 16), (32, 3, 3), stride=2, padding=1)).describe())
    A: (N,H,W,C):(H*W*C,W*C,C,1) o (0,-1,-1,0) o ((Q,P,N),(C,S,R)):((2@2,2@1,1@0),(1@3,1@2,1@1))
    B: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,S,R)):(1@0,(1@3,1@2,1@1))
    D: (N,P,Q,K):(P*Q*K,Q*K,K,1) o 0 o ((Q,P,N),K):((1@2,1@1,1@0),1@3)
    runtime: N=2 H=8 W=8 P=4 Q=4
    static: C=16 K=32 R=3 S=3
    """
    x = Extents.of(problem)
    return _fprop(problem, row_major(x.input), row_major(x.output))


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
        gather_index: int32, N*D*H*W entries: the row of ``a``, a contiguous (in_rows, C) tensor,
            that holds the cell; -1 reads as zeros. None: ``a`` is the dense (N, D, H, W, C).
        scatter_index: int32, N*Z*P*Q entries: the row of the result, a contiguous (out_rows, K)
            tensor, that takes the cell, no row twice; -1 is not written. None: the result is the
            dense (N, Z, P, Q, K).
        in_rows, out_rows: how many rows are stored; by default as many as the index has entries.

    Raises :class:`~layoutconv.errors.ArgumentError` for an index of another dtype or length.

    >>> import numpy as np
    >>> cells = np.array([0, -1, 1, 2], dtype=np.int32)
    >>> view = gather_fprop_view(ConvProblem((1, 4, 8), (16, 3), padding=1), cells, in_rows=3)
    >>> print(view.a.outer)
    (in_rows,C):(C,1) o 0 o (N*W,C):(gather*1@0,1@1) o 0 o (N,W,C):(W@0,1@0,1@1)
    """
    x = Extents.of(problem)
    a: OperandLayout = row_major(x.input)
    d: OperandLayout = row_major(x.output)
    if gather_index is not None:
        a = indexed_grid("gather_index", gather_index, x.input, "in_rows", in_rows)
    if scatter_index is not None:
        d = indexed_grid("scatter_index", scatter_index, x.output, "out_rows", out_rows)
    return _fprop(problem, a, d)


def _fprop(problem: ConvProblem, a: OperandLayout, d: OperandLayout) -> GemmView:
    """The view, given where ``(n, d, h, w, c)`` and ``(n, z, p, q, k)`` are stored."""
    x = Extents.of(problem)
    (N, *voxels, K), C = x.output, x.input[-1]
    channel = len(x.input) - 1
    modes = x.spatial_modes
    m_shape, k_shape = (*reversed(voxels), N), (C, *reversed(x.taps))
    m_steps = (*(problem.stride[i - 1] * E(i) for i in modes), E(0))
    k_steps = (E(channel), *(problem.dilation[i - 1] * E(i) for i in modes))
    near = (0, *(-near for near, _ in problem.padding), 0)
    m_cells = (*(E(i) for i in modes), E(0))
    return GemmView(
        a=ComposedLayout(a, near, Layout((m_shape, k_shape), (m_steps, k_steps))),
        b=filter_operand(K, x.taps, C),
        d=ComposedLayout(d, 0, Layout((m_shape, K), (m_cells, E(channel)))),
    )
