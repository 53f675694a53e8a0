"""Columns that k-tiles lack: of residues side by side, those that a tap does not reach.

Residues of a strided gradient that are columns of one view share the rows that they read. But a tap
reaches some of them, and is zeros in B for the others. Where those are whole lines of a tile, or
rows of it, they are left out: k-tiles come in *runs* of the same columns, and a run multiplies, and
copies, no others. So a view of all residues along H forms the products of a view for each.
"""

from __future__ import annotations

from typing import NamedTuple

from layoutconv.algebra.int_tuple import flatten
from layoutconv.gemm_view import GemmView

from .im2col import is_mapped
from .spec import Spec
from .tensor_map import Boxes, memory_of_b
from .window import window_of

COLUMNS = 64  # of an instruction, where tiles lack some


class Columns(NamedTuple):
    """Some of a tile's columns."""

    first: int
    width: int


class Run(NamedTuple):
    """So many k-tiles, the first at column ``k`` of A, and which columns of B's tile they have.

    Of several taps that share rows, each has a tile of B.
    """

    k: int
    k_tiles: int
    columns: tuple[Columns, ...]


def runs_of(view: GemmView, spec: Spec) -> tuple[Run, ...]:
    """The runs of all k-tiles; () where all have all columns.

    The first has a tap of all, which sums begin with. Nothing is known where threads copy, or where
    tiles have some of B's rows.

    >>> from layoutconv.conv import ConvProblem, dgrad_views
    >>> from .tile import Tile
    >>> problem = ConvProblem((1, 9, 9, 32), (64, 3, 3), stride=2, padding=1)
    >>> def example(*side_by_side):
    ...     view, *_ = dgrad_views(problem, side_by_side=side_by_side)
    ...     tile = Tile(128, 128, 64, 8, 1, 3, 32)
    ...     return runs_of(view, Spec.of(view, "float16", "float16", tile, "sm_90a"))
    >>> example(1)
    ()
    >>> for run in example(0, 1):
    ...     print(run)
    Run(k=128, k_tiles=2, columns=(Columns(first=0, width=128),))
    Run(k=0, k_tiles=2, columns=(Columns(first=64, width=64),))
    """
    tile, window = spec.tile, window_of(view, spec.tile)
    alone = tile.parts == tile.sharing == tile.warps_n == 1 and not (spec.split or spec.skip)
    whole = view.n <= tile.n and tile.n % COLUMNS == 0
    whole = whole and flatten(view.a.shape[1])[0] % tile.k == 0
    found = memory_of_b(view, spec) if alone and whole else None
    if found is None or not is_mapped(view, spec):
        return ()
    every, runs = Columns(0, tile.n), list[Run]()
    for k in range(0, view.k // tile.taps, tile.k):
        taps = [k + tap * window.columns for tap in range(tile.taps)]
        columns = tuple(_present(found, spec, view.n, k) for k in taps)
        if runs and runs[-1].columns == columns:
            runs[-1] = runs[-1]._replace(k_tiles=runs[-1].k_tiles + 1)
        else:
            runs.append(Run(k, 1, columns))
    if {part for run in runs for part in run.columns} == {every}:
        return ()
    runs.sort(key=lambda run: every not in run.columns)
    k, k_tiles, columns = runs[0]
    if every not in columns:  # what the first k-tile lacks are zeros
        runs[:1] = [Run(k, 1, (every, *columns[1:])), Run(k + tile.k, k_tiles - 1, columns)]
    return tuple(run for run in runs if run.k_tiles)


def _present(found: Boxes, spec: Spec, n: int, k: int) -> Columns:
    """Of a k-tile, from the first instruction's columns that are in memory to the last."""
    end, (line, *rows) = spec.tile.n, found.box
    piece, box = line, found.box
    if spec.along[1] == 1:  # rows of a box whose columns differ in their first digit
        piece = min(flatten(found.layout.inner.shape[0])[0], COLUMNS)
        box = (line, piece, *(1 for _ in rows[1:]))
    extents, group = found.layout.outer.shape, (0,) * (len(found.layout.shape) - 2)
    there = []
    for first in range(0, n, piece):
        modes = zip(found.corner(first, k, *group), box, extents, strict=True)
        if all(at < extent and at + length > 0 for at, length, extent in modes):
            there += [first, min(first + piece, n) - 1]
    if not there or COLUMNS % piece:
        return Columns(0, end)
    first, past = there[0] // COLUMNS * COLUMNS, there[-1] // COLUMNS * COLUMNS + COLUMNS
    return Columns(first, (end if past >= n else past) - first)
