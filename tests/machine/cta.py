"""One CTA: its teams of warps, its shared memory, its barriers, and whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .faults import Deadlock, Divergent, Fault, Runaway
from .mbarriers import MBarriers
from .memory import Memory
from .ptx import Kernel
from .scratch import Clocks, SharedMemory
from .team import WARP, Lanes, Step, Team
from .warpgroup import WarpGroups

# A turn of a warp is up to this many instructions: often all that lie between two barriers, so that
# skew shows, yet a warp that spins on a lock lets the others on.
_TURN = 1024


@dataclass(frozen=True)
class Launch:
    """What all CTAs of a launch share."""

    kernel: Kernel
    program: list[Step]
    memory: Memory
    arguments: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
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


@dataclass
class _Barrier:
    """A named barrier: who has arrived, and where those that wait go on."""

    arrived: int = 0
    warps: list[int] = field(default_factory=list)
    waiting: list[tuple[Team, int, Lanes]] = field(default_factory=list)
    expected: int | None = None


class CTA:
    """One thread block while it runs."""

    def __init__(self, launch: Launch, index: tuple[int, int, int], seed: int) -> None:
        self.launch = launch
        self.kernel = launch.kernel
        self.program = launch.program
        self.memory = launch.memory
        self.index = index
        x, y, z = launch.block
        self.threads = x * y * z
        warps = -(-self.threads // WARP)
        self.clocks = Clocks(warps, launch.bulk_stores)
        self.shared = SharedMemory(
            launch.shared_base,
            launch.shared_size,
            launch.shared_granule,
            self.clocks if launch.races else None,
        )
        self._random = np.random.default_rng([seed, *index])
        size = 1 if launch.independent else warps
        registers = launch.kernel.registers
        self.teams = [Team(self, w, size, registers) for w in range(0, warps, size)]
        self._barriers: dict[int, _Barrier] = {}
        self.mbarriers = MBarriers(self)
        self.warpgroups = WarpGroups(self)
        # Lanes that sleep until something happens: where they look again, and what they wait for.
        self._asleep: list[tuple[Team, int, Lanes, str]] = []
        # How often in a row sleepers were told to give up, and who was told last.
        self._vain = 0
        self._told: tuple[Team, Lanes] | None = None

    def run(self) -> None:
        """Run all warps to their end."""
        left = self.launch.limit
        while True:
            ready = [team for team in self.teams if team.paths]
            if not ready:
                if self.pass_time() or self._rouse():
                    continue
                break
            team = ready[int(self._random.integers(len(ready)))]
            left -= team.advance(min(int(self._random.integers(1, _TURN)), left))
            if left <= 0:
                raise self._located(
                    Runaway(f"the CTA executed more than {self.launch.limit} instructions"), team
                )
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

    # ---- sleeping, and what asynchronous operations do meanwhile

    def sleep(self, team: Team, pc: int, lanes: Lanes, what: str) -> None:
        """Lanes sleep until something happens, then run the instruction at ``pc`` again."""
        team.issued[pc] -= int(lanes.reshape(-1, WARP).any(axis=1).sum())
        self._asleep.append((team, pc, lanes, what))

    def happened(self) -> None:
        """Someone arrived somewhere: all sleepers look again."""
        self._vain = 0
        asleep, self._asleep = self._asleep, []
        for team, pc, lanes, _ in asleep:
            team.push(pc, lanes)

    def pass_time(self) -> bool:
        """Let an asynchronous operation that nobody is forced to wait for come to its end."""
        teams = [team for team in self.teams if team.copies.arrivals]
        if teams:
            copies = teams[int(self._random.integers(len(teams)))].copies
            copies.land_arrival(int(self._random.integers(len(copies.arrivals))))
        return bool(teams)

    def gives_up(self, team: Team, lanes: Lanes) -> bool:
        """Must a wait of these lanes be in vain? If it was told to, or now and then."""
        told = self._told is not None and self._told[0] is team and (self._told[1] & lanes).any()
        if told:
            self._told = None
        return bool(told or self._random.integers(4) == 0)

    def _rouse(self) -> bool:
        """Nothing can happen any more: one sleeper gives up, in case that leads anywhere."""
        if not self._asleep:
            return False
        number = int(self._random.integers(len(self._asleep)))
        team, pc, lanes, what = self._asleep[number]
        self._vain += 1
        if self._vain > 16 * (1 + len(self._asleep)):
            fault = Deadlock(f"no warp can advance: waits for {what}", int(lanes.argmax()))
            raise team.located(fault, self.program[pc])
        del self._asleep[number]
        self._told = (team, lanes)
        team.push(pc, lanes)
        return True

    def _located(self, fault: Fault, team: Team) -> Fault:
        pc = min(team.paths, default=0)
        return team.located(fault, self.program[pc])

    def arrive(
        self, team: Team, number: int, count: int | None, lanes: Lanes, next_pc: int | None
    ) -> None:
        """Lanes (whole warps) arrive at a barrier, and wait there if they have a ``next_pc``.

        ``count`` is the number of threads that the barrier needs, None for the whole CTA.
        """
        barrier = self._barriers.setdefault(number, _Barrier())
        if barrier.arrived and barrier.expected != count:
            raise Fault(
                f"barrier {number} is used with {count} and with {barrier.expected} threads at once"
            )
        barrier.expected = count
        self._vain = 0
        warps = np.unique(team.warp_of[lanes])
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
                needed = WARP * sum(
                    int(t.alive.reshape(-1, WARP).any(axis=1).sum()) for t in self.teams
                )
            if barrier.arrived < needed:
                continue
            del self._barriers[number]
            waiting = np.concatenate(
                [np.unique(t.warp_of[lanes]) for t, _, lanes in barrier.waiting]
                or [np.zeros(0, np.intp)]
            )
            self.clocks.join(np.array(barrier.warps), waiting)
            for team, pc, lanes in barrier.waiting:
                team.push(pc, lanes)
