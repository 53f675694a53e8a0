"""Halo plans: the rows of a split tensor that each result row reads, derived from the GEMM views.

A pass writes its result row by row along the split mode: the forward pass writes voxels, the
gradient of the activation writes cells. The view of the pass says what a row reads: operand ``d``
gives the place that GEMM row ``m`` is written to, operand ``a`` the places that it reads for every
``k``. Both layouts are sums over their modes, so evaluating one mode at a time gives all bounds.
Stride, dilation, padding and the stride phases of a strided gradient need no rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algebra.int_tuple import flatten, unflatten
from ..base.caches import BoundedCache, kept_in, remembered
from ..conv import ConvProblem, dgrad_views, fprop_view
from ..view.gemm_view import GemmView, OperandLayout, stages

_FAR = 1 << 62  # beyond every row: bound of a row that reads nothing

_PLANS: BoundedCache[Any, Any] = BoundedCache("halo plans", entries=512, nbytes=4 << 20)


class ReadRange(NamedTuple):
    """The rows that each written row reads: from ``low`` on, and before ``high``.

    Both are int64, one number per written row. Bounds follow from the view and include padding,
    outside the tensor. ``high <= low`` for a row that reads nothing.
    """

    low: Tensor
    high: Tensor

    def of(self, rows: range) -> tuple[int, int]:
        """Return the common ``(low, high)`` of some rows; ``high <= low`` if they read nothing."""
        if not rows:
            return _FAR, -_FAR
        part = slice(rows.start, rows.stop)
        return int(self.low[part].min()), int(self.high[part].max())

    def inside(self, extent: int) -> ReadRange:
        """Return the bounds without the padding around a tensor of ``extent`` rows."""
        low, high = self.low.clamp(min=0), self.high.clamp(max=extent)
        nothing = high <= low
        return ReadRange(low.masked_fill(nothing, _FAR), high.masked_fill(nothing, -_FAR))


def reads(views: Sequence[GemmView], mode: int, written: int) -> ReadRange:
    """Return the rows of ``a`` that each of the ``written`` rows of ``d`` reads, along ``mode``.

    ``views`` together write the result. Their ``a`` and ``d`` are stored as ``(N, *spatial, C)``;
    ``mode`` is a spatial mode.

    >>> problem = ConvProblem((1, 6, 8), (8, 3), stride=2, padding=1)
    >>> forward = reads([fprop_view(problem)], 0, 3)
    >>> forward.low.tolist(), forward.high.tolist()
    ([-1, 1, 3], [2, 4, 6])
    >>> backward = reads(dgrad_views(problem), 0, 6)
    >>> backward.low.tolist(), backward.high.tolist()
    ([0, 0, 1, 1, 2, 2], [1, 2, 2, 3, 3, 4])
    """
    low = torch.full((written,), _FAR)
    high = torch.full((written,), -_FAR)
    for view in views:
        if not view.k:
            continue  # an empty sum
        columns = [(int(c.min()), int(c.max())) for c in _along(view.a, 1, mode)]
        least, most = (sum(ends) for ends in zip(*columns, strict=True))
        rows, reading = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        # All modes of m; a mode that moves the row of neither operand is skipped.
        for to, of in zip(_along(view.d, 0, mode), _along(view.a, 0, mode), strict=True):
            if bool(to.any() | of.any()):
                rows = (rows[:, None] + to).flatten()
                reading = (reading[:, None] + of).flatten()
        rows, reading = rows + _offset(view.d, mode), reading + _offset(view.a, mode)
        low[rows] = torch.minimum(low[rows], reading + least)
        high[rows] = torch.maximum(high[rows], reading + most + 1)
    return ReadRange(low, high)


def _along(operand: OperandLayout, which: int, mode: int) -> list[Tensor]:
    """Return what each mode of m (``which`` 0) or of k (1) adds to a spatial coordinate."""
    layout = stages(operand)[0].layout
    extents = [int(extent) for extent in flatten(layout.shape[which])]
    found = []
    for at, extent in enumerate(extents):
        digits: list[Any] = [0] * len(extents)
        digits[at] = torch.arange(extent)
        crd: list[Any] = [unflatten(iter([0] * len(flatten(s))), s) for s in layout.shape]
        crd[which] = unflatten(iter(digits), layout.shape[which])
        moved = _in_mode(layout(tuple(crd)), mode)
        found.append(torch.as_tensor(moved, dtype=torch.int64).expand(extent))
    return found


def _offset(operand: OperandLayout, mode: int) -> int:
    return int(_in_mode(stages(operand)[0].offset, mode))


def _in_mode(coordinate: Any, mode: int) -> Any:
    """Return spatial mode ``mode`` of ``(n, d, h, w, c)``, whose trailing zeros may be missing."""
    if not isinstance(coordinate, tuple) or len(coordinate) <= mode + 1:
        return 0
    return coordinate[mode + 1]


class HaloPart(NamedTuple):
    """Rows of a result that one launch computes, as a convolution of its own."""

    rows: range  # written rows
    reads: range  # rows of the input tensor, all inside it
    zeros: int  # rows of zeros before the rows that are read
    problem: ConvProblem  # reads these rows, with the zeros before them


class HaloPlan(NamedTuple):
    """A rank's sends, receives and computations in a pass; row numbers are global."""

    own: range  # rows that the rank holds of the input tensor
    rows: range  # rows that the rank writes
    inner: HaloPart | None  # reads only `own`
    outer: tuple[HaloPart, ...]
    near: range  # the halo before `own`, and the halo after it
    far: range
    send: tuple[range, ...]  # to each rank
    receive: tuple[range, ...]  # from each rank
    exchanged: bool  # whether any rank sends anything


