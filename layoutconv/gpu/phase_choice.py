"""How a GPU goes about the gradient of an activation: which rows and columns are side by side."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..conv import ConvProblem, dgrad_views
from ..view.gemm_view import GemmView
from . import machines

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COLUMNS = 64  # of a tile: wider, what is multiplied with zeros costs more than it saves
# Where Hopper's kernels leave those zeros out (``planning/structural_zeros.py``): of whole k-tiles,
# and whole instructions of columns, whose lines of the filter are channels and one mode at most.
MORE_COLUMNS = 128
WHOLE = 64  # channels of a k-tile
WASTE = 1.5  # products, those with zeros included, for one that is needed
IMAGES = 64  # rows of a tile that should be at the same place
PRESENT = 0.7  # share of (cell, tap) below which tiles look for taps that they lack


def columns_for(a: Tensor) -> int:
    """Return how many columns residues may fill where the gradient ``a`` is read: none on a CPU.

    >>> import torch
    >>> columns_for(torch.zeros(1, dtype=torch.float16))
    0
    """
    return columns_of(a.dtype, a.get_device()) if a.is_cuda else 0


def columns_of(dtype: torch.dtype, device: int) -> int:
    """The same of data of ``dtype`` on the GPU of a number."""
    hopper = dtype.itemsize == 2 and machines.machine_of(device).arch == "sm_90a"
    return MORE_COLUMNS if hopper else COLUMNS


def arranged_dgrad(problem: ConvProblem, columns: int = COLUMNS) -> tuple[GemmView, ...]:
    """``dgrad_views`` as they are fastest: the same products in another order, none of them empty.

    ``columns``: what :func:`columns_for` says. Where much of the filter falls outside a small
    output, rows run over the images first.

    >>> [view] = arranged_dgrad(ConvProblem((4096, 6, 4, 4, 64), (128, 3, 3, 3)))
    >>> print(view.d.inner)
    ((N,W,H,D),C):((1@0,1@3,1@2,1@1),1@4)
    """
    return dgrad_views(
        problem,
        side_by_side=residues_side_by_side(problem, columns),
        images_first=problem.N >= IMAGES and present_taps(problem) < PRESENT,
        empty=False,
    )


def present_taps(problem: ConvProblem) -> float:
    """The share of pairs of a cell and a tap that reaches it that meet inside of the output."""
    return prod(_share(problem, mode) for mode in range(problem.rank))


def _share(problem: ConvProblem, mode: int) -> float:
    """:func:`present_taps` in a spatial mode."""
    stride, dilation = problem.stride[mode], problem.dilation[mode]
    near, voxels = problem.padding[mode][0], problem.output_spatial[mode]
    met = [
        (cell + near - tap * dilation) // stride
        for cell in range(problem.spatial[mode])
        for tap in range(problem.taps[mode])
        if (cell + near - tap * dilation) % stride == 0
    ]
    return sum(0 <= voxel < voxels for voxel in met) / max(len(met), 1)


def residues_side_by_side(problem: ConvProblem, columns: int = COLUMNS) -> tuple[int, ...]:
    """Spatial modes for ``dgrad_views(side_by_side=)``: as many as fill the columns of a tile.

    With few channels a tile reads too much for what it multiplies; what residues side by side
    multiply with zeros costs less than reading the same rows for each of them again.

    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1))
    (2,)
    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1), MORE_COLUMNS)
    (1, 2)
    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 24), (64, 3, 3, 3), 2, 1), MORE_COLUMNS)
    (2,)
    >>> residues_side_by_side(ConvProblem((2, 64, 64, 64, 256), (256, 3, 3, 3), 2, 1))
    ()
    """
    most = columns if problem.K // problem.groups % WHOLE == 0 else min(columns, COLUMNS)
    columns, modes = problem.C // problem.groups, list[int]()
    for mode in reversed(range(problem.rank)):
        stride, taps, near = problem.stride[mode], problem.taps[mode], problem.padding[mode][0]
        without_zeros = columns % COLUMNS == 0 and len(modes) < 2
        room = most if without_zeros else min(most, COLUMNS)
        if stride == 1 or problem.dilation[mode] != 1 or columns * stride > room:
            continue
        voxels = (stride - 1 + near) // stride + (taps - 1 - near) // stride + 1
        if stride * voxels <= WASTE * taps:
            columns *= stride
            modes.append(mode)
    return tuple(sorted(modes))
