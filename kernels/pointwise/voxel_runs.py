"""Runs over voxels: a tensor (N, D, H, W, C) transposed, run by run for each channel and tap.

The kernel of ``VoxelRuns``. A CTA transposes a square of voxels and channels in shared memory: it
reads adjacent vectors along channels, and writes vectors along voxels. Outside the tensor, values
are zeros.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, range_constexpr
from cutlass.cute.runtime import make_fake_tensor

from layoutconv.planning.machine import starts_early

from ..common.compiled import compiled
from ..common.pdl import let_dependents_start, wait_for_others
from ..common.plain_types import AnyTuple
from ..common.walk import read, select

THREADS = 256  # of a CTA
SIDE = 64  # voxels, and channels, of a square
BYTES, VECTOR = 16, 4
LANES = SIDE // VECTOR  # that share the read of a voxel, or the write of a row
AT_ONCE = THREADS // LANES  # voxels, and rows
TURNS = SIDE // AT_ONCE
PITCH = SIDE + 1  # odd, so that a column's elements lie in different banks
NUMBERS = 26  # of ``VoxelRuns``


def build(arch: str, dump: str | None = None) -> Any:
    """Compile the kernel: return a TVM-FFI function ``f(source, target, numbers)``.

    ``source`` and ``target`` are the memory of the tensor and of its runs, float32 vectors that
    start at multiples of 16 bytes, neither empty; ``numbers`` are ``VoxelRuns.numbers``. With a
    folder ``dump``, the function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    memory = [
        make_fake_tensor(Float32, (cute.sym_int64(),), (1,), assumed_align=BYTES) for _ in range(2)
    ]
    numbers = tuple(Int32(0) for _ in range(NUMBERS))
    kernel = VoxelRunsKernel(starts_early(arch))
    return compiled(kernel, *memory, numbers, arch=arch, dump=dump)


class VoxelRunsKernel:
    """The kernel. The grid is (taps of squares of positions, squares of channels): taps of a square
    are adjacent, since they read much the same voxels.
    """

    def __init__(self, early: bool) -> None:
        self.early = early

    @cute.jit
    def __call__(self, source: Any, target: Any, numbers: AnyTuple, stream: Any) -> None:
        channels, grid, taps = numbers[4], numbers[8:11], numbers[11:14]
        runs, run, _ = numbers[23:]
        count = taps[0] * taps[1] * taps[2]
        divisors = tuple(
            cute.fast_divmod_create_divisor_v2(Int32(extent))
            for extent in (*grid, *taps[1:], count, run)
        )
        squares = (Int32(runs) * Int32(run) + SIDE - 1) // SIDE
        self.kernel(source.iterator, target.iterator, numbers, divisors).launch(
            grid=[squares * count, (Int32(channels) + SIDE - 1) // SIDE, 1],
            block=[THREADS, 1, 1],
            stream=stream,
            use_pdl=self.early,
        )

    @cute.kernel
    def kernel(self, source: Any, target: Any, numbers: AnyTuple, divisors: AnyTuple) -> None:
        """Read a square by voxels, and write it by channels."""
        let_dependents_start(self.early)
        wait_for_others(self.early)
        channels, run = numbers[4], numbers[24]
        length = numbers[23] * run
        tid, _, _ = cute.arch.thread_idx()
        block, channel, _ = cute.arch.block_idx()
        position, tap = divmod(block, divisors[5])
        position, channel = position * SIDE, channel * SIDE
        taps = numbers[11] * numbers[12] * numbers[13]
        smem = cutlass.memory.SmemAllocator()
        square = smem.allocate_tensor(
            Float32, cute.make_layout((SIDE, SIDE), stride=(PITCH, 1)), byte_alignment=BYTES
        )
        lane, row = tid % LANES, tid // LANES
        first = self.tap(numbers, divisors, tap)
        own = channel + lane * VECTOR
        vectors = []
        for turn in range_constexpr(TURNS):
            voxel, there = self.voxel(numbers, divisors, first, position + row + turn * AT_ONCE)
            there = there & (own < channels)
            offset = Int64(voxel) * Int64(channels) + Int64(own)
            offset = cute.assume(select(there, offset, Int64(0)), divby=VECTOR)
            vectors.append((read(source + offset, Float32, VECTOR), there))
        for turn in range_constexpr(TURNS):
            values, there = vectors[turn]
            for i in range_constexpr(VECTOR):
                value = select(there, values[i], Float32(0.0))
                square[lane * VECTOR + i, row + turn * AT_ONCE] = value
        cute.arch.sync_threads()
        at = position + lane * VECTOR
        of_run, element = divmod(at, divisors[6])
        for turn in range_constexpr(TURNS):
            of = row + turn * AT_ONCE
            if (channel + of < channels) & (at < length):
                result = cute.make_rmem_tensor(VECTOR, Float32)
                for i in range_constexpr(VECTOR):
                    result[i] = square[of, lane * VECTOR + i]
                offset = Int64(of_run) * Int64(channels) + Int64(channel + of)
                offset = (offset * Int64(taps) + Int64(tap)) * Int64(run) + Int64(element)
                offset = cute.assume(offset, divby=VECTOR)
                to = cute.make_tensor(target + offset, cute.make_layout(VECTOR))
                cute.autovec_copy(result, to)

    def tap(self, numbers: Any, divisors: Any, tap: Any) -> list[Any]:
        """Return the start of a tap's runs, position 0, along D, H and W."""
        start, apart = numbers[14:17], numbers[20:23]
        tap, along_w = divmod(tap, divisors[4])
        along_d, along_h = divmod(tap, divisors[3])
        found = zip(start, apart, (along_d, along_h, along_w), strict=True)
        return [first + step * digit for first, step, digit in found]

    def voxel(self, numbers: Any, divisors: Any, first: Any, position: Any) -> tuple[Any, Any]:
        """Return the voxel number of a position, and whether the voxel exists."""
        images, *extents = numbers[:4]
        of_run, element = divmod(position, divisors[6])
        image, w = divmod(of_run + numbers[25] * element, divisors[2])
        image, h = divmod(image, divisors[1])
        image, d = divmod(image, divisors[0])
        found, sign = image * (extents[0] * extents[1] * extents[2]), images - 1 - image
        for extent, pitch, start, step, digit in zip(
            extents, numbers[5:8], first, numbers[17:20], (d, h, w), strict=True
        ):
            at = start + step * digit
            sign = sign | at | (extent - 1 - at)
            found = found + at * pitch
        return found, sign >= 0
