"""From global to shared memory by im2col tensor maps: one thread copies a whole k-tile of A.

A copy names a pixel to start at, which stays the same for the whole main loop, and the channel and
the tap of its k-tile: no row is looked at, no border, and no address is computed but that one.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass.cute.nvgpu import cpasync

from .arguments import Arguments, Extent
from .atoms import Data
from .boxes import MapProducer
from .im2col import Im2col
from .shared import SharedTile, swizzle_of
from .spec import VECTOR_BYTES, Spec


def im2col_map(found: Im2col, args: Arguments, pointer: Any, spec: Spec, data: Data) -> Any:
    """What a kernel takes to copy tiles of A: a copy atom with the map, made for every launch."""
    spatial = tuple(
        (args.integer(mode.extent, Int32), _distance(mode.stride, args, data))
        for mode in found.modes
    )
    images = args.integer(found.images[0], Int32), _distance(found.images[1], args, data)
    shape, stride = zip(*spatial, images, strict=True)
    layout = cute.make_layout((shape, args.integer(found.channels[0], Int32)), stride=(stride, 1))
    ends = tuple(_upper(mode, args) for mode in found.modes)
    line = spec.tile.k
    shared = cute.make_composed_layout(
        swizzle_of(line * data.bytes), 0, cute.make_layout((spec.tile.m, line), stride=(line, 1))
    )
    none, ones = (0,) * len(ends), (1,) * len(ends)
    starts = tuple(mode.lower for mode in found.modes)
    made = cpasync.make_im2col_tma_atom(
        cpasync.CopyBulkTensorIm2ColG2SOp(), cute.make_tensor(pointer, layout), shared,
        (spec.tile.m, line), starts, ends, none, none, tuple(mode.step for mode in found.modes),
        none, ones,
    )  # fmt: skip
    return made.atom


def _upper(mode: Any, args: Arguments) -> Any:
    rows, extent = args.integer(mode.rows, Int32), args.integer(mode.extent, Int32)
    return mode.lower + (rows - 1) * mode.step - (extent - 1)


def _distance(stride: Any, args: Arguments, data: Data) -> Any:
    """A stride of memory; of a mode that nothing moves it may be none that the hardware takes."""
    vector, found = VECTOR_BYTES // data.bytes, args.integer(stride, Int64)
    if isinstance(found, int):
        return found if found % vector == 0 else vector
    taken = cutlass.select_(found % vector == 0, found, Int64(vector))
    return cute.assume(taken, divby=vector)


class PixelProducer(MapProducer):
    """Copies tiles of A by an im2col tensor map; ``first`` is the tile's first row."""

    def __init__(
        self,
        atom: Any,
        found: Im2col,
        args: Arguments,
        shared: SharedTile,
        tid: Any,
        first: Any,
        group: Any,
    ) -> None:
        super().__init__(atom, shared, tid, taps=1, sharing=1)
        self.found, self.group = found, group
        *pixel, self.image = found.pixel(Int32(first), args.divisor)
        self.pixel = tuple(map(Int32, pixel))

    @cute.jit
    def copy(self, first_k: Any, stage: Any, apart: int, full: Any):
        """Issue the copy of a k-tile into a stage."""
        if self.copies:
            shared = const_expr(self.shared)
            here = self._tile(stage * shared.stage_bytes, self._lines(shared.columns, 1))
            self.bring(self._there(first_k), here, full)

    def _there(self, first_k: Any) -> Any:
        """Pixels of memory: coordinates (channel, pixel, image, offsets of the tap)."""
        channel, *offsets = self.found.column(first_k, self.group, Extent)
        place = Int32(channel), self.pixel, Int32(self.image), tuple(map(Int32, offsets))
        every = (1,) * len(self.pixel)
        grid = cute.make_identity_tensor((1, every, 1, every))
        corner = cute.domain_offset(place, grid).iterator
        return cute.make_tensor(corner, self._lines(cute.E([1, 0]), cute.E(0)))

    def _lines(self, *stride: Any) -> Any:
        """A layout of the tile."""
        return cute.make_layout((self.shared.rows, self.shared.columns), stride=stride)
