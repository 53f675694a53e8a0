"""TMA tiled loads: one thread copies a whole k-tile of B from global to shared memory.

With ``cp.async``, B is two thirds of the producer's copies for a 128x256 tile: an instruction and
an address for every 16 bytes. TMA takes one instruction per panel of a tile (``smem_tile.py``), and
needs no predicates at borders.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from layoutconv.algebra.int_tuple import compact_stride
from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec
from layoutconv.planning.schedule import WARP
from layoutconv.planning.structural_zeros import ColumnRange
from layoutconv.planning.tma_tiled import Boxes

from ..common.runtime_integers import Extent
from .mma_atoms import Data
from .smem_tile import SharedTile, swizzle_of


def tiled_tma_atom(found: Boxes, pointer: Any, spec: KernelSpec, data: Data) -> tuple[Any, Any]:
    """Return B's copy atom with its TMA descriptor, and its coordinate tensor.

    ``found`` is the result of ``memory_of_b``. The host makes the descriptor at every launch, from
    constants and ``pointer``.
    """
    memory = found.layout.outer
    made = _tiled(pointer, memory.shape, memory.stride, found.box, data)
    return made.atom, made.tma_tensor


def matrix_tma_atom(
    pointer: Any, shape: tuple[Any, Any], pitch: Any, box: tuple[int, int], data: Data
) -> Any:
    """Return a copy atom, with its TMA descriptor, for boxes of a matrix.

    ``shape`` and ``box`` are (columns, rows); columns are contiguous, rows ``pitch`` elements
    apart.
    """
    return _tiled(pointer, shape, (1, pitch), box, data).atom


def _tiled(
    pointer: Any, shape: tuple[Any, ...], stride: tuple[Any, ...], box: tuple[int, ...], data: Data
) -> Any:
    """Return the copy of a ``box``, whose first mode is contiguous, with its coordinate tensor."""
    # The DSL drops modes of constant extent 1 from the copy's coordinates, and merges modes that
    # are contiguous in the box, but keeps both in the TMA descriptor. The hardware refuses such an
    # instruction, and the process loses its GPU. So make them dynamic: the DSL keeps those.
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
    """Return whether a number is a constant and in ``some``."""
    return isinstance(number, int) and number in some


def _in_shared_memory(box: tuple[int, ...]) -> Any:
    """The compact, unswizzled layout of a box in shared memory, first mode fastest."""
    return cute.make_layout(box, stride=compact_stride(box))


class TmaLoad:
    """Loads tiles of an operand by TMA; a stage's full mbarrier expects ``bytes_of``.

    One elected thread of the warp with ``tid`` below 32 issues the copies.
    """

    tiles = 1  # nothing waits in registers

    def __init__(self, atom: Any, shared: SharedTile, tid: Any, taps: int) -> None:
        self.atom, self.shared, self.taps = atom, shared, taps
        self.copies = tid < WARP

    def bytes_of(self, columns: tuple[ColumnRange, ...]) -> int:
        """Return the bytes that TMA copies per stage; ``columns`` are B's, per tap."""
        return self.taps * self.shared.stage_bytes

    @cute.jit
    def prefetch(self) -> None:
        """Prefetch the TMA descriptor, which is a kernel argument."""
        if self.copies:
            with cute.arch.elect_one():
                cpasync.prefetch_descriptor(self.atom)

    def read_ahead(self, first_k: Any, at: tuple[int, int] = (0, 0)) -> None:
        """Do nothing: there is no index buffer."""

    def copy(
        self, first_k: Any, stage: Any, apart: int, full: Any, columns: tuple[ColumnRange, ...]
    ) -> None:
        """Issue the copies of a k-tile into a stage; halo taps lie ``apart`` columns of A apart.

        ``columns``: the columns of B that each tap multiplies.
        """
        raise NotImplementedError

    def _tile(self, at: Any, layout: Any) -> Any:
        """A swizzled tensor of shared memory that starts ``at`` bytes from the tile's base."""
        shared = self.shared
        swizzle = swizzle_of(shared.line_bytes)
        pointer = cute.recast_ptr(shared.base + at // shared.bytes, swizzle, dtype=shared.dtype)
        return cute.make_tensor(pointer, layout)

    def bring(self, there: Any, here: Any, full: Any) -> None:
        """Copy the box ``there`` to ``here``; its bytes complete on the mbarrier ``full``."""
        here, there = (cute.group_modes(box, 0, cute.rank(box)) for box in (here, there))
        to, since = cpasync.tma_partition(self.atom, 0, cute.make_layout(1), here, there)
        cute.copy(self.atom, since, to, tma_bar_ptr=full)


class TmaTiledLoad(TmaLoad):
    """Loads tiles of B by TMA tiled from row ``first`` of B on, all halo taps of a stage."""

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

    def bytes_of(self, columns: tuple[ColumnRange, ...]) -> int:
        return sum(len(self._panels(part)) for part in columns) * self.shared.panel_bytes

    def _panels(self, columns: ColumnRange) -> range:
        """The panels to load: all if their lines run along k, as each has part of every column."""
        shared = self.shared
        if self.along == 1:
            return range(shared.stage_bytes // shared.panel_bytes if columns.width else 0)
        return range(columns.first // shared.line, (columns.first + columns.width) // shared.line)

    @cute.jit
    def copy(
        self, first_k: Any, stage: Any, apart: int, full: Any, columns: tuple[ColumnRange, ...]
    ) -> None:
        """Issue the copies of a k-tile into a stage; halo taps lie ``apart`` columns of A apart."""
        if self.copies:
            for tap in range_constexpr(self.taps):
                panels = const_expr(self._panels(columns[tap]))
                for panel in range_constexpr(panels.start, panels.stop):
                    there = self._there(first_k + tap * apart, panel)
                    self.bring(there, self._here(stage * self.taps + tap, panel), full)

    def _there(self, first_k: Any, panel: int) -> Any:
        """The box of global memory to copy for a panel."""
        crd = [self.first, first_k]
        crd[self.along] = crd[self.along] + panel * self.shared.line
        group = (self.group,) if len(self.found.layout.shape) > 2 else ()
        corner = self.found.corner(*crd, *group, divisor=Extent)
        moved = cute.domain_offset(tuple(map(Int32, corner)), self.tensor)
        return cute.local_tile(moved, self.found.box, (0,) * len(self.found.box))

    def _here(self, slot: Any, panel: int) -> Any:
        """The box of shared memory that a panel is copied to."""
        shared = self.shared
        at = slot * shared.stage_bytes + panel * shared.panel_bytes
        return self._tile(at, _in_shared_memory(self.found.box))


@cute.jit
def expect(full: Any, size: int, tid: Any) -> None:
    """Arrive at ``full`` from one elected thread, and expect ``size`` bytes."""
    if tid < WARP:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, size)
