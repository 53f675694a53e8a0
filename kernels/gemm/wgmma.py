"""``wgmma``: the tiled MMA of Hopper's warpgroups, and their operands.

``wgmma`` reads both operands from shared memory. It would truncate fp32 to tf32, so data are
rounded before: by TMA, or, for B, by the producer. An A that neither rounds is read and rounded by
consumers, and ``wgmma`` takes it from registers.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, TFloat32
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from layoutconv.planning.schedule import WARPGROUP
from layoutconv.planning.structural_zeros import Columns, Run
from layoutconv.planning.tile import TileConfig

from .cp_async import CpAsyncLoad
from .fragments import Fragments
from .mma_atoms import Data, round_to_tf32
from .tma import TmaLoad

ARCH = 90
SETS = 4  # of rounded fragments, at most: one is read while the others are multiplied


class MmaTF32Op(warpgroup.MmaF16BF16Op):
    """wgmma of tf32: the DSL's compiler has it, but no Python class."""

    descriptive_name = "warpgroup TF32 MMA Operation"

    def _verify(self) -> None:
        """Nothing: the class above would want 16 bits."""


# Types that wgmma multiplies, and how. Of 8 bits both operands run along k, as they always do here.
OPERATIONS = {
    "float16": warpgroup.MmaF16BF16Op,
    "bfloat16": warpgroup.MmaF16BF16Op,
    "tfloat32": MmaTF32Op,
    "float8_e4m3fn": warpgroup.MmaF8Op,
    "float8_e5m2": warpgroup.MmaF8Op,
    "int8": warpgroup.MmaI8Op,
}


class WarpgroupMultiplier:
    """The tiled MMA of a CTA's warpgroups, each of one or several times 64 rows.

    ``along``: the modes of A and B that run along shared memory. ``rounds``: A is in registers. An
    instruction has so many ``columns``.
    """

    def __init__(
        self, data: Data, tile: TileConfig, along: tuple[int, int], rounds: bool, columns: int
    ) -> None:
        self.data, self.accumulator, self.columns = data, data.accumulator, columns
        self.along, self.rounds, self.tile = along, rounds, tile
        self.mma = self.tiled()

    def tiled(self) -> Any:
        """A tiled MMA for one branch of the kernel, which sets its fields."""
        data, tile = self.data, self.tile
        shape = (WARPGROUP // 2, self.columns, 32 // data.bytes)
        major = OperandMajorMode.MN, OperandMajorMode.K
        # Registers hold an A along k, whichever way it runs along shared memory.
        majors = major[1 if self.rounds else self.along[0]], major[self.along[1]]
        sources = warpgroup.OperandSource
        source = sources.RMEM if self.rounds else sources.SMEM
        if data.bytes > 1:
            operands: tuple[Any, ...] = (data.element,)
        else:  # A and B might differ
            operands = data.element, data.element
        op = OPERATIONS[data.name](*operands, self.accumulator, shape, source, *majors)
        atoms = (tile.warps[0] // 4, tile.warps[1], 1)
        return cute.make_tiled_mma(cute.make_mma_atom(op), cute.make_layout(atoms))

    def accumulators(self, tile: TileConfig) -> Any:
        return cute.make_rmem_tensor(self.mma.partition_shape_C((tile.m, tile.n)), self.accumulator)

    def part(self, acc: Any, columns: Columns) -> Any:
        """The accumulators of some columns, of whole instructions."""
        shape = self.mma.partition_shape_C((self.tile.m, columns.width))
        layout = cute.make_layout(shape, stride=acc.layout.stride)
        before = columns.first // self.columns * acc.layout.stride[2]
        return cute.make_tensor(acc.iterator + before, layout)


def wait_for_products(acc: Any) -> None:
    """Wait for all ``wgmma``; what reads the accumulators ``acc`` afterwards stays behind the wait.

    The wait names no registers. To the compiler, arithmetic on sums, such as their conversion to 16
    bits, could as well stand before it: so each passes through an instruction that has to stay
    there, and is no machine code.
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

    ``windows``: of so many rows of A, how many there are, and how many rows lie between them. Each
    is multiplied by what a ``run`` has of a tile of B of its own, and added to these columns of
    ``acc``. Of the first, which sums begin with, some has all columns.
    """

    def __init__(
        self,
        multiplier: WarpgroupMultiplier,
        tid: Any,
        a: CpAsyncLoad | TmaLoad,
        b: CpAsyncLoad | TmaLoad,
        windows: tuple[int, int, int],
        acc: Any,
        run: Run,
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
        """Return how many groups may be multiplied while the next is fetched."""
        return max(1, self.sets - 1)

    def fetch(self, group: int, stage: Any) -> None:
        """Return what a group takes from registers: read and rounded."""
        if not self.sets:
            return
        ((tap, block),) = self.groups[group]
        below = tap * self.tap_rows
        found = self._a.load(block, stage, at=group % self.sets, below=below)
        as_float, as_bits = (cute.recast_tensor(found, kind) for kind in (Float32, Int32))
        for i in range(cute.size(found)):
            as_bits[i] = round_to_tf32(as_float[i], ARCH)

    def of(self, group: int, number: int, stage: Any, of_b: Any) -> tuple[Any, Any, Any]:
        """The accumulators of a group's products of that number, and what they take of A and B."""
        tap, block = self.groups[group][number]
        acc, b = self._acc[tap], self._b[tap][None, None, block, of_b * self.taps + tap, 0]
        if self.sets:
            return acc, self._a.tensor[None, None, group % self.sets], b
        return acc, self._a[None, None, block, stage, tap], b
