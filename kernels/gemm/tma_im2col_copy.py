"""TMA im2col loads: one thread copies a whole k-tile from global to shared memory.

A copy names its first pixel, a channel and a tap. If GEMM rows are pixels, the pixel is fixed for
the whole mainloop; if k runs over pixels, channel and tap are fixed, one pair per panel of a tile
(``smem_tile.py``). Tiles with more rows than one copy are loaded in equal pieces. The first pixel
is the only address computation, and borders need no masks. Pixels that are the rows of a matrix
are copied by TMA tiled.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from layoutconv.algebra.int_tuple import product
from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec
from layoutconv.planning.structural_zeros import ColumnRange
from layoutconv.planning.tile import line_bytes
from layoutconv.planning.tma_im2col import Im2col

from ..common.runtime_integers import Extent, RuntimeIntegers
from .cp_async import CpAsyncLoad
from .mma_atoms import Data
from .smem_tile import SharedTile, swizzle_of
from .tma import TmaLoad, TmaTiledLoad, matrix_tma_atom

Corner = tuple[tuple[Any, ...], tuple[Any, ...]]  # (*pixel, image), (channel, *offsets)


def im2col_tma_atom(
    found: Im2col, args: RuntimeIntegers, pointer: Any, spec: KernelSpec, data: Data, operand: int
) -> Any:
    """Return the copy atom, with its TMA descriptor, for tiles of A (``operand`` 0) or B (1).

    The host makes it at every launch.
    """
    rows, columns = (spec.tile.m, spec.tile.n)[operand], spec.tile.k
    if spec.along[operand] == 0:
        rows, columns = columns, rows
    _, rows = found.copies(rows)
    line = line_bytes(columns * data.bytes) // data.bytes
    shared = cute.make_composed_layout(
        swizzle_of(line * data.bytes), 0, cute.make_layout((rows, line), stride=(line, 1))
    )
    channels = args.integer(found.channels[0], Int32)
    if not found.modes:
        pixels, pitch = args.integer(found.images[0], Int32), found.images[1]
        return matrix_tma_atom(
            pointer, (channels, pixels), _distance(pitch, args, data), (line, rows), data
        )
    spatial = tuple(
        (args.integer(mode.extent, Int32), _distance(mode.stride, args, data))
        for mode in found.modes
    )
    images = args.integer(found.images[0], Int32), _distance(found.images[1], args, data)
    shape, stride = zip(*spatial, images, strict=True)
    layout = cute.make_layout((shape, channels), stride=(stride, 1))
    ends = tuple(_upper(mode, args) for mode in found.modes)
    none, ones = (0,) * len(ends), (1,) * len(ends)
    starts = tuple(mode.lower for mode in found.modes)
    made = cpasync.make_im2col_tma_atom(
        cpasync.CopyBulkTensorIm2ColG2SOp(), cute.make_tensor(pointer, layout), shared,
        (rows, line), starts, ends, none, none, tuple(mode.step for mode in found.modes),
        none, ones,
    )  # fmt: skip
    return made.atom


def _upper(mode: Any, args: RuntimeIntegers) -> Any:
    rows, extent = args.integer(mode.rows, Int32), args.integer(mode.extent, Int32)
    return Int32(mode.lower + (rows - 1) * mode.step - (extent - 1))


def _distance(stride: Any, args: RuntimeIntegers, data: Data) -> Any:
    """A stride in elements. TMA takes only multiples of 16 bytes; a mode that nothing moves may
    have another stride, and gets one that TMA takes.
    """
    vector, found = VECTOR_BYTES // data.bytes, args.integer(stride, Int64)
    if isinstance(found, int):
        return found if found % vector == 0 else vector
    taken = cutlass.select_(found % vector == 0, found, Int64(vector))
    return cute.assume(taken, divby=vector)


class TmaIm2colLoad(TmaLoad):
    """Copies tiles of an operand by an im2col TMA descriptor."""

    def __init__(
        self,
        atom: Any,
        found: Im2col,
        args: RuntimeIntegers,
        shared: SharedTile,
        tid: Any,
        rows: int,
        first: Any,
        group: Any,
    ) -> None:
        """Load tiles of ``rows`` rows of pixels; ``first`` is the tile's first one of the GEMM."""
        super().__init__(atom, shared, tid, taps=1)
        self.found, self.args = found, args
        self.pieces, self.pixels = found.copies(rows)
        self.start(first, group)

    def bytes_of(self, columns: tuple[ColumnRange, ...]) -> int:
        panels = self.shared.stage_bytes // self.shared.panel_bytes
        return panels * self.pieces * self.pixels * self.shared.line_bytes

    def start(self, first: Any, group: Any) -> None:
        """Compute the coordinates that stay fixed for the whole mainloop."""
        raise NotImplementedError

    def corner(self, first_k: Any, panel: int, piece: int) -> Corner:
        """The pixel and image where a piece of a panel starts; its channel and tap offsets."""
        raise NotImplementedError

    @cute.jit
    def copy(
        self, first_k: Any, stage: Any, apart: int, full: Any, columns: tuple[ColumnRange, ...]
    ) -> None:
        """Issue the copies of a k-tile into a stage."""
        shared = const_expr(self.shared)
        panels = const_expr(shared.stage_bytes // shared.panel_bytes)
        if self.copies:
            for panel in range_constexpr(panels):
                for piece in range_constexpr(self.pieces):
                    at = stage * shared.stage_bytes + panel * shared.panel_bytes
                    at = at + piece * (self.pixels * shared.line_bytes)
                    here = self._tile(at, self._lines(shared.line, 1))
                    self.bring(self._there(first_k, panel, piece), here, full)

    def _there(self, first_k: Any, panel: int, piece: int) -> Any:
        """TMA coordinates of a piece: (channel, pixel, image, tap offsets), or (channel, row) of a
        matrix.
        """
        (*pixel, image), (channel, *offsets) = self.corner(first_k, panel, piece)
        if not pixel:
            grid = cute.make_identity_tensor((1, 1))
            corner = cute.domain_offset((Int32(channel), Int32(image)), grid).iterator
            return cute.make_tensor(corner, self._lines(cute.E(1), cute.E(0)))
        at, tap = tuple(map(Int32, pixel)), tuple(map(Int32, offsets))
        every = (1,) * len(pixel)
        grid = cute.make_identity_tensor((1, every, 1, every))
        corner = cute.domain_offset((Int32(channel), at, Int32(image), tap), grid).iterator
        return cute.make_tensor(corner, self._lines(cute.E([1, 0]), cute.E(0)))

    def _lines(self, *stride: Any) -> Any:
        """The layout of a piece of a panel: (pixels, line)."""
        return cute.make_layout((self.pixels, self.shared.line), stride=stride)


class TmaRowsLoad(TmaIm2colLoad):
    """TMA im2col with pixels as rows of the GEMM: fprop and dgrad."""

    def start(self, first: Any, group: Any) -> None:
        self.group = group
        rows = [Int32(first + piece * self.pixels) for piece in range(self.pieces)]
        self.corners = [self.found.pixel(row, self.args.divisor) for row in rows]

    def corner(self, first_k: Any, panel: int, piece: int) -> Corner:
        *pixel, image = self.corners[piece]
        image = image + self.found.images_before(first_k)
        return (*pixel, image), self.found.column(first_k, self.group, Extent)


class TmaSumLoad(TmaIm2colLoad):
    """TMA im2col with pixels along k of the GEMM: wgrad."""

    def start(self, first: Any, group: Any) -> None:
        shared, found = self.shared, self.found
        panels, last = shared.columns // shared.line, product(found.columns) - shared.line
        columns = [Int32(first + panel * shared.line) for panel in range(panels)]
        if product(found.columns[1:]) > 1:
            # No tap follows the last, nor would its number fit: load the last panel again. Its
            # results belong to no row or column of D.
            columns = [cutlass.min(column, Int32(last)) for column in columns]
        self.columns = [found.column(column, group, Extent) for column in columns]

    def corner(self, first_k: Any, panel: int, piece: int) -> Corner:
        return self.found.pixel(Int32(first_k), self.args.divisor), self.columns[panel]


# Loads of a warp-specialised kernel: by threads or by TMA.
LoadOfA = CpAsyncLoad | TmaIm2colLoad
LoadOfB = CpAsyncLoad | TmaTiledLoad | TmaIm2colLoad
