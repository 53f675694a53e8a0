"""Candidate tiles of several groups, and the work of each, for the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as pairs_of
from math import gcd, prod

from .group_sums import (
    FOUR,
    MOST_DIGIT,
    SUM_TYPES,
    GroupSumTile,
    GroupSumView,
    make_sum_tile,
    sum_counts,
)
from .group_tile import (
    ATOM_ROWS,
    BLOCK,
    GRANULE,
    GROUP_TYPES,
    GroupTile,
    cells_between_atoms,
    make_group_tile,
)
from .group_view import GroupView
from .kernel_spec import BYTES, VECTOR_BYTES, ctas_within
from .machine import Machine
from .schedule import WARP
from .tile import MOST_REGISTERS

ROWS = (256, 128, 64, 32)  # of a box, at most
SUM_ROWS = (128, 64)  # the same for sums over voxels
COLUMNS = (32, 64, 128)  # of a CTA, at most, unless one group has more
WARPS = ((4, 1), (2, 2), (4, 2))
CUTS = (1, 2, 4, 8, 16)  # divisors of the rows that remain for a digit of a box
# Warp instructions, estimated from counts in compiled kernels: to copy a vector of A and of B, of a
# thread before and after the mainloop, and per accumulator register in the epilogue.
COPY_A, COPY_B, OTHER, SUM = 12, 30, 200, 3
BOX, SUM_STEP = 100, 8  # for sums over voxels: per box, and per 16 voxels of a job
WORD_CYCLES = 1  # of shared memory, for one word per lane (2 predicts 2.7 times an H100's time)
CHUNK_CYCLES = 2  # of shared memory, for 16 rows of a chunk
BANKS = 128  # bytes of shared memory per cycle
ATOM_PRODUCTS = 1024  # fp16 products that take as long as an atom of one chunk
# Estimates, not measured: cycles of an SM per microsecond, its warp schedulers, L2 bandwidth over
# memory bandwidth, the slowdown because units do not always overlap, microseconds until a patch
# arrives, and the warps per SM that hide this latency.
CLOCK, SCHEDULERS, L2_SPEED, OVERLAP, ARRIVAL, ENOUGH_WARPS = 1.7e3, 4, 1.4, 1.2, 1.2, 16


@dataclass(frozen=True)
class GroupWork:
    """The work of one CTA: warp instructions, cycles of shared memory, MMA atoms of one chunk, and
    bytes read through L2; and the number of CTAs."""

    ctas: int
    instructions: int
    shared_cycles: int
    atoms: int
    read: int

    @classmethod
    def of(cls, view: GroupView, tile: GroupTile, dtype: str, along_b: int) -> GroupWork:
        """Return the work of a tile on a view; for sums over voxels, one box counts as a CTA."""
        if isinstance(view, GroupSumView):
            return cls._of_sums(view, tile, dtype)
        size, (_, warps_n) = BYTES[dtype], tile.warps
        elements = VECTOR_BYTES // size
        warps = tile.mma_threads // WARP
        boxes = prod(-(-int(r.extent) // b) for r, b in zip(view.rows, tile.box, strict=True))
        groups = tile.groups // warps_n
        chunks = -(-groups * view.channels // elements)
        # (Chunk of A, block of columns) products, for all groups of a warp.
        parts = -(-view.channels // elements) * max(view.columns / BLOCK, 1) * groups
        masks = groups * 2 if view.channels % elements else 0  # registers of half chunks
        by_matrices = size == 2 if along_b == 0 else view.channels % elements == 0
        words = parts / 4 if by_matrices else parts
        matrices = tile.atoms * -(-chunks // 2)
        # One instruction multiplies two chunks of a group.
        products = -(-view.channels // (2 * elements)) * parts / -(-view.channels // elements)
        # Cells that the taps of several atoms reach are read once.
        apart, cells = cells_between_atoms(view, tile), view.tap_cells(tile.patch)
        read_once = {i * apart + cell for i in range(tile.atoms) for cell in cells}
        share = len(read_once) / (tile.atoms * len(cells)) if apart else 1.0
        of_tap = share * matrices + words + tile.atoms * (products + share * masks)
        read = (prod(tile.patch) * tile.k + prod(tile.filter)) * size
        sums = tile.m * tile.n // tile.mma_threads
        taps, vector = view.tap_count, elements
        lines = -(-prod(tile.patch[1:]) // tile.lines_at_once(vector)) * tile.steps(vector)
        filter_vectors = -(-prod(tile.filter) // elements // tile.threads)
        copies = warps * (lines * COPY_A + filter_vectors * COPY_B)
        return cls(
            boxes * -(-view.groups // tile.groups),
            int(copies + warps * (taps * of_tap + OTHER + SUM * sums)),
            int(warps * taps * (share * tile.atoms * chunks * CHUNK_CYCLES + parts))
            + (read + 2 * tile.m * tile.n * size) // BANKS,
            int(warps * taps * tile.atoms * parts),
            read,
        )

    @classmethod
    def _of_sums(cls, view: GroupSumView, tile: GroupTile, dtype: str) -> GroupWork:
        size, warps, taps = BYTES[dtype], tile.warps[1], view.tap_count
        boxes = prod(-(-int(r.extent) // b) for r, b in zip(view.rows, tile.box, strict=True))
        steps = warps * (tile.m // ATOM_ROWS)
        assert isinstance(tile, GroupSumTile)
        read = (prod(tile.patch) * tile.k + prod(tile.box) * tile.n) * size
        lines = 0
        for of in (tile, tile.of_y):
            copied = -(-prod(of.patch[1:]) // of.lines_at_once(VECTOR_BYTES // size))
            lines += copied * of.steps(VECTOR_BYTES // size)
        # 32-bit words are read and rounded one by one.
        words = 8 * (1 + taps) if size == 4 else 0
        return cls(
            boxes * -(-view.groups // tile.groups),
            int(warps * (lines * COPY_A + BOX)) + steps * (SUM_STEP + 3 * taps + words),
            steps * ((1 + taps) * 2 * CHUNK_CYCLES + WORD_CYCLES * words) + read // BANKS,
            steps * taps * 4 * (size // 2),
            read,
        )


def sum_tiles(view: GroupSumView, dtype: str) -> Iterator[GroupSumTile]:
    """Yield the candidate tiles of sums over voxels, for data of a type."""
    if dtype not in SUM_TYPES or view.channels % GRANULE or view.columns % GRANULE:
        return
    extents = [int(r.extent) for r in view.rows]
    if BYTES[dtype] == 4:  # whole quads of voxels along a line
        extents[0] = -(-extents[0] // FOUR) * FOUR
    boxes = {box for rows in SUM_ROWS for box in _boxes(extents, rows)}
    for groups, box in pairs_of(sum_counts(view), sorted(boxes)):
        fits = BYTES[dtype] == 2 or box[0] % FOUR == 0
        enough = 2 * prod(box) > SUM_ROWS[-1] or box == tuple(extents)
        if fits and max(box) <= MOST_DIGIT and enough:
            yield make_sum_tile(view, groups, box)


def group_tiles(view: GroupView, dtype: str, along_b: int) -> Iterator[GroupTile]:
    """Yield the candidate tiles of a view, for data of a type.

    >>> from ..conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((64, 56, 56, 128), (128, 3, 3), padding=1, groups=32))
    >>> found = list(group_tiles(GroupView.of(view), "float16", 1))
    >>> sorted({tile.columns for tile in found}), all(tile.groups % 2 == 0 for tile in found)
    ([32, 64, 128], True)
    """
    if dtype not in GROUP_TYPES or view.channels % GRANULE or view.columns % GRANULE:
        return
    elements = VECTOR_BYTES // BYTES[dtype]
    # The fewest groups per warp that fill whole chunks of channels and whole blocks of columns.
    least = max(elements // gcd(elements, view.channels), BLOCK // gcd(BLOCK, view.columns))
    most = -(-view.groups // least) * least
    counts = {max(least, columns // view.columns // least * least) for columns in COLUMNS}
    boxes = {box for rows in ROWS for box in _boxes([int(r.extent) for r in view.rows], rows)}
    for groups, warps, box in pairs_of(sorted(counts), WARPS, sorted(boxes)):
        columns = groups * view.columns
        whole = columns & (columns - 1) == 0 and groups % (least * warps[1]) == 0
        if groups > most or (warps[1] > 1 and not whole) or columns > 2 * COLUMNS[-1]:
            continue
        if prod(box) > ATOM_ROWS * warps[0] // 2:
            tile = make_group_tile(view, groups, warps, box, along_b=along_b)
            if tile.registers <= MOST_REGISTERS:
                yield tile


def _boxes(extents: list[int], rows: int) -> Iterator[tuple[int, ...]]:
    """Yield boxes of at most ``rows`` rows, whose digits divide their extents about evenly."""
    if not extents:
        yield ()
        return
    first, *rest = extents
    for most in {max(1, rows // cut) for cut in (CUTS if rest else (1,))}:
        parts = -(-first // most)
        digit = max(1, -(-first // max(parts, 1)))
        for others in _boxes(rest, rows // digit):
            yield (digit, *others)


@dataclass(frozen=True)
class GroupProblem:
    """The groups of a view as the cost model sees them; B runs along mode ``along_b``."""

    view: GroupView
    dtype: str
    along_b: int
    staged_bytes: int

    def pairs(self, machine: Machine, most: int) -> Iterator[tuple[GroupTile, int]]:
        """Yield tiles that fit the machine, each with numbers of split-K slices, ``most`` at most,
        that fill the machine once or twice."""
        tiles: Iterator[GroupTile]
        if isinstance(self.view, GroupSumView):
            tiles = sum_tiles(self.view, self.dtype)
        else:
            tiles = group_tiles(self.view, self.dtype, self.along_b)
        for tile in tiles:
            if tile.smem_bytes(BYTES[self.dtype], self.staged_bytes) > machine.smem_per_cta:
                continue
            parts = [1]
            if isinstance(self.view, GroupSumView):
                n_tiles = -(-self.view.groups // tile.groups)
                room = machine.sm_count * self._ctas_per_sm(tile, machine)
                boxes = GroupWork.of(self.view, tile, self.dtype, 0).ctas // n_tiles
                parts = [max(1, min(most, boxes, times * room // n_tiles)) for times in (1, 2)]
            yield from ((tile, count) for count in dict.fromkeys(parts))

    def time(self, tile: GroupTile, splits: int, machine: Machine) -> float:
        """Return microseconds of a tile, memory time aside: CTAs hide each other's latency.

        A CTA takes the time of the SM's busiest unit. With too few CTAs beside it, it takes as long
        as it waits for its patch and multiplies alone. For sums, a CTA takes a share of the boxes.
        """
        work = GroupWork.of(self.view, tile, self.dtype, self.along_b)
        atoms = work.atoms * ATOM_PRODUCTS / machine.products
        busy = max(work.instructions / SCHEDULERS / CLOCK, work.shared_cycles / CLOCK, atoms)
        resident = self._ctas_per_sm(tile, machine)
        busy *= max(1.0, ENOUGH_WARPS / (resident * tile.mma_threads / WARP))
        alone, ctas = ARRIVAL + 2 * busy, work.ctas
        if isinstance(self.view, GroupSumView):
            n_tiles = -(-self.view.groups // tile.groups)
            boxes = -(-work.ctas // n_tiles // splits)
            alone = ARRIVAL + boxes * max(ARRIVAL, 2 * busy)  # two stages: load beside multiply
            busy, ctas = busy * boxes, n_tiles * splits
        waves, rest = divmod(-(-ctas // machine.sm_count), resident)
        time = waves * max(resident * busy, alone) + (max(rest * busy, alone) if rest else 0)
        return max(time * OVERLAP, work.ctas * work.read / (L2_SPEED * machine.bandwidth))

    def _ctas_per_sm(self, tile: GroupTile, machine: Machine) -> int:
        shared = tile.smem_bytes(BYTES[self.dtype], self.staged_bytes)
        return ctas_within(machine.smem_per_sm, tile, shared)
