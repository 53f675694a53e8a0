"""Kernel spec: everything a kernel is compiled for besides the structure of its view."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, lcm

from layoutconv.algebra.int_tuple import flatten, product
from layoutconv.algebra.stride import ScaledBasis
from layoutconv.algebra.symint import is_runtime

from ..view.epilogue import is_by_row
from ..view.gemm_view import GemmView, OperandLayout, gathers, stages
from ..view.vectors import contiguous_extent, rows_adjoin
from .machine import starts_early
from .schedule import WARP
from .tile import TileConfig
from .view_rules import check_maps, mode_left

VECTOR_BYTES = 16
ASYNC_BYTES = 4  # the smallest cp.async
SHARED = 228 << 10  # bytes per SM, on the largest GPUs
LESS_SHARED = {80: 164 << 10, 87: 164 << 10} | dict.fromkeys((86, 89, 120, 121), 100 << 10)
MOST_UNITS = 352  # units of k in a tile's tap mask: enough for a 7x7x7 filter
ENTRY_BYTES = 4  # of an index buffer
RESERVED = 1024  # bytes of shared memory that CUDA reserves per CTA
BYTES = {
    "float64": 8, "float32": 4, "tfloat32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int4": 1,
}  # fmt: skip
# Least and greatest compute capability, times ten, for types that not every GPU multiplies.
ARCHES: dict[str, tuple[int, float]] = {
    "float8_e4m3fn": (89, inf),
    "float8_e5m2": (89, inf),
    "int4": (80, 89),
}


@dataclass(frozen=True)
class KernelSpec:
    """Types, tile, machine, and how memory is read and written.

    Args:
        dtype: of A and B: "float16", "bfloat16", "float64", "int8", "float8_e4m3fn", "float8_e5m2";
            for fp32 data "tfloat32", rounded to nearest, or "float32", three products of tf32;
            "int4" for a view whose elements are bytes, each a pair of numbers along k.
        out_dtype: of D; accumulators are fp32, int32 for int8 and int4, fp64 for float64.
        arch: the machine, a name such as "sm_80".
        vectors: elements of A, B and D per access.
        along: the contiguous mode of A, of (m, k), and of B, of (n, k): 1 or 0.
        epilogue: ``layoutconv.view.epilogue.Epilogue.structure``.
        split: split-K: "" without, "partial" if each slice stores a result of its own, "atomic" if
            all slices add to one.
        skip: whether a tile skips the taps that none of its rows has, or an empty sum.
        kept: index-buffer entries that a CTA keeps in shared memory: of A's buffer, all taps of its
            rows; of D's buffer, if there is one, its rows.
        run: elements of D per store if its rows adjoin in memory: a tile of all columns is then one
            run. 0 if vectors lie within rows.
        concurrent: one of several kernels that run at the same time, each for a part of a result.
    """

    dtype: str
    out_dtype: str
    tile: TileConfig
    arch: str
    vectors: tuple[int, int, int]
    along: tuple[int, int] = (1, 1)
    epilogue: str = ""
    split: str = ""
    skip: bool = False
    kept: int = 0
    run: int = 0
    concurrent: bool = False

    @classmethod
    def of(
        cls,
        view: GemmView,
        dtype: str,
        out_dtype: str,
        tile: TileConfig,
        arch: str,
        epilogue: str = "",
    ) -> KernelSpec:
        """Return the spec of a kernel without split-K, for tensors aligned to 16 bytes."""
        vectors, along = vectors_of(view, dtype, out_dtype)
        return cls(dtype, out_dtype, tile, arch, vectors, along, epilogue)

    @property
    def arch_number(self) -> int:
        return int(self.arch.removeprefix("sm_").rstrip("a"))

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory in bytes: the stages, reused by the epilogue's tile, and the
        kernel-map tile.
        """
        own = self.own_bytes
        return own + (-own % VECTOR_BYTES + ENTRY_BYTES * self.kept if self.kept else 0)

    @property
    def own_bytes(self) -> int:
        """Dynamic shared memory in bytes, without the kernel-map tile."""
        return self.tile.smem_bytes(BYTES[self.dtype], self.staged_bytes)

    @property
    def bytes_past_stages(self) -> int:
        """The part of :attr:`own_bytes` between the stages and the mbarriers."""
        return self.tile.bytes_past_stages(BYTES[self.dtype], self.staged_bytes)

    @property
    def stores_registers(self) -> bool:
        """True if results go from registers to global memory, bypassing shared memory."""
        return self.tile.stores_registers(BYTES[self.dtype])

    @property
    def ctas_per_sm(self) -> int:
        """CTAs per SM (occupancy) that registers and shared memory should allow.

        One for "float32", with twice the fragments, and for 64-bit accumulators: the compiler may
        then use as many registers as it needs.
        """
        if self.dtype in ("float32", "float64"):
            return 1
        return ctas_within(SHARED, self.tile, self.smem_bytes)

    def carveout(self, resident: int) -> int:
        """Return the percentage of an SM's shared memory that ``resident`` CTAs take.

        100 for types whose kernels are compiled for an occupancy of one: two CTAs may still fit.
        """
        if self.dtype in ("float32", "float64"):
            return 100
        return carveout(resident, self.smem_bytes)

    def rows_of_sums(self, m: int, most: int) -> int:
        """Return the rows of partial column sums that statistics of ``m`` rows need.

        One per tile; with ping-pong, one per consumer warp of the CTAs, ``most`` at most.
        """
        tile = self.tile
        tiles = -(-m // tile.m)
        if not tile.pingpong:
            return tiles
        return min(tiles, most) * tile.consumer_threads // WARP

    @property
    def may_be_concurrent(self) -> bool:
        """True if such a kernel may be ``concurrent``: it has one launch, on a GPU with PDL."""
        one_launch = not self.split and "statistics" not in self.epilogue.split()
        return one_launch and starts_early(self.arch)

    @property
    def staged_bytes(self) -> int:
        return staged_bytes(self.dtype, self.out_dtype, self.epilogue)


def ctas_within(room: int, tile: TileConfig, smem_bytes: int) -> int:
    """Return the CTAs per SM of a tile, at least 1, with ``room`` bytes of smem per SM."""
    return max(1, min(tile.ctas_per_sm, room // (smem_bytes + RESERVED)))


def carveout(ctas: int, smem_bytes: int) -> int:
    """Return the percentage of an SM's shared memory that CTAs take; the rest is L1 cache.

    >>> carveout(2, 48 << 10)
    43
    """
    return min(100, -(-100 * ctas * (smem_bytes + RESERVED) // SHARED))


def can_skip(view: GemmView, along: tuple[int, int], tile: TileConfig) -> bool:
    """Return whether tiles should skip the taps that none of their rows has.

    They should for a kernel map, a gathered A whose index buffer has an entry for every row and
    tap: most taps of a row are absent. For other views skipping pays if neighbouring rows lack the
    same taps: if A's first row mode moves no coordinate that a tap moves (it runs over images) and
    about fills a tile. Then the tap mask needs a bit per tap, and k-tiles must lie within one tap.
    """
    if along[0] != 1:
        return False
    chain = stages(view.a)
    domain = chain[0].layout
    (row, *_), (channels, *taps) = (flatten(mode) for mode in domain.shape[:2])
    (row_step, *row_steps), (_, *tap_steps) = (flatten(mode) for mode in domain.stride[:2])
    if not all(isinstance(step, ScaledBasis) for step in (row_step, *row_steps, *tap_steps)):
        return False
    tapped = {step.path for step in tap_steps}
    shared = tapped & {step.path for step in (row_step, *row_steps)}
    if any(map(gathers, chain)):
        units = -(-view.k // lcm(channels, tile.k))
        return bool(tapped) and not shared and 1 < units <= MOST_UNITS
    fits = 1 < product(tuple(taps)) <= 32 and channels % tile.k == 0
    return fits and bool(shared) and row_step.path not in tapped and 2 * row >= tile.m


def skips_sums(view: GemmView, along: tuple[int, int]) -> bool:
    """Return whether CTAs with empty sums, for which A lacks the first element, exit at once.

    >>> import torch
    >>> from layoutconv.sparse.maps.tap_pairs import Pairs
    >>> from layoutconv.sparse.views import pairs_wgrad_view
    >>> rows, lengths = torch.zeros(4, 64, dtype=torch.int32), torch.ones(4, dtype=torch.int64)
    >>> view = pairs_wgrad_view(Pairs(rows, rows, lengths, 64), 8, 8, in_rows=9, out_rows=9)
    >>> skips_sums(view, (0, 0))
    True
    """
    return view.empty_sums and along[0] == 0 and any(map(gathers, stages(view.a)))


def kept_entries(view: GemmView, spec: KernelSpec) -> int:
    """Return the number of index-buffer entries that a CTA keeps in shared memory.

    All entries of its rows, if tiles skip taps, k-tiles lie within one tap, and the occupancy stays
    the same; else 0.

    >>> import torch
    >>> from layoutconv.sparse import kernel_map_view
    >>> from .tile import specialized
    >>> def of(channels, m, n, k, stages):
    ...     view = kernel_map_view(torch.empty(27, 999, dtype=torch.int32).T, channels, 64)
    ...     tile = specialized((m, n, k), (4, 1), stages)
    ...     spec = KernelSpec.of(view, "float16", "float16", tile, "sm_90a")
    ...     return kept_entries(view, replace(spec, skip=True))
    >>> of(64, 128, 64, 64, 4), of(48, 128, 64, 64, 4)
    (3456, 0)
    >>> of(64, 64, 64, 64, 7)  # beside these stages there is no room for two CTAs
    0
    """
    if not spec.skip or spec.along[0] == 0 or not any(map(gathers, stages(view.a))):
        return 0
    channels, *taps = flatten(view.a.shape[1])
    tile = spec.tile
    threads = tile.producer_threads if tile.warp_specialized else tile.mma_threads
    idle = threads * spec.vectors[0] > tile.m * tile.k  # spare threads would read past the rows
    if int(channels) % tile.k or spec.vectors[0] == 1 or idle:
        return 0
    of_row = int(product(tuple(taps))) + any(map(gathers, stages(view.d)))
    found = replace(spec, kept=spec.tile.m * of_row)
    room = LESS_SHARED.get(spec.arch_number, SHARED)
    before, after = (
        min(of.tile.ctas_per_sm, room // (of.smem_bytes + RESERVED)) for of in (spec, found)
    )
    return found.kept if 0 < before == after else 0


def run_of(view: GemmView, spec: KernelSpec, aligned: int = VECTOR_BYTES) -> int:
    """Return the elements of D's ``run``, a whole vector; 0 if rows are written one by one.

    Runs serve few columns, whose rows are shorter than a vector or no multiple of one. Epilogue
    steps by row, column statistics, split-K and 8-bit results, which are converted in pairs, go row
    by row. ``aligned``: bytes that D's start is a multiple of.

    >>> from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
    >>> def example(view, n=8):
    ...     return run_of(view, KernelSpec.of(view, "float16", "float16", TileConfig((128, n, 32),
    ...         (4, 1)), "sm_80"))
    >>> three, eight = (fprop_view(ConvProblem((2, 9, 8, 64), (K, 1, 1))) for K in (3, 8))
    >>> example(three), example(eight), example(fprop_view(ConvProblem((2, 9, 64), (12, 1))))
    (8, 0, 0)
    >>> strided = dgrad_views(ConvProblem((2, 9, 8, 3), (64, 3, 3), stride=2))[0]
    >>> example(strided)  # every second pixel
    0
    """
    tile, vector = spec.tile, VECTOR_BYTES // BYTES[spec.out_dtype]
    by_rows = is_by_row(spec.epilogue) or "statistics" in spec.epilogue.split()
    by_rows = by_rows or BYTES[spec.out_dtype] == 1 or bool(spec.split)
    few = view.n <= tile.n and spec.vectors[2] < vector and aligned % VECTOR_BYTES == 0
    if by_rows or tile.pingpong or tile.cluster_k > 1 or not few:
        return 0
    return vector if rows_adjoin(view.d) else 0


def stores_whole_rows(view: GemmView) -> bool:
    """Return whether a row of D is stored whole or not at all: its columns are one mode.

    >>> from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
    >>> problem = ConvProblem((2, 9, 8, 32), (64, 3, 3), stride=2, padding=1)
    >>> beside = dgrad_views(problem, side_by_side=(1,))[0]
    >>> stores_whole_rows(fprop_view(problem)), stores_whole_rows(beside)
    (True, False)
    """
    return len(flatten(stages(view.d)[0].layout.shape[1])) == 1


def suits_warpgroups(dtype: str, vectors: tuple[int, ...]) -> bool:
    """Return whether a producer warpgroup can copy A and B for consumers that use ``wgmma``.

    Vectors must be long enough for cp.async: only such copies arrive on an mbarrier.

    >>> suits_warpgroups("float16", (2, 8)), suits_warpgroups("float16", (1, 8))
    (True, False)
    """
    return min(vectors[:2]) * BYTES[dtype] >= ASYNC_BYTES


def staged_bytes(dtype: str, out_dtype: str, epilogue: str) -> int:
    """Return the bytes of a staged element: accumulator width if steps follow the staging, or for
    8-bit results.
    """
    size = BYTES[out_dtype]
    wide = 8 if dtype == "float64" else 4
    return wide if size == 1 or is_by_row(epilogue) else size


def vectors_of(
    view: GemmView, dtype: str, out_dtype: str, aligned: tuple[int, int, int] = (16, 16, 16)
) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return the elements per access of A, B and D, and the modes of A and B that are contiguous.

    ``aligned``: bytes that the start of each tensor is a multiple of. Raises
    ``UnsupportedViewError`` for operands that the template cannot run.

    >>> from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
    >>> problem = ConvProblem((1, 8, 8, 12), (40, 3, 3))
    >>> vectors_of(fprop_view(problem), "float16", "float16")
    ((4, 4, 8), (1, 1))
    >>> vectors_of(wgrad_view(problem), "float16", "float32")
    ((8, 4, 4), (0, 0))
    """
    check_maps(view)
    size = BYTES[dtype]
    found = [longest(layout, size, aligned[i]) for i, layout in enumerate((view.a, view.b))]
    of_d = vector_along(view.d, 1, BYTES[out_dtype], aligned[2])
    return (found[0][0], found[1][0], of_d), (found[0][1], found[1][1])


def longest(layout: OperandLayout, size: int, aligned: int) -> tuple[int, int]:
    """Return the longest vector and its mode: k in a tie, and always for 8-bit data.

    A k of runtime length loses the tie, since kernels are unrolled over the contiguous mode. Rows
    are not chosen if coordinates then leave bounds that the kernel does not check, while along k
    all of these are checked.
    """
    along_k = vector_along(layout, 1, size, aligned)
    if size == 1:
        return along_k, 1
    along_rows = vector_along(layout, 0, size, aligned)
    argument = any(map(is_runtime, flatten(layout.shape[1])))
    rows = along_rows > along_k or (along_rows == along_k and argument)
    if rows and mode_left(layout, 1) and not mode_left(layout, 0):
        rows = False
    return (along_rows, 0) if rows else (along_k, 1)


def vector_along(layout: OperandLayout, mode: int, size: int, aligned: int) -> int:
    """Return the widest vector, a power of two of up to 16 bytes, that divides the contiguous
    extent of a mode.
    """
    together = contiguous_extent(layout, mode)
    size_limit = max(1, min(VECTOR_BYTES, aligned & -aligned) // size)
    return min(together & -together, size_limit)
