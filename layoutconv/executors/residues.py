"""Which residues of a strided convolution's gradient a GPU computes side by side."""

from __future__ import annotations

from functools import lru_cache

from ..conv import ConvProblem

COLUMNS = 64  # of a tile: wider, what is multiplied with zeros costs more than it saves
WASTE = 1.5  # products, those with zeros included, for one that is needed


@lru_cache(maxsize=1024)
def residues_side_by_side(problem: ConvProblem) -> tuple[int, ...]:
    """Spatial modes for ``dgrad_views(side_by_side=)``: as many as fill the columns of a tile.

    With few channels a tile reads too much for what it multiplies; what residues side by side
    multiply with zeros costs less than reading the same rows for each of them again.

    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1))
    (2,)
    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 256), (256, 3, 3, 3), 2, 1))
    ()
    """
    columns, modes = problem.C // problem.groups, []
    for mode in reversed(range(problem.rank)):
        stride, taps, near = problem.stride[mode], problem.taps[mode], problem.padding[mode][0]
        if stride == 1 or problem.dilation[mode] != 1 or columns * stride > COLUMNS:
            continue
        voxels = (stride - 1 + near) // stride + (taps - 1 - near) // stride + 1
        if stride * voxels <= WASTE * taps:
            columns *= stride
            modes.append(mode)
    return tuple(modes)
