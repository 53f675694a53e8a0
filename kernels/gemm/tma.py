"""TMA tiled loads: one thread copies a whole k-tile of B from global to shared memory.

With ``cp.async`` two thirds of a producer's copies are those of B for a tile of 128x256, with an
instruction and an address for every 16 bytes. TMA takes one instruction per panel of a tile
(``smem_tile.py``), and no predicates at borders.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from layoutconv.algebra.int_tuple import compact_stride
from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec
from layoutconv.planning.schedule import WARP
from layoutconv.planning.structural_zeros import Columns
from layoutconv.planning.tma_tiled import Boxes

from ..common.arguments import Extent
from .mma_atoms import Data
from .smem_tile import SharedTile, swizzle_of


def tiled_tma_atom(found: Boxes, pointer: Any, spec: KernelSpec, data: Data) -> tuple[Any, Any]:
    """Return what a kernel takes of B's ``memory_of_b``: a copy atom with the map, and its
    coordinates.

    The host makes it for every launch, of constants and ``pointer``.
    """
    memory = found.layout.outer
    made = _tiled(pointer, memory.shape, memory.stride, found.box, data)
    return made.atom, made.tma_tensor


def matrix_tma_atom(
    pointer: Any, shape: tuple[Any, Any], pitch: Any, box: tuple[int, int], data: Data
) -> Any:
    """Return what a kernel takes to copy boxes of a matrix: a copy atom with the map.

    ``shape`` and ``box`` are columns and rows, columns contiguous; rows are ``pitch`` elements
    apart.
    """
    return _tiled(pointer, shape, (1, pitch), box, data).atom


def _tiled(
    pointer: Any, shape: tuple[Any, ...], stride: tuple[Any, ...], box: tuple[int, ...], data: Data
) -> Any:
    """The copy of a ``box`` of memory, whose first mode is contiguous, and its coordinates."""
    # The DSL drops a mode of the constant extent 1 from the copy's coordinates, and makes one of
    # modes that continue each other in a box; not so of the TMA descriptor's. The hardware refuses
    # such an instruction, and the process loses its GPU. What is no constant is kept.
    extents = tuple(Int32(1) if _is(extent, {1}) else extent for extent in shape)
    vector = VECTOR_BYTES // data.bytes
    pairs = zip(box[1:], stride[1:], strict=True)
    next_steps = {count * step for count, step in pairs if isinstance(step, int)}
    steps = tuple(
        cute.assume(Int64(step), divby=vector) if _is(step, next_steps) else step for step in stride
    )
    tensor = cute.make_tensor(pointer, cute.make_layout(extents, stride=steps))
    swizzle = swizzle_of(box[0] * data.bytes)
    shared = cute.make_composed_layout(swizzle, 0, _in_shared_memory(box))
    made = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, shared, box)
    coordinates, modes = len(made.tma_tensor.iterator), len(shape)
    if coordinates != modes:
        raise RuntimeError(
            f"TMA copy of {shape}: expected {modes} coordinates, a mode each, got {coordinates}"
        )
    return made


def _is(number: Any, some: set[Any]) -> bool:
    """Return whether a number is a constant, and one of ``some``."""
    return isinstance(number, int) and number in some


def _in_shared_memory(box: tuple[int, ...]) -> Any:
    """A box there, not swizzled: the first mode fastest, then the others in their order."""
    return cute.make_layout(box, stride=compact_stride(box))


class TmaLoad:
    """Loads tiles of an operand by TMA; the full mbarrier expects ``bytes_of`` a stage.

    One elected thread of the warp with ``tid`` below 32 issues the copies.
    """

    tiles = 1  # nothing waits in registers

    def __init__(self, atom: Any, shared: SharedTile, tid: Any, taps: int) -> None:
        self.atom, self.shared, self.taps = atom, shared, taps
        self.copies = tid < WARP

    def bytes_of(self, columns: tuple[Columns, ...]) -> int:
        """Return what comes to a CTA for a stage; of B's tiles, one for a tap, some ``columns``."""
        return self.taps * self.shared.stage_bytes

    @cute.jit
    def prefetch(self) -> None:
        """Read the map, which is an argument of the kernel, before it is needed."""
        if self.copies:
            with cute.arch.elect_one():
                cpasync.prefetch_descriptor(self.atom)

    def read_ahead(self, first_k: Any, at: tuple[int, int] = (0, 0)) -> None:
        """Nothing: there is no index buffer."""

    def copy(
        self, first_k: Any, stage: Any, apart: int, full: Any, columns: tuple[Columns, ...]
    ) -> None:
        """Issue the copies of a k-tile into a stage, of taps so many columns of A ``apart``.

        Of B's tiles some ``columns`` are multiplied.
        """
        raise NotImplementedError

    def _tile(self, at: Any, layout: Any) -> Any:
        """A box of shared memory that starts some bytes from its first."""
        shared = self.shared
        swizzle = swizzle_of(shared.line_bytes)
        pointer = cute.recast_ptr(shared.base + at // shared.bytes, swizzle, dtype=shared.dtype)
        return cute.make_tensor(pointer, layout)

    def bring(self, there: Any, here: Any, full: Any) -> None:
        """One copy, whose bytes complete at the mbarrier ``full``."""
        here, there = (cute.group_modes(box, 0, cute.rank(box)) for box in (here, there))
        to, since = cpasync.tma_partition(self.atom, 0, cute.make_layout(1), here, there)
        cute.copy(self.atom, since, to, tma_bar_ptr=full)


class TmaTiledLoad(TmaLoad):
    """Loads tiles of B by TMA tiled, all halo taps of a stage, from row ``first`` of B on."""

    def __init__(
        self,
        made: tuple[Any, Any],
        found: Boxes,
        shared: SharedTile,
        tid: Any,
        first: Any,
        group: Any,
        spec: KernelSpec,
    ) -> None:
        atom, self.tensor = made
        super().__init__(atom, shared, tid, spec.tile.halo_taps)
        self.found, self.first, self.group, self.along = found, first, group, spec.along[1]

    def bytes_of(self, columns: tuple[Columns, ...]) -> int:
        return sum(len(self._panels(part)) for part in columns) * self.shared.panel_bytes

    def _panels(self, columns: Columns) -> range:
        """The panels that are loaded: one of lines along k has a part of every column."""
        shared = self.shared
        if self.along == 1:
            return range(shared.stage_bytes // shared.panel_bytes if columns.width else 0)
        return range(columns.first // shared.line, (columns.first + columns.width) // shared.line)

    @cute.jit
    def copy(
        self, first_k: Any, stage: Any, apart: int, full: Any, columns: tuple[Columns, ...]
    ) -> None:
        """Issue the copies of a k-tile into a stage, of taps so many columns of A ``apart``."""
        if self.copies:
            for tap in range_constexpr(self.taps):
                panels = const_expr(self._panels(columns[tap]))
                for panel in range_constexpr(panels.start, panels.stop):
                    there = self._there(first_k + tap * apart, panel)
                    self.bring(there, self._here(stage * self.taps + tap, panel), full)

    def _there(self, first_k: Any, panel: int) -> Any:
        """A box of memory."""
        crd = [self.first, first_k]
        crd[self.along] = crd[self.along] + panel * self.shared.line
        group = (self.group,) if len(self.found.layout.shape) > 2 else ()
        corner = self.found.corner(*crd, *group, divisor=Extent)
        moved = cute.domain_offset(tuple(map(Int32, corner)), self.tensor)
        return cute.local_tile(moved, self.found.box, (0,) * len(self.found.box))

    def _here(self, slot: Any, panel: int) -> Any:
        """A box of shared memory."""
        shared = self.shared
        at = slot * shared.stage_bytes + panel * shared.panel_bytes
        return self._tile(at, _in_shared_memory(self.found.box))


@cute.jit
def expect(full: Any, size: int, tid: Any) -> None:
    """One thread arrives at the barrier, and tells it of the bytes that are on their way to it."""
    if tid < WARP:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, size)
