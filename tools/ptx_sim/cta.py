"""A CTA: its teams of warps, its shared memory, its barriers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .faults import Deadlock, Divergent, Fault
from .mbarriers import MBarriers
from .memory import Memory
from .ptx import Kernel
from .scratch import SharedMemory
from .team import WARP, Lanes, Step, Team
from .warpgroup import WarpGroups

if TYPE_CHECKING:
    from .cluster import Cluster


@dataclass(frozen=True)
class Launch:
    """State that all CTAs of a launch share."""

    kernel: Kernel
    program: list[Step]
    memory: Memory
    arguments: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_base: int
    shared_size: int
    dynamic_size: int
    local_base: int
    local_size: int
    shared_granule: int
    bulk_stores: bool
    late: bool
    races: bool
    independent: bool
    limit: int
    issued: list[int]
    straight: list[int]  # warps that issued each step, as differences


@dataclass
class _Barrier:
    """A named barrier: the warps that arrived, and where the waiting lanes go on."""

    arrived: int = 0
    warps: list[int] = field(default_factory=list)
    waiting: list[tuple[Team, int, Lanes]] = field(default_factory=list)
    expected: int | None = None


class CTA:
    """One thread block while it runs."""

    def __init__(self, cluster: Cluster, index: tuple[int, int, int], rank: int) -> None:
        self.cluster, self.rank = cluster, rank
        launch = self.launch = cluster.launch
        self.kernel = launch.kernel
        self.program = launch.program
        self.memory = launch.memory
        self.index = index
        x, y, z = launch.block
        self.threads = x * y * z
        warps = -(-self.threads // WARP)
        # Warps are numbered across the cluster; the first of a CTA begins a warpgroup.
        self.first_warp = rank * cluster.warps
        self.clocks = cluster.clocks
        self.shared = SharedMemory(
            launch.shared_base,
            launch.shared_size,
            launch.shared_granule,
            self.clocks if launch.races else None,
        )
        size = 1 if launch.independent else warps
        registers = launch.kernel.registers
        self.teams = [Team(self, w, size, registers) for w in range(0, warps, size)]
        self._barriers: dict[int, _Barrier] = {}
        self.mbarriers = MBarriers(self)
        self.warpgroups = WarpGroups(self)

    def end(self) -> None:
        """End the CTA: a fault if lanes still wait, or a bulk store still reads shared memory."""
        for team in self.teams:
            for pc, lanes in team.parked.items():
                fault: Fault = Divergent(
                    "a warp-collective instruction or barrier is not reached by its whole warp",
                    int(lanes.argmax()),
                )
                raise team.located(fault, self.program[pc])
        for number, barrier in self._barriers.items():
            for team, pc, lanes in barrier.waiting:
                fault = Deadlock(
                    f"barrier {number} has {barrier.arrived} of {barrier.expected} threads and "
                    "no warp can advance",
                    int(lanes.argmax()),
                )
                raise team.located(fault, self.program[pc - 1])
        for team in self.teams:
            team.stores.end()

    @property
    def alive(self) -> int:
        """The number of warps that have not exited."""
        return sum([team.warps_alive for team in self.teams])

    def arrive(
        self, team: Team, number: int, count: int | None, lanes: Lanes, next_pc: int | None
    ) -> None:
        """Let lanes (whole warps) arrive at a barrier, and wait there if ``next_pc`` is given.

        ``count`` is the number of threads that the barrier needs, None for the whole CTA.
        """
        barrier = self._barriers.setdefault(number, _Barrier())
        if barrier.arrived and barrier.expected != count:
            raise Fault(
                f"barrier {number} is used with {count} and with {barrier.expected} threads at once"
            )
        barrier.expected = count
        self.cluster.progressed()
        warps = team.warps_in(lanes)
        barrier.warps += warps.tolist()
        barrier.arrived += WARP * len(warps)
        if next_pc is not None:
            barrier.waiting.append((team, next_pc, lanes))
        self.check_barriers()

    def check_barriers(self) -> None:
        """Open the barriers that have all their threads."""
        for number, barrier in list(self._barriers.items()):
            needed = barrier.expected
            if needed is None:
                needed = WARP * self.alive
            if barrier.arrived < needed:
                continue
            del self._barriers[number]
            waiting = np.concatenate(
                [t.warps_in(lanes) for t, _, lanes in barrier.waiting] or [np.zeros(0, np.intp)]
            )
            self.clocks.join(np.array(barrier.warps), waiting)
            for team, pc, lanes in barrier.waiting:
                team.push(pc, lanes)