class Split(NamedTuple):
    """A spatial mode that is cut into slabs: the ranks' bounds, and this rank.

    ``activation`` and ``output`` end with the mode's extents.
    """

    mode: int
    activation: tuple[int, ...]
    output: tuple[int, ...]
    rank: int


@kept_in(_PLANS)
def fprop_plan(problem: ConvProblem, split: Split) -> HaloPlan:
    """Return the plan of the forward pass.

    >>> problem = ConvProblem((1, 8, 4), (4, 3), padding=1)
    >>> plan = fprop_plan(problem, Split(0, (0, 4, 8), (0, 4, 8), rank=0))
    >>> plan.inner.rows, [part.rows for part in plan.outer], plan.far, plan.send
    (range(0, 3), [range(3, 4)], range(4, 5), (range(0, 0), range(3, 4)))
    """
    mode = split.mode
    windows = fprop_reads(problem, mode)
    found = windows.inside(problem.spatial[mode])
    part = partial(_fprop_part, problem, mode, windows, found)
    return _plan(found, split.activation, split.output, split.rank, part)


@kept_in(_PLANS)
def dgrad_plan(problem: ConvProblem, split: Split) -> HaloPlan:
    """Return the plan of the activation's gradient, which reads the output's gradient.

    >>> problem = ConvProblem((1, 8, 4), (4, 2), stride=2)
    >>> dgrad_plan(problem, Split(0, (0, 4, 8), (0, 2, 4), rank=0)).exchanged
    False
    """
    mode = split.mode
    extent = problem.output_spatial[mode]
    found = reads(dgrad_views(problem), mode, problem.spatial[mode]).inside(extent)
    part = partial(_dgrad_part, problem, mode, found)
    return _plan(found, split.output, split.activation, split.rank, part)


@remembered(256)
def fprop_reads(problem: ConvProblem, mode: int) -> ReadRange:
    """Return the rows of the activation that each row of the output reads, with padding."""
    return reads([fprop_view(problem)], mode, problem.output_spatial[mode])


