"""Tiles of several groups for wgrad: sums over voxels, from two patches in shared memory.

``D[(n, g), (c, t)] = sum_k Y[k, (n, g)] * X[k, (c, g), t]``: k runs over voxels, and a CTA takes
boxes of them one after the other. Shared memory holds a box's voxels of Y and the cells of X that
its taps reach, once for all taps. A warp has a *job*, 16 channels of Y by 16 of X, and keeps the
sums of every tap in registers. Products outside the diagonal blocks are no results and are not
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from ..algebra.int_tuple import flatten
from ..view.gemm_view import GemmView
from ..view.operands import transposed
from .group_tile import BLOCK, GRANULE, GroupTile, pitch
from .group_view import Digit, GroupView, are_plain, modes_of, nested, side_by_side
from .kernel_spec import ASYNC_BYTES, BYTES, KernelSpec, vector_along
from .tile import registers_given

SUM_TYPES = ("float16", "bfloat16", "tfloat32")
JOB = 16  # channels of Y, and of X, per warp; voxels per instruction
MOST_SUM_TAPS = 9  # a thread keeps eight sums of each in registers
MOST_JOBS = 16  # warps per CTA
MOST_DIGIT = 127  # of a box: its digits are packed into bytes
OTHER_REGISTERS = 48  # per thread, beside sums
SUM_STAGES = 2  # boxes: one loads while the other is multiplied
MOST_THREADS = 2048  # per SM
PAIR = 2  # results that a thread stores at once
FOUR = 4  # voxels of a line whose 32-bit words four lanes read

Job = tuple[int, int, int, int]  # first channel loaded and first channel stored, of Y, then of X


@dataclass(frozen=True)
class GroupSumView(GroupView):
    """A view of sums over voxels whose groups are contiguous: ``a`` is X, ``b`` is Y.

    X has modes (voxels, (channels of all groups, taps)), Y (voxels, channels of all groups), D
    rows (n, g). ``columns`` are Y's channels per group, ``voxels`` the digits of Y's rows.
    """

    voxels: tuple[Digit, ...] = ()

    @classmethod
    def of(cls, view: GemmView) -> GroupSumView | None:
        """Return the groups of a view; None if they are not contiguous, or the sum is another.

        >>> from ..conv import ConvProblem, wgrad_view
        >>> found = GroupSumView.of(wgrad_view(ConvProblem((2, 9, 24), (48, 3), groups=3)))
        >>> found.groups, found.channels, found.columns, found.tap_count
        (3, 8, 16, 3)
        """
        if not are_plain(view) or len(flatten(view.a.shape[0])) != 1:
            return None
        of_x, of_y = transposed(view.b), transposed(view.a)
        x, y = side_by_side(of_x), side_by_side(of_y)
        modes, voxels = modes_of(of_x), modes_of(of_y)
        if x is None or y is None or modes is None or voxels is None:
            return None
        rows, channels, taps = modes
        backwards = any(tap.step < 1 for tap in taps) or any(row.step != 1 for row in voxels[0])
        if backwards or prod(int(tap.extent) for tap in taps) > MOST_SUM_TAPS:
            return None
        return cls(x, y, nested(view.d), rows, taps, view.l, channels, view.m, voxels[0])

    @property
    def of_y(self) -> GroupView:
        """Y as an operand whose cells are voxels, without taps."""
        return GroupView(
            self.b, self.b, self.d, self.voxels, (), self.groups, self.columns, self.columns
        )


@dataclass(frozen=True, repr=False)
class GroupSumTile(GroupTile):
    """Configuration of a tile that sums over boxes of voxels for several groups.

    ``mma`` is (m, n, k): voxels of a box, rounded up, and a CTA's channels of Y and of X. ``warps``
    are (1, jobs); ``filter`` is the distance from the first tap to the last, in cells of the patch,
    and the number of taps.

    >>> tile = GroupSumTile((128, 64, 64), (1, 4), 2, groups=8, columns=64, box=(16, 8, 1),
    ...     patch=(18, 10, 1), filter=(38, 9))
    >>> print(tile, tile.smem_bytes(2, 4))
    sums of 8 groups over boxes of 16x8x1, 4 warps 94320
    """

    def __repr__(self) -> str:
        return "GroupSumTile" + super().__repr__().removeprefix("GroupTile")

    def __str__(self) -> str:
        box = "x".join(map(str, self.box))
        return f"sums of {self.groups} groups over boxes of {box}, {self.warps[1]} warps"

    def _reasons(self) -> Iterator[str]:
        if self.m % JOB or not 0 < prod(self.box) <= self.m or max(self.box) > MOST_DIGIT:
            yield f"a box of {MOST_DIGIT} voxels a digit at most, got {self.box} in {self.m}"
        if min(self.n, self.k) < JOB or self.n % BLOCK or self.k % BLOCK:
            yield f"a multiple of {BLOCK} channels, {JOB} or more, got {self.n} and {self.k}"

    @property
    def registers(self) -> int:
        """Registers per thread, about: sums of every tap, and rows of X for every step."""
        return BLOCK * self.filter[1] + 2 * (self.m // JOB) + OTHER_REGISTERS

    @property
    def ctas_per_sm(self) -> int:
        fitting = range(1, MOST_THREADS // self.threads + 1)
        return max(
            (c for c in fitting if registers_given(c, self.threads) >= self.registers), default=1
        )

    def smem_bytes(self, operand_bytes: int, output_bytes: int) -> int:
        """Return the dynamic shared memory in bytes: stages and rows of zeros."""
        zeros = (self.filter[0] + 1) * pitch(self.k * operand_bytes)
        return self.stages * self.stage_bytes(operand_bytes) + zeros

    def stage_bytes(self, operand_bytes: int) -> int:
        """Return the bytes of a stage: X's patch and Y's voxels of a box."""
        return self.patch_bytes(operand_bytes) + self.m * pitch(self.n * operand_bytes)

    @property
    def of_y(self) -> GroupTile:
        """The tile with Y's voxels as its patch, to size their copies."""
        return replace(
            self, mma=(self.m, self.k, self.n), patch=self.box, columns=self.n, filter=(0, 0)
        )


