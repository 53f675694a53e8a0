"""The definition of a convolution in loops, and small problems to hold against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import torch
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem
from layoutconv.gemm_view import GemmView, OperandLayout, locate

Cell = tuple[int, ...]
Sums = dict[int, Counter[tuple[int, int]]]  # of each element that is written: what is multiplied


@st.composite
def problems(draw: st.DrawFn, channels: int = 2) -> ConvProblem:
    """Small problems of all ranks: padding beyond the filter, strides beyond it, odd sizes."""
    rank = draw(st.integers(1, 3))
    largest = {1: 9, 2: 5, 3: 3}[rank]

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    taps, stride, dilation = each(1, 3), each(1, 4), each(1, 3)
    near, far, extents = each(0, 3), each(0, 3), each(1, largest)
    spans = [d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True)]
    fit = [max(e, s - n - f) for e, s, n, f in zip(extents, spans, near, far, strict=True)]
    N, C, K = draw(st.integers(0, 2)), *draw(st.tuples(*[st.integers(1, channels)] * 2))
    padding = list(zip(near, far, strict=True))
    return ConvProblem((N, *fit, C), (K, *taps), stride, padding, dilation)


def meetings(problem: ConvProblem) -> Iterator[tuple[Cell, Cell, Cell]]:
    """Every (image, voxel), tap and (image, cell) that meet, padding left out."""
    for n, *voxel in ranges(problem.N, *problem.output_spatial):
        for tap in ranges(*problem.taps):
            cell = [
                v * s - near + t * d
                for v, s, (near, _), t, d in zip(
                    voxel, problem.stride, problem.padding, tap, problem.dilation, strict=True
                )
            ]
            if all(0 <= c < e for c, e in zip(cell, problem.spatial, strict=True)):
                yield (n, *voxel), tap, (n, *cell)


def sums(*views: GemmView) -> Sums:
    """What the views multiply and where they write it, by their own account.

    Fails if two elements are written to one place.
    """
    result: Sums = {}
    for view in views:
        a, b = table(view.a, view.m, view.k), table(view.b, view.n, view.k)
        d = table(view.d, view.m, view.n)
        for m, n in ranges(view.m, view.n):
            if d[m][n] < 0:
                continue
            pairs = zip(a[m], b[n], strict=True)
            assert d[m][n] not in result
            result[d[m][n]] = Counter((i, j) for i, j in pairs if i >= 0 and j >= 0)
    return result


def table(layout: OperandLayout, rows: int, columns: int) -> list[list[int]]:
    """Where each element is stored by the view's own account, -1 for nowhere."""
    if not columns:
        return [[] for _ in range(rows)]
    offset, valid = locate(layout, torch.arange(rows)[:, None], torch.arange(columns)[None])
    return torch.where(torch.as_tensor(valid), offset, -1).expand(rows, columns).tolist()


def ranges(*extents: int) -> product:
    return product(*map(range, extents))


def flat(coordinate: Cell, shape: Cell) -> int:
    """The position of a coordinate in a contiguous tensor of ``shape``."""
    position = 0
    for c, s in zip(coordinate, shape, strict=True):
        position = position * s + c
    return position
