"""Cells that one window alone takes, along W, as channels of one cell: a patch embedding.

Where the stride is the window and nothing is padded, the ``s`` cells of a window lie side by side
in memory, (N, D, H, W / s, s * C), and so do the filter's taps, (K, T, R, 1, s * C). Read so, the
convolution has a stride of 1 along W and one tap: three channels of 16 cells are 48 elements in one
piece, in all three passes, and a transposed convolution has no residues there.
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
    """The problem on whole windows along W, of one tap there; itself, of one cell, without them.

    Its operands are those of the problem in other shapes: the activation (N, D, H, W / s, s * C),
    the filter (K, T, R, 1, s * C), the output as it was.

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