def jobs_of(groups: int, channels: int, columns: int) -> list[Job]:
    """Return the jobs that cover the diagonal blocks of ``groups`` groups.

    >>> jobs_of(4, 8, 8)
    [(0, 0, 0, 0), (16, 16, 16, 16)]
    >>> len(jobs_of(2, 32, 32)), jobs_of(2, 24, 24)[:3]
    (8, [(0, 0, 0, 0), (0, 0, 16, 16), (16, 16, 0, 0)])
    """
    of_y, of_x, found = groups * columns, groups * channels, []
    for m in range(0, of_y, JOB):
        first, last = m // columns, (min(m + JOB, of_y) - 1) // columns
        begin = first * channels // BLOCK * BLOCK
        for c in range(begin, (last + 1) * channels, JOB):
            found.append((min(m, of_y - JOB), m, min(c, of_x - JOB), c))
    return found


def make_sum_tile(of: GroupSumView, groups: int, box: tuple[int, ...]) -> GroupSumTile:
    """Return the tile of ``groups`` groups and a box of voxels."""
    patch = of.patch(box)
    last, apart = 0, 1
    for extent, row in zip(patch, of.rows, strict=True):
        last, apart = last + of.reach(row.mode)[1] * apart, apart * extent
    return GroupSumTile(
        (-(-prod(box) // JOB) * JOB, groups * of.columns, groups * of.channels),
        (1, len(jobs_of(groups, of.channels, of.columns))),
        SUM_STAGES,
        groups=groups,
        columns=groups * of.columns,
        box=box,
        patch=patch,
        filter=(last, of.tap_count),
    )


def sum_counts(of: GroupSumView) -> list[int]:
    """Return candidate numbers of groups per CTA, for about 32 and about 64 channels.

    Empty if all groups together have fewer channels than a job, or if the fewest groups need more
    jobs than a CTA has warps.
    """
    least = max(BLOCK // gcd(BLOCK, count) for count in (of.channels, of.columns))
    few = min(of.channels, of.columns)
    counts = {max(least, -(-most // few // least) * least) for most in (2 * JOB, 4 * JOB)}
    return [
        count
        for count in sorted(counts)
        if count * few >= JOB
        and len(jobs_of(count, of.channels, of.columns)) <= MOST_JOBS
        and count < of.groups + least
    ]


def sum_vectors(
    of: GroupSumView, dtype: str, out_dtype: str, aligned: tuple[int, int, int] = (16, 16, 16)
) -> tuple[int, int, int]:
    """Return the elements per access of Y, X and D."""
    size, out_size = BYTES[dtype], BYTES[out_dtype]
    y, x = vector_along(of.b, 1, size, aligned[0]), vector_along(of.a, 1, size, aligned[1])
    return y, x, vector_along(of.d, 1, out_size, aligned[2])


def sum_reasons(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Yield the reasons why the wgrad kernel of groups cannot run a view with a spec's tile."""
    tile, of = spec.tile, GroupSumView.of(view)
    assert isinstance(tile, GroupSumTile)
    if of is None:
        yield "groups side by side, and a sum over voxels of few taps, got another view"
        return
    if spec.dtype not in SUM_TYPES:
        yield f"one of {', '.join(SUM_TYPES)} for sums of several groups, got {spec.dtype}"
    if BYTES[spec.dtype] == 4 and tile.box[0] % FOUR:
        yield f"lines of whole {FOUR} voxels of a box for words of 32 bits, got {tile.box}"
    if of.channels % GRANULE or of.columns % GRANULE:
        yield f"multiples of {GRANULE} channels a group, got {of.channels} and {of.columns}"
        return
    if len(tile.box) != len(of.rows) or make_sum_tile(of, tile.groups, tile.box) != tile:
        yield f"the patch and the jobs of the view's taps and groups, got {tile}"
    if tile.threads > 32 * MOST_JOBS:
        yield f"{MOST_JOBS} warps at most, got {tile.threads} threads"
    if min(spec.vectors[:2]) * BYTES[spec.dtype] < ASYNC_BYTES or spec.along != (0, 0):
        yield f"channels that run along memory, by vectors, got {spec.vectors} along {spec.along}"
    if spec.vectors[2] < PAIR:
        yield f"results that are stored {PAIR} at once, got {spec.vectors[2]}"
    if spec.epilogue or spec.split == "atomic" or spec.skip or spec.kept:
        yield "sums that nothing follows, whole or in parts"
