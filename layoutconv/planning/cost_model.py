"""Which tile runs a problem, and how many CTAs share a sum: a small family, and a model of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, hypot, log2

from .kernel_spec import BYTES, RESERVED, VECTOR_BYTES
from .schedule import Load
from .tile import TileConfig, specialized
from .tile_table import (
    COPIED,
    FAMILY,
    GATHERED,
    HALF_LINE_RATE,
    HOPPER,
    MANY_PRODUCTS,
    MAPPED,
    MAPPED_WINDOWS,
    ONE_WARP,
    PERSISTENT,
    ROUNDED,
    ROUNDED_GATHERED,
    ROUNDED_WINDOWS,
    SLOW_START,
    WINDOWS,
    Shape,
    persistent_row,
    persistent_tile,
    shapes,
    tile_of,
)


@dataclass(frozen=True)
class Machine:
    """A GPU as the cost model sees it: SMs, shared memory in bytes, and roughly how fast it is.

    ``products`` are multiply-adds of fp16 that an SM does in a microsecond, in a kernel of the best
    tile; ``bandwidth`` bytes of memory in a microsecond. ``name`` is that of a GPU that is present,
    such as "NVIDIA H200".
    """

    arch: str
    sm_count: int
    smem_per_cta: int
    smem_per_sm: int
    products: float = 1.0e6
    bandwidth: float = 1.0e6
    name: str = ""


# Limits of the compute capability; SMs and speed of A100, RTX 3090, RTX 4090 and H200.
# A GPU that is present is asked for its own limits.
MACHINES = {
    "sm_80": Machine("sm_80", 108, 163 << 10, 164 << 10, 1.1e6, 1.8e6),
    "sm_86": Machine("sm_86", 82, 99 << 10, 100 << 10, 0.4e6, 0.8e6),
    "sm_89": Machine("sm_89", 128, 99 << 10, 100 << 10, 0.6e6, 0.9e6),
    "sm_90a": Machine("sm_90a", 132, 227 << 10, 228 << 10, 1.7e6, 4.0e6),
}
WAVE = 2.4  # microseconds from a CTA's start to its first product, and from its last to the store
EXCHANGE = 3.5  # microseconds in which two CTAs of a cluster add up their parts; four take twice
FEW_PARTS = 4  # clusters of 8 do not all find room at once: 51 us where two waves were 20
LAUNCH = 2.0  # microseconds of a kernel that adds parts up, beside what it reads and writes
WORKSPACE = 256 << 20  # bytes that the parts of split sums take at most
MOST_SPLITS = 1024
FAR = 1.5  # the model has been wrong by 1.3 on a tile against another
TWO_LAUNCHES = 18.0  # microseconds of the host: what is done before waits for it
MORE_PARTS = 0.01  # of the time, for twice as many parts of sums that tensor maps bring
# Tensor cores cut sums off instead of rounding them: after so many products that is 2e-4 of a sum.
LONGEST_SUM = 1 << 17

MOST_COUNTED = 64  # columns of ping-pong consumers with statistics: for more, no registers
MOST_OF_PINGPONG = 128  # columns: with more, every tile of them would read A once more
# Twice the rows of a kernel map have so many times the taps: 1.07 in rooms, 1.12 in streets.
TAPS_OF_MORE_ROWS = 1.09
# Products in the time of one of fp16; fp64 is not on tensor cores, fp32 three products of tf32. Of
# int4 two products, a pair of bytes.
COST = {"float64": 40.0, "float32": 6.0, "tfloat32": 2.0, "int8": 0.5, "int4": 0.5}


@dataclass(frozen=True)
class Problem:
    """The sizes that decide: of GEMM, of its groups, of memory's elements.

    Attributes:
        channels: length of the contiguous mode of k, 0 where k runs across memory.
        splittable: split-K may cut a sum into slices.
        skips_taps: tiles skip the taps that none of their rows has (active taps).
        gathered: an index buffer says which rows of A are read.
        moved: bytes of memory that are read or written at least.
        halo_taps: taps that may share the rows of a tile (halo reuse), 1 if none do; the view has
            ``halo_growth`` times the rows then.
        wgmma: Hopper's instructions can multiply it.
        clusters: a cluster may share sums (cluster split-K): an output needs the whole sum, and
            nothing of other rows.
        tma: TMA descriptors describe both operands of Hopper's tiles; ``tma_halo``, of those
            with halo reuse.
        zero_tiles: B has structural zeros that tiles skip; ``zero_tiles_halo``, tiles with halo
            reuse (``structural_zeros.py``).
        persistent: sums of one group and of every tap, as persistent kernels compute.
        register_store: results are stored as they are, by whole vectors of 16 bits.
        statistics: column statistics are stored too.
        k_tiles: k-tiles of half a line that a sum has, with halo reuse.
    """

    m: int
    n: int
    k: int
    channels: int
    dtype: str
    staged_bytes: int
    groups: int = 1
    splittable: bool = False
    skips_taps: bool = False
    gathered: bool = False
    moved: int = 0
    halo_taps: int = 1
    halo_growth: float = 1.0
    wgmma: bool = True
    clusters: bool = False
    tma: bool = False
    tma_halo: bool = False
    zero_tiles: bool = False
    zero_tiles_halo: bool = False
    persistent: bool = False
    register_store: bool = False
    statistics: bool = False
    k_tiles: int = 0


def choose(problem: Problem, machine: Machine) -> tuple[TileConfig, int]:
    """The tile and the number of parts of a sum that are expected to be done first.

    The size only picks from the family: what is compiled for a problem serves every size that picks
    the same tile.

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
    times = [expected_time(problem, *pair, machine) for pair in pairs]
    first = times.index(min(times))
    yield pairs[first]
    yield from (pairs[i] for i in sorted(range(len(pairs)), key=times.__getitem__) if i != first)


