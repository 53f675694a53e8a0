"""The expected time of a tile: a model of waves of CTAs with measured constants."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, hypot, log2
from typing import NamedTuple

from . import map_rates, partial_rows, pointwise_rates
from .cost_problem import Problem
from .deep_tiles import FLIGHT, deep_tile, time_in_flight
from .group_tile import GroupTile
from .kernel_spec import ASYNC_BYTES, BYTES, VECTOR_BYTES, ctas_within
from .machine import Machine
from .schedule import WARP, Load
from .tile import TileConfig
from .tile_table import (
    COPIED,
    FAMILY,
    GATHERED,
    GATHERED_SUMS,
    HALF_LINE_RATE,
    MANY_PRODUCTS,
    MAPPED,
    MAPPED_SUMS,
    MAPPED_WINDOWS,
    ONE_WARP,
    ROUNDED,
    ROUNDED_GATHERED,
    ROUNDED_WINDOWS,
    SLOW_START,
    TURNED,
    WINDOWS,
    WORD_BY_WORD,
    GatheredRow,
    Shape,
    persistent_row,
)

WAVE = 2.4  # microseconds from a CTA's start to its first product, and from its last to the store
# Microseconds in which two CTAs of a cluster reduce their split-K slices (four take twice that);
# and of the kernel that reduces slices, beside its memory traffic. ``maps_sums`` has separate fits.
EXCHANGE, LAUNCH = 4.5, 1.6
EXCHANGE_OF_SUMS, LAUNCH_OF_SUMS = 9.0, 1.2
TWO_LAUNCHES = 6.0  # least microseconds of a kernel and the one that reduces its slices
# Bytes of slices that L2 still holds when they are reduced, and how much faster L2 is.
HELD_PARTS, HELD_RATE = 14e6, 2.5
MORE_PARTS = 0.01  # of the time, per doubling of the split-K slices that TMA loads
PRESENT = 0.5  # share of a kernel map's taps that is multiplied: 0.41 to 0.61 in rooms and streets
# Active taps of a tile with twice the rows, as a factor: 1.07 in rooms, 1.12 in streets.
TAPS_OF_MORE_ROWS = 1.09
# Vectors that an SM copies in a microsecond: of 4 bytes or more (an estimate). Vectors that it
# stores by rows (heads of 2 columns in tiles of 256, H200: 4 million in 1300 us). Rates of tiles
# include vectors of 16 bytes.
COPIES, STORES = 9000.0, 3000.0
LATENCY = 0.8  # microseconds of a load (estimate), which narrow tiles cannot hide behind products
ACROSS = 2  # k-tiles of tf32 that threads have in flight, if they read them across the sum
WIDE = 32  # columns; a narrower tile has all columns of its problem
# Slowdown of tiles with at least half of their columns empty: 64 columns in 192 x 128 took 1.2 to
# 1.6 times the expected time, 32 in 64 up to 1.6 times (H200).
HALF_EMPTY = 1.3
# Time of a product in units of an fp16 product. fp64 runs without tensor cores, fp32 as three tf32
# products, int4 as two products, of a pair of bytes.
COST = {"float64": 40.0, "float32": 6.0, "tfloat32": 2.0, "int8": 0.5, "int4": 0.5}


def rate_of(problem: Problem, tile: TileConfig) -> float:
    """Return the rate of a tile, relative to the best tile of ``FAMILY``."""
    shape = tile.m, tile.n, *tile.warps
    rounded = problem.dtype == "tfloat32"
    if (found := _of_pointwise(problem, tile)) is not None:
        return found.rate
    if tile.persistent:
        return persistent_row(tile).rate
    if tile.halo_taps > 1:
        if tile.load is Load.TMA_WARP:
            return MAPPED_WINDOWS[shape][0]
        rate, _ = WINDOWS[shape]
        return rate * (ROUNDED_WINDOWS if rounded else 1)
    if not tile.warp_specialized:
        turned = rounded and not problem.channels
        return FAMILY[shape] * (WORD_BY_WORD[tile.mma_threads // WARP] if turned else 1)
    half = HALF_LINE_RATE if tile.k * BYTES[problem.dtype] < 128 else 1
    if problem.tma and (deep := deep_tile(tile)):
        return deep.rate
    if tile.load is Load.TMA_WARP:
        return ONE_WARP[shape][0] * (half if tile.m * tile.n < MANY_PRODUCTS else 1)
    if problem.tma:
        return (MAPPED_SUMS if maps_sums(problem) else MAPPED)[shape]
    if sums_pairs(problem) and shape in GATHERED_SUMS:
        return GATHERED_SUMS[shape].rate
    if keeps_index(problem, tile.k):
        return gathered_rows(problem)[shape].rate * half
    if rounded and not problem.channels:
        return TURNED[shape] * half
    return (ROUNDED[shape] if rounded else COPIED[shape]) * half


def _of_pointwise(problem: Problem, tile: TileConfig) -> pointwise_rates.Rate | None:
    """Return rate and start time of a tile, as fitted to pointwise layers; None for others."""
    shape = tile.m, tile.n, *tile.warps
    if not problem.pointwise or tile.halo_taps > 1:
        return None
    if tile.persistent:
        key = tile.m, tile.n, tile.warps[0], tile.pingpong
        resident = tile.b_resident > 0
        return (pointwise_rates.RESIDENT if resident else pointwise_rates.PERSISTENT).get(key)
    if not tile.warp_specialized:
        return pointwise_rates.MULTISTAGE.get(shape)
    if problem.tma and (deep := deep_tile(tile)):
        return pointwise_rates.Rate(deep.rate, deep.start)
    if tile.load is Load.TMA_WARP:
        return pointwise_rates.ONE_WARP.get(shape)
    copied, rows, sums = pointwise_rates.SPECIALIZED.get(shape, (None, None, None))
    if problem.tma:
        return sums if maps_sums(problem) else rows
    return copied


def keeps_index(problem: Problem, k: int) -> bool:
    """Return whether tiles keep their part of the index buffer: each k-tile lies within one tap."""
    return problem.skips_taps and problem.channels > 0 and problem.channels % k == 0


def is_timed_as_map(problem: Problem) -> bool:
    """Return whether Hopper's tiles over this kernel map have separate fits."""
    return problem.wgmma and problem.skips_taps and problem.n >= map_rates.LEAST_COLUMNS


