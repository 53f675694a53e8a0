"""Structural zeros, N-ranges and K-ranges in which B is zero, and zero-tile skipping.

Such ranges are neither loaded nor multiplied.

Stride phases of dgrad that are concatenated along N share the rows they read. But a tap reaches
only some of the phases; for the others B is zero. Where such columns are whole lines or rows of a
tile of B, they are skipped: k-tiles are grouped into *runs* with the same columns, and a run copies
and multiplies only these. So one view of all phases along H forms no more products than a view per
phase.

With stride folding, adjacent cells of a line become channels, and some cells of a tap lie outside
the filter. For their range of k, B is zero in all columns, and the range is skipped likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise, product
from typing import NamedTuple

from layoutconv.algebra.int_tuple import flatten
from layoutconv.algebra.stride import ScaledBasis

from ..view.gemm_view import GemmView, stages
from .halo_reuse import halo_of
from .kernel_spec import BYTES, KernelSpec
from .tma_im2col import is_mapped
from .tma_tiled import Boxes, memory_of_b

COLUMNS = 64  # per instruction, where tiles skip some
BLOCK_BYTES = 32  # of a row of A per instruction


class ColumnRange(NamedTuple):
    """A range of a tile's columns."""

    first: int
    width: int


class BlockRange(NamedTuple):
    """A range of a k-tile's blocks; an instruction multiplies one block, 32 bytes of a row."""

    first: int
    number: int


class KTileRun(NamedTuple):
    """``k_tiles`` k-tiles, the first at column ``k`` of A and each further one ``step`` columns on,
    with the columns and blocks of B's tile that are not skipped.

    With halo reuse each tap has a tile of B; one that is all zeros has ranges of width 0.
    """

    k: int
    k_tiles: int
    step: int
    columns: tuple[ColumnRange, ...]
    blocks: tuple[BlockRange, ...]


def leaves_bounds(view: GemmView) -> bool:
    """Return whether part of B lies outside its memory: zeros that k-tiles may skip.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> from layoutconv.conv.stride_folding import folded_fprop_view
    >>> problem = ConvProblem((1, 9, 8, 32), (64, 3, 3), stride=2, padding=1)
    >>> leaves_bounds(fprop_view(problem)), leaves_bounds(folded_fprop_view(problem))
    (False, True)
    """
    first, *rest = stages(view.b)
    shape, stride = (flatten(part) for part in (first.layout.shape, first.layout.stride))
    if not rest or not all(isinstance(d, ScaledBasis) and len(d.path) == 1 for d in stride):
        return False
    extents = rest[0].layout.shape
    start = [int(at) for at in first.offset] if first.offset else [0] * len(extents)
    least, most = list(start), list(start)
    for extent, step in zip(shape, stride, strict=True):
        (mode,), end = step.path, int(step.value) * (int(extent) - 1)
        least[mode] += min(0, end)
        most[mode] += max(0, end)
    return min(least) < 0 or any(at >= int(n) for at, n in zip(most, extents, strict=True))


