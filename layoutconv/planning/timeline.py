"""Timeline of a CTA: when its warps load, multiply and store, estimated by the cost model's rates.

Nothing is executed. Stages and waits are those of the kernels; durations come from rates measured
for the cost model, on one GPU of each kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from .cost_problem import Problem
from .group_tile import GroupTile
from .kernel_spec import BYTES, VECTOR_BYTES
from .machine import Machine
from .tile import TileConfig
from .tile_time import COPIES, COST, EXCHANGE, LATENCY, STORES, rate_of, resident, start_time

SHOWN_TILES = 3  # output tiles of a persistent CTA: further ones repeat these
MOST_K_TILES = 4096  # simulated per output tile


@dataclass(frozen=True)
class KTile:
    """One k-tile of an output tile, in microseconds from the start of its CTA.

    ``load`` is when its copy is issued, ``landed`` when its bytes are in shared memory, ``begin``
    and ``end`` when they are multiplied. Consumers idle for ``waited`` before ``begin``.
    """

    output_tile: int
    k_tile: int
    load: float
    landed: float
    begin: float
    end: float
    waited: float


@dataclass(frozen=True)
class Timeline:
    """A CTA from its start to its last store, in estimated microseconds.

    Attributes:
        prologue: from the start of the CTA to its first load: indices, masks, descriptors.
        k_tiles: of the shown output tiles, one after the other.
        epilogues: when each of these tiles is stored, from and to.
        whole: k-tiles per sum of this CTA.
        output_tiles: output tiles that it computes.
        multiply: time to multiply a k-tile.
        copy: least time between the arrivals of two k-tiles, set by the copy rate.
        together: CTAs that share the SM and its tensor cores.
    """

    prologue: float
    k_tiles: tuple[KTile, ...]
    epilogues: tuple[tuple[float, float], ...]
    whole: int
    output_tiles: int
    multiply: float
    copy: float
    together: int

    @property
    def end(self) -> float:
        """End of the last shown tile's store."""
        return max(end for _, end in self.epilogues)

    @property
    def waited(self) -> float:
        """Time in which consumers wait, without the wait for the very first k-tile."""
        return sum(one.waited for one in self.k_tiles[1:])

    @property
    def bound(self) -> str:
        """The bottleneck in the steady state of a long sum: "products" or "loads"."""
        return "products" if self.multiply >= self.copy else "loads"


def timeline(problem: Problem, tile: TileConfig, splits: int, machine: Machine) -> Timeline | None:
    """Return the estimated timeline of one CTA of a kernel; None for a tile of several groups or
    an empty problem, which have no k-tiles.

    >>> from .cost_model import choose
    >>> from .machine import MACHINES
    >>> problem, machine = Problem(10**6, 128, 1728, 64, "float16", 2), MACHINES["sm_90a"]
    >>> found = timeline(problem, *choose(problem, machine), machine)
    >>> found.whole, found.bound
    (27, 'products')
    >>> all(one.landed <= one.begin for one in found.k_tiles)
    True
    """
    if isinstance(tile, GroupTile):
        return None
    size = BYTES[problem.dtype]
    tiles = -(-problem.m // tile.m) * -(-problem.n // tile.n) * problem.groups
    ctas = tiles * splits * tile.cluster_k
    at_once = min(ctas, machine.sm_count * resident(problem, tile, machine))
    together = -(-at_once // machine.sm_count)
    whole = -(-problem.k // (splits * tile.cluster_k * tile.halo_taps * tile.k))
    if not ctas * whole:
        return None

    products = tile.m * tile.n * tile.k * tile.halo_taps * COST.get(problem.dtype, 1.0)
    multiply = together * products / (rate_of(problem, tile) * machine.products)
    vectors = tile.stage_bytes(size) / VECTOR_BYTES
    copy = 0.0 if problem.tma else together * vectors / COPIES
    copy = max(copy, problem.moved / machine.bandwidth * at_once / (ctas * whole))
    stored = tile.m // tile.cluster_k * tile.n * problem.stored_bytes
    store = stored / problem.access_bytes[2] / STORES + EXCHANGE * log2(tile.cluster_k)

    computed = -(-tiles // at_once) if tile.persistent else 1
    prologue = max(0.0, start_time(problem, tile) - LATENCY - store)
    followed = _Pipeline(tile, min(whole, MOST_K_TILES), multiply, copy, store, prologue)
    k_tiles, epilogues = followed.run(min(computed, SHOWN_TILES))
    return Timeline(prologue, k_tiles, epilogues, whole, computed, multiply, copy, together)


@dataclass(frozen=True)
class _Pipeline:
    """The mainloop of a CTA, and who waits for whom."""

    tile: TileConfig
    k_tiles: int
    multiply: float
    copy: float
    store: float
    prologue: float

    def run(self, tiles: int) -> tuple[tuple[KTile, ...], tuple[tuple[float, float], ...]]:
        """Return the k-tiles and epilogues of ``tiles`` output tiles, in order."""
        stages = self.tile.stages
        # A stage is free once its k-tile is multiplied. Without producers, threads copy into the
        # stage that the previous k-tile has left, so one stage fewer is in flight.
        ahead = stages if self.tile.warp_specialized else stages - 1
        done: deque[float] = deque(maxlen=ahead)
        landed, tensor_cores = self.prologue, self.prologue
        free = [self.prologue] * self.tile.consumers
        found: list[KTile] = []
        epilogues: list[tuple[float, float]] = []
        issued = self.prologue
        for number, (output_tile, k_tile) in enumerate(self._order(tiles)):
            consumer = output_tile % len(free)
            issued = max(issued, done[0] if number >= ahead else 0.0)
            arrives = max(issued + LATENCY, landed + self.copy if number else 0.0)
            landed = arrives
            ready = max(free[consumer], tensor_cores)
            begin = max(ready, arrives)
            end = begin + self.multiply
            found.append(KTile(output_tile, k_tile, issued, arrives, begin, end, begin - ready))
            done.append(end)
            tensor_cores = free[consumer] = end
            if k_tile == self.k_tiles - 1:
                free[consumer] = end + self.store
                epilogues.append((end, end + self.store))
                if not self.tile.pingpong:
                    tensor_cores = free[consumer]
        return tuple(found), tuple(epilogues)

    def _order(self, tiles: int) -> Iterator[tuple[int, int]]:
        for output_tile in range(tiles):
            for k_tile in range(self.k_tiles):
                yield output_tile, k_tile