def _of_map(problem: Problem, tile: TileConfig, machine: Machine) -> map_rates.MapTerms | None:
    if not (is_timed_as_map(problem) and keeps_index(problem, tile.k)):
        return None
    return map_rates.map_terms(tile, problem.dtype, resident(problem, tile, machine))


def _over_map(
    problem: Problem, of_map: map_rates.MapTerms, ctas: int, parts: int, sms: int, machine: Machine
) -> float:
    """Return a tile's time over a kernel map. Split-K slices skip no taps, as if of 0 rows."""
    rows, taps = problem.m if parts == 1 else 0, problem.k // problem.channels
    time = of_map.time(rows, -(-problem.k // parts), taps, ctas * parts, sms)
    return _with_parts(problem, time, parts, machine)


def sums_pairs(problem: Problem) -> bool:
    """Return whether sums run over gathered rows, across memory: a filter's gradient over pairs."""
    return problem.gathered and not problem.channels and problem.dtype != "tfloat32"


def maps_sums(problem: Problem) -> bool:
    """Return whether TMA loads operands that are not contiguous along k, as in wgrad."""
    return problem.tma and not problem.channels


def gathered_rows(problem: Problem) -> dict[Shape, GatheredRow]:
    return ROUNDED_GATHERED if problem.dtype == "tfloat32" else GATHERED


def expected_time(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> float:
    """Return the expected microseconds of a tile: waves of CTAs, and split-K reduction.

    >>> from layoutconv.planning.cost_model import choose
    >>> from .machine import MACHINES
    >>> machine = MACHINES["sm_90a"]
    >>> one, four = (Problem(m, 128, 1728, 64, "float16", 2) for m in (10**6, 4 * 10**6))
    >>> choice = choose(one, machine)
    >>> round(expected_time(four, *choice, machine) / expected_time(one, *choice, machine))
    4
    """
    return expected_times(problem, tile, (splits,), machine)[0]


def expected_times(
    problem: Problem, tile: TileConfig, splits: Sequence[int], machine: Machine
) -> list[float]:
    """Return the times for several numbers of split-K slices; long sums have hundreds of choices.

    >>> from .machine import MACHINES
    >>> few = Problem(64, 1728, 10**6, 0, "float16", 4, splittable=True)
    >>> one, many = expected_times(few, TileConfig((64, 64, 32)), (1, 100), MACHINES["sm_90a"])
    >>> one > 3 * many
    True
    """
    if isinstance(tile, GroupTile):
        return [_of_groups(problem, tile, parts, machine) for parts in splits]
    return times_of(problem, TileTerms.of(problem, tile, machine), splits, machine)


class TileTerms(NamedTuple):
    """The terms of a tile's time that do not depend on m, k and the number of groups: computed once
    for all sizes of a kind of problem.

    Attributes:
        m, n, columns: its output tile, and the length of a k-tile over all taps that share rows.
        cluster, sms: CTAs that share a sum, and the SMs that such clusters can occupy.
        resident: CTAs per SM (occupancy).
        outputs, cost, more: outputs of a CTA, cost of a product, and factor for the active taps of
            a tall tile.
        rate: products of the machine per microsecond.
        copied, stored: cost of short vectors, ``_short_vectors``; ``adjoins``: stores need no short
            vectors without split-K.
        start, exchange: microseconds beside products; ``ahead``: k-tiles in flight in a narrow
            tile, 0 in others; ``flight``: microseconds per k-tile that loads in flight take, 0
            where nothing waits for them.
        loads, latency, further, store: for pointwise layers, timed by ``pointwise_rates.py``: the
            loads of a tile, a CTA's wait for them, the start of a further wave, and a persistent
            kernel's store of a tile. None or 0 for others.
        of_short: the time to load short rows for an element of k (``partial_rows.py``), else 0.
        of_map: terms of a tile over a kernel map, timed by ``map_rates.py``; None for others.
    """

    m: int
    n: int
    columns: int
    halo_taps: int
    persistent: bool
    cluster: int
    sms: int
    resident: int
    outputs: int
    cost: float
    more: float
    rate: float
    copied: tuple[tuple[int, float, float], ...]
    stored: float
    adjoins: bool
    start: float
    exchange: float
    ahead: int
    flight: float
    loads: pointwise_rates.PointwiseLoads | None
    latency: pointwise_rates.Latency | None
    further: float
    store: float
    of_short: float
    of_map: map_rates.MapTerms | None

    @classmethod
    def of(cls, problem: Problem, tile: TileConfig, machine: Machine) -> TileTerms:
        """Return the terms of a tile; of the sizes, they use only ``problem.n``."""
        cluster, (copied, stored) = tile.cluster_k, _short_vectors(problem, tile)
        of_loads = _of_loads(problem, tile) if problem.pointwise else (None, None, 0.0, 0.0)
        loads, latency, further, store = of_loads
        return cls(
            tile.m, tile.n, tile.k * tile.halo_taps, tile.halo_taps, tile.persistent,
            cluster, _sms(machine, cluster), resident(problem, tile, machine),
            tile.m * tile.n, COST.get(problem.dtype, 1.0) * _half_empty(problem, tile),
            TAPS_OF_MORE_ROWS ** log2(tile.m / 64) if problem.skips_taps else 1.0,
            rate_of(problem, tile) * machine.products,
            tuple(copied), stored, problem.rows_adjoin and problem.n <= tile.n and cluster == 1,
            start_time(problem, tile),
            (EXCHANGE_OF_SUMS if maps_sums(problem) else EXCHANGE) * log2(cluster),
            max(tile.stages - 1, 1) if tile.n < WIDE else 0,
            _flight(problem, tile),
            loads, latency, further, store,
            _of_short_rows(problem, tile),
            _of_map(problem, tile, machine),
        )  # fmt: skip


def times_of(
    problem: Problem, terms: TileTerms, splits: Sequence[int], machine: Machine
) -> list[float]:
    """Return ``expected_times`` of the tile with these terms."""
    (
        m, n, columns, halo, persistent, cluster, sms, at_once, outputs, cost, more, rate,
        copied, stored, adjoins, start, exchange, ahead, flight, loads, latency, further,
        store, of_short, of_map,
    ) = terms  # fmt: skip
    rows = ceil(problem.m * problem.halo_growth) if halo > 1 else problem.m
    tiles_m, tiles_n = -(-rows // m), -(-problem.n // n)
    ctas = tiles_m * tiles_n * problem.groups * cluster
    if of_map is not None:
        return [_over_map(problem, of_map, ctas, parts, sms, machine) for parts in splits]
    moved, k = problem.moved / machine.bandwidth, problem.k
    if problem.skips_taps:
        k = max(1, int(k * PRESENT))
    if loads is not None:
        moved = pointwise_rates.memory_time(problem.moved, machine.bandwidth)
    times = []
    for parts in splits:
        ctas_per_sm = -(-ctas * parts // sms)
        waves = -(-ctas_per_sm // at_once)
        time = outputs * -(-k // (parts * cluster)) * cost * more * ctas_per_sm / rate
        if copied or stored:
            of_cta = 0.0
            for nbytes, vectors, copies in copied:
                of_cta += nbytes * -(-k // (parts * cluster * halo)) * vectors / copies
            time += ctas_per_sm * (of_cta if adjoins and parts == 1 else of_cta + stored)
        if ahead:  # bound by latency: the stages load all k-tiles in turn
            time = max(time, waves * (LATENCY * -(-k // (parts * cluster * columns)) / ahead))
        if loads is not None and latency is not None:
            of_k = -(-k // (parts * cluster))
            loading = ctas_per_sm * loads.time(rows, problem.n, of_k)
            waiting = latency.time(-(-of_k // columns), ctas_per_sm if persistent else waves)
            time += store * ctas_per_sm + further * (waves - 1)
            time = pointwise_rates.norm(time, moved, loading, waiting) + start
        else:  # if memory is as slow as the products, neither hides the other
            time = hypot(time, moved)
            time += start if persistent else start * waves
        if flight:
            waiting = start + waves * flight * -(-k // (parts * cluster * columns))
            time = max(time, waiting + 1e-3 * time)  # among equals, the one with fewer products
        if of_short:
            time = max(time, ctas_per_sm * of_short * k / (parts * cluster))
        time += exchange
        times.append(time if parts == 1 else _with_parts(problem, time, parts, machine))
    return times


def _half_empty(problem: Problem, tile: TileConfig) -> float:
    """Return the slowdown of a TMA warp's tile with half or more of its columns empty; else 1."""
    empty = 2 * problem.n <= tile.n and tile.load is Load.TMA_WARP
    return HALF_EMPTY if empty and not (problem.pointwise or tile.b_resident) else 1.0


def _flight(problem: Problem, tile: TileConfig) -> float:
    if problem.tma:
        return time_in_flight(tile)
    words = problem.dtype == "tfloat32" and not (problem.channels or problem.gathered)
    return FLIGHT / ACROSS if words else 0.0


def _of_short_rows(problem: Problem, tile: TileConfig) -> float:
    """Return the microseconds of rows with padded or short channels, per element of k; else 0."""
    size = BYTES[problem.dtype]
    if problem.line_channels:
        return partial_rows.time_of_pixel(tile, problem.line_channels, size)
    short = problem.channels if problem.channels * size < partial_rows.SHORT else 0
    stored = problem.stored_channels or short
    if not stored or problem.pointwise:
        return 0.0
    columns = problem.n / -(-problem.n // tile.n)
    return partial_rows.time_of_tap(tile, columns, stored, size) / problem.channels


def _of_loads(
    problem: Problem, tile: TileConfig
) -> tuple[pointwise_rates.PointwiseLoads, pointwise_rates.Latency, float, float]:
    """Return loads, latency, start of a further wave and store time of a pointwise layer's tile."""
    along_k = problem.channels > 0
    loads = pointwise_rates.PointwiseLoads(
        BYTES[problem.dtype],
        problem.tma and tile.warp_specialized,
        tile.m,
        tile.n,
        tile.k,
        along_k,
        along_k and problem.b_along_k,
        tile.b_resident > 0,
    )
    latency = pointwise_rates.Latency.of(tile, along_k)
    if tile.persistent:
        return loads, latency, 0.0, pointwise_rates.store_time(tile)
    share = 1.0 if tile.warp_specialized else pointwise_rates.MORE_WAVES
    return loads, latency, start_time(problem, tile) * share, 0.0


def _sms(machine: Machine, cluster: int) -> int:
    """Return the number of SMs that clusters of ``cluster`` CTAs can occupy.

    A cluster stays within a GPC, of 16 or 18 SMs, some of which are disabled, differently on each
    chip: 32 clusters of four on 132 SMs took twice the time of one wave (H100).
    """
    if cluster <= 2:
        return machine.sm_count
    return machine.sm_count * 7 // 8 // cluster * cluster


def _of_groups(problem: Problem, tile: GroupTile, splits: int, machine: Machine) -> float:
    assert problem.group is not None
    time = hypot(problem.group.time(tile, splits, machine), problem.moved / machine.bandwidth)
    return _with_parts(problem, WAVE + time, splits, machine)


def resident(problem: Problem, tile: TileConfig, machine: Machine) -> int:
    """Return how many CTAs an SM holds (occupancy)."""
    shared = tile.smem_bytes(BYTES[problem.dtype], problem.staged_bytes)
    return ctas_within(machine.smem_per_sm, tile, shared)


def _short_vectors(
    problem: Problem, tile: TileConfig
) -> tuple[list[tuple[int, float, float]], float]:
    """Return the cost of the vectors beyond those that vectors of 16 bytes would need.

    For each operand with short vectors: its bytes per unit of k, extra vectors per byte, and copies
    per microsecond. Also the microseconds of a CTA for extra vectors of its outputs.
    """
    size, copied = BYTES[problem.dtype], []
    sides = tile.a_rows, tile.n * tile.halo_taps
    for rows, access in zip(sides, problem.access_bytes, strict=False):
        if access != VECTOR_BYTES:
            by_registers = partial_rows.copies_by_registers(problem.channels * size)
            rate = COPIES if access >= ASYNC_BYTES else by_registers
            copied.append((rows * size, 1 / access - 1 / VECTOR_BYTES, rate))
    # Rates are those of full tiles; if most columns are empty, their vectors are extra.
    full = min(problem.n, tile.n) if problem.n < tile.n // 2 else tile.n
    vectors = tile.n / problem.access_bytes[2] - full / VECTOR_BYTES
    return copied, tile.m * problem.stored_bytes * vectors / STORES


def start_time(problem: Problem, tile: TileConfig) -> float:
    """Return the microseconds of a wave of CTAs beside its products."""
    if (found := _of_pointwise(problem, tile)) is not None:
        return found.start
    shape = tile.m, tile.n, *tile.warps
    if tile.persistent:
        return persistent_row(tile).start
    if problem.tma and (deep := deep_tile(tile)):
        return deep.start
    if tile.load is Load.TMA_WARP:
        return (MAPPED_WINDOWS if tile.halo_taps > 1 else ONE_WARP)[shape][1]
    return SLOW_START.get(shape, WAVE)


def _with_parts(problem: Problem, time: float, splits: int, machine: Machine) -> float:
    """Return the time of sums plus the reduction of their split-K slices."""
    if splits == 1:
        return time
    outputs = problem.m * problem.n * problem.groups
    apart = maps_sums(problem)
    held = apart and 4 * outputs * splits <= HELD_PARTS
    rate = machine.bandwidth * (HELD_RATE if held else 1)
    launch, least = (LAUNCH_OF_SUMS if apart else LAUNCH), TWO_LAUNCHES
    if problem.pointwise:
        launch, least = pointwise_rates.LAUNCH, pointwise_rates.TWO_LAUNCHES
        rate = machine.bandwidth
    time += launch + outputs * (8 * splits + 4) / rate
    if problem.tma:
        time *= 1 + MORE_PARTS * log2(splits)
    return max(time, least + 1e-3 * time)  # among equals, prefer the fastest on the GPU
