"""The kernel of wgrad for several groups of few channels: sums over voxels.

Both operands are channel-contiguous, not k-contiguous (k runs over voxels): ldmatrix transposes
16-bit data, and 32-bit data are read word by word, from lines of a box that are multiples of four
voxels. A CTA sums over its share of the boxes and stores a split-K slice; the split-K reduction
adds the slices in a fixed order. Voxels past the border add nothing: Y is zero there, and X is read
from rows of zeros, since 0 times infinity is NaN.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, TFloat32, const_expr, range_constexpr

from layoutconv.planning.group_sums import FOUR, JOB, PAIR, GroupSumTile, GroupSumView, jobs_of
from layoutconv.planning.group_tile import BLOCK, pitch
from layoutconv.planning.kernel_spec import VECTOR_BYTES

from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyTuple
from ..common.runtime_integers import Extent, RuntimeIntegers
from .gemm_kernel import KernelLaunch, LaunchArguments
from .group_operands import GroupKernel, Patch, RowBox
from .mma_atoms import load_matrices, multiply_words, round_to_tf32
from .operand import Operand

BLOCKS = 2  # blocks of 8 channels of X per job
BYTE, SIGNS = 8, 0x80


class GroupedSums(GroupKernel):
    """The kernel of grouped sums over voxels of one structure, with a ``GroupSumTile``.

    Warp roles: all warps load, multiply and store. Timeline of a CTA::

        wait for the kernel before (PDL) | box 0 | box 1, taps of 0 | box 2, taps of 1 | ... | store

    Shared memory holds two boxes: one arrives while the other is multiplied. Constraints:
    ``planning/group_sums.py``.
    """

    views = GroupSumView
    of: GroupSumView
    tile: GroupSumTile

    def start(self, given: LaunchArguments) -> KernelLaunch:
        args, boxes = self.boxes(given)
        splits = Int32(given.splits)
        share = (boxes + splits - 1) // splits
        split = Int32(share), boxes, Int64(given.split_stride)
        kernel = self.kernel(*given.memory, args, split)
        return KernelLaunch(kernel, [self.n_tiles, splits, 1], self.pdl)

    @cute.kernel
    def kernel(self, y: Any, x: Any, d: Any, args: RuntimeIntegers, split: AnyTuple) -> None:
        tile, of, size = self.tile, self.of, self.data.bytes
        smem = cutlass.memory.SmemAllocator()
        base = smem.allocate_array(Int64, self.spec.smem_bytes // 8, byte_alignment=1024)
        tid, _, _ = cute.arch.thread_idx()
        n_tile, rank, _ = cute.arch.block_idx()
        first = Int32(base.toint())
        stage_bytes = tile.stage_bytes(size)
        at_zeros = first + tile.stages * stage_bytes
        for stage in range_constexpr(tile.stages):  # rows of Y past the voxels of a box
            end = first + (stage + 1) * stage_bytes
            tail = (tile.m - prod(tile.box)) * pitch(tile.n * size)
            self._clear(end - tail, end, tid)
        self._clear(at_zeros, first + self.spec.smem_bytes, tid)
        of_words = self.data.element is TFloat32
        sums = (SumsOfWords if of_words else WarpSums)(self, args, tid, first, at_zeros)
        share, boxes, split_stride = split
        begin = rank * share
        end = cutlass.min(begin + share, boxes)
        load = partial(sums.load_if, x, y, n_tile * tile.groups)
        add = sums.add
        acc = sums.acc
        acc.fill(0.0)
        wait_for_others(self.pdl)
        load(begin, end, Int32(0))
        for number in cutlass.range(begin, end, 1, unroll=1):
            stage = (number - begin) & 1
            load(number + 1, end, stage ^ 1)
            add(acc, number, stage)
        let_dependents_start(self.pdl)
        if const_expr(self.spec.split == "partial"):
            d = d + cute.assume(Int64(rank) * split_stride, divby=self.spec.vectors[2])
        of_d = Operand(
            of.d, args, d, None, group=None, along=1, vector=PAIR, column_tile=of.channels
        )
        self._store(acc, of_d, n_tile, sums)

    @cute.jit
    def _clear(self, begin: Any, end: Any, tid: Any) -> None:
        """Zero shared memory from ``begin`` to ``end``: rows for voxels that are out of bounds."""
        step = Int32(self.tile.threads * VECTOR_BYTES)
        for address in cutlass.range(begin + tid * VECTOR_BYTES, end, step, unroll=1):
            pointer = cute.make_ptr(
                Int32, address, cute.AddressSpace.smem, assumed_align=VECTOR_BYTES
            )
            words = cute.make_tensor(pointer, cute.make_layout(VECTOR_BYTES // 4))
            zeros = cute.make_rmem_tensor((VECTOR_BYTES // 4,), Int32)
            zeros.fill(0)
            cute.autovec_copy(zeros, words)

    def _store(self, acc: Any, d: Operand, n_tile: Any, sums: WarpSums) -> None:
        """Store a job's results in pairs: those within one group that no other job stores."""
        of, element = self.of, self.out.element
        m0, m_begin, c0, c_begin = sums.job
        bits = PAIR * element.width
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), element, num_bits_per_copy=bits)
        layout = cute.make_layout(((PAIR, 1),))
        for half in range(2):
            m = m0 + (sums.lane >> 2) + 8 * half
            of_m, _ = divmod(m, Extent(of.columns))
            row = d.row(n_tile * self.tile.n + m)
            for block in range(BLOCKS):
                c = c0 + 8 * block + PAIR * (sums.lane & 3)
                of_c, channel = divmod(c, Extent(of.channels))
                own = (m >= m_begin) & (c >= c_begin) & (of_m == of_c)
                for tap in range(of.tap_count):
                    offset, there = d.offset(row, d.column(channel + of.channels * tap))
                    pair = cute.make_rmem_tensor((PAIR,), element)
                    for i in range(PAIR):
                        pair[i] = element(acc[2 * half + i, block, tap])
                    pred = cute.make_rmem_tensor(1, Boolean)
                    pred[0] = Boolean(own) & Boolean(there)
                    cute.copy_atom_call(
                        atom,
                        cute.make_tensor(pair.iterator, layout),
                        cute.make_tensor(d.at(d.pointer, offset), layout),
                        pred=pred,
                    )