@remembered(256)
def output_bounds(problem: ConvProblem, mode: int, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return the bounds of the output's slabs, given those of the activation's.

    A row of the output goes to the rank that holds the middle of its window, usually most of it.

    >>> output_bounds(ConvProblem((1, 9, 4), (4, 3), 2, padding=1), 0, (0, 5, 9))
    (0, 3, 5)
    """
    low, high = fprop_reads(problem, mode)
    middle = ((low + high - 1) // 2).clamp(0, problem.spatial[mode] - 1)
    cuts = torch.searchsorted(middle, torch.tensor(bounds[1:-1], dtype=torch.int64))
    return (0, *cuts.tolist(), problem.output_spatial[mode])


def _plan(
    found: ReadRange, held: Sequence[int], written: Sequence[int], rank: int, part: Any
) -> HaloPlan:
    """Make a plan from the rows read inside the tensor; ``part`` makes a :class:`HaloPart`."""
    slabs = [range(*ends) for ends in pairwise(held)]
    results = [range(*ends) for ends in pairwise(written)]
    halos = [_halo(found, own, rows) for own, rows in zip(slabs, results, strict=True)]
    own, rows, (near, far) = slabs[rank], results[rank], halos[rank]
    # Rows that read before `own` lie before `begin`; rows that read after it, from `end` on.
    low, high = found.low[rows.start : rows.stop], found.high[rows.start : rows.stop]
    needs_near = ((low < own.start) & (high > low)).nonzero()
    needs_far = ((high > own.stop) & (high > low)).nonzero()
    begin = rows.start + int(needs_near.max()) + 1 if len(needs_near) else rows.start
    end = rows.start + int(needs_far.min()) if len(needs_far) else rows.stop
    if begin < end:
        inner = part(range(begin, end))
        edges = [range(rows.start, begin), range(end, rows.stop)]
    else:
        inner, edges = None, [rows]
    return HaloPlan(
        own=own,
        rows=rows,
        inner=inner,
        outer=tuple(part(edge) for edge in edges if edge),
        near=near,
        far=far,
        send=tuple(_common(own, *halo) for halo in halos),
        receive=tuple(_common(slab, near, far) for slab in slabs),
        exchanged=any(len(side) for halo in halos for side in halo),
    )


def _halo(found: ReadRange, own: range, rows: range) -> tuple[range, range]:
    """Return the rows before and after ``own`` that a rank needs to write ``rows``."""
    low, high = found.of(rows)
    near = range(low, min(own.start, high))
    far = range(max(own.stop, low), high)
    return near if near else _NONE, far if far else _NONE


_NONE = range(0)


def _common(slab: range, *sides: range) -> range:
    """Return the rows of a slab that are in a halo; at most one of the ``sides`` overlaps it."""
    for side in sides:
        common = range(max(slab.start, side.start), min(slab.stop, side.stop))
        if common:
            return common
    return _NONE


def _fprop_part(
    problem: ConvProblem, mode: int, windows: ReadRange, found: ReadRange, rows: range
) -> HaloPart:
    """Return the part that computes ``rows`` of the output; reads outside ``found`` are padding."""
    (low, high), (start, stop) = windows.of(rows), found.of(rows)
    if start >= stop:  # padding alone
        return HaloPart(rows, _NONE, 1, _with(problem, mode, 1, 0, high - low - 1))
    numbers = stop - start, start - low, high - stop
    return HaloPart(rows, range(start, stop), 0, _with(problem, mode, *numbers))


def _dgrad_part(problem: ConvProblem, mode: int, found: ReadRange, rows: range) -> HaloPart:
    """Return the part for ``rows`` of the activation, whose output is the voxels that read them.

    Its first cell lies ``near`` cells after the start of the first voxel's window. If no voxel
    reads the first cells, that would be negative: then a voxel of zeros comes first. The cells
    after the last window are fewer than a stride and add no voxel.
    """
    stride, begin = problem.stride[mode], rows.start + problem.padding[mode][0]
    start, stop = found.of(rows)
    if start >= stop:
        start = stop = begin // stride + 1
    zeros = int(start * stride > begin)
    near = begin - (start - zeros) * stride
    last = (stop - start + zeros - 1) * stride  # where the last window begins
    far = max(0, last + problem.spans[mode] - len(rows) - near)
    return HaloPart(rows, range(start, stop), zeros, _with(problem, mode, len(rows), near, far))


def _with(problem: ConvProblem, mode: int, extent: int, near: int, far: int) -> ConvProblem:
    """Return the problem with another extent and padding in a spatial mode."""
    activation, padding = list(problem.activation), list(problem.padding)
    activation[mode + 1], padding[mode] = extent, (near, far)
    return ConvProblem(
        activation, problem.filter, problem.stride, padding, problem.dilation, problem.groups
    )
