"""Cost model: choose the tile and the number of split-K slices by expected time.

The time of a tile counts waves of CTAs, and the tail of the last wave (``tile_time.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from .candidates import FEW_PARTS, candidates
from .cost_problem import Problem as Problem
from .kernel_spec import BYTES
from .machine import Machine
from .tile import TileConfig
from .tile_time import WIDE, times_of
from .tile_time import expected_time as expected_time

WORKSPACE = 256 << 20  # bytes of split-K partial sums, at most
MOST_SPLITS = 1024
FAR = 1.5  # the model has misjudged one tile against another by up to 1.3x
# Tensor cores truncate sums instead of rounding: after so many products the error is 2e-4 of a sum.
LONGEST_SUM = 1 << 17
# Microseconds that split-K has to save: less is within the model's error, and outside a CUDA graph
# the host needs two launches for it (strided 3x3x3, C = 64, H100: 36 us, one launch 13).
SPLIT_GAIN = 2.0

FEW_GROUP_TILES = 6  # candidates among the tiles of several groups


def choose(problem: Problem, machine: Machine) -> tuple[TileConfig, int]:
    """Return the tile and the number of split-K slices with the least expected time.

    The size only picks from the tile family: a kernel compiled for one size serves every size that
    picks the same tile.

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
    """Yield the tiles and numbers of slices that ``choose`` picks from, the fastest first."""
    pairs, times = _timed(problem, machine)
    first = times.index(min(times))
    yield pairs[first]
    yield from (pairs[i] for i in sorted(range(len(pairs)), key=times.__getitem__) if i != first)


