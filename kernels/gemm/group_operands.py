"""Operands of a tile of several groups: the patch of A, the filter, and a box of rows of D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.nvgpu import cpasync

from layoutconv.planning.group_tile import GroupTile, pitch
from layoutconv.planning.group_view import GroupView
from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec
from layoutconv.view.gemm_view import GemmView, stages

from ..common.plain_types import AnyTuple
from ..common.runtime_integers import Extent, RuntimeIntegers
from .gemm_kernel import GemmKernel, LaunchArguments
from .mma_atoms import load_matrices
from .operand import Column, Operand, Row

# A vector's byte offset in shared memory, its offset in global memory, and its predicate.
Place = tuple[Any, Any, Any]


class GroupKernel(GemmKernel):
    """Base class of kernels whose CTAs compute several groups over boxes of rows or of voxels."""

    views: type[GroupView] = GroupView  # how the kernel reads a view

    def __init__(self, view: GemmView, spec: KernelSpec) -> None:
        super().__init__(view, spec)
        of = self.views.of(view)
        assert isinstance(spec.tile, GroupTile)
        assert of is not None  # legality
        self.tile, self.of = spec.tile, of
        self.n_tiles = -(-of.groups // self.tile.groups)

    def boxes(self, given: LaunchArguments) -> tuple[RuntimeIntegers, Any]:
        """Return the arguments of a launch, and the number of boxes; traced on the host."""
        return RowBox.arguments(self.of, self.tile, self.values_of(given.integers), self.dividing)


class SharedCopy:
    """Copies vectors by cp.async over the CTA's threads; predicated-off ones become zeros."""

    def __init__(self, dtype: Any, vector: int, threads: int) -> None:
        self.dtype, self.vector, self.threads = dtype, vector, threads
        self.bytes = vector * dtype.width // 8
        modes = cute.nvgpu.LoadCacheMode
        op = cpasync.CopyG2SOp(cache_mode=modes.GLOBAL if self.bytes == 16 else modes.ALWAYS)
        self.atom = cute.make_copy_atom(op, dtype, num_bits_per_copy=8 * self.bytes)
        self.layout = cute.make_layout(((vector, 1),))

    @cute.jit
    def __call__(
        self, pointer: Any, shared: Any, count: int, place: Callable[[Any], Place]
    ) -> None:
        """Issue ``count`` copies from global memory at ``pointer`` to smem address ``shared``."""
        tid, _, _ = cute.arch.thread_idx()
        whole = const_expr(count // self.threads)
        for i in range_constexpr(whole):
            self.one(pointer, shared, place(tid + i * self.threads))
        if const_expr(count % self.threads):
            number = tid + whole * self.threads
            if number < count:
                self.one(pointer, shared, place(number))

    def one(self, pointer: Any, shared: Any, place: Place) -> None:
        """Issue one copy."""
        to, offset, there = place
        pred = cute.make_rmem_tensor(1, Boolean)
        pred[0] = there
        aligned = pointer + cute.assume(Int64(offset), divby=self.vector)
        target = cute.make_ptr(
            self.dtype, Int32(shared + to), cute.AddressSpace.smem, assumed_align=self.bytes
        )
        cute.copy_atom_call(
            self.atom,
            cute.make_tensor(aligned, self.layout),
            cute.make_tensor(target, self.layout),
            pred=pred,
        )


class RowBox:
    """A CTA's box of rows: its first row, by the digits of m, and the extents of the digits."""

    def __init__(self, of: GroupView, tile: GroupTile, args: RuntimeIntegers, number: Any) -> None:
        self.tile, self.extents = tile, [args.integer(r.extent, Int32) for r in of.rows]
        self.first = []
        for i, box in enumerate(tile.box):
            digit = number
            if i + 1 < len(tile.box):
                number, digit = divmod(number, args.divisors[f"boxes {i}"])
            self.first.append(digit * box)

    @staticmethod
    def counts(of: GroupView, tile: GroupTile, args: RuntimeIntegers) -> list[Any]:
        """Return the number of boxes along each digit of m."""
        extents = [args.integer(row.extent, Int32) for row in of.rows]
        return [Int32((e + b - 1) // b) for e, b in zip(extents, tile.box, strict=True)]

    @classmethod
    def arguments(
        cls, of: GroupView, tile: GroupTile, values: dict[str, Any], dividing: list[str]
    ) -> tuple[RuntimeIntegers, Any]:
        """Return a view's runtime integers with their divisors, and the number of boxes.

        Runs on the host, which also makes fast divisors for the counts of boxes along each digit.
        """
        divisor = cute.fast_divmod_create_divisor_v2
        fast = {name: divisor(Int32(values[name])) for name in dividing}
        counts = cls.counts(of, tile, RuntimeIntegers(values, {}))
        boxes: Any = Int32(1)
        for i, count in enumerate(counts):
            boxes, fast[f"boxes {i}"] = boxes * count, divisor(count)
        return RuntimeIntegers(values, fast), boxes

    def digits(self, number: Any) -> tuple[list[Any], Any]:
        """Split a row's number in the box into digits and a rest, 0 for rows inside the box."""
        return self.digits_of(self.tile, number)

    @staticmethod
    def digits_of(tile: GroupTile, number: Any) -> tuple[list[Any], Any]:
        """Split like ``digits``: only the tile matters, not where the box is."""
        found = []
        for extent in tile.box:
            number, digit = divmod(number, Extent(extent))
            found.append(digit)
        return found, number


class BoxOperand(Operand):
    """A CTA's D: rows are numbered within a box; columns from ``end`` on are out of bounds."""

    box: RowBox
    end: Any

    @classmethod
    def of(cls, operand: Operand, box: RowBox, end: Any) -> BoxOperand:
        made = cls.__new__(cls)
        made.__dict__.update(operand.__dict__)
        made.box, made.end, made.row_step = box, end, None
        return made

    def row(self, m: Any) -> Row:
        digits, left = self.box.digits(Int32(m))
        number, outside, reach = Int32(0), -Int32(left), 1
        for first, digit, extent in zip(self.box.first, digits, self.box.extents, strict=True):
            at = first + digit
            outside = outside | (extent - 1 - at)
            number, reach = number + at * reach, reach * extent
        return super().row(cutlass.select_(outside < 0, Int32(self.row_count), Int32(number)))

    def column(self, k: Any) -> Column:
        found = super().column(k)
        if self.end is not None:
            found.valid = Boolean(k < self.end)
        return found


class Patch:
    """The cells of A that the taps of a box reach, with all channels of the CTA, in shared memory.

    A cell's channels are a row. Rows lie ``pitch`` bytes apart, so that the cells of eight
    neighbouring rows of D cover all banks once, and another tap's cells lie at one distance from
    them.
    """

    def __init__(self, of: GroupView, tile: GroupTile, args: RuntimeIntegers, dtype: Any) -> None:
        self.of, self.tile, self.args, self.dtype = of, tile, args, dtype
        self.size: int = dtype.width // 8
        self.pitch = pitch(tile.k * self.size)
        domain, self.memory = stages(of.a)
        self.offset = domain.offset
        self.steps = [1]  # cells per step of each digit of the patch
        for extent in tile.patch:
            self.steps.append(self.steps[-1] * extent)
        self.channel_mode = (set(range(len(self.memory.layout.shape)))
                             - {row.mode for row in of.rows}).pop()  # fmt: skip

    @cute.jit
    def load(self, pointer: Any, shared: Any, box: RowBox, group: Any, vector: int) -> None:
        """Issue all copies of a box, for the CTA's groups from number ``group`` on.

        A thread keeps its place along the first digit and copies every ``at_once``-th line, so its
        address and bounds along that digit hold for all lines.
        """
        tid, _, _ = cute.arch.thread_idx()
        at_once, steps = (
            const_expr(self.tile.lines_at_once(vector)),
            const_expr(self.tile.steps(vector)),
        )
        inner = const_expr(self.tile.patch[0] * self.tile.k // vector)
        lines = const_expr(self.steps[-1] // self.steps[1])
        first, item = divmod(tid, Extent(inner)) if const_expr(at_once > 1) else (0, tid)
        for step in range_constexpr(steps):
            line = self.line(box, group, item + step * self.tile.threads, vector)
            short = const_expr(min(inner - step * self.tile.threads, self.tile.threads))
            for i in range_constexpr(0, lines, at_once):
                if const_expr(at_once * short == self.tile.threads and i + at_once <= lines):
                    self.copy_cell(pointer, shared, line, first + i, vector)
                else:
                    there = (item < short) & (first < cutlass.min(at_once, lines - i))
                    self.copy_if(there, pointer, shared, line, first + i, vector)

    @cute.jit
    def copy_if(
        self, there: Any, pointer: Any, shared: Any, line: AnyTuple, number: Any, vector: int
    ) -> None:
        """Issue this thread's copy, if it has one: no thread may write in another's place."""
        if there:
            self.copy_cell(pointer, shared, line, number, vector)

    def line(self, box: RowBox, group: Any, item: Any, vector: int) -> tuple[Any, ...]:
        """Return what a thread's vectors of all lines share: offset in global memory, origin of
        the box, sign word of the bounds, byte offset in shared memory.
        """
        of, tile = self.of, self.tile
        shape, stride = self.memory.layout.shape, self.memory.layout.stride
        digit, part = divmod(item, Extent(tile.k // vector))
        channel = group * of.channels + part * vector
        offsets = self.offset or (0,) * len(shape)
        origin = [
            first * row.step + (int(offsets[row.mode]) + of.reach(row.mode)[0])
            for first, row in zip(box.first, of.rows, strict=True)
        ]
        origin[0] = origin[0] + digit
        base = Int64(channel) + int(offsets[self.channel_mode])
        for at, row in zip(origin, of.rows, strict=True):
            base = base + Int64(at) * self.args.integer(stride[row.mode], Int64)
        end = self.args.integer(shape[of.rows[0].mode], Int32)
        outside = origin[0] | (end - 1 - origin[0])
        if of.groups % tile.groups:
            outside = outside | (of.groups * of.channels - 1 - channel)
        return base, origin, outside, digit * self.pitch + part * vector * self.size

    def copy_cell(
        self, pointer: Any, shared: Any, line: tuple[Any, ...], number: Any, vector: int
    ) -> None:
        """Issue the copy of a thread's vector in line ``number``."""
        base, origin, outside, to = line
        to = to + number * (self.steps[1] * self.pitch)
        shape, stride = self.memory.layout.shape, self.memory.layout.stride
        for i, row in list(enumerate(self.of.rows))[1:]:
            number, digit = divmod(number, Extent(self.tile.patch[i]))
            at = origin[i] + digit
            end = self.args.integer(shape[row.mode], Int32)
            outside = outside | at | (end - 1 - at)
            base = base + Int64(digit) * self.args.integer(stride[row.mode], Int64)
        copy = SharedCopy(self.dtype, vector, self.tile.threads)
        copy.one(pointer, shared, (to, base, Boolean(Int32(outside) >= 0)))

    def cell(self, digits: list[Any]) -> Any:
        """The cell that the first tap of a row reaches, by the row's digits in the box."""
        found: Any = 0
        for digit, row, apart in zip(digits, self.of.rows, self.steps, strict=False):
            low, _ = self.of.reach(row.mode)
            found = found + (digit * row.step - low) * apart
        return found


class SharedFilter:
    """The filter of a CTA's groups in shared memory, contiguous along k or columns as in memory."""

    def __init__(
        self, of: GroupView, tile: GroupTile, dtype: Any, operand: Operand, lane: Any
    ) -> None:
        self.tile, self.dtype, self.operand = tile, dtype, operand
        self.channels, self.lane = of.channels, lane
        self.lanes: dict[tuple[int, ...], Any] = {}  # by steps: bytes to the lane's ldmatrix row
        self.size: int = dtype.width // 8
        self.rows, self.length = tile.filter
        self.pitch = pitch(self.length * self.size)

    def load(self, shared: Any, column: Any) -> None:
        """Issue the copies of all filter rows for the columns of D from ``column`` on."""
        operand = self.operand
        vector = operand.vector
        copy = SharedCopy(self.dtype, vector, self.tile.threads)
        vectors = self.length // vector

        def place(number: Any) -> Place:
            row, part = divmod(number, Extent(vectors))
            to = row * self.pitch + part * copy.bytes
            along_k = operand.along == 1
            m, k = (column + row, part * vector) if along_k else (row, column + part * vector)
            return to, *operand.offset(operand.row(m), operand.column(k))

        copy(operand.pointer, shared, self.rows * vectors, place)

    @property
    def by_matrices(self) -> bool:
        """Return whether ldmatrix reads the filter. Contiguous columns must have 16 bits; along k,
        taps must start at multiples of 16 bytes."""
        if self.operand.along == 1:
            return self.channels * self.size % VECTOR_BYTES == 0
        return self.size == 2

    def offset(self, term: int, column: int) -> int:
        """Return the bytes from the start to k index ``term`` of a column."""
        if self.operand.along == 1:
            return column * self.pitch + term * self.size
        return term * self.pitch + column * self.size

    def words(self, starts: list[Any], wanted: list[tuple[int, bool]]) -> dict[Any, Any]:
        """Load a lane's registers of B, each once, by key: (byte offset, is half a chunk).

        ``starts``: results of ``start`` for whole chunks and for halves.
        """
        wanted = list(dict.fromkeys(wanted))
        if not self.by_matrices:
            return {key: self._word(starts[key[1]] + key[0]) for key in wanted}
        found: dict[Any, Any] = {}
        while wanted:
            count, steps = _together([key for key in wanted if key[1] == wanted[0][1]][:4])
            some = [key for key in wanted if key[1] == wanted[0][1]][:count]
            wanted = [key for key in wanted if key not in some]
            at = starts[some[0][1]] + some[0][0]
            if steps not in self.lanes:
                bits = [(self.lane >> 3 + i & 1) * step for i, step in enumerate(steps)]
                self.lanes[steps] = sum(bits) if bits else 0
            transposed = self.operand.along == 0
            registers = load_matrices(at + self.lanes[steps], count, transposed=transposed)
            found.update(zip(some, registers, strict=True))
        return found

    def _word(self, address: Any) -> Any:
        if self.operand.along == 1 or self.size == 4:
            return _read(Int32, address)
        low, high = (Int32(_read(cutlass.Uint16, address + i * self.pitch)) for i in range(2))
        return (low & 0xFFFF) | (high << 16)  # the DSL sign-extends

    def start(self, shared: Any, column: Any, *, half: bool) -> Any:
        """Return where a lane's words, or ldmatrix rows, of columns from ``column`` on start.

        For half a chunk, the lanes of both halves read the same words.
        """
        along_k, lane = self.operand.along == 1, self.lane
        if self.by_matrices:
            row = lane & (3 if half else 7)
            number, term = (column + row, 0) if along_k else (column, row)
        else:
            number, term = column + (lane >> 2), (lane & (1 if half else 3)) * (4 // self.size)
        if along_k:
            return shared + number * self.pitch + term * self.size
        return shared + term * self.pitch + number * self.size


def _together(keys: list[tuple[int, bool]]) -> tuple[int, tuple[int, ...]]:
    """Return how many of up to four matrices one ldmatrix loads, and their steps in bytes.

    >>> _together([(0, False), (16, False), (144, False), (160, False)])
    (4, (16, 144))
    >>> _together([(0, False), (16, False), (32, False)])
    (2, (16,))
    """
    first, *others = (offset for offset, _ in keys)
    steps = [offset - first for offset in others]
    if len(steps) == 3 and steps[2] == steps[0] + steps[1]:
        return 4, (steps[0], steps[1])
    return (2, (steps[0],)) if steps else (1, ())


def _read(dtype: Any, address: Any) -> Any:
    pointer = cute.make_ptr(
        dtype, Int32(address), cute.AddressSpace.smem, assumed_align=dtype.width // 8
    )
    return cute.make_tensor(pointer, cute.make_layout(1))[0]
