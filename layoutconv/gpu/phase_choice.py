"""Choice of stride phases: which phases of a strided dgrad are concatenated along N in one view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..algebra import Layout
from ..conv import ConvProblem, dgrad_views
from ..conv.patches import patches_of
from ..conv.pointwise_views import is_pointwise, pointwise_dgrad_view
from ..conv.stride_phases import PhaseClass, classes_of
from ..planning.group_tile import GRANULE
from ..planning.machine import Machine
from ..view.gemm_view import GemmView
from . import machines

COLUMNS = 64  # of a tile: if wider, products with zeros cost more than the tile saves
# The same where Hopper kernels skip those zeros (``planning/structural_zeros.py``): whole k-tiles,
# and whole instructions of columns, for filter lines of channels and at most one spatial mode.
MORE_COLUMNS = 128
WHOLE = 64  # channels of a k-tile
WASTE = 1.5  # products, those with zeros included, per needed product
LAUNCH = 4e8  # 16-bit products, about, that an H100 forms during one more kernel launch
ONE_WAVE = 132 * 128 * 64  # results of one tile per SM of an H100: fewer take as long
IMAGES = 64  # rows of a tile that should be at the same place in their images
PRESENT = 0.7  # share of present (cell, tap) pairs below which tiles should skip absent taps


def columns_for(a: Tensor) -> int:
    """Return the number of columns that stride phases may fill, for the gradient ``a``; 0 on a CPU.

    >>> import torch
    >>> columns_for(torch.zeros(1, dtype=torch.float16))
    0
    """
    return columns_of(a.dtype, machines.machine_of(a.get_device())) if a.is_cuda else 0


def columns_of(dtype: torch.dtype, machine: Machine) -> int:
    """Return the same for data of ``dtype`` on a machine."""
    return MORE_COLUMNS if dtype.itemsize == 2 and machine.arch == "sm_90a" else COLUMNS


def arranged_dgrad(
    problem: ConvProblem, columns: int = COLUMNS, *, empty: bool = False
) -> tuple[GemmView, ...]:
    """Return the fastest form of ``dgrad_views``: the same products in another order.

    They are views of the memory of ``patches_of`` the problem. ``columns`` is the result of
    :func:`columns_for`. With ``empty``, views of residues that no tap reaches are included. If much
    of the filter falls outside a small output, rows run over the images first.

    >>> [view] = arranged_dgrad(ConvProblem((4096, 6, 4, 4, 64), (128, 3, 3, 3)))
    >>> print(view.d.inner)
    ((N,W,H,D),C):((1@0,1@3,1@2,1@1),1@4)
    >>> [up] = arranged_dgrad(ConvProblem((2, 64, 64, 64, 256), (512, 2, 2, 2), stride=2))
    >>> up.m, up.n, up.k
    (65536, 2048, 512)
    """
    channels, (problem, cells) = problem.C, patches_of(problem)
    views = _dgrad_views(problem, columns, empty)
    if cells == 1:
        return views
    # A merged cell has the channels of one cell after those of another: map columns to channels.
    entries = (Layout(((channels, view.n // channels),), ((1, 0),)) for view in views)
    return tuple(replace(view, columns=of) for view, of in zip(views, entries, strict=True))


def _dgrad_views(problem: ConvProblem, columns: int, empty: bool) -> tuple[GemmView, ...]:
    """Return the views of a problem without patches, with stride phases concatenated if faster."""
    if is_pointwise(problem):
        return (pointwise_dgrad_view(problem),)
    side_by_side, alike = phases_of(problem, columns, empty=empty)
    return dgrad_views(
        problem,
        side_by_side=side_by_side,
        alike=alike,
        images_first=problem.N >= IMAGES and present_taps(problem) < PRESENT,
        empty=empty,
    )


def concurrent(views: Sequence[GemmView]) -> tuple[GemmView, ...]:
    """Return the views of a pass with places, so that kernels run together, long sums first.

    >>> even, odd = arranged_dgrad(ConvProblem((2, 8, 8, 256), (64, 3, 1), (2, 1), (1, 0)))
    >>> [(view.k, view.place) for view in concurrent((even, odd))]
    [(128, 0), (64, 1)]
    """
    if len(views) < 2:
        return tuple(views)
    by_length = sorted(views, key=lambda view: -view.k)
    return tuple(replace(view, place=place) for place, view in enumerate(by_length))


def present_taps(problem: ConvProblem) -> float:
    """Return the share of (cell, tap) pairs, of taps that reach the cell, inside the output."""
    return prod(_share(problem, mode) for mode in range(problem.rank))


def _share(problem: ConvProblem, mode: int) -> float:
    """Return :func:`present_taps` in one spatial mode."""
    stride, dilation = problem.stride[mode], problem.dilation[mode]
    near, voxels = problem.padding[mode][0], problem.output_spatial[mode]
    met = [
        (cell + near - tap * dilation) // stride
        for cell in range(problem.spatial[mode])
        for tap in range(problem.taps[mode])
        if (cell + near - tap * dilation) % stride == 0
    ]
    return sum(0 <= voxel < voxels for voxel in met) / max(len(met), 1)


class Phases(NamedTuple):
    """Spatial modes whose phases ``dgrad_views`` concatenates: all of them, or those ``alike``."""

    side_by_side: tuple[int, ...]
    alike: tuple[int, ...]


def phases_of(problem: ConvProblem, columns: int = COLUMNS, *, empty: bool = False) -> Phases:
    """Return the modes whose phases to concatenate: those that save time, launches included.

    Phases that are alike (equally many taps) share a view without any products with zeros: one view
    per mode if the stride divides the taps, else two; at borders they add some cells. If phases
    differ in taps, the zeros of one that lacks a tap are multiplied with whatever another reads, an
    infinity too; this is done only for few channels.

    >>> phases_of(ConvProblem((2, 64, 64, 64, 256), (256, 2, 2, 2), 2)).alike
    (0, 1, 2)
    >>> phases_of(ConvProblem((1, 1024, 64), (128, 16), 8, 4)).alike
    (0,)
    >>> phases_of(ConvProblem((2, 64, 64, 64, 256), (256, 3, 3, 3), 2, 1))
    Phases(side_by_side=(), alike=())

    Groups need no phases as columns: tiles of several groups fill them.

    >>> phases_of(ConvProblem((2, 64, 64, 128), (128, 3, 3), 2, 1, groups=32))
    Phases(side_by_side=(), alike=())
    """
    if not columns:
        return Phases((), ())
    few = _few_channels(problem, columns)
    modes = range(problem.rank)
    residues = [classes_of(problem, mode, empty=empty) for mode in modes]
    alike = {
        mode: classes_of(problem, mode, alike=True, empty=empty)
        for mode in modes
        if problem.dilation[mode] == 1 and len(residues[mode]) > 1
    }
    fewer = [mode for mode, found in alike.items() if len(found) < len(residues[mode])]

    def cost(chosen: tuple[int, ...]) -> tuple[float, int]:
        found = [alike[mode] if mode in chosen else residues[mode] for mode in modes]
        return _cost(problem, found, prod(map(len, found))), -len(chosen)

    every = [some for n in range(len(fewer) + 1) for some in combinations(fewer, n)]
    best = min(every, key=cost)
    views = prod(len(residues[mode]) for mode in modes if mode not in few)
    if few and _cost(problem, residues, views) < cost(best)[0]:
        return Phases(few, ())
    return Phases((), best)


def _cost(problem: ConvProblem, classes: Sequence[Sequence[PhaseClass]], views: int) -> float:
    """Return the time of ``views`` views, in products, for the classes of each mode."""
    pairs = prod(sum(of.cells * of.residues * of.taps for of in found) for found in classes)
    cells = prod(sum(of.cells * of.residues for of in found) for found in classes)
    results = problem.N * problem.C * cells
    depth = problem.K / problem.groups * pairs / max(cells, 1)
    return max(results, views * ONE_WAVE) * depth + views * LAUNCH


def _few_channels(problem: ConvProblem, columns: int) -> tuple[int, ...]:
    """Return the spatial modes whose phases together fill the columns of a tile.

    With few channels a tile reads too much for the products it forms. Concatenated stride phases
    multiply some zeros, which costs less than reading the same rows again for each phase.

    >>> _few_channels(ConvProblem((2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1), COLUMNS)
    (2,)
    >>> _few_channels(ConvProblem((2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1), MORE_COLUMNS)
    (1, 2)
    >>> _few_channels(ConvProblem((2, 64, 64, 64, 24), (64, 3, 3, 3), 2, 1), MORE_COLUMNS)
    (2,)
    >>> _few_channels(ConvProblem((2, 64, 64, 64, 256), (256, 3, 3, 3), 2, 1), COLUMNS)
    ()
    """
    channels = problem.C // problem.groups, problem.K // problem.groups
    if problem.groups > 1 and not any(count % GRANULE for count in channels):
        return ()
    most = columns if problem.K // problem.groups % WHOLE == 0 else min(columns, COLUMNS)
    columns, modes = problem.C // problem.groups, list[int]()
    for mode in reversed(range(problem.rank)):
        stride, taps, near = problem.stride[mode], problem.taps[mode], problem.padding[mode][0]
        without_zeros = columns % COLUMNS == 0 and len(modes) < 2
        room = most if without_zeros else min(most, COLUMNS)
        if taps % stride == 0 or problem.dilation[mode] != 1 or columns * stride > room:
            continue  # if the stride divides the taps, phases are alike
        voxels = (stride - 1 + near) // stride + (taps - 1 - near) // stride + 1
        if stride * voxels <= WASTE * taps:
            columns *= stride
            modes.append(mode)
    return tuple(sorted(modes))
