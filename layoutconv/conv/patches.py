"""Patches: non-overlapping windows along W, read as one cell with more channels (patch embedding).

If the stride equals the window and nothing is padded, the ``s`` cells of a window are contiguous,
(N, D, H, W / s, s * C), and so are the filter's taps, (K, T, R, 1, s * C). Read this way, the
convolution has a stride of 1 along W and one tap: three channels of 16 cells are 48 contiguous
elements in all three passes, and a transposed convolution has no stride phases along W.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .problem import ConvProblem


class Patches(NamedTuple):
    """A problem over the same memory whose channels are those of ``cells`` cells along W."""

    problem: ConvProblem
    cells: int


def patches_of(problem: ConvProblem) -> Patches:
    """Return the problem on whole windows along W, with one tap there; else the problem itself.

    Its operands are the same memory in other shapes: the activation (N, D, H, W / s, s * C), the
    filter (K, T, R, 1, s * C), and the output unchanged.

    >>> patches = patches_of(ConvProblem((8, 224, 224, 3), (768, 16, 16), stride=16))
    >>> patches.problem.activation, patches.problem.filter, patches.cells
    ((8, 224, 14, 48), (768, 16, 1), 16)
    >>> patches_of(ConvProblem((8, 225, 225, 3), (768, 16, 16), stride=16)).cells
    1
    """
    stride, cells = problem.stride[-1], problem.spatial[-1]
    alone = problem.groups == 1 and problem.dilation[-1] == 1 and problem.padding[-1] == (0, 0)
    if stride == 1 or stride != problem.taps[-1] or not alone or cells % stride:
        return Patches(problem, 1)
    activation = (problem.N, *problem.spatial[:-1], cells // stride, stride * problem.C)
    filter = (problem.K, *problem.taps[:-1], 1)
    steps = (*problem.stride[:-1], 1)
    return Patches(replace(problem, activation=activation, filter=filter, stride=steps), stride)