def k_tile_runs(view: GemmView, spec: KernelSpec) -> tuple[KTileRun, ...]:
    """Return the runs of all k-tiles; () if every k-tile has all columns and blocks.

    The first k-tile has a tap with all columns, since it initialises the accumulators. Also () if
    threads copy an operand, or if a tile does not cover all of N.

    >>> from layoutconv.conv import ConvProblem, dgrad_views
    >>> from layoutconv.conv.stride_folding import folded_fprop_view
    >>> from .halo_reuse import widened
    >>> from .schedule import Load
    >>> from .tile import specialized
    >>> problem = ConvProblem((1, 9, 8, 32), (64, 3, 3), stride=2, padding=1)
    >>> def example(view, *tile, **more):
    ...     tile = specialized(*tile, Load.TMA_WARP, **more)
    ...     for run in k_tile_runs(view, KernelSpec.of(view, "float16", "float16", tile, "sm_90a")):
    ...         print(*run[:3], *map(tuple, (*run.columns, *run.blocks)))
    >>> example(dgrad_views(problem, side_by_side=(1,))[0], (128, 128, 64), (8, 1), 3)
    >>> example(dgrad_views(problem, side_by_side=(0, 1))[0], (128, 128, 64), (8, 1), 3)
    128 2 64 (0, 128) (0, 4)
    0 2 64 (64, 64) (0, 4)
    >>> folded = widened(folded_fprop_view(problem))  # of two taps, that one half are zeros
    >>> example(folded, (128, 64, 64), (4, 1), 3, halo_taps=2)
    0 3 64 (0, 64) (0, 64) (2, 2) (0, 4)
    >>> example(folded, (128, 64, 32), (4, 1), 3, halo_taps=2)
    0 3 64 (0, 0) (0, 64) (0, 0) (0, 2)
    32 3 64 (0, 64) (0, 64) (0, 2) (0, 2)
    """
    tile, window = spec.tile, halo_of(view, spec.tile)
    alone = tile.cluster_k == tile.warps[1] == 1 and not (spec.split or spec.skip)
    whole = view.n <= tile.n and (tile.n < COLUMNS or tile.n % COLUMNS == 0)
    channels = int(flatten(view.a.shape[1])[0])
    found = memory_of_b(view, spec) if alone and whole and channels % tile.k == 0 else None
    if found is None or not is_mapped(view, spec):
        return ()
    every = ColumnRange(0, tile.n), BlockRange(0, tile.k * BYTES[spec.dtype] // BLOCK_BYTES)
    parts = dict[tuple[tuple[ColumnRange, BlockRange], ...], list[int]]()
    for k in range(0, view.k // tile.halo_taps, tile.k):
        taps = [k + tap * window.columns for tap in range(tile.halo_taps)]
        part = tuple(_present(found, spec, view.n, k, every) for k in taps)
        parts.setdefault(part, []).append(k)
    if {found for part in parts for found in part} == {every}:
        return ()
    runs = list[KTileRun]()
    for part, starts in parts.items():
        columns, blocks = tuple(c for c, _ in part), tuple(b for _, b in part)
        if any(width for _, width in columns):
            steady = _steady(starts, tile.k, channels)
            runs += [KTileRun(at[0], len(at), step, columns, blocks) for at, step in steady]
    runs.sort(key=lambda run: every[0] not in run.columns)
    first = runs[0]
    if every[0] not in first.columns:  # load the first k-tile whole: its skipped part is zeros
        of_all = (every[0], *first.columns[1:]), (every[1], *first.blocks[1:])
        others = first._replace(k=first.k + first.step, k_tiles=first.k_tiles - 1)
        runs[:1] = [KTileRun(first.k, 1, first.step, *of_all), others]
    return tuple(run for run in runs if run.k_tiles)


def _steady(starts: list[int], step: int, channels: int) -> list[tuple[list[int], int]]:
    """Return the starts of k-tiles in lists of equal steps, each with its step.

    A single list if possible; else one per start channel within a tap; else one per stretch of
    consecutive k-tiles.

    >>> _steady([0, 64, 128], 32, 64), _steady([0, 32, 128, 160], 32, 128)
    ([([0, 64, 128], 64)], [([0, 128], 128), ([32, 160], 128)])
    >>> _steady([0, 64, 192, 256], 64, 64)
    [([0, 64], 64), ([192, 256], 64)]
    """
    number = {k: i for i, k in enumerate(starts)}
    keys: list[Callable[[int], int]] = [
        lambda k: 0,
        lambda k: k % channels,
        lambda k: k - number[k] * step,
    ]
    for key in keys:
        lists = [list(at) for _, at in groupby(sorted(starts, key=key), key)]
        steps = [{b - a for a, b in pairwise(at)} or {step} for at in lists]
        if all(len(some) == 1 for some in steps):
            break
    return [(at, some.pop()) for at, some in zip(lists, steps, strict=True)]


def _present(
    found: Boxes, spec: KernelSpec, n: int, k: int, every: tuple[ColumnRange, BlockRange]
) -> tuple[ColumnRange, BlockRange]:
    """Return the range of a k-tile's columns that is in memory, in units of instructions, and the
    range of its blocks if B is K-major.
    """
    end, count, (line, *rows) = spec.tile.n, every[1].number, found.box
    piece, length, box = line, spec.tile.k, found.box
    if spec.along[1] == 1:  # K-major: pieces of columns that differ only in their first digit
        piece, length = min(flatten(found.layout.inner.shape[0])[0], COLUMNS), line // count
        box = (length, piece, *(1 for _ in rows[1:]))
    extents, group = found.layout.outer.shape, (0,) * (len(found.layout.shape) - 2)
    columns, blocks = set[int](), set[int]()
    for first, at in product(range(0, n, piece), range(0, spec.tile.k, length)):
        corner = found.corner(first, k + at, *group)
        modes = zip(corner, box, extents, strict=True)
        if all(at < extent and at + length > 0 for at, length, extent in modes):
            columns |= {first, min(first + piece, n) - 1}
            blocks.add(at // length)
    if not columns:
        return ColumnRange(0, 0), BlockRange(0, 0)
    past = max(columns) // COLUMNS * COLUMNS + COLUMNS
    first = min(columns) // COLUMNS * COLUMNS
    some = ColumnRange(first, (end if past >= n else past) - first)
    depth = BlockRange(min(blocks), max(blocks) + 1 - min(blocks))
    return every[0] if COLUMNS % piece else some, every[1] if spec.along[1] == 0 else depth
