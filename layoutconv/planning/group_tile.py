"""Tile of several groups of a convolution: a box of rows, and a patch of A for all taps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ..view.epilogue import counts_rows
from ..view.gemm_view import GemmView
from .group_view import GroupView
from .kernel_spec import ASYNC_BYTES, BYTES, VECTOR_BYTES, KernelSpec, longest, vector_along
from .tile import REGISTERS, TileConfig

GROUP_TYPES = ("float16", "bfloat16", "tfloat32")
GRANULE = 4  # channels and columns of a group are multiples of this
BLOCK = 8  # columns of an MMA instruction
ATOM_ROWS = 16
OTHER_REGISTERS = 48  # per thread: addresses, words of B, predicates


@dataclass(frozen=True, repr=False)
class GroupTile(TileConfig):
    """Configuration of a tile of several groups, whose product is block-diagonal.

    ``mma`` is (m, n, k) of a CTA: rows of D, staged columns (a power of two), and channels of A.
    Shared memory holds the *patch*, the cells that the taps of a box of rows reach, once for all
    taps, and the filters of all groups. Each group's columns multiply its own channels.

    Args:
        groups: of a CTA, divided evenly among the warps along n.
        columns: of D, for these groups.
        box: rows of D by the digits of m, such as (Q, P, N): ``m`` is their number, rounded up.
        patch: cells of A by the same digits.
        filter: rows of B's tile in shared memory and their length; either mode may be contiguous.

    >>> print(GroupTile((128, 64, 64), (2, 2), 1, groups=8, columns=64, box=(16, 8, 1),
    ...     patch=(18, 10, 1), filter=(64, 72)))
    128x64, 8 groups, box of 16x8x1, 2x2 warps
    """

    groups: int = 1
    columns: int = 0
    box: tuple[int, ...] = ()
    patch: tuple[int, ...] = ()
    filter: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        return (
            f"GroupTile({self.mma}, {self.warps}, {self.stages}, groups={self.groups}, "
            f"columns={self.columns}, box={self.box}, patch={self.patch}, filter={self.filter})"
        )

    def __str__(self) -> str:
        box, warps = "x".join(map(str, self.box)), "x".join(map(str, self.warps))
        return f"{self.m}x{self.n}, {self.groups} groups, box of {box}, {warps} warps"

    def _reasons(self) -> Iterator[str]:
        warps_m, warps_n = self.warps
        rows = self.m // (ATOM_ROWS * warps_m) * ATOM_ROWS * warps_m
        if rows != self.m or not 0 < prod(self.box) <= self.m:
            yield f"whole atoms of rows for each warp, that hold the box, got {self.m} rows"
        if self.n & (self.n - 1) or not 0 < self.columns <= self.n:
            yield f"a power of two for columns, got {self.n} for {self.columns}"
        if self.columns != self.n and warps_n > 1:
            yield f"one warp along n for {self.columns} columns of {self.n}"
        if self.groups % warps_n or self.columns % (BLOCK * warps_n):
            yield f"whole groups and blocks of columns for {warps_n} warps, got {self.groups}"

    @property
    def atoms(self) -> int:
        """Atoms of 16 rows per warp."""
        return self.m // (ATOM_ROWS * self.warps[0])

    @property
    def registers(self) -> int:
        """Registers per thread, about: fragments and accumulators, twice as many of these if the
        columns of a group are no multiple of 8."""
        warps_n = self.warps[1]
        shared = 2 if self.columns // self.groups % BLOCK else 1
        sums = self.atoms * shared * self.n // (BLOCK * warps_n) * 4
        return sums + self.atoms * self.k // warps_n // 4 + OTHER_REGISTERS

    @property
    def ctas_per_sm(self) -> int:
        return max(1, min(REGISTERS // (self.threads * self.registers), 2048 // self.threads))

    def lines_at_once(self, vector: int) -> int:
        """Return the lines of the patch that all threads copy at once, in vectors of elements."""
        return max(1, self.threads * vector // (self.patch[0] * self.k))

    def steps(self, vector: int) -> int:
        """Return the vectors per thread of a line of the patch."""
        return -(-self.patch[0] * self.k // (vector * self.threads))

    def smem_bytes(self, operand_bytes: int, output_bytes: int) -> int:
        """Return the dynamic shared memory in bytes: patch and filter, reused by the epilogue."""
        operands = self.patch_bytes(operand_bytes) + self.filter_bytes(operand_bytes)
        return max(operands, self.epilogue_bytes(output_bytes))

    def patch_bytes(self, operand_bytes: int) -> int:
        return prod(self.patch) * pitch(self.k * operand_bytes)

    def filter_bytes(self, operand_bytes: int) -> int:
        rows, length = self.filter
        return rows * pitch(length * operand_bytes)


def pitch(row_bytes: int) -> int:
    """Return the pitch of rows in shared memory: an odd number of 16-byte vectors.

    Eight rows then cover all banks exactly once, and the distance between two elements depends only
    on the rows and columns between them.

    >>> pitch(128), pitch(72), pitch(80)
    (144, 80, 80)
    """
    return (-(-row_bytes // VECTOR_BYTES) | 1) * VECTOR_BYTES


def make_group_tile(
    of: GroupView, groups: int, warps: tuple[int, int], box: tuple[int, ...], *, along_b: int
) -> GroupTile:
    """Return the tile of ``groups`` groups and a box of rows; B is contiguous in ``along_b``."""
    columns, terms = groups * of.columns, of.channels * of.tap_count
    atoms = -(-prod(box) // (ATOM_ROWS * warps[0]))
    return GroupTile(
        (atoms * ATOM_ROWS * warps[0], 1 << (columns - 1).bit_length(), groups * of.channels),
        warps,
        1,
        groups=groups,
        columns=columns,
        box=box,
        patch=of.patch(box),
        filter=(columns, terms) if along_b == 1 else (terms, columns),
    )


def cells_between_atoms(of: GroupView, tile: GroupTile) -> int:
    """Return the distance in cells of the patch between the atoms of a warp; 0 if it varies.

    Atoms of whole lines are lines apart: taps of one then reach cells that taps of the next reach.

    >>> from ..conv import ConvProblem, fprop_view
    >>> view = GroupView.of(fprop_view(ConvProblem((2, 9, 9, 24), (24, 3, 3), groups=3)))
    >>> boxes = (16, 8, 1), (8, 8, 2), (14, 8, 1)
    >>> tiles = [make_group_tile(view, 2, (2, 1), box, along_b=1) for box in boxes]
    >>> [cells_between_atoms(view, tile) for tile in tiles]
    [18, 20, 0]
    """
    if len(tile.box) < 2 or ATOM_ROWS % tile.box[0] or prod(tile.box) != tile.m:
        return 0
    lines = ATOM_ROWS // tile.box[0]
    if tile.box[1] % (lines * tile.atoms):
        return 0
    row = of.rows[1]
    return lines * row.step * of.cells_apart(tile.patch)[row.mode]


def group_reasons(view: GemmView, spec: KernelSpec) -> Iterator[str]:
    """Yield the reasons why the kernel of groups cannot run a view with the tile of a spec."""
    tile, of = spec.tile, GroupView.of(view)
    assert isinstance(tile, GroupTile)
    if of is None:
        yield "groups side by side in A and D, rows and taps of a convolution, got another view"
        return
    if spec.dtype not in GROUP_TYPES:
        yield f"one of {', '.join(GROUP_TYPES)} for tiles of several groups, got {spec.dtype}"
    if of.channels % GRANULE or of.columns % GRANULE:
        yield f"multiples of {GRANULE} channels a group, got {of.channels} and {of.columns}"
        return
    size, warps_n = BYTES[spec.dtype], tile.warps[1]
    if tile.k // warps_n * size % VECTOR_BYTES:
        yield f"channels of a warp in whole vectors, got {tile.k // warps_n}"
    fits = make_group_tile(of, tile.groups, tile.warps, tile.box, along_b=spec.along[1])
    if len(tile.box) != len(of.rows) or fits != tile:
        yield f"a patch and a filter of the view's taps, {fits}, got {tile}"
    if min(spec.vectors[:2]) * size < ASYNC_BYTES or spec.along[0] != 1:
        yield f"channels that run along memory, by vectors, got {spec.vectors} along {spec.along}"
    at_once = tile.mma_threads * spec.vectors[2] // tile.n
    if not at_once or tile.m % at_once:
        yield f"a multiple of {max(at_once, 1)} rows, that are stored at once, got {tile.m}"
    if counts_rows(spec.epilogue) or "statistics" in spec.epilogue.split():
        yield "steps that ask for no row, and no statistics, of a box of rows"
    if spec.split or spec.skip or spec.kept:
        yield "whole sums of every tap"


def group_vectors(
    of: GroupView, dtype: str, out_dtype: str, aligned: tuple[int, int, int] = (16, 16, 16)
) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return what ``vectors_of`` does, for channels of all groups that are contiguous in A and D.

    >>> from ..conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((2, 9, 24), (24, 3), groups=6))
    >>> group_vectors(GroupView.of(view), "float16", "float16")
    ((8, 4, 8), (1, 1))
    """
    size, out_size = BYTES[dtype], BYTES[out_dtype]
    (a, along_a), (b, along_b) = (
        longest(layout, size, aligned[i]) for i, layout in enumerate((of.a, of.b))
    )
    return (a, b, vector_along(of.d, 1, out_size, aligned[2])), (along_a, along_b)
