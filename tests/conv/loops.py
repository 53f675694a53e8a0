"""The definition of a convolution in loops, and small problems to hold against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from layoutconv.conv import ConvProblem
from layoutconv.view.gemm_view import GemmView, OperandLayout, locate

Cell = tuple[int, ...]
Sums = dict[int, Counter[tuple[int, int]]]  # of each element that is written: what is multiplied


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


@dataclass(frozen=True)
class Places:
    """Where the elements of activation, filter and output are; contiguous by default."""

    problem: ConvProblem
    activation: Callable[..., int] | None = None
    filter: Callable[..., int] | None = None
    output: Callable[..., int] | None = None

    def x(self, *at: int) -> int:
        return self.activation(*at) if self.activation else flat(at, self.problem.activation)

    def w(self, *at: int) -> int:
        return self.filter(*at) if self.filter else flat(at, self.problem.stored_filter)

    def y(self, *at: int) -> int:
        return self.output(*at) if self.output else flat(at, self.problem.output)


@dataclass(frozen=True)
class Passes:
    """The products of each pass, by the definition, and where it writes them."""

    fprop: Sums
    dgrad: Sums
    wgrad: Sums

    @classmethod
    def of(cls, places: Places) -> Passes:
        problem = places.problem
        per_group = problem.stored_filter[-1]
        x, w, y = (
            {place(*at): Counter() for at in ranges(*shape)}
            for place, shape in (
                (places.x, problem.activation),
                (places.w, problem.stored_filter),
                (places.y, problem.output),
            )
        )
        for voxel, tap, cell in meetings(problem):
            for k, in_group in ranges(problem.K, per_group):
                c = k * problem.groups // problem.K * per_group + in_group
                at_x, at_w, at_y = (
                    places.x(*cell, c),
                    places.w(k, *tap, in_group),
                    places.y(*voxel, k),
                )
                y[at_y][at_x, at_w] += 1
                x[at_x][at_y, at_w] += 1
                w[at_w][at_y, at_x] += 1
        return cls(fprop=y, dgrad=x, wgrad=w)


def sums(*views: GemmView) -> Sums:
    """Return what the views multiply and where they write it, by their own account.

    Fails if two elements are written to one place.
    """
    result: Sums = {}
    for view in views:
        for l in range(view.l):
            a, b = table(view.a, view.m, view.k, l), table(view.b, view.n, view.k, l)
            d = table(view.d, view.m, view.n, l)
            for m, n in ranges(view.m, view.n):
                if d[m][n] < 0:
                    continue
                pairs = zip(a[m], b[n], strict=True)
                assert d[m][n] not in result
                result[d[m][n]] = Counter((i, j) for i, j in pairs if i >= 0 and j >= 0)
    return result


def table(layout: OperandLayout, rows: int, columns: int, l: int = 0) -> list[list[int]]:
    """Where each element is stored by the view's own account, -1 for nowhere."""
    if not columns:
        return [[] for _ in range(rows)]
    modes = torch.arange(rows)[:, None], torch.arange(columns)[None], torch.tensor([[l]])
    offset, valid = locate(layout, *modes[: len(layout.shape)])
    return torch.where(torch.as_tensor(valid), offset, -1).expand(rows, columns).tolist()


def ranges(*extents: int) -> product:
    return product(*map(range, extents))


def flat(coordinate: Cell, shape: Cell) -> int:
    """The position of a coordinate in a contiguous tensor of ``shape``."""
    position = 0
    for c, s in zip(coordinate, shape, strict=True):
        position = position * s + c
    return position
