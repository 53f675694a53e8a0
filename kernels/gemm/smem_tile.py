"""Swizzled shared memory of one operand, and its address arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tile import TileConfig, line_bytes

from .mma_atoms import Data

VECTOR_BYTES = 16


def sync(tile: TileConfig) -> None:
    """Synchronise the threads that multiply: by a named barrier if other warps copy."""
    if tile.warp_specialized:
        cute.arch.barrier(barrier_id=1, number_of_threads=tile.mma_threads)
    else:
        cute.arch.sync_threads()


def release_tile(tile: TileConfig) -> None:
    """Consumers arrive: producers may read the tile that the consumers wrote."""
    cute.arch.barrier_arrive(barrier_id=2, number_of_threads=tile.threads)


def wait_for_tile(tile: TileConfig) -> None:
    """Producers wait until consumers have released the tile."""
    cute.arch.barrier(barrier_id=2, number_of_threads=tile.threads)


def shared_tiles(
    smem: Any, spec: KernelSpec, data: Data, along: tuple[int, int], read: Callable[[int], str]
) -> Any:
    """Allocate all stages of A and of B, with ``along`` their contiguous modes, and behind them the
    bytes by which the epilogue's tile exceeds the stages.

    ``read(mode)`` is how an operand that is contiguous along ``mode`` is read.
    """
    tile, found = spec.tile, []
    of_b = tile.b_resident or tile.stages
    of_both = (tile.a_rows, tile.stages), (tile.n, of_b * tile.halo_taps)
    for (rows, stages), mode in zip(of_both, along, strict=True):
        shape = (rows, tile.k) if mode == 1 else (tile.k, rows)
        found.append(SharedTile(smem, data.element, *shape, stages, read(mode)))
    if spec.bytes_past_stages:  # keep the staged tile off the mbarriers and the kept indices
        smem.allocate_array(Int64, spec.bytes_past_stages // 8)
    return found


def swizzle_of(line_bytes: int) -> Any:
    """Return the swizzle of lines that warps read by ldmatrix, or wgmma through descriptors."""
    return cute.make_swizzle(line_bytes.bit_length() - 5, 4, 3)


class SharedTile:
    """``stages`` tiles of rows with contiguous columns, cut into panels that are one line wide.

    A line is 64 or 128 bytes, so that 8 rows cover all banks once or twice. The swizzle XORs the
    number of a 16-byte vector within its line with the row's number. A displacement is a part
    within a line plus whole lines. Where the start has zeros in the part's bits, adding the part is
    an XOR, too: a thread swizzles ``start`` once, and its addresses are ``(start ^ part) + lines``.

    The swizzle depends on ``read``, how a warp reads: "matrices" or "rows", 8 rows of one vector at
    once; "words", 4 rows of 8 words of 32 bits; "lines", whole lines, not swizzled.
    """

    def __init__(
        self, smem: Any, dtype: Any, rows: int, columns: int, stages: int, read: str
    ) -> None:
        width: int = dtype.width
        self.dtype, self.bytes = dtype, width // 8
        self.rows, self.columns, self.read = rows, columns, read
        row_bytes = columns * self.bytes
        self.line_bytes = line_bytes(row_bytes)
        self.line = self.line_bytes // self.bytes
        self.panel_bytes = rows * self.line_bytes
        self.stage_bytes = columns // self.line * self.panel_bytes
        self.stages = stages
        size = stages * self.stage_bytes // self.bytes
        self.base = smem.allocate_array(dtype, size, byte_alignment=1024)

    def tensor(self, along: int, unit: Any, count: int = 0) -> Any:
        """The tile (m, k) as a tensor of ``unit``, k (``along`` = 1) or m contiguous, not swizzled.

        ``count``: only the first so many of m; 0 for all. Partition it, but do not read it.
        """
        line = self.line_bytes * 8 // unit.width
        across = 1, self.rows * line
        if along == 1:
            columns = line, self.stage_bytes // self.panel_bytes
            layout = cute.make_layout((count or self.rows, columns), stride=(line, across))
        else:
            columns = line, count // line or self.stage_bytes // self.panel_bytes
            layout = cute.make_layout((columns, self.rows), stride=(across, line))
        return cute.make_tensor(cute.recast_ptr(self.base, dtype=unit), layout)

    def stages_tensor(
        self, along: int, windows: tuple[int, int, int] = (0, 1, 0), first: int = 0
    ) -> Any:
        """All stages as a swizzled tensor (m, k, stage, window), for wgmma descriptors.

        ``windows``: extent of a window along m, number of windows, and rows from one to the next.
        They begin at ``first`` along m, which must be swizzled like the tile's first.
        """
        count, windows_count, step = windows
        plain = self.tensor(along, self.dtype, count).layout
        stage = cute.make_layout(self.stages, stride=self.stage_bytes // self.bytes)
        window = cute.make_layout(windows_count, stride=step * self.line)
        before = first * self.line if along == 1 else first * self.rows
        pointer = cute.recast_ptr(self.base + before, swizzle_of(self.line_bytes), dtype=self.dtype)
        return cute.make_tensor(pointer, cute.append(cute.append(plain, stage), window))

    def start(self, logical: Any) -> Any:
        """Swizzle a logical byte address."""
        if self.read in ("matrices", "rows"):
            return logical ^ ((logical >> 3) & (self.line_bytes - VECTOR_BYTES))
        if self.read == "words":  # rows 1, 2, 3 of four move by 4, 2, 6 vectors
            return logical ^ ((logical >> 1) & 64) ^ ((logical >> 3) & 32)
        return logical

    def at(self, start: Any, displacement: int, stage: Any) -> Any:
        """The address in a stage, ``displacement`` logical bytes from a swizzled ``start``."""
        part = displacement & (self.line_bytes - 1)
        return (start ^ part) + stage * self.stage_bytes + (displacement - part)

    def logical(self, row: Any, column: Any) -> Any:
        """The logical byte address of an element of stage 0."""
        panel = column >> (self.line.bit_length() - 1)
        within = column & (self.line - 1)
        lines = panel * self.panel_bytes + row * self.line_bytes
        return Int32(self.base.toint()) + lines + within * self.bytes

    def displacement(self, rows: int, columns: int) -> int:
        """Logical bytes from an element to the one ``rows`` and ``columns`` further.

        ``columns`` must stay within a line or be whole lines.
        """
        panel, within = divmod(columns, self.line)
        return panel * self.panel_bytes + rows * self.line_bytes + within * self.bytes
