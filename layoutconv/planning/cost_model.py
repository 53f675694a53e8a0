"""Which tile runs a problem, and how many CTAs share a sum: a small family, and a model of time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, hypot, log2

from .kernel_spec import BYTES, RESERVED, VECTOR_BYTES
from .tile import WARP, WARPGROUP, Tile
from .tile_table import (
    COPIED,
    FAMILY,
    GATHERED,
    HALF_LINE_RATE,
    HOPPER,
    LASTING,
    MANY_PRODUCTS,
    MAPPED,
    MAPPED_WINDOWS,
    ONE_WARP,
    ROUNDED,
    ROUNDED_GATHERED,
    ROUNDED_WINDOWS,
    SLOW_START,
    WINDOWS,
    Shape,
    known_of,
    lasting_tile,
    shapes,
    tile_of,
)


@dataclass(frozen=True)
class Machine:
    """What of a GPU decides: multiprocessors, shared memory in bytes, and roughly how fast it is.

    ``products`` are multiply-adds of fp16 that a multiprocessor does in a microsecond, in a kernel
    of the best tile; ``bandwidth`` bytes of memory in a microsecond. ``name`` is that of a GPU that
    is present, such as "NVIDIA H200".
    """

    arch: str
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    products: float = 1.0e6
    bandwidth: float = 1.0e6
    name: str = ""


# Limits of the compute capability; multiprocessors and speed of A100, RTX 3090, RTX 4090 and H200.
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

MOST_COUNTED = 64  # columns of teams that keep statistics: of more they have no registers
MOST_OF_TEAMS = 128  # columns: of more, every tile of them would read A once more
# Twice the rows of a kernel map have so many times the taps: 1.07 in rooms, 1.12 in streets.
TAPS_OF_MORE_ROWS = 1.09
# Products in the time of one of fp16; fp64 is not on tensor cores, fp32 three products of tf32. Of
# int4 two products, a pair of bytes.
COST = {"float64": 40.0, "float32": 6.0, "tfloat32": 2.0, "int8": 0.5, "int4": 0.5}


@dataclass(frozen=True)
class Problem:
    """The sizes that decide: of GEMM, of its groups, of memory's elements.

    Rows of A are ``gathered`` where an index buffer says which they are.

    ``channels`` is the length of the contiguous mode of k, 0 where k runs across memory. A sum may
    be split only if ``splittable``. ``sparse``: tiles leave out taps, as far as all their rows lack
    them. ``moved``: bytes of memory that are read or written at least. ``taps``: as many share the
    rows of a tile, if there are ``widening`` times more of these. ``warpgroups``: Hopper's
    instructions can multiply it. ``whole``: what is stored of a row needs whole sums of that row,
    and of no other: a cluster may share them. ``mapped``: tensor maps bring both operands to
    Hopper's tiles; ``mapped_windows``, to those whose rows ``taps`` share. ``runs`` and
    ``window_runs``: B has zeros, and the ones or the others leave them out (``columns.py``).
    ``lasts``: sums of one group, of every tap, as CTAs that last compute. ``stays``: results are
    stored as they are, by whole vectors of 16 bits; ``counts``, with statistics. ``k_tiles``: how
    many half lines there are of the sum where ``taps`` share rows.
    """

    m: int
    n: int
    k: int
    channels: int
    dtype: str
    staged_bytes: int
    groups: int = 1
    splittable: bool = False
    sparse: bool = False
    gathered: bool = False
    moved: int = 0
    taps: int = 1
    widening: float = 1.0
    warpgroups: bool = True
    whole: bool = False
    mapped: bool = False
    mapped_windows: bool = False
    runs: bool = False
    window_runs: bool = False
    lasts: bool = False
    stays: bool = False
    counts: bool = False
    k_tiles: int = 0


def choose(problem: Problem, machine: Machine) -> tuple[Tile, int]:
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
    return min(_pairs(problem, machine), key=lambda pair: _time(problem, pair[0], pair[1], machine))


def shortlist(problem: Problem, machine: Machine) -> list[tuple[Tile, int]]:
    """What is worth a trial, the expected winner first: the tiles that the model takes for at most
    ``FAR`` times as slow, with the number of parts that suits each best, half and twice as many.

    >>> tried = shortlist(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    >>> tried[0] == choose(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    True
    >>> len(tried), len({tile for tile, _ in tried})
    (5, 5)
    """
    times = {pair: _time(problem, *pair, machine) for pair in _pairs(problem, machine)}
    best: dict[Tile, int] = {}
    for tile, splits in sorted(times, key=times.__getitem__):
        best.setdefault(tile, splits)
    some = {
        (tile, s) for tile, splits in best.items() for s in (splits, splits // 2, 2 * splits)
    } & times.keys()
    least = min(times.values())
    return sorted((pair for pair in some if times[pair] <= FAR * least), key=times.__getitem__)


def _pairs(problem: Problem, machine: Machine) -> list[tuple[Tile, int]]:
    """The tiles of the family that the machine has room for, with every number of parts."""
    line = 128 // BYTES[problem.dtype]
    k = line if problem.channels % line == 0 else line // 2
    if problem.dtype == "float64":  # of CUDA cores
        tiles = [Tile(64, 64, k, 2, 2, 3)]
    else:
        hopper = shapes(machine.arch, problem.dtype) != list(FAMILY)
        tiles = [tile_of(shape, k, line // 2) for shape in FAMILY]
        if hopper and _is_kept(problem, k):
            tiles += [
                Tile(*shape[:2], k, *shape[2:], stages, producers)
                for shape, (_, stages, producers) in _gathered(problem).items()
            ]
        elif hopper:
            gathered = problem.gathered and not problem.sparse
            offered = shapes(machine.arch, problem.dtype, gathered=gathered)
            tiles += [tile_of(shape, k, line // 2) for shape in offered[len(FAMILY) :]]
        tiles += _windows(problem, machine)
        tiles += _by_one_warp(problem, machine, k)
        tiles += _lasting(problem, k) if hopper else []
        if not problem.warpgroups:
            tiles = [tile for tile in tiles if not tile.producers]
    if problem.dtype == "float32":  # twice the fragments in registers
        tiles = [tile for tile in tiles if tile.m * tile.n <= 64 * tile.threads]
    tiles += [replace(tile, parts=p) for tile in tiles for p in _parts(problem, tile, machine)]
    size = BYTES[problem.dtype]
    fitting = [
        tile
        for tile in tiles
        if tile.shared_bytes(size, problem.staged_bytes) <= machine.shared_per_block
    ]
    pairs = [(tile, splits) for tile in fitting for splits in _splits(problem, tile)]
    return [pair for pair in pairs if leaves_zeros_out(problem, *pair)] or pairs


def runs_here(problem: Problem, tile: Tile, splits: int, machine: Machine) -> bool:
    """Whether a tile, and so many parts of a sum, are for a problem and a machine.

    What was chosen once may not be, after a change of the family.
    """
    runs = tile.shared_bytes(BYTES[problem.dtype], problem.staged_bytes) <= machine.shared_per_block
    runs = runs and (splits == 1 or problem.splittable) and tile.taps in (1, problem.taps)
    runs = runs and (tile.parts == 1 or problem.whole)
    runs = runs and (tile.producers != WARP or problem.mapped)
    if tile.lasting:
        runs = runs and problem.lasts and _ends(problem, tile.n, tile.teams)
        runs = runs and tile.holding in (0, problem.k_tiles)
    if problem.runs or problem.window_runs:
        runs = runs and leaves_zeros_out(problem, tile, splits)
    return runs


def leaves_zeros_out(problem: Problem, tile: Tile, splits: int) -> bool:
    """Whether zeros of B are not multiplied: an infinity of A would make of them what is no number.

    Where there are no zeros, or no tile can leave them out, that is said of none.
    """
    alone = tile.producers > 0 and splits == tile.parts == tile.sharing == tile.warps_n == 1
    whole = problem.n <= tile.n and problem.channels % tile.k == 0
    return alone and whole and (problem.window_runs if tile.taps > 1 else problem.runs)


def rate_of(problem: Problem, tile: Tile) -> float:
    """The rate of a tile, as a share of the best of ``FAMILY``."""
    shape = tile.m, tile.n, tile.warps_m, tile.warps_n
    rounded = problem.dtype == "tfloat32"
    if tile.lasting:
        return known_of(tile).rate
    if tile.taps > 1:
        if tile.producers == WARP:
            return MAPPED_WINDOWS[shape][0]
        rate, _ = WINDOWS[shape]
        return rate * (ROUNDED_WINDOWS if rounded else 1)
    if not tile.producers:
        return FAMILY[shape]
    half = HALF_LINE_RATE if tile.k * BYTES[problem.dtype] < 128 else 1
    if tile.producers == WARP:
        return ONE_WARP[shape][0] * (half if tile.m * tile.n < MANY_PRODUCTS else 1)
    if problem.mapped:
        return MAPPED[shape]
    if _is_kept(problem, tile.k):
        return _gathered(problem)[shape][0] * half
    return (ROUNDED[shape] if rounded else COPIED[shape]) * half


def _is_kept(problem: Problem, k: int) -> bool:
    """Whether tiles keep what they take of an index buffer, where k-tiles lie within a tap."""
    return problem.sparse and problem.channels > 0 and problem.channels % k == 0


def _gathered(problem: Problem) -> dict[Shape, tuple[float, int, int]]:
    return ROUNDED_GATHERED if problem.dtype == "tfloat32" else GATHERED


def _windows(problem: Problem, machine: Machine) -> list[Tile]:
    """Tiles of A that serve several taps, of k-tiles that lie within the first of these.

    Of all columns: where A is read for each of several tiles of them, nothing is gained.
    """
    size = BYTES[problem.dtype]
    k = 64 // size
    half_lines = problem.taps > 1 and size > 1 and problem.k // problem.taps % k == 0
    if not half_lines or shapes(machine.arch, problem.dtype) == list(FAMILY):
        return []
    if problem.mapped_windows:
        return [
            Tile(m, n, k, warps_m, warps_n, stages[problem.taps > 2], WARP, problem.taps)
            for (m, n, warps_m, warps_n), (_, _, *stages) in MAPPED_WINDOWS.items()
            if problem.n <= n and (size <= 2 or m == 256) and stages[problem.taps > 2]
        ]
    tiles = []
    for (m, n, warps_m, warps_n), (_, most) in WINDOWS.items():
        for stages in range(most if problem.n <= n else 0, 1, -1):
            tile = Tile(m, n, k, warps_m, warps_n, stages, WARPGROUP, problem.taps)
            if tile.shared_bytes(size, problem.staged_bytes) <= machine.shared_per_block:
                tiles.append(tile)
                break
    return tiles


def _by_one_warp(problem: Problem, machine: Machine, k: int) -> list[Tile]:
    """Tiles that one warp copies, with as many stages as leave others room.

    For data of 16 bits; for tf32 where all of a sum is on its way at once: more was not measured.
    """
    size, most = BYTES[problem.dtype], -(-problem.k // k)
    if not (problem.mapped and problem.whole and problem.channels):
        return []
    tiles = []
    for m, n, warps_m, warps_n in ONE_WARP:
        stages = max(1, min(HOPPER[m, n, warps_m, warps_n], most))
        while True:
            tile = Tile(m, n, k, warps_m, warps_n, stages, WARP)
            shared = tile.shared_bytes(size, problem.staged_bytes) + RESERVED
            if stages < 3 or tile.resident * shared <= machine.shared_per_multiprocessor:
                break
            stages -= 1
        if size == 2 or (size == 4 and stages >= most):
            tiles.append(tile)
    return tiles


def _lasting(problem: Problem, k: int) -> list[Tile]:
    """Tiles of CTAs that last; where taps share rows, of half lines, and of all columns."""
    if not problem.lasts or BYTES[problem.dtype] != 2:
        return []
    tiles = []
    if problem.mapped and problem.channels:
        for known in LASTING[1]:
            fits = known.n < 2 * problem.n and problem.n <= MOST_OF_TEAMS
            if (known.teams == 1 or fits) and _ends(problem, known.n, known.teams):
                tiles.append(lasting_tile(known, k))
    half_line = 64 // BYTES[problem.dtype]
    if problem.mapped_windows and problem.k // problem.taps % half_line == 0:
        for known in LASTING[min(problem.taps, 3)]:
            if problem.n <= known.n and _ends(problem, known.n, known.teams):
                tile = lasting_tile(known, half_line, problem.taps)
                tiles.append(replace(tile, holding=problem.k_tiles if known.holds else 0))
    return tiles


def _ends(problem: Problem, n: int, teams: int) -> bool:
    """Whether CTAs that last store what there is to store, of tiles of so many columns."""
    if teams == 1:
        return not problem.counts
    return problem.stays and (problem.n <= n <= MOST_COUNTED or not problem.counts)


def _parts(problem: Problem, tile: Tile, machine: Machine) -> list[int]:
    """Sizes of clusters that are worth a thought: every CTA has a few k-tiles, and rows to store.

    Where there are fewer CTAs than multiprocessors; others have sums enough. Only on Hopper, where
    the exchange was measured and what it brings.
    """
    other = machine.arch != "sm_90a" or problem.dtype == "float64" or tile.lasting
    if other or not problem.whole:
        return []
    ctas = -(-problem.m // tile.m) * -(-problem.n // tile.n) * problem.groups
    rows = tile.threads * VECTOR_BYTES // tile.n  # stored at once, at most
    found, parts = [], 2
    while (
        parts <= FEW_PARTS
        and (tile.m // parts) % rows == 0
        and problem.k // (tile.k * tile.taps * parts) >= 4
        and ctas * parts < 2 * machine.multiprocessors
    ):
        found.append(parts)
        parts *= 2
    return found


def _splits(problem: Problem, tile: Tile) -> list[int]:
    """Numbers of parts that are worth a thought: every part has a few k-tiles."""
    if not problem.splittable or tile.parts > 1 or tile.lasting:
        return [1]
    outputs = 4 * problem.m * problem.n * problem.groups
    k_tiles = problem.k // (tile.k * tile.taps)
    most = min(MOST_SPLITS, k_tiles // 4, WORKSPACE // max(outputs, 1))
    most = max(most, 1)
    least = max(1, min(-(-problem.k // LONGEST_SUM), most))
    return [s for s in range(least, most + 1) if s <= 16 or s % 4 == 0 or s == least]


def _start(tile: Tile) -> float:
    """Microseconds of a wave of CTAs beside its products."""
    shape = tile.m, tile.n, tile.warps_m, tile.warps_n
    if tile.lasting:
        return known_of(tile).start
    if tile.producers == WARP:
        return (MAPPED_WINDOWS if tile.taps > 1 else ONE_WARP)[shape][1]
    return SLOW_START.get(shape, WAVE)


def _time(problem: Problem, tile: Tile, splits: int, machine: Machine) -> float:
    """Microseconds, about: waves of CTAs, each as long as its tile is large; then the parts."""
    size = BYTES[problem.dtype]
    shared = tile.shared_bytes(size, problem.staged_bytes) + RESERVED
    resident = max(1, min(machine.shared_per_multiprocessor // shared, tile.resident))
    m = ceil(problem.m * problem.widening) if tile.taps > 1 else problem.m
    ctas = -(-m // tile.m) * -(-problem.n // tile.n) * problem.groups * splits * tile.parts
    whole = 2 * tile.parts  # a cluster stays within some neighbouring multiprocessors
    per_multiprocessor = -(-ctas // (machine.multiprocessors // whole * whole))
    waves, rest = divmod(per_multiprocessor, resident)
    rate = rate_of(problem, tile) * machine.products
    products = (
        tile.m * tile.n * -(-problem.k // (splits * tile.parts)) * COST.get(problem.dtype, 1.0)
    )
    if problem.sparse:
        products *= TAPS_OF_MORE_ROWS ** log2(tile.m / 64)
    time = products * (waves * resident + rest) / rate
    if problem.channels:  # where memory is as slow as the products, neither hides the other
        time = hypot(time, problem.moved / machine.bandwidth)
    time += _start(tile) * (1 if tile.lasting else waves + (rest > 0))
    time += EXCHANGE * log2(tile.parts)
    if splits > 1:
        outputs = problem.m * problem.n * problem.groups
        time += LAUNCH + outputs * (8 * splits + 4) / machine.bandwidth
        time *= 1 + (MORE_PARTS * log2(splits) if problem.mapped else 0)
        time = max(time, TWO_LAUNCHES + 1e-3 * time)  # of equal ones, what the GPU is done with
    return time
