"""GEMM views as figures: which element of the activations does row m, column k of A read?

Beside the matrix A, which is never stored, are the cells that it reads: the grid with its padding
for a convolution of a grid, the stored rows for a kernel map. A cell has the same colour in both,
and the cells that a selected row reads have a border.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as all_of
from typing import Any

from ..algebra import Layout, crd2idx, idx2crd
from ..algebra.errors import text
from ..algebra.int_tuple import paired_leaves, product
from ..algebra.stride import basis_terms
from ..errors import ArgumentError
from ..view.gemm_view import GemmView, follow, inside, stages
from .axis import Axis, make_axis, mode_axis
from .figure import MOST_CELLS, Cell, Figure, Grid, Kind, label, make_grid, plain
from .layouts import LEGEND, composed_figure, covers, layout_figure, legend_of, maps_coordinates
from .palette import ramp

_PLANES = 5  # planes of a three-dimensional grid to show


def view_figure(view: GemmView, *, limit: int, row: int | None = None) -> Figure:
    """Show the matrix A of a view, and where it reads; ``row`` is the GEMM row to mark.

    Cells are named by their coordinate in the stored tensor, without modes of extent 1. Of a batch
    of problems, the first is drawn, and the title says so.
    """
    if len(view.a.shape) > 2:
        if not view.l:
            raise ArgumentError("view", "a view with problems to draw", view.a)
        first = view_figure(view.at(0), limit=limit, row=row)
        return replace(first, title=f"l = 0 of {view.l}: {first.title}")
    if view.m == 0:
        raise ArgumentError("view", "a view with rows to draw", view.a)
    if row is not None and (not isinstance(row, int) or not 0 <= row < view.m):
        raise ArgumentError("row", f"a GEMM row, 0 <= row < {view.m}", repr(row))
    if isinstance(view.a, Layout) or not maps_coordinates(view.a):
        if row is not None:
            raise ArgumentError("row", "None for a view whose A reads no coordinates", row)
        if isinstance(view.a, Layout):
            return layout_figure(view.a, limit=limit)
        return composed_figure(view.a, limit=limit)
    a = _Operand(view)
    matrix = a.matrix(limit, row)
    title = f"A = {view.a}"
    grids = a.grids(limit, row) if a.spatial else [a.stored_rows(limit, row)]
    # A plane stands beside A, a line or a stack of planes above it.
    beside = len(a.spatial) == 2 or not a.spatial
    arranged = ((*grids, matrix),) if beside else (tuple(grids), (matrix,))
    kinds: set[Kind] = {c.kind for grid in (*grids, matrix) for line in grid.cells for c in line}
    legend = legend_of(kinds)
    if row is not None:
        legend = ((Cell(mark=True), f"read by row m = {_of_row(row, view)}"), *legend)
    return Figure(title, arranged, legend)


def _of_row(row: int, view: GemmView) -> str:
    natural = plain(idx2crd(row, view.a.shape[0]))
    return f"{row} = {text(natural)}" if isinstance(natural, tuple) else str(row)


@dataclass(frozen=True)
class _Read:
    """The reading of one (m, k): the coordinate in the first tensor, and that in the stored
    one.
    """

    crd: tuple[Any, ...]
    stored: tuple[Any, ...] | None  # None if nothing is stored there
    kind: Kind


@dataclass(frozen=True)
class _Operand:
    """Operand A of a view, with the cells that its chain of maps reads."""

    view: GemmView

    @cached_property
    def chain(self) -> Any:
        return stages(self.view.a)

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        """The modes that both output cells and taps move along: those of a grid."""
        first = self.chain[0].layout
        moved = [
            {
                term.path[0]
                for _, d in paired_leaves(shape, stride)
                for term in basis_terms(d)
                if term.path
            }
            for shape, stride in zip(first.shape, first.stride, strict=True)
        ]
        return tuple(sorted(set.intersection(*moved)))

    def fill(self, stored: tuple[Any, ...]) -> str:
        """Return the colour of a stored cell, by its place in memory; its channels share it."""
        extents = self.chain[-1].layout.shape
        kept = max(1, len(extents) - 1)
        count = int(product(extents[:kept]))
        return ramp(_place(stored[:kept], extents[:kept]) / max(1, count - 1))

    def read(self, m: int, k: int) -> _Read:
        first = self.chain[0]
        return self.at(first.layout(m, k) + first.offset if first.offset else first.layout(m, k))

    def at(self, crd: Any) -> _Read:
        """Return the reading of a coordinate of the first tensor: stored, padding, or absent."""
        shape, storage = self.chain[1].layout.shape, self.chain[-1].layout.shape
        crd = plain(tuple(crd) + (0,) * (len(shape) - len(crd)))
        if not covers(shape, crd):
            return _Read(crd, None, "padding")
        stored, valid = follow(self.chain[1:-1], crd, True)
        if not (valid and inside(stored, storage)):
            return _Read(crd, None, "absent")
        return _Read(crd, plain(tuple(stored)), "value")

    def matrix(self, limit: int, row: int | None) -> Grid:
        """Return the matrix A; a selected row is always shown."""
        layout = self.chain[0].layout
        (m_shape, k_shape), (m_stride, k_stride) = layout.shape, layout.stride
        rows = mode_axis(m_shape, m_stride, limit=limit, keep=() if row is None else [row])
        columns = mode_axis(k_shape, k_stride, limit=limit)

        def cell(m: int, k: int) -> Cell:
            facts = (("m", _both(m, m_shape)), ("k", _both(k, k_shape)))
            return self.cell(self.read(m, k), facts, mark=m == row)

        return make_grid("A (m, k)", rows, columns, cell)

    def cell(self, read: _Read, facts: tuple[tuple[str, str], ...], mark: bool) -> Cell:
        facts = (*facts, ("reads", label(read.crd)))
        if read.stored is None:
            why = LEGEND[read.kind][1]
            return Cell(
                LEGEND[read.kind][0].label, "", read.kind, (*facts, ("value", why)), mark=mark
            )
        written = self.written(read.stored)
        facts = (*facts, ("stored at", label(read.stored)))
        return Cell(written, self.fill(read.stored), "value", facts, written, mark)

    def written(self, stored: tuple[Any, ...]) -> str:
        extents = self.chain[-1].layout.shape
        kept = [c for c, extent in zip(stored, extents, strict=True) if product(extent) != 1]
        return ",".join(map(label, kept or stored[-1:]))

    def row_reads(self, row: int | None) -> dict[tuple[Any, ...], list[int]]:
        """Return the columns k at which a row reads each coordinate."""
        columns: dict[tuple[Any, ...], list[int]] = {}
        if row is not None and self.view.k > MOST_CELLS:
            expected = f"None where it reads more than {MOST_CELLS} cells"
            raise ArgumentError("row", expected, f"{row}, which reads {self.view.k}")
        for k in range(self.view.k) if row is not None else ():
            columns.setdefault(self.read(row or 0, k).crd, []).append(k)
        return columns

    def grids(self, limit: int, row: int | None) -> list[Grid]:
        """Return the grid's planes, with padding around them, for the image of the row."""
        image = self.read(row or 0, 0).crd
        columns = self.row_reads(row)
        ranges = dict(self._ranges())
        *outer, height, width = [(0, 1)] * (2 - len(self.spatial)) + list(ranges.values())
        planes: list[Sequence[int]] = [range(low, high) for low, high in outer]
        if row is not None:  # of many planes, show those that the row reads
            near = sorted({crd[self.spatial[0]] for crd in columns})
            planes = [[p for p in near if p in plane] for plane in planes]
        planes = [plane[:_PLANES] for plane in planes]

        def axis(ends: tuple[int, int], name: str, mode: int) -> Axis:
            low, high = ends
            keep = {crd[mode] - low for crd in columns}
            return make_axis([high - low], [name], limit=limit, first=low, keep=keep)

        def grid(plane: tuple[int, ...]) -> Grid:
            def cell(i: int, j: int) -> Cell:
                place = (*plane, i + height[0], j + width[0])[-len(self.spatial) :]
                crd = [*image[:-1], 0]
                for mode, c in zip(self.spatial, place, strict=True):
                    crd[mode] = c
                by = columns.get(tuple(crd), [])
                facts = (("read by", "k = " + ", ".join(map(str, by[:6]))),) if by else ()
                return self.cell(self.at(tuple(crd)), facts, mark=bool(by))

            names = [text(self.chain[1].layout.shape[mode]) for mode in self.spatial]
            rows, across = Axis((0,)), axis(width, names[-1], self.spatial[-1])
            if len(names) > 1:
                rows = axis(height, names[-2], self.spatial[-2])
            return make_grid(self._where(image, plane), rows, across, cell)

        return [grid(plane) for plane in list(all_of(*planes))[:_PLANES]]

    def _where(self, image: tuple[Any, ...], plane: tuple[int, ...]) -> str:
        """Return the title of a plane: its image and its depth."""
        shape = self.chain[1].layout.shape
        fixed = [(mode, image[mode]) for mode in range(len(shape) - 1) if mode not in self.spatial]
        fixed = [(mode, c) for mode, c in fixed if product(shape[mode]) > 1]
        fixed += zip(self.spatial, plane, strict=False)
        return ", ".join(["cells", *(f"{text(shape[mode])} = {c}" for mode, c in fixed)])

    def _ranges(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the first and the past-the-end cell of each spatial mode, padding included."""
        first, extents = self.chain[0], self.chain[1].layout.shape
        start = plain(self.read(0, 0).crd)
        for mode in self.spatial:
            low, high = start[mode], start[mode] + 1
            for s, d in paired_leaves(first.layout.shape, first.layout.stride):
                reach = sum(
                    (int(s) - 1) * int(t.value) for t in basis_terms(d) if t.path == (mode,)
                )
                low, high = low + min(reach, 0), high + max(reach, 0)
            yield mode, (min(0, low), max(int(product(extents[mode])), high))

    def stored_rows(self, limit: int, row: int | None) -> Grid:
        """Return the stored tensor: a column for each channel, the last mode, rows for the rest.

        In the order of rows, the mode before the channels runs fastest.
        """
        storage = self.chain[-1].layout
        *outer, channels = storage.shape
        reads = (self.read(row, k).stored for k in range(self.view.k)) if row is not None else ()
        chosen = {
            (_place(stored[:-1], outer), _place(stored[-1:], (channels,)))
            for stored in reads
            if stored is not None
        }
        rows = Axis((0,))
        if outer:
            kept = sorted({r for r, _ in chosen})[:limit]  # marked rows are always shown
            ways = tuple(reversed(outer)), tuple(reversed(storage.stride[:-1]))
            rows = mode_axis(*ways, limit=limit, keep=kept)
        columns = mode_axis(channels, storage.stride[-1], limit=limit)

        def cell(r: int, c: int) -> Cell:
            before = reversed(idx2crd(r, tuple(reversed(outer)))) if outer else ()
            crd = plain((*before, idx2crd(c, channels)))
            return self.cell(_Read(crd, crd, "value"), (), mark=(r, c) in chosen)

        title = "stored rows" if len(outer) == 1 else "stored, as " + text(storage.shape)
        return make_grid(title, rows, columns, cell)


def _place(crd: Sequence[Any], shape: Sequence[Any]) -> int:
    """Return the number of a cell of a tensor whose last mode runs fastest."""
    place = 0
    for c, extent in zip(crd, shape, strict=True):
        place = place * int(product(extent)) + int(crd2idx(c, extent))
    return place


def _both(index: int, shape: Any) -> str:
    """Return a coordinate of a mode, also in its profile."""
    natural = plain(idx2crd(index, shape))
    return f"{index} = {text(natural)}" if isinstance(natural, tuple) else str(index)
