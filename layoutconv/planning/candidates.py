"""Candidate tiles for a kind of problem, with the size-independent terms of their times.

Problems of one kind differ only in rows, in groups and in the length of long sums, as a layer does
when its input changes size. A network has few kinds, so the candidates of each are cached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..base.caches import BoundedCache
from . import pointwise_rates
from .cost_problem import Problem
from .deep_tiles import deep_tiles
from .kernel_spec import BYTES, RESERVED
from .legality import REGISTER_STORE_BYTES, REGISTER_STORE_COLUMNS
from .machine import Machine
from .map_rates import tiles_of_several_lines
from .schedule import Load
from .tile import LINE_BYTES, TileConfig, specialized
from .tile_table import (
    FAMILY,
    GATHERED_SUMS,
    HOPPER,
    MAPPED_WINDOWS,
    ONE_WARP,
    PERSISTENT,
    WHOLE_COLUMNS,
    WINDOWS,
    GatheredRow,
    PersistentRow,
    Shape,
    persistent_tile,
    shapes,
    tile_of,
)
from .tile_time import (
    WIDE,
    TileTerms,
    gathered_rows,
    is_timed_as_map,
    keeps_index,
    maps_sums,
    sums_pairs,
)

FEW_PARTS = 4  # CTAs per cluster: clusters of 8 do not all fit at once (51 us; two waves took 20)
MOST_COUNTED = 64  # columns of ping-pong consumers with statistics: more do not fit in registers
MOST_OF_PINGPONG = 128  # columns: with more, every further tile of N would read A again
NEARLY_WHOLE, EMPTY = 160, 0.1  # columns of a tile, and the share that may be empty
STORE_BOUND = 256  # products: stores bound shorter sums
LONG = 4096  # products: for longer sums, no tile has fewer stages
_NBYTES = 640  # bytes of a candidate, about
_CANDIDATES: BoundedCache[tuple[Problem, Machine], TileCandidates] = BoundedCache(
    "tile candidates", entries=256, nbytes=8 << 20
)


class TileCandidate(NamedTuple):
    """A tile that fits a machine, and the terms of its expected time."""

    tile: TileConfig
    terms: TileTerms


class TileCandidates(NamedTuple):
    """The tiles of a kind of problem, in the order of the table.

    ``clustered[i]`` are the variants of ``tiles[i]`` for cluster split-K, with 2 and 4 CTAs, as
    long as each CTA still has rows to store.
    """

    tiles: tuple[TileCandidate, ...]
    clustered: tuple[tuple[TileCandidate, ...], ...]


def candidates(problem: Problem, machine: Machine) -> TileCandidates:
    """Return the tiles of the table that fit a machine.

    >>> from .machine import MACHINES
    >>> of = [Problem(m, 128, 1728, 64, "float16", 2) for m in (10**4, 10**6)]
    >>> small, large = (candidates(problem, MACHINES["sm_90a"]) for problem in of)
    >>> small is large
    True
    """
    kind = without_sizes(problem), machine
    found = _CANDIDATES.get(kind)
    if found is None:
        found = _made(*kind)
        count = len(found.tiles) + sum(map(len, found.clustered))
        _CANDIDATES.put(kind, found, _NBYTES * (count + 2))
    return found


def without_sizes(problem: Problem) -> Problem:
    """Return the problem without the sizes that its candidates do not depend on.

    >>> of = [Problem(m, 64, k, 0, "float16", 4) for m, k in ((9, 10**5), (99, 10**6))]
    >>> without_sizes(of[0]) == without_sizes(of[1])
    True
    """
    k = min(problem.k, LONG) if problem.halo_taps == 1 else problem.k
    return replace(problem, m=1, k=k, groups=1, moved=0, halo_growth=1.0, group=None)


def _made(problem: Problem, machine: Machine) -> TileCandidates:
    size, staged = BYTES[problem.dtype], problem.staged_bytes

    def of(tiles: list[TileConfig]) -> tuple[TileCandidate, ...]:
        fitting = [t for t in tiles if t.smem_bytes(size, staged) <= machine.smem_per_cta]
        return tuple(TileCandidate(t, TileTerms.of(problem, t, machine)) for t in fitting)

    tiles = of(_tiles(problem, machine))
    return TileCandidates(tiles, tuple(of(_clusters(problem, tile, machine)) for tile, _ in tiles))


def _tiles(problem: Problem, machine: Machine) -> list[TileConfig]:
    line = LINE_BYTES // BYTES[problem.dtype]
    k = line if problem.channels % line == 0 else line // 2
    if problem.dtype == "float64":  # runs on CUDA cores
        tiles = [TileConfig((64, 64, k))]
    else:
        hopper = shapes(machine.arch, problem.dtype) != list(FAMILY)
        tiles = [tile_of(shape, k, line // 2) for shape in FAMILY]
        if hopper and problem.wgmma and sums_pairs(problem):
            # Other mma.sync tiles are never faster; narrow ones were not raced, so they stay.
            tiles = [tile for tile in tiles if tile.n < WIDE] + _of_table(GATHERED_SUMS, k)
        elif hopper and keeps_index(problem, k):
            # The same over kernel maps, except for narrow results.
            of_lines = tiles_of_several_lines(problem.dtype, problem.channels)
            tiles = of_lines if is_timed_as_map(problem) else tiles
            tiles += _of_table(gathered_rows(problem), k)
        elif hopper:
            lengths = _lengths(problem, k) if problem.tma and problem.channels else [k]
            tiles += [tile_of(shape, each, line // 2) for each in lengths for shape in HOPPER]
        tiles += _halo_tiles(problem, machine)
        for each in _lengths(problem, k):
            tiles += _tma_warp_tiles(problem, machine, each) + _deep_tiles(problem, each)
        tiles += _persistent(problem, k, machine) if hopper else []
        if not problem.wgmma:
            tiles = [tile for tile in tiles if not tile.warp_specialized]
    tiles = [tile for tile in tiles if tile.n >= WIDE or _takes_narrow(problem, tile)]
    if problem.dtype == "float32":  # twice the fragments in registers
        tiles = [tile for tile in tiles if tile.m * tile.n <= 64 * tile.mma_threads]
    return tiles


def _of_table(rows: dict[Shape, GatheredRow], k: int) -> list[TileConfig]:
    """Return the tiles of a table for gathered operands, with k-tiles of ``k``."""
    return [
        specialized((m, n, k), (warps_m, warps_n), stages, load)
        for (m, n, warps_m, warps_n), (_, stages, load) in rows.items()
    ]


def _clusters(problem: Problem, tile: TileConfig, machine: Machine) -> list[TileConfig]:
    """Return the tile for cluster split-K, as long as each CTA has rows to store.

    Only on Hopper, where the cost and the gain of the exchange were measured.
    """
    other = machine.arch != "sm_90a" or problem.dtype == "float64" or tile.persistent
    if other or not problem.clusters:
        return []
    vector = problem.access_bytes[2] // problem.stored_bytes
    rows = max(1, tile.mma_threads * vector // tile.n)  # stored at once, at most
    found, parts = [], 2
    while parts <= FEW_PARTS and (tile.m // parts) % rows == 0:
        found.append(replace(tile, cluster_k=parts))
        parts *= 2
    return found


def _takes_narrow(problem: Problem, tile: TileConfig) -> bool:
    """Return whether a narrow tile covers all columns of a problem and can read its B."""
    if tile.warp_specialized:
        reads = problem.b_along_k and (problem.dtype != "tfloat32" or problem.tma)
    else:
        reads = problem.b_along_k or BYTES[problem.dtype] == 2
    return problem.n <= tile.n and reads


def _halo_tiles(problem: Problem, machine: Machine) -> list[TileConfig]:
    """Return tiles with halo reuse: A's tile serves several taps; k-tiles lie within the first.

    They cover all columns: nothing is gained where several tiles along N read A again.
    """
    size = BYTES[problem.dtype]
    k = 64 // size
    half_lines = problem.halo_taps > 1 and size > 1 and problem.k // problem.halo_taps % k == 0
    if not half_lines or shapes(machine.arch, problem.dtype) == list(FAMILY):
        return []
    if problem.tma_halo:
        return [
            specialized(
                (m, n, k),
                (warps_m, warps_n),
                stages[problem.halo_taps > 2],
                Load.TMA_WARP,
                halo_taps=problem.halo_taps,
            )
            for (m, n, warps_m, warps_n), (_, _, *stages) in MAPPED_WINDOWS.items()
            if problem.n <= n and (size <= 2 or m == 256) and stages[problem.halo_taps > 2]
        ]
    tiles = []
    for (m, n, warps_m, warps_n), (_, most) in WINDOWS.items():
        for stages in range(most if problem.n <= n else 0, 1, -1):
            warps = warps_m, warps_n
            tile = specialized((m, n, k), warps, stages, halo_taps=problem.halo_taps)
            if tile.smem_bytes(size, problem.staged_bytes) <= machine.smem_per_cta:
                tiles.append(tile)
                break
    return tiles


def _tma_warp_tiles(problem: Problem, machine: Machine, k: int) -> list[TileConfig]:
    """Return tiles that one TMA warp loads, with as many stages as the occupancy leaves room for.

    For 16-bit data and pointwise layers; for other tf32 layers only where the stages hold a whole
    sum: longer sums were not measured.
    """
    size, most = BYTES[problem.dtype], -(-problem.k // k)
    if not (problem.tma and problem.clusters and problem.channels):
        return []
    tiles = []
    shapes_of = pointwise_rates.ONE_WARP | ONE_WARP if problem.pointwise else ONE_WARP
    for m, n, warps_m, warps_n in shapes_of:
        stages = max(1, min(HOPPER.get((m, n, warps_m, warps_n), 4), most))
        while True:
            tile = specialized((m, n, k), (warps_m, warps_n), stages, Load.TMA_WARP)
            shared = tile.smem_bytes(size, problem.staged_bytes) + RESERVED
            if stages < 3 or tile.ctas_per_sm * shared <= machine.smem_per_sm:
                break
            stages -= 1
        if size == 2 or problem.pointwise or (size == 4 and stages >= most):
            tiles.append(tile)
    return tiles


def _deep_tiles(problem: Problem, k: int) -> list[TileConfig]:
    """Return the tiles of many stages: for 16-bit data and tf32 that TMA loads, both operands.

    Filter gradients, whose panels of a k-tile may each be of another tap, take a warpgroup to copy.
    """
    if not (problem.tma and problem.clusters and BYTES[problem.dtype] in (2, 4)):
        return []
    load = Load.CP_ASYNC_WARPGROUP if maps_sums(problem) else Load.TMA_WARP
    return deep_tiles(k, -(-problem.k // k), load)


def _lengths(problem: Problem, k: int) -> list[int]:
    """Return k-tile lengths: a whole line too, where fewer of those cover the channels of one tap.

    TMA takes as long for half a line as for a whole one; it fills missing channels with zeros.

    >>> [_lengths(Problem(9, 9, C, C, "float16", 2, pointwise=True), 32) for C in (32, 96, 144)]
    [[32], [32, 64], [32, 64]]
    """
    line = LINE_BYTES // BYTES[problem.dtype]
    fewer = -(-problem.channels // line) < -(-problem.channels // k)
    return [k, line] if k < line and problem.pointwise and fewer else [k]


def _of_row(problem: Problem, row: PersistentRow, k: int, machine: Machine) -> TileConfig | None:
    """The tile of a row of the table for one tap; with a resident B, of the stages that fit it."""
    if not row.b_resident:
        return persistent_tile(row, k)
    of_b = -(-problem.k // k)
    for stages in range(row.stages, 2, -1):
        tile = persistent_tile(row, k, b_k_tiles=of_b, stages=stages)
        if tile.smem_bytes(BYTES[problem.dtype], problem.staged_bytes) <= machine.smem_per_cta:
            return tile
    return None


def _persistent(problem: Problem, k: int, machine: Machine) -> list[TileConfig]:
    """Return tiles of persistent kernels; with halo reuse, half-line k-tiles and all columns."""
    if not problem.persistent or BYTES[problem.dtype] not in REGISTER_STORE_BYTES:
        return []
    tiles = []
    of_row = PERSISTENT[1] if problem.tma and problem.channels else []
    for k_tile in _lengths(problem, k):
        for row in of_row:
            tile = _of_row(problem, row, k_tile, machine)
            if tile is None or (row.b_resident and not (problem.pointwise and problem.n <= row.n)):
                continue
            if row.pingpong:
                fits = row.n < 2 * problem.n and problem.n <= MOST_OF_PINGPONG
            else:
                fits = row not in WHOLE_COLUMNS or _are_whole(problem, row)
            if fits and _persistent_epilogue_fits(problem, tile):
                tiles.append(tile)
    half_line = 64 // BYTES[problem.dtype]
    if problem.tma_halo and problem.k_tiles and problem.k // problem.halo_taps % half_line == 0:
        for row in PERSISTENT[min(problem.halo_taps, 3)]:
            tile = persistent_tile(row, half_line, problem.halo_taps, problem.k_tiles)
            if problem.n <= row.n and _persistent_epilogue_fits(problem, tile):
                tiles.append(tile)
    return tiles


def _are_whole(problem: Problem, row: PersistentRow) -> bool:
    """Return whether a row of ``WHOLE_COLUMNS`` has columns that other tiles would pad: a multiple
    of its own, or of 160 nearly one. With that, 36 passes of 144 to 2048 columns are 1.16 times as
    fast (H200, 0.88 to 1.45); 16-bit sums of fewer products, which stores bound, were down to 0.61.
    """
    rest = -problem.n % row.n
    if rest == 0:
        return True
    long = BYTES[problem.dtype] > 2 or problem.k >= STORE_BOUND
    return row.n == NEARLY_WHOLE and long and EMPTY * (problem.n + rest) >= rest


def _persistent_epilogue_fits(problem: Problem, tile: TileConfig) -> bool:
    """Return whether the epilogue of a persistent kernel can store what the problem asks for."""
    if problem.statistics and not (tile.pingpong and problem.n <= tile.n <= MOST_COUNTED):
        return False
    if not tile.stores_registers(BYTES[problem.dtype]):
        return True
    return problem.register_store and tile.n % REGISTER_STORE_COLUMNS == 0
