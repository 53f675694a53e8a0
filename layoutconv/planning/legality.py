"""Legality: which tiles may run which views. Chooser, races and kernels share these rules.

``TileConfig`` rejects tiles that no kernel can have, ``view_rules.py`` views that no tile can run.
This file has the rules for a tile together with a view and its ``KernelSpec``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..view.epilogue import counts_rows, is_by_row
from ..view.gemm_view import GemmView
from .channel_padding import has_padded_channels
from .group_sums import GroupSumTile, sum_reasons
from .group_tile import GroupTile, group_reasons
from .kernel_spec import (
    ASYNC_BYTES,
    BYTES,
    VECTOR_BYTES,
    KernelSpec,
    stores_whole_rows,
    suits_warpgroups,
)
from .schedule import WARPGROUP, Load
from .structural_zeros import k_tile_runs
from .tile import LINE_BYTES, OTHER_WITHOUT_FRAGMENTS, registers_given
from .tile_table import WARPGROUP_TYPES
from .tma_im2col import is_mapped
from .tma_tiled import memory_of_b
from .view_rules import UnsupportedViewError, check_view

THREADS_PER_ROW = 4  # of a copy: each loads 16 of 64 contiguous bytes
HALF_LINE = LINE_BYTES // 2
MOST_HALF_LINES = 5  # of a k-tile over a kernel map
NARROW_SUMS = 16  # columns; for fewer, threads add up rows through shared memory
STATISTICS_BYTES = 8  # a column's sum and its sum of squares
ROUNDED_COLUMNS = 32  # the fewest that threads which round B to tf32 can share
REGISTER_STORE_COLUMNS = 32  # that the lanes of a warp exchange to store whole vectors
REGISTER_STORE_BYTES = 2, 4  # of an element that they store


def reasons(view: GemmView, spec: KernelSpec, smem_limit: int | None = None) -> list[str]:
    """Return why the kernel of a spec cannot run a view, each reason as expectation and actual
    value; [] if it can.

    Args:
        view: any structure that ``check_view`` accepts; widened if the tile has halo taps.
        spec: types, tile, machine, and how memory is read and written.
        smem_limit: dynamic shared memory per CTA on the machine in bytes, if known.

    >>> from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
    >>> from .schedule import Load
    >>> from .tile import specialized
    >>> tile = specialized((64, 64, 64), (4, 1), 3, Load.TMA_WARP)
    >>> def example(view):
    ...     return reasons(view, KernelSpec.of(view, "float16", "float16", tile, "sm_90a"))
    >>> example(fprop_view(ConvProblem((1, 9, 64), (64, 3))))
    []
    >>> example(wgrad_view(ConvProblem((1, 9, 96), (64, 3))))
    ['TMA descriptors of A and of B for a producer warp, got operands that none describes']
    """
    if isinstance(spec.tile, GroupSumTile):
        found = [*sum_reasons(view, spec)]
    elif isinstance(spec.tile, GroupTile):
        found = [*group_reasons(view, spec)]
    else:
        found = [*_of_type(spec), *_of_copies(view, spec), *_of_epilogue(view, spec)]
        found += [*_of_k(view, spec), *_of_cluster(spec), *_of_persistence(view, spec)]
    if smem_limit is not None and spec.smem_bytes > smem_limit:
        found.append(f"{smem_limit} bytes of shared memory at most, got {spec.smem_bytes}")
    # Only tiles that pass everything else are checked for TMA descriptors.
    return found or [*_of_tma(view, spec)]


def check(view: GemmView, spec: KernelSpec, smem_limit: int | None = None) -> None:
    """Raise ``UnsupportedViewError`` if the template, or the tile of a spec, cannot run a view.

    The error names the tile, what was expected and what came.
    """
    if not has_padded_channels(view):
        check_view(view, spec.along)
    for reason in reasons(view, spec, smem_limit):
        raise UnsupportedViewError(f"{spec.tile!r}: expected {reason}")


def _of_type(spec: KernelSpec) -> Iterator[str]:
    """Check what the dtype demands: shared-memory lines, instructions, registers, vectors."""
    tile, size = spec.tile, BYTES[spec.dtype]
    gathers_lines = tile.warp_specialized and tile.load is not Load.TMA_WARP and spec.skip
    most = MOST_HALF_LINES if gathers_lines and size == 2 and spec.along[0] == 1 else 2
    if tile.k * size not in range(HALF_LINE, most * HALF_LINE + 1, HALF_LINE):
        lengths = HALF_LINE // size, LINE_BYTES // size
        several = f", or up to {most * lengths[0]} of 16 bits that skip taps" if most > 2 else ""
        yield f"k of {lengths[0]} or {lengths[1]}, lines of shared memory{several}, got {tile.k}"
    for name, rows, mode in zip("AB", (tile.m, tile.n), spec.along, strict=True):
        turned = mode == 0 and not (tile.warp_specialized and size == 4)
        # M/N-major 32-bit fragments are read word by word, from whole lines. ldmatrix also takes
        # shorter lines, of 8 or 16 columns of 16 bits.
        least = LINE_BYTES if size == 4 else HALF_LINE
        short = name == "B" and size == 2 and not tile.warp_specialized and rows * size in (16, 32)
        if turned and not short and rows * size % least:
            yield f"rows of {name} of a multiple of {least} bytes, got {rows * size}"
    # With fewer than 4 warps fewer than 8 threads lie along n, and their rows' swizzles differ.
    if spec.dtype == "float64" and (tile.warp_specialized or tile.mma_threads % WARPGROUP):
        yield f"a multistage tile with a multiple of 4 warps for float64, got {tile.warps}"
    if tile.warp_specialized and (spec.arch != "sm_90a" or spec.dtype not in WARPGROUP_TYPES):
        yield f"wgmma for warp-specialised tiles, got {spec.dtype} on {spec.arch}"
    least_registers = tile.m * tile.n // tile.mma_threads + OTHER_WITHOUT_FRAGMENTS
    if (
        tile.warp_specialized
        and (given := registers_given(spec.ctas_per_sm, tile.threads)) < least_registers
    ):
        yield f"{least_registers} registers a thread, got {given}, {spec.ctas_per_sm} CTAs per SM"
    if tile.warp_specialized and not suits_warpgroups(spec.dtype, spec.vectors):
        vector = min(spec.vectors[:2]) * size
        yield f"vectors of {ASYNC_BYTES} bytes or more, got {vector}"


def _of_copies(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Check that the threads of a multistage tile divide the vectors of its operands."""
    tile = spec.tile
    if tile.warp_specialized or not view.k:
        return
    sides = ("A", tile.m), ("B", tile.n)
    for (name, side), vector, mode in zip(sides, spec.vectors, spec.along, strict=False):
        rows, columns = (side, tile.k) if mode == 1 else (tile.k, side)
        per_row = columns // vector
        across = min(per_row, max(THREADS_PER_ROW, tile.mma_threads // rows))
        if across == 0 or rows % min(rows, tile.mma_threads // across) or per_row % across:
            yield (
                f"threads that divide {rows} rows of {per_row} vectors of {name}, got "
                f"{tile.mma_threads}"
            )


def _of_epilogue(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Check the epilogue: rows stored at once in whole vectors, statistics, register stores."""
    tile, vector = spec.tile, spec.vectors[2]
    by_registers = spec.stores_registers
    if tile.n & (tile.n - 1) and not by_registers:
        yield f"a power of two for columns of a tile that is not persistent, got n = {tile.n}"
    at_once = tile.mma_threads * vector // tile.n
    by_rows = not spec.run and not by_registers
    if by_rows and not at_once:
        yield f"{tile.n // vector} threads or more, that store a row, got {tile.mma_threads}"
    elif by_rows and (vector > tile.n or tile.m % at_once):
        yield f"a multiple of {at_once} rows, that are stored at once, got {tile.m}"
    sums = STATISTICS_BYTES * tile.mma_threads * vector
    if "statistics" in spec.epilogue.split() and tile.n < NARROW_SUMS and spec.own_bytes < sums:
        yield f"{sums} bytes of shared memory for sums of columns, got {spec.own_bytes}"
    if tile.halo_taps > 1 and counts_rows(spec.epilogue):
        yield "steps that ask for no row, for halo taps, whose rows are others than those of D"
    words = spec.epilogue.split()
    if by_registers:
        size = BYTES[spec.out_dtype]
        whole = vector * size == VECTOR_BYTES and size in REGISTER_STORE_BYTES
        by_row = is_by_row(spec.epilogue)
        if not whole or by_row or tile.n % REGISTER_STORE_COLUMNS or spec.split == "atomic":
            yield (
                "results of 16 or 32 bits, stored by whole vectors, by steps of no row, and a "
                f"multiple of {REGISTER_STORE_COLUMNS} columns for a tile that registers store"
            )
        in_whole = view.n <= tile.n and stores_whole_rows(view)
        if "statistics" in words and not in_whole:
            yield "statistics of all columns, in whole rows of D, for ping-pong"


def _of_k(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Check k-tiles and stages."""
    tile = spec.tile
    columns = view.k // tile.halo_taps
    if tile.halo_taps > 1 and columns % tile.k:
        yield f"whole k-tiles of the first halo tap, got {columns} columns of a tap"
    if tile.halo_taps > 1 and not tile.warp_specialized:
        yield "a warp-specialised tile for halo taps"
    if tile.stages == 1 and (spec.along[0] != 1 or columns > tile.k):
        # A stage is released while the next is multiplied, so a single stage never would be.
        yield f"one k-tile for one stage, got k = {columns}"


def _of_cluster(spec: KernelSpec) -> Iterator[str]:
    """Check cluster split-K."""
    tile, vector = spec.tile, spec.vectors[2]
    if tile.cluster_k == 1:
        return
    if spec.split or "statistics" in spec.epilogue.split():
        yield "whole sums, stored without statistics, for a cluster along k"
    at_once = tile.mma_threads * vector // tile.n
    if at_once and tile.m // tile.cluster_k % at_once:
        yield f"a multiple of {at_once} rows for each CTA of a cluster, got {tile.m}"


def _of_persistence(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Check what persistent CTAs may sum and store."""
    tile = spec.tile
    if not tile.persistent:
        return
    whole = not spec.split and len(view.a.shape) == 2 and view.k > 0 and not spec.skip
    if not whole or ("statistics" in spec.epilogue.split() and not tile.pingpong):
        yield (
            "whole sums of every tap, of one group, without statistics but with ping-pong, for a "
            "persistent kernel"
        )


def _of_tma(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Check that TMA descriptors describe the operands, and that a resident B is complete."""
    tile = spec.tile
    if tile.load is Load.TMA_WARP and not is_mapped(view, spec):
        yield (
            "TMA descriptors of A and of B for a producer warp, got operands that none describes"
        )
    elif (
        spec.dtype == "tfloat32" and tile.warp_specialized and tile.n < ROUNDED_COLUMNS
        and memory_of_b(view, spec) is None
    ):  # fmt: skip
        yield f"TMA for a B of fewer than {ROUNDED_COLUMNS} columns that is rounded, got none"
    elif has_padded_channels(view) and not is_mapped(view, spec):
        yield "TMA descriptors of A and of B for padded channels"
    elif tile.b_resident:
        k_tiles = sum(run.k_tiles for run in k_tile_runs(view, spec))
        k_tiles = k_tiles or -(-view.k // tile.halo_taps // tile.k)
        if tile.b_resident != k_tiles or view.n > tile.n:
            yield (
                f"as many k-tiles of a resident B as a sum has, {k_tiles}, and all columns, "
                f"{view.n}, got {tile.b_resident} of {tile.n} columns"
            )