def shortlist(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """Return what is worth a trial, the expected winner first: the tiles that the model takes for
    at most ``FAR`` times as slow, with the number of parts that suits each best, half and twice as
    many.

    >>> tried = shortlist(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    >>> tried[0] == choose(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    True
    >>> len(tried), len({tile for tile, _ in tried})
    (5, 5)
    """
    times = {pair: expected_time(problem, *pair, machine) for pair in _pairs(problem, machine)}
    best: dict[TileConfig, int] = {}
    for tile, splits in sorted(times, key=times.__getitem__):
        best.setdefault(tile, splits)
    near = {tile: (splits, splits // 2, 2 * splits) for tile, splits in best.items()}
    least = min(times.values())
    # In the order of the table where times are equal: that of a set is another in every process.
    some = [pair for pair in times if pair[1] in near[pair[0]] and times[pair] <= FAR * least]
    return sorted(some, key=times.__getitem__)


def _pairs(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """The tiles of the family that the machine has room for, with every number of parts."""
    line = 128 // BYTES[problem.dtype]
    k = line if problem.channels % line == 0 else line // 2
    if problem.dtype == "float64":  # of CUDA cores
        tiles = [TileConfig((64, 64, k))]
    else:
        hopper = shapes(machine.arch, problem.dtype) != list(FAMILY)
        tiles = [tile_of(shape, k, line // 2) for shape in FAMILY]
        if hopper and _is_kept(problem, k):
            tiles += [
                specialized((m, n, k), (warps_m, warps_n), stages, load)
                for (m, n, warps_m, warps_n), (_, stages, load) in _gathered(problem).items()
            ]
        elif hopper:
            gathered = problem.gathered and not problem.skips_taps
            offered = shapes(machine.arch, problem.dtype, gathered=gathered)
            tiles += [tile_of(shape, k, line // 2) for shape in offered[len(FAMILY) :]]
        tiles += _halo_tiles(problem, machine)
        tiles += _tma_warp_tiles(problem, machine, k)
        tiles += _persistent(problem, k) if hopper else []
        if not problem.wgmma:
            tiles = [tile for tile in tiles if not tile.warp_specialized]
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
    return [pair for pair in pairs if leaves_zeros_out(problem, *pair)] or pairs


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
    whole = problem.n <= tile.n and problem.channels % tile.k == 0
    return (
        alone and whole and (problem.zero_tiles_halo if tile.halo_taps > 1 else problem.zero_tiles)
    )


def rate_of(problem: Problem, tile: TileConfig) -> float:
    """The rate of a tile, as a share of the best of ``FAMILY``."""
    shape = tile.m, tile.n, *tile.warps
    rounded = problem.dtype == "tfloat32"
    if tile.persistent:
        return persistent_row(tile).rate
    if tile.halo_taps > 1:
        if tile.load is Load.TMA_WARP:
            return MAPPED_WINDOWS[shape][0]
        rate, _ = WINDOWS[shape]
        return rate * (ROUNDED_WINDOWS if rounded else 1)
    if not tile.warp_specialized:
        return FAMILY[shape]
    half = HALF_LINE_RATE if tile.k * BYTES[problem.dtype] < 128 else 1
    if tile.load is Load.TMA_WARP:
        return ONE_WARP[shape][0] * (half if tile.m * tile.n < MANY_PRODUCTS else 1)
    if problem.tma:
        return MAPPED[shape]
    if _is_kept(problem, tile.k):
        return _gathered(problem)[shape][0] * half
    return (ROUNDED[shape] if rounded else COPIED[shape]) * half


def _is_kept(problem: Problem, k: int) -> bool:
    """Return whether tiles keep their part of an index buffer: k-tiles lie within a tap."""
    return problem.skips_taps and problem.channels > 0 and problem.channels % k == 0


def _gathered(problem: Problem) -> dict[Shape, tuple[float, int, Load]]:
    return ROUNDED_GATHERED if problem.dtype == "tfloat32" else GATHERED


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
    if not problem.persistent or BYTES[problem.dtype] != 2:
        return []
    tiles = []
    if problem.tma and problem.channels:
        for row in PERSISTENT[1]:
            fits = row.n < 2 * problem.n and problem.n <= MOST_OF_PINGPONG
            stores = _persistent_epilogue_fits(problem, row.n, pingpong=row.pingpong)
            if (not row.pingpong or fits) and stores:
                tiles.append(persistent_tile(row, k))
    half_line = 64 // BYTES[problem.dtype]
    if problem.tma_halo and problem.k // problem.halo_taps % half_line == 0:
        for row in PERSISTENT[min(problem.halo_taps, 3)]:
            stores = _persistent_epilogue_fits(problem, row.n, pingpong=row.pingpong)
            if problem.n <= row.n and stores:
                tiles.append(persistent_tile(row, half_line, problem.halo_taps, problem.k_tiles))
    return tiles


def _persistent_epilogue_fits(problem: Problem, n: int, *, pingpong: bool) -> bool:
    """A persistent kernel of tiles of n columns stores what the problem asks for."""
    if not pingpong:
        return not problem.statistics
    if problem.statistics and not problem.n <= n <= MOST_COUNTED:
        return False
    return problem.register_store


def _clusters(problem: Problem, tile: TileConfig, machine: Machine) -> list[int]:
    """Sizes of clusters that are worth a thought: every CTA has a few k-tiles, and rows to store.

    Where there are fewer CTAs than SMs; others have sums enough. Only on Hopper, where
    the exchange was measured and what it brings.
    """
    other = machine.arch != "sm_90a" or problem.dtype == "float64" or tile.persistent
    if other or not problem.clusters:
        return []
    ctas = -(-problem.m // tile.m) * -(-problem.n // tile.n) * problem.groups
    rows = tile.mma_threads * VECTOR_BYTES // tile.n  # stored at once, at most
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


def _start(tile: TileConfig) -> float:
    """Microseconds of a wave of CTAs beside its products."""
    shape = tile.m, tile.n, *tile.warps
    if tile.persistent:
        return persistent_row(tile).start
    if tile.load is Load.TMA_WARP:
        return (MAPPED_WINDOWS if tile.halo_taps > 1 else ONE_WARP)[shape][1]
    return SLOW_START.get(shape, WAVE)


def expected_time(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> float:
    """Microseconds, about: waves of CTAs, each as long as its tile is large; then the parts.

    >>> machine = MACHINES["sm_90a"]
    >>> one, four = (Problem(m, 128, 1728, 64, "float16", 2) for m in (10**6, 4 * 10**6))
    >>> choice = choose(one, machine)
    >>> round(expected_time(four, *choice, machine) / expected_time(one, *choice, machine))
    4
    """
    size = BYTES[problem.dtype]
    shared = tile.smem_bytes(size, problem.staged_bytes) + RESERVED
    resident = max(1, min(machine.smem_per_sm // shared, tile.ctas_per_sm))
    m = ceil(problem.m * problem.halo_growth) if tile.halo_taps > 1 else problem.m
    ctas = -(-m // tile.m) * -(-problem.n // tile.n) * problem.groups * splits * tile.cluster_k
    whole = 2 * tile.cluster_k  # a cluster stays within some neighbouring SMs
    ctas_per_sm = -(-ctas // (machine.sm_count // whole * whole))
    waves, rest = divmod(ctas_per_sm, resident)
    rate = rate_of(problem, tile) * machine.products
    products = (
        tile.m * tile.n * -(-problem.k // (splits * tile.cluster_k)) * COST.get(problem.dtype, 1.0)
    )
    if problem.skips_taps:
        products *= TAPS_OF_MORE_ROWS ** log2(tile.m / 64)
    time = products * (waves * resident + rest) / rate
    if problem.channels:  # where memory is as slow as the products, neither hides the other
        time = hypot(time, problem.moved / machine.bandwidth)
    time += _start(tile) * (1 if tile.persistent else waves + (rest > 0))
    time += EXCHANGE * log2(tile.cluster_k)
    if splits > 1:
        outputs = problem.m * problem.n * problem.groups
        time += LAUNCH + outputs * (8 * splits + 4) / machine.bandwidth
        time *= 1 + (MORE_PARTS * log2(splits) if problem.tma else 0)
        time = max(time, TWO_LAUNCHES + 1e-3 * time)  # of equal ones, what the GPU is done with
    return time
