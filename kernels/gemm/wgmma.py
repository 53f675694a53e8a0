"""``wgmma``: the tiled MMA of Hopper's warpgroups, and its operands.

``wgmma`` reads both operands from shared memory. It would truncate fp32 to tf32, so TMA or, for B,
the producer rounds first. If neither rounds A, consumers read and round it, and ``wgmma`` takes A
from registers.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, TFloat32
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from layoutconv.planning.schedule import WARPGROUP
from layoutconv.planning.structural_zeros import ColumnRange, KTileRun
from layoutconv.planning.tile import TileConfig

from .cp_async import CpAsyncLoad
from .fragments import Fragments
from .mma_atoms import Data, round_to_tf32
from .tma import TmaLoad

ARCH = 90
SETS = 4  # most register sets of rounded A: one is read while the others are multiplied


class MmaTF32Op(warpgroup.MmaF16BF16Op):
    """``wgmma`` on tf32: the DSL's compiler supports it, but has no Python class."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        """Skip the base class's check, which wants 16-bit operands."""


# wgmma's operation for each type. In 8 bits both operands must be K-major; here they always are.
OPERATIONS = {
    "float16": warpgroup.MmaF16BF16Op,
    "bfloat16": warpgroup.MmaF16BF16Op,
    "tfloat32": MmaTF32Op,
    "float8_e4m3fn": warpgroup.MmaF8Op,
    "float8_e5m2": warpgroup.MmaF8Op,
    "int8": warpgroup.MmaI8Op,
}


class WarpgroupMultiplier:
    """The tiled MMA of a CTA's warpgroups, each with one or several m64 blocks of rows.

    ``along``: contiguous modes of A and B in shared memory. ``rounds``: A comes from registers.
    ``columns``: n of an instruction.
    """

    def __init__(
        self, data: Data, tile: TileConfig, along: tuple[int, int], rounds: bool, columns: int
    ) -> None:
        self.data, self.accumulator, self.columns = data, data.accumulator, columns
        self.along, self.rounds, self.tile = along, rounds, tile
        self.mma = self.tiled()

    def tiled(self) -> Any:
        """Make a tiled MMA for one branch of the kernel, which sets its fields."""
        data, tile = self.data, self.tile
        shape = (WARPGROUP // 2, self.columns, 32 // data.bytes)
        major = OperandMajorMode.MN, OperandMajorMode.K
        # In registers, A is K-major whatever its layout in shared memory.
        majors = major[1 if self.rounds else self.along[0]], major[self.along[1]]
        sources = warpgroup.OperandSource
        source = sources.RMEM if self.rounds else sources.SMEM
        if data.bytes > 1:
            operands: tuple[Any, ...] = (data.element,)
        else:  # the 8-bit operations take A's and B's type separately
            operands = data.element, data.element
        op = OPERATIONS[data.name](*operands, self.accumulator, shape, source, *majors)
        atoms = (tile.warps[0] // 4, tile.warps[1], 1)
        return cute.make_tiled_mma(cute.make_mma_atom(op), cute.make_layout(atoms))

    def accumulators(self, tile: TileConfig) -> Any:
        return cute.make_rmem_tensor(self.mma.partition_shape_C((tile.m, tile.n)), self.accumulator)

    def part(self, acc: Any, columns: ColumnRange) -> Any:
        """The accumulators of ``columns``, which are whole instructions."""
        shape = self.mma.partition_shape_C((self.tile.m, columns.width))
        layout = cute.make_layout(shape, stride=acc.layout.stride)
        before = columns.first // self.columns * acc.layout.stride[2]
        return cute.make_tensor(acc.iterator + before, layout)


def wait_for_products(acc: Any) -> None:
    """Wait for all ``wgmma``, and keep later reads of the accumulators ``acc`` behind the wait.

    The wait names no registers, so the compiler could move arithmetic on accumulators, such as
    their conversion to 16 bits, above it. Each accumulator therefore passes through an empty asm
    with side effects, which has to stay there and emits no machine code.
    """
    warpgroup.wait_group(0)
    for i in range(cute.size(acc)):
        acc[i] = _passed(acc[i])


def _passed(value: Any) -> Any:
    kind = type(value)
    found = llvm.inline_asm(
        kind.mlir_type,
        [value.ir_value()],
        "",
        "=r,0" if kind is Int32 else "=f,0",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return kind(found)


class KTileOperands:
    """Operands of a thread's ``wgmma`` for a k-tile, in groups that are committed together.

    ``windows``: rows of a window of A, number of windows (one per halo tap), and rows from one to
    the next. Each window multiplies its own tile of B, in the columns and k-blocks that ``run`` has
    for the tap, and adds to those columns of ``acc``. In the first run, which overwrites the
    accumulators, some tap has all columns.
    """

    def __init__(
        self,
        multiplier: WarpgroupMultiplier,
        tid: Any,
        a: CpAsyncLoad | TmaLoad,
        b: CpAsyncLoad | TmaLoad,
        windows: tuple[int, int, int],
        acc: Any,
        run: KTileRun,
    ) -> None:
        rows, self.taps, self.tap_rows = windows
        along, mma = multiplier.along, multiplier.tiled()
        self.mma, thread = mma, mma.get_slice(tid)
        taps = [tap for tap in range(self.taps) if run.columns[tap].width]
        taps.sort(key=lambda tap: -run.columns[tap].width)
        self._acc, self._b = dict[int, Any](), dict[int, Any]()
        blocks = []
        for tap in taps:
            (first, width), (block, count) = run.columns[tap], run.blocks[tap]
            some = b.shared.stages_tensor(along[1], (width, 1, 0), first)
            self._acc[tap] = multiplier.part(acc, run.columns[tap])
            self._b[tap] = mma.make_fragment_B(thread.partition_B(some))
            blocks += [(tap, at) for at in range(block, block + count)]
        self._a: Any
        if multiplier.rounds:
            self.sets = min(SETS, run.blocks[0].number)
            self.groups = [[block] for block in blocks]
            self._a = Fragments(a.shared, mma, TFloat32, tid, is_a=True, along=along[0], rows=rows)
        else:
            self.sets = 0
            self.groups = [blocks]
            s_a = a.shared.stages_tensor(along[0], windows)
            self._a = mma.make_fragment_A(thread.partition_A(s_a))

    @property
    def in_flight(self) -> int:
        """Return how many committed groups may be in flight while the next is fetched."""
        return max(1, self.sets - 1)

    def fetch(self, group: int, stage: Any) -> None:
        """Read and round a group's A fragments, if A comes from registers."""
        if not self.sets:
            return
        ((tap, block),) = self.groups[group]
        below = tap * self.tap_rows
        found = self._a.load(block, stage, at=group % self.sets, below=below)
        as_float, as_bits = (cute.recast_tensor(found, kind) for kind in (Float32, Int32))
        for i in range(cute.size(found)):
            as_bits[i] = round_to_tf32(as_float[i], ARCH)

    def of(self, group: int, number: int, stage: Any, of_b: Any) -> tuple[Any, Any, Any]:
        """Return accumulators, A and B of product ``number`` of a group."""
        tap, block = self.groups[group][number]
        acc, b = self._acc[tap], self._b[tap][None, None, block, of_b * self.taps + tap, 0]
        if self.sets:
            return acc, self._a.tensor[None, None, group % self.sets], b
        return acc, self._a[None, None, block, stage, tap], b
