"""Stride folding: space-to-depth along W turns a strided convolution into one of stride 1.

A line of W cells, W a multiple of the stride ``s``, is the same memory as ``W / s`` cells of
``s * C`` channels: ``logical_divide`` of W by ``s``, without a copy. There a window moves by one
cell and overlaps the previous one, so halo reuse applies: the rows that a tile has loaded for one
tap serve the next.
"""

from __future__ import annotations

from ..algebra import ComposedLayout, E, Layout
from ..base.caches import kept_in
from ..errors import ArgumentError
from ..view.gemm_view import GemmView
from ..view.operands import row_major, runtime, static
from .dense_views import VIEWS
from .letters import Extents
from .problem import ConvProblem


def folds(problem: ConvProblem) -> bool:
    """Return whether :func:`folded_fprop_view` accepts a problem.

    >>> folds(ConvProblem((2, 8, 16), (32, 3), 2, 1)), folds(ConvProblem((2, 9, 16), (32, 3), 2, 1))
    (True, False)
    """
    (stride, dilation), cells = (problem.stride[-1], problem.dilation[-1]), problem.spatial[-1]
    return stride > 1 and dilation == 1 and cells % stride == 0 and problem.groups == 1


def folded_taps(problem: ConvProblem) -> tuple[int, int]:
    """Return the first cell of a folded line that a window reaches, relative to its row's, and the
    number of cells it reaches.

    >>> folded_taps(ConvProblem((2, 8, 16), (32, 3), 2, 1))
    (-1, 2)
    """
    stride, near = problem.stride[-1], problem.padding[-1][0]
    first = -near // stride
    return first, (problem.taps[-1] - 1 - near) // stride - first + 1


@kept_in(VIEWS)
def folded_fprop_view(problem: ConvProblem) -> GemmView:
    """The forward pass with stride folding, as a GEMM view.

    The operands of ``execute(view, a, b)`` are contiguous, and the memory is that of
    :func:`fprop_view`: ``a`` (N, D, H, W / s, s * C), ``b`` (K, T, R, S, C), the result (N, Z, P,
    Q, K).

    With ``w = q * s + tap - near``, tap ``j`` of a folded line, at the ``i``-th of the ``s`` cells
    that it merges, is the filter's tap ``near + s * (first + j) + i``. Some of these are outside
    the filter, which reads zero there: with 3 taps and a stride of 2, 4 products for 3.

    Raises :class:`~layoutconv.errors.ArgumentError` unless :func:`folds` accepts the problem.

    >>> print(folded_fprop_view(ConvProblem((2, 8, 16), (32, 3), stride=2, padding=1)))
    A: (N,W0,C*2):(W0*C*2,C*2,1) o (0,-1,0) o ((Q,N),(C*2,S0)):((1@1,1@0),(1@2,1@1))
    B: (K,S,C):(S*C,C,1) o (0,-1,0) o ((K,1),((C,2),S0)):((1@0,1@1),((1@2,1@1),2@1))
    D: (N,Q,K):(Q*K,K,1) o 0 o ((Q,N),K):((1@1,1@0),1@2)
    """
    if not folds(problem):
        expected = "a stride > 1 along W, of which W is a multiple, dilation 1 there, one group"
        raise ArgumentError("problem", expected, problem)
    x, s, rank = Extents.of(problem), problem.stride[-1], problem.rank
    (N, *cells, C), (*_, K), voxels = x.input, x.output, x.output[1:-1]
    first, reached = folded_taps(problem)
    cells[-1] = runtime(problem.spatial[-1] // s, "W0")
    taps = (static(reached, "S0"), *reversed(x.taps[:-1]))
    slower = range(rank - 1, 0, -1)  # spatial modes but W
    m_shape = (*reversed(voxels), N)
    m_steps = (E(rank), *(problem.stride[i - 1] * E(i) for i in slower), E(0))
    a_taps = (E(rank), *(problem.dilation[i - 1] * E(i) for i in slower))
    b_taps = (s * E(rank), *(E(i) for i in slower))
    near = (0, *(-near for near, _ in problem.padding[:-1]), first, 0)
    tap = (*(0 for _ in range(rank)), problem.padding[-1][0] + s * first, 0)
    return GemmView(
        a=ComposedLayout(
            row_major((N, *cells, C * s)),
            near,
            Layout((m_shape, (C * s, *taps)), (m_steps, (E(rank + 1), *a_taps))),
        ),
        # Rows get a second mode of extent 1 that moves taps, since kernels only check the bounds of
        # modes that rows move.
        b=ComposedLayout(
            row_major(x.filter),
            tap,
            Layout(
                ((K, 1), ((C, s), *taps)),
                ((E(0), E(rank)), ((E(rank + 1), E(rank)), *b_taps)),
            ),
        ),
        d=ComposedLayout(
            row_major(x.output),
            0,
            Layout((m_shape, K), ((*(E(i) for i in range(rank, 0, -1)), E(0)), E(rank + 1))),
        ),
    )
