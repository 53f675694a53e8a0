"""Which tile runs a problem, and how many CTAs share a sum: a small family, and a model of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from .kernel_spec import BYTES, RESERVED, VECTOR_BYTES
from .legality import REGISTER_STORE_BYTES, REGISTER_STORE_COLUMNS
from .machine import Machine
from .schedule import Load
from .tile import TileConfig, specialized
from .tile_table import (
    FAMILY,
    HOPPER,
    MAPPED_WINDOWS,
    ONE_WARP,
    PERSISTENT,
    WHOLE_COLUMNS,
    WINDOWS,
    persistent_tile,
    shapes,
    tile_of,
)
from .tile_time import WIDE, expected_times, gathered_rows, is_kept
from .tile_time import Problem as Problem
from .tile_time import expected_time as expected_time

FEW_PARTS = 4  # clusters of 8 do not all find room at once: 51 us where two waves were 20
WORKSPACE = 256 << 20  # bytes that the parts of split sums take at most
MOST_SPLITS = 1024
FAR = 1.5  # the model has been wrong by 1.3 on a tile against another
# Tensor cores cut sums off instead of rounding them: after so many products that is 2e-4 of a sum.
LONGEST_SUM = 1 << 17
# Microseconds that split-K has to save: less is within the model's error, and calls outside of a
# CUDA graph take the host two launches for it (strided 3x3x3, C = 64, H100: 36 us, one 13).
SPLIT_GAIN = 2.0

FEW_GROUP_TILES = 6  # of several groups, to choose from

MOST_COUNTED = 64  # columns of ping-pong consumers with statistics: for more, no registers
MOST_OF_PINGPONG = 128  # columns: with more, every tile of them would read A once more


def choose(problem: Problem, machine: Machine) -> tuple[TileConfig, int]:
    """The tile and the number of parts of a sum that are expected to be done first.

    The size only picks from the family: what is compiled for a problem serves every size that picks
    the same tile.

    >>> from .machine import MACHINES
    >>> large = Problem(10**6, 128, 1728, 64, "float16", 2)
    >>> tile, splits = choose(large, MACHINES["sm_90a"])
    >>> tile.m, tile.n, tile.k, tile.stages, splits
    (256, 128, 64, 4, 1)
    >>> few_outputs = Problem(64, 1728, 10**6, 0, "float16", 4, splittable=True)
    >>> choose(few_outputs, MACHINES["sm_90a"])[1] > 16
    True
    """
    return next(ranked(problem, machine))


def ranked(problem: Problem, machine: Machine) -> Iterator[tuple[TileConfig, int]]:
    """Yield what ``choose`` picks from, tiles and numbers of slices, the fastest expected first."""
    pairs = _pairs(problem, machine)
    times = _times(problem, pairs, machine)
    first = times.index(min(times))
    yield pairs[first]
    yield from (pairs[i] for i in sorted(range(len(pairs)), key=times.__getitem__) if i != first)


def shortlist(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """Return what is worth a trial, the expected winner first: the tiles that the model takes for
    at most ``FAR`` times as slow, with the number of parts that suits each best, half and twice as
    many.

    >>> from .machine import MACHINES
    >>> tried = shortlist(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    >>> tried[0] == choose(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    True
    >>> len(tried), len({tile for tile, _ in tried})
    (5, 5)
    """
    pairs = _pairs(problem, machine)
    times = dict(zip(pairs, _times(problem, pairs, machine), strict=True))
    best: dict[TileConfig, int] = {}
    for tile, splits in sorted(times, key=times.__getitem__):
        best.setdefault(tile, splits)
    near = {tile: (splits, splits // 2, 2 * splits) for tile, splits in best.items()}
    least = min(times.values())
    # In the order of the table where times are equal: that of a set is another in every process.
    some = [pair for pair in times if pair[1] in near[pair[0]] and times[pair] <= FAR * least]
    return sorted(some, key=times.__getitem__)


def _times(problem: Problem, pairs: list[tuple[TileConfig, int]], machine: Machine) -> list[float]:
    """The time expected of each pair, more of split sums by what they have to save.

    All that a tile has in common is computed once.
    """
    times = []
    for tile, some in groupby(pairs, itemgetter(0)):
        times += expected_times(problem, tile, [splits for _, splits in some], machine)
    gains = (0.0 if splits == 1 else SPLIT_GAIN for _, splits in pairs)
    return [time + gain for time, gain in zip(times, gains, strict=True)]


def _pairs(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """The tiles of the family that the machine has room for, with every number of parts."""
    line = 128 // BYTES[problem.dtype]
    k = line if problem.channels % line == 0 else line // 2
    if problem.dtype == "float64":  # of CUDA cores
        tiles = [TileConfig((64, 64, k))]
    else:
        hopper = shapes(machine.arch, problem.dtype) != list(FAMILY)
        tiles = [tile_of(shape, k, line // 2) for shape in FAMILY]
        if hopper and is_kept(problem, k):
            tiles += [
                specialized((m, n, k), (warps_m, warps_n), stages, load)
                for (m, n, warps_m, warps_n), (_, stages, load) in gathered_rows(problem).items()
            ]
        elif hopper:
            tiles += [tile_of(shape, k, line // 2) for shape in HOPPER]
        tiles += _halo_tiles(problem, machine)
        tiles += _tma_warp_tiles(problem, machine, k)
        tiles += _persistent(problem, k) if hopper else []
        if not problem.wgmma:
            tiles = [tile for tile in tiles if not tile.warp_specialized]
    tiles = [tile for tile in tiles if tile.n >= WIDE or _takes_narrow(problem, tile)]
    if problem.dtype == "float32":  # twice the fragments in registers
        tiles = [tile for tile in tiles if tile.m * tile.n <= 64 * tile.mma_threads]
    tiles += [
        replace(tile, cluster_k=p) for tile in tiles for p in _clusters(problem, tile, machine)
    ]
    size = BYTES[problem.dtype]
    fitting = [
        tile
        for tile in tiles
        if tile.smem_bytes(size, problem.staged_bytes) <= machine.smem_per_cta
    ]
    pairs = [(tile, splits) for tile in fitting for splits in _splits(problem, tile)]
    if problem.zero_tiles or problem.zero_tiles_halo:
        pairs = [pair for pair in pairs if leaves_zeros_out(problem, *pair)] or pairs
    return [*pairs, *_group_pairs(problem, machine)]


def _group_pairs(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """The fastest tiles of several groups that the machine has room for, few of many."""
    if problem.group is None:
        return []
    outputs = 4 * problem.m * problem.n * problem.groups
    most = min(MOST_SPLITS, WORKSPACE // max(outputs, 1)) if problem.splittable else 1
    found: list[tuple[TileConfig, int]] = list(problem.group.pairs(machine, most))
    found.sort(key=lambda pair: expected_time(problem, pair[0], pair[1], machine))
    return found[:FEW_GROUP_TILES]


def _takes_narrow(problem: Problem, tile: TileConfig) -> bool:
    """A tile of fewer columns than any other has all of a problem, of a B that it can read."""
    if tile.warp_specialized:
        reads = problem.b_along_k and (problem.dtype != "tfloat32" or problem.tma)
    else:
        reads = problem.b_along_k or BYTES[problem.dtype] == 2
    return problem.n <= tile.n and reads


def suits(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> bool:
    """A tile that was chosen once is still one for a problem and a machine.

    After a change of the table it may not be. What the tile asks of the view, ``legality`` says.
    """
    fits = tile.smem_bytes(BYTES[problem.dtype], problem.staged_bytes) <= machine.smem_per_cta
    fits = fits and (splits == 1 or problem.splittable)
    fits = fits and tile.halo_taps in (1, problem.halo_taps)
    if problem.zero_tiles or problem.zero_tiles_halo:
        fits = fits and leaves_zeros_out(problem, tile, splits)
    return fits


def leaves_zeros_out(problem: Problem, tile: TileConfig, splits: int) -> bool:
    """Return whether zeros of B are not multiplied: an infinity of A would make of them what is no
    number.

    Where there are no zeros, or no tile can leave them out, that is said of none.
    """
    alone = tile.warp_specialized and splits == tile.cluster_k == tile.warps[1] == 1
    alone = alone and tile.n >= WIDE
    whole = problem.n <= tile.n and problem.channels % tile.k == 0
    return (
        alone and whole and (problem.zero_tiles_halo if tile.halo_taps > 1 else problem.zero_tiles)
    )


def _halo_tiles(problem: Problem, machine: Machine) -> list[TileConfig]:
    """Tiles of A that serve several taps, of k-tiles that lie within the first of these.

    Of all columns: where A is read for each of several tiles of them, nothing is gained.
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
    """Tiles that one warp copies, with as many stages as leave others room.

    For data of 16 bits; for tf32 where all of a sum is on its way at once: more was not measured.
    """
    size, most = BYTES[problem.dtype], -(-problem.k // k)
    if not (problem.tma and problem.clusters and problem.channels):
        return []
    tiles = []
    for m, n, warps_m, warps_n in ONE_WARP:
        stages = max(1, min(HOPPER[m, n, warps_m, warps_n], most))
        while True:
            tile = specialized((m, n, k), (warps_m, warps_n), stages, Load.TMA_WARP)
            shared = tile.smem_bytes(size, problem.staged_bytes) + RESERVED
            if stages < 3 or tile.ctas_per_sm * shared <= machine.smem_per_sm:
                break
            stages -= 1
        if size == 2 or (size == 4 and stages >= most):
            tiles.append(tile)
    return tiles


def _persistent(problem: Problem, k: int) -> list[TileConfig]:
    """Tiles of persistent kernels; with halo reuse, of half lines and of all columns."""
    if not problem.persistent or BYTES[problem.dtype] not in REGISTER_STORE_BYTES:
        return []
    tiles = []
    if problem.tma and problem.channels:
        for row in PERSISTENT[1]:
            tile = persistent_tile(row, k)
            if row.pingpong:
                fits = row.n < 2 * problem.n and problem.n <= MOST_OF_PINGPONG
            else:  # tiles that others pad for are for those columns alone
                fits = row not in WHOLE_COLUMNS or problem.n % row.n == 0
            if fits and _persistent_epilogue_fits(problem, tile):
                tiles.append(tile)
    half_line = 64 // BYTES[problem.dtype]
    if problem.tma_halo and problem.k // problem.halo_taps % half_line == 0:
        for row in PERSISTENT[min(problem.halo_taps, 3)]:
            tile = persistent_tile(row, half_line, problem.halo_taps, problem.k_tiles)
            if problem.n <= row.n and _persistent_epilogue_fits(problem, tile):
                tiles.append(tile)
    return tiles


def _persistent_epilogue_fits(problem: Problem, tile: TileConfig) -> bool:
    """A persistent kernel of such tiles stores what the problem asks for."""
    if problem.statistics and not (tile.pingpong and problem.n <= tile.n <= MOST_COUNTED):
        return False
    if not tile.stores_registers(BYTES[problem.dtype]):
        return True
    return problem.register_store and tile.n % REGISTER_STORE_COLUMNS == 0


def _clusters(problem: Problem, tile: TileConfig, machine: Machine) -> list[int]:
    """Sizes of clusters that are worth a thought: every CTA has a few k-tiles, and rows to store.

    Where there are fewer CTAs than SMs; others have sums enough. Only on Hopper, where
    the exchange was measured and what it brings.
    """
    other = machine.arch != "sm_90a" or problem.dtype == "float64" or tile.persistent
    if other or not problem.clusters:
        return []
    ctas = -(-problem.m // tile.m) * -(-problem.n // tile.n) * problem.groups
    vector = VECTOR_BYTES if tile.n >= WIDE else problem.access_bytes[2] // problem.stored_bytes
    rows = max(1, tile.mma_threads * vector // tile.n)  # stored at once, at most
    found, parts = [], 2
    while (
        parts <= FEW_PARTS
        and (tile.m // parts) % rows == 0
        and problem.k // (tile.k * tile.halo_taps * parts) >= 4
        and ctas * parts < 2 * machine.sm_count
    ):
        found.append(parts)
        parts *= 2
    return found


def _splits(problem: Problem, tile: TileConfig) -> list[int]:
    """Numbers of parts that are worth a thought: every part has a few k-tiles."""
    if not problem.splittable or tile.cluster_k > 1 or tile.persistent:
        return [1]
    outputs = 4 * problem.m * problem.n * problem.groups
    k_tiles = problem.k // (tile.k * tile.halo_taps)
    most = min(MOST_SPLITS, k_tiles // 4, WORKSPACE // max(outputs, 1))
    most = max(most, 1)
    least = max(1, min(-(-problem.k // LONGEST_SUM), most))
    return [s for s in range(least, most + 1) if s <= 16 or s % 4 == 0 or s == least]
