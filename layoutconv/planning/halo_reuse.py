"""Halo reuse: one tile of A, with a halo of a few more rows, serves several taps.

Where A's fastest row mode and a tap move the same coordinate, the next tap reads what the next rows
read: ``A[q, (c, s, ..)] = A[q + d*s, (c, 0, ..)]``, within a line. So a tile of ``m + d * (S - 1)``
rows serves all ``S`` taps: A is loaded once and multiplied S times. Rows are numbered through
consecutive lines, and the last taps of a line must not read the next line. So :func:`widened` adds
a few rows at the end of each line, which read the padding and are not stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layoutconv.algebra.composed import ComposedLayout
from layoutconv.algebra.int_tuple import flatten
from layoutconv.algebra.layout import Layout
from layoutconv.algebra.stride import ArithmeticTuple, ScaledBasis
from layoutconv.algebra.symint import is_runtime

from ..view.gemm_view import GemmView, OperandLayout, gathers, stages
from .tile import HALO, TileConfig


def widened(view: GemmView) -> GemmView | None:
    """Return the same GEMM with a row for every ``q + d*s``, and S as the slowest mode of k.

    None if no tap is a shift by whole rows: with a stride, with a single tap, or for gathered rows.
    Also None if the halo exceeds ``HALO`` rows.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> print(widened(fprop_view(ConvProblem((2, 6, 7, 64), (32, 3, 3), padding=1))))
    A: (N,H,W,C):(H*W*C,W*C,C,1) o (0,-1,-1,0) o ((Q+2,P,N),(C,R,S)):((1@2,1@1,1@0),(1@3,1@1,1@2))
    B: (K,R,S,C):(R*S*C,S*C,C,1) o 0 o (K,(C,R,S)):(1@0,(1@3,1@1,1@2))
    D: (N,P,Q,K):(P*Q*K,Q*K,K,1) o 0 o ((Q+2,P,N),K):((1@2,1@1,1@0),1@3)
    >>> widened(fprop_view(ConvProblem((2, 6, 7, 64), (32, 3, 3), stride=2)))
    """
    a, b, d = _first_map(view.a), _first_map(view.b), _first_map(view.d)
    if a is None or b is None or d is None:
        return None
    step = _rows_of_a_tap(a)
    if step is None or not _ends_with_its_line(d, a.rows[0]):
        return None
    S = int(a.columns[1])
    more = abs(step) * (S - 1)
    if S < 2 or more > HALO:
        return None
    a, b = a.taps_last(step < 0), b.taps_last(step < 0)
    rows = a.rows[0] + more, *a.rows[1:]
    return GemmView(
        a._replace(rows=rows).of(view.a),
        b.of(view.b),
        d._replace(rows=rows).of(view.d),
        columns=view.columns,
    )


def halo_rows_per_tap(view: GemmView) -> int:
    """Return the rows from one slowest tap to the next, in a view that :func:`widened` made.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> problem = ConvProblem((1, 9, 32), (32, 3), padding=2, dilation=2)
    >>> halo_rows_per_tap(widened(fprop_view(problem)))
    2
    """
    domain = stages(view.a)[0].layout
    row, tap = flatten(domain.stride[0])[0], flatten(domain.stride[1])[-1]
    return int(tap.value) // int(row.value)


class Halo(NamedTuple):
    """The taps that share a tile's rows: how many, and rows and columns from one to the next."""

    taps: int
    rows: int
    columns: int

    @property
    def halo(self) -> int:
        """Return the rows of the halo, beyond the tile's own."""
        return self.rows * (self.taps - 1)