class WarpSums:
    """A warp's job: the addresses of its operands, and its accumulators for every tap."""

    def __init__(
        self, kernel: GroupedSums, args: RuntimeIntegers, tid: Any, first: Any, at_zeros: Any
    ) -> None:
        tile, of, self.data = kernel.tile, kernel.of, kernel.data
        self.tile, self.of, self.args, self.vectors = tile, of, args, kernel.spec.vectors
        element, size = self.data.element, self.data.bytes
        self.first, self.to_y = first, tile.patch_bytes(size)
        self.stage_bytes = tile.stage_bytes(size)
        self.x = Patch(of, tile, args, element)
        self.y = Patch(of.of_y, tile.of_y, args, element)
        self.taps = [cells * self.x.pitch for cells in of.tap_cells(tile.patch)]
        self.arch, self.at_zeros = kernel.spec.arch_number, at_zeros
        warp, self.lane = tid >> 5, tid & 31
        jobs = jobs_of(tile.groups, of.channels, of.columns)
        self.job = [_of_warp([job[i] for job in jobs], warp) for i in range(4)]
        self.place()
        shape = (4, BLOCKS, len(self.taps))
        self.acc = cute.make_rmem_tensor(shape, Float32)

    def place(self) -> None:
        """Compute the addresses of this lane's ldmatrix rows of Y and X."""
        tile, size, first = self.tile, self.data.bytes, self.first
        m0, _, c0, _ = self.job
        voxel_of_x = (self.lane & 7) + 8 * (self.lane >> 3 & 1)
        channels_of_x = (c0 + 8 * (self.lane >> 4)) * size
        self.zeros = self.at_zeros + channels_of_x
        voxel_of_y = (self.lane & 7) + 8 * (self.lane >> 4)
        channels_of_y = (m0 + 8 * (self.lane >> 3 & 1)) * size
        self.row_of_y = first + self.to_y + voxel_of_y * self.y.pitch + channels_of_y
        self.rows: list[Any] = []  # address in X of the lane's voxel in each step
        self.packed: list[Any] = []  # that voxel's digits in the box, a byte each
        for step in range(tile.m // JOB):
            number = voxel_of_x + step * JOB
            last = prod(tile.box) - 1
            found, _ = RowBox.digits_of(tile, cutlass.min(Int32(number), Int32(last)))
            self.rows.append(Int32(first + self.x.cell(found) * self.x.pitch + channels_of_x))
            packed = Int32(0)
            for i, digit in enumerate(found):
                packed = packed | (digit << BYTE * i)
            past = (last - Int32(number)) >> 31  # all ones past the box's last voxel
            self.packed.append(packed | (past & (SIGNS - 1)))

    @cute.jit
    def load_if(self, x: Any, y: Any, group: Any, number: Any, end: Any, stage: Any) -> None:
        """Issue the copies of box ``number`` into a stage, if ``number`` is below ``end``."""
        if number < end:
            self.load(x, y, group, number, stage)
        cute.arch.cp_async_commit_group()

    def load(self, x: Any, y: Any, group: Any, number: Any, stage: Any) -> None:
        """Issue the copies of box ``number`` into a stage."""
        box = RowBox(self.of, self.tile, self.args, number)
        at_x = self.first + stage * self.stage_bytes
        self.x.load(x, at_x, box, group, self.vectors[1])
        self.y.load(y, at_x + self.to_y, box, group, self.vectors[0])

    def add(self, acc: Any, number: Any, stage: Any) -> None:
        """Add the products of box ``number``, once its copies into a stage have completed."""
        box, away = RowBox(self.of, self.tile, self.args, number), stage * self.stage_bytes
        ends, signs = Int32(0), 0
        for i, (first, extent, most) in enumerate(
            zip(box.first, box.extents, self.tile.box, strict=True)
        ):
            end = cutlass.min(Int32(extent - first), Int32(most)) - 1
            ends, signs = ends | (end << BYTE * i), signs | (SIGNS << BYTE * i)
        signs = signs - (1 << 32) if signs >> 31 else signs
        ends = ends | signs
        cute.arch.cp_async_wait_group(1)  # the next box may be on its way
        cute.arch.sync_threads()
        self.multiply(acc, ends, signs, away)
        cute.arch.sync_threads()  # the stage is read

    def multiply(self, acc: Any, ends: Any, signs: int, away: Any) -> None:
        """Add the products of the box ``away`` bytes from stage 0; ``ends``: its last digits."""
        for step, (row, packed) in enumerate(zip(self.rows, self.packed, strict=True)):
            inside = Boolean(((ends - packed) & signs) == signs)  # no digit is past its end
            start = cutlass.select_(inside, Int32(row + away), Int32(self.zeros))
            left = load_matrices(self.row_of_y + away + step * (JOB * self.y.pitch))
            for tap, cells in enumerate(self.taps):
                right = load_matrices(start + cells)
                for block in range(BLOCKS):
                    words = right[2 * block : 2 * block + 2]
                    before = [acc[i, block, tap] for i in range(4)]
                    after = multiply_words(self.data.element, left, words, before)
                    for i, value in enumerate(after):
                        acc[i, block, tap] = value


class SumsOfWords(WarpSums):
    """``WarpSums`` for tf32: lanes read word by word, from four voxels in one line of a box."""

    def place(self) -> None:
        size, (m0, _, c0, _) = self.data.bytes, self.job
        self.voxel, channel = self.lane % FOUR, self.lane // FOUR
        row_of_x = self.voxel * (self.of.rows[0].step * self.x.pitch)
        self.row_of_x = self.first + row_of_x + (c0 + channel) * size
        self.row_of_y = self.first + self.to_y + self.voxel * self.y.pitch + (m0 + channel) * size
        self.zeros = self.at_zeros + (c0 + channel) * size

    def multiply(self, acc: Any, ends: Any, signs: int, away: Any) -> None:
        size = self.data.bytes
        for step in range(0, prod(self.tile.box), 2 * FOUR):
            starts, left = [], list[Any]()
            for voxel in (step, step + FOUR):
                starts.append(self._start(voxel, ends, signs, away))
                at = self.row_of_y + away + voxel * self.y.pitch
                left += [self._word(at + i * (BLOCK * size)) for i in range(2)]
            for tap, cells in enumerate(self.taps):
                for block in range(BLOCKS):
                    at = cells + block * (BLOCK * size)
                    words = [self._word(start + at) for start in starts]
                    before = [acc[i, block, tap] for i in range(4)]
                    after = multiply_words(self.data.element, left, words, before)
                    for i, value in enumerate(after):
                        acc[i, block, tap] = value

    def _start(self, voxel: int, ends: Any, signs: int, away: Any) -> Any:
        """Return where a lane's words of X start at the first tap: at zeros, if its voxel is out
        of bounds. The lane has one of four voxels from number ``voxel`` on, all in one line.
        """
        if voxel >= prod(self.tile.box):
            return self.zeros
        digits, packed = [], 0
        for i, extent in enumerate(self.tile.box):
            voxel, digit = divmod(voxel, extent)
            digits.append(digit)
            packed |= digit << BYTE * i
        inside = Boolean(((ends - packed - self.voxel) & signs) == signs)
        row = self.row_of_x + away + self.x.cell(digits) * self.x.pitch
        return cutlass.select_(inside, Int32(row), Int32(self.zeros))

    def _word(self, address: Any) -> Any:
        """Read a word of shared memory, rounded to tf32."""
        pointer = cute.make_ptr(Int32, Int32(address), cute.AddressSpace.smem, assumed_align=4)
        return round_to_tf32(cute.make_tensor(pointer, cute.make_layout(1))[0], self.arch)


def _of_warp(values: list[int], warp: Any) -> Any:
    """Return ``values[warp]``, for a dynamic ``warp``."""
    found: Any = Int32(values[0])
    for i, value in enumerate(values[1:], start=1):
        found = cutlass.select_(warp == i, Int32(value), found)
    return found