def shortlist(problem: Problem, machine: Machine, far: float = FAR) -> list[tuple[TileConfig, int]]:
    """Return the tiles worth a trial, the expected winner first.

    They are expected to take at most ``far`` times as long as the winner. Each comes with its best
    number of slices, with half and with twice as many.

    >>> from .machine import MACHINES
    >>> tried = shortlist(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    >>> tried[0] == choose(Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_86"])
    True
    >>> len(tried), len({tile for tile, _ in tried})
    (5, 5)
    """
    times = dict(zip(*_timed(problem, machine), strict=True))
    best: dict[TileConfig, int] = {}
    for tile, splits in sorted(times, key=times.__getitem__):
        best.setdefault(tile, splits)
    near = {tile: (splits, splits // 2, 2 * splits) for tile, splits in best.items()}
    least = min(times.values())
    # Ties keep the order of the table: the order of a set differs from process to process.
    some = [pair for pair in times if pair[1] in near[pair[0]] and times[pair] <= far * least]
    return sorted(some, key=times.__getitem__)


def _timed(problem: Problem, machine: Machine) -> tuple[list[tuple[TileConfig, int]], list[float]]:
    """Return every (tile, slices) pair that fits the machine, and the expected time of each.

    Pairs with split-K are charged ``SPLIT_GAIN`` on top.
    """
    found = candidates(problem, machine)
    some = [(one, _splits(problem, one.tile)) for one in found.tiles]
    for one, clustered in zip(found.tiles, found.clustered, strict=True):
        if clustered:
            some += [(of, [1]) for of in clustered[: _worth_sharing(problem, one.tile, machine)]]
    if problem.zero_tiles or problem.zero_tiles_halo:
        left = [
            (one, [s for s in splits if leaves_zeros_out(problem, one.tile, s)])
            for one, splits in some
        ]
        some = left if any(splits for _, splits in left) else some
    pairs, times = [], []
    for (tile, terms), splits in some:
        pairs += [(tile, parts) for parts in splits]
        times += times_of(problem, terms, splits, machine)
    for tile, parts in _group_pairs(problem, machine):
        pairs.append((tile, parts))
        times.append(expected_time(problem, tile, parts, machine))
    gains = (0.0 if splits == 1 else SPLIT_GAIN for _, splits in pairs)
    return pairs, [time + gain for time, gain in zip(times, gains, strict=True)]


def _group_pairs(problem: Problem, machine: Machine) -> list[tuple[TileConfig, int]]:
    """Return the few fastest tiles of several groups that fit the machine."""
    if problem.group is None:
        return []
    outputs = 4 * problem.m * problem.n * problem.groups
    most = min(MOST_SPLITS, WORKSPACE // max(outputs, 1)) if problem.splittable else 1
    found: list[tuple[TileConfig, int]] = list(problem.group.pairs(machine, most))
    found.sort(key=lambda pair: expected_time(problem, pair[0], pair[1], machine))
    return found[:FEW_GROUP_TILES]


def expected_ratio(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> float:
    """Return the expected time of a tile over that of the model's pick: at least about 1, and
    infinity for a tile that the table does not have, or has no more.

    >>> from .machine import MACHINES
    >>> problem, machine = Problem(4096, 256, 2304, 256, "float16", 2), MACHINES["sm_90a"]
    >>> expected_ratio(problem, *next(ranked(problem, machine)), machine)
    1.0
    """
    pick = expected_time(problem, *next(ranked(problem, machine)), machine)
    if not pick:  # no rows
        return 1.0
    try:
        return expected_time(problem, tile, splits, machine) / pick
    except (KeyError, StopIteration):
        return inf


def suits(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> bool:
    """Return whether a tile that was chosen earlier still fits a problem and a machine.

    After a change of the tile table it may not. ``legality`` checks what the tile asks of the view.
    """
    fits = tile.smem_bytes(BYTES[problem.dtype], problem.staged_bytes) <= machine.smem_per_cta
    fits = fits and (splits == 1 or problem.splittable)
    fits = fits and tile.halo_taps in (1, problem.halo_taps)
    if problem.zero_tiles or problem.zero_tiles_halo:
        fits = fits and leaves_zeros_out(problem, tile, splits)
    return fits


def leaves_zeros_out(problem: Problem, tile: TileConfig, splits: int) -> bool:
    """Return whether a tile skips the structural zeros of B: an infinity in A times such a zero
    would be NaN.

    False for every tile if there are no zeros, or if no tile can skip them.
    """
    alone = tile.warp_specialized and splits == tile.cluster_k == tile.warps[1] == 1
    alone = alone and tile.n >= WIDE
    whole = problem.n <= tile.n and problem.channels % tile.k == 0
    return (
        alone and whole and (problem.zero_tiles_halo if tile.halo_taps > 1 else problem.zero_tiles)
    )


def _worth_sharing(problem: Problem, tile: TileConfig, machine: Machine) -> int:
    """Return the number of cluster sizes to consider: every CTA must keep a few k-tiles.

    0 where the output tiles alone give every SM a CTA.
    """
    ctas = -(-problem.m // tile.m) * -(-problem.n // tile.n) * problem.groups
    k_tiles = problem.k // (tile.k * tile.halo_taps)
    sizes, parts = 0, 2
    while parts <= FEW_PARTS and k_tiles // parts >= 4 and ctas * parts < 2 * machine.sm_count:
        sizes, parts = sizes + 1, 2 * parts
    return sizes


def _splits(problem: Problem, tile: TileConfig) -> list[int]:
    """Return the numbers of split-K slices to consider: every slice must keep a few k-tiles."""
    if not problem.splittable or tile.cluster_k > 1 or tile.persistent:
        return [1]
    outputs = 4 * problem.m * problem.n * problem.groups
    k_tiles = problem.k // (tile.k * tile.halo_taps)
    most = min(MOST_SPLITS, k_tiles // 4, WORKSPACE // max(outputs, 1))
    most = max(most, 1)
    least = max(1, min(-(-problem.k // LONGEST_SUM), most))
    return [s for s in range(least, most + 1) if s <= 16 or s % 4 == 0 or s == least]