def halo_of(view: GemmView, tile: TileConfig) -> Halo:
    """Return the halo of a tile over a view; the view is widened if the tile has several taps.

    >>> from layoutconv.conv import ConvProblem, dgrad_views
    >>> from .tile import specialized
    >>> view = widened(dgrad_views(ConvProblem((1, 9, 9, 32), (64, 3, 3), dilation=(1, 4)))[0])
    >>> halo_of(view, specialized((128, 32, 32), (4, 1), 4, halo_taps=3))
    Halo(taps=3, rows=4, columns=192)
    """
    if tile.halo_taps == 1:
        return Halo(1, 0, 0)
    return Halo(tile.halo_taps, halo_rows_per_tap(view), int(view.k) // tile.halo_taps)


class _OperandMap(NamedTuple):
    """The first map of an operand, with flat rows, and the bounds of its codomain.

    A column mode may have several digits, such as the channels of adjacent cells.
    """

    offset: Any
    rows: Any
    row_steps: Any
    columns: Any
    column_steps: Any
    bounds: Any

    def taps_last(self, backwards: bool) -> _OperandMap:
        """Return the map with the second column mode slowest, reversed if ``backwards``."""
        channel, extent, *others = self.columns
        channel_step, step, *steps = self.column_steps
        offset = self.offset
        if backwards:
            (mode,) = step.path
            start = list(offset) if offset else [0] * len(self.bounds)
            start[mode] = start[mode] + (int(extent) - 1) * step.value
            offset, step = ArithmeticTuple(start), ScaledBasis(-step.value, step.path)
        return self._replace(
            offset=offset,
            columns=(channel, *others, extent),
            column_steps=(channel_step, *steps, step),
        )

    def of(self, layout: Any) -> ComposedLayout:
        """Return the operand ``layout`` with this as its first map."""
        shape, stride = list(layout.inner.shape), list(layout.inner.stride)
        parts = (self.rows, self.row_steps), (self.columns, self.column_steps)
        for mode, (extents, steps) in enumerate(parts):
            if isinstance(shape[mode], tuple):
                shape[mode], stride[mode] = tuple(extents), tuple(steps)
            else:
                shape[mode], stride[mode] = extents[0], steps[0]
        return ComposedLayout(layout.outer, self.offset, Layout(tuple(shape), tuple(stride)))


def _first_map(layout: OperandLayout) -> _OperandMap | None:
    if not isinstance(layout, ComposedLayout) or not isinstance(layout.inner, Layout):
        return None
    first, *rest = stages(layout)
    (rows, columns), (row_steps, column_steps) = first.layout.shape[:2], first.layout.stride[:2]
    rows, row_steps = flatten(rows), flatten(row_steps)
    if not isinstance(columns, tuple):
        columns, column_steps = (columns,), (column_steps,)
    steps = (*row_steps, *flatten(column_steps))
    coordinates = all(isinstance(d, ScaledBasis) and len(d.path) == 1 for d in steps)
    if not coordinates or any(map(gathers, (first, *rest))):
        return None
    return _OperandMap(first.offset, rows, row_steps, columns, column_steps, rest[0].layout.shape)


def _rows_of_a_tap(a: _OperandMap) -> int | None:
    """Return the rows between taps, if rows and taps, and nothing else, move one mode."""
    if len(a.columns) < 2:
        return None
    row, tap = a.row_steps[0], a.column_steps[1]
    others = flatten((*a.row_steps[1:], a.column_steps[0], *a.column_steps[2:]))
    if isinstance(tap, tuple) or tap.path != row.path or any(d.path == row.path for d in others):
        return None
    if is_runtime(row.value) or is_runtime(tap.value):
        return None
    rows, rest = divmod(int(tap.value), int(row.value))
    return rows if rows and not rest else None


def _ends_with_its_line(d: _OperandMap, extent: Any) -> bool:
    """Return whether D stores no row past the end of a line of ``extent`` rows."""
    step = d.row_steps[0]
    (mode,) = step.path
    alone = all(other.path != step.path for other in d.row_steps[1:])
    start = d.offset[mode] if d.offset else 0
    forwards = all(other.value >= 0 for other in flatten(d.column_steps) if other.path == step.path)
    past = int(start) + int(step.value) * int(extent)
    return alone and forwards and past >= int(d.bounds[mode])
