"""A cluster: CTAs that run concurrently and access each other's shared memory; the warp scheduler.

A shared::cluster address is the address in the CTA, plus (rank + 1) << 24 if mapa made it for a
rank; without that, it refers to the thread's own CTA.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cta import CTA, Launch
from .faults import Deadlock, Divergent, Fault, OutOfBounds, Runaway
from .layout import CLUSTER_BITS
from .masks import some
from .scratch import Clocks
from .team import WARP, Lanes, Team
from .warpgroup import GROUP

# Most instructions of a warp's turn: often all between two barriers, so that skew shows, yet few
# enough that a warp that spins on a lock lets others run.
_TURN = 1024


class Cluster:
    """The running CTAs of a cluster; without clusters every CTA is a cluster of one."""

    def __init__(self, launch: Launch, index: tuple[int, int, int], seed: int) -> None:
        self.launch = launch
        x, y, z = launch.cluster
        size = x * y * z
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.warps = -(-threads // WARP)
        if size > 1:
            self.warps += -self.warps % GROUP
        self.clocks = Clocks(size * self.warps, launch.bulk_stores)
        self._random = np.random.default_rng([seed, *index])
        first = [i // n * n for i, n in zip(index, launch.cluster, strict=True)]
        self.ctas = [
            CTA(self, (first[0] + r % x, first[1] + r // x % y, first[2] + r // x // y), r)
            for r in range(size)
        ]
        self.barrier = ClusterBarrier(self)
        # Sleeping lanes: team, program counter to resume at, lanes, and the awaited event as text.
        self._asleep: list[tuple[Team, int, Lanes, str]] = []
        # How many sleepers in a row had to give up, and the last of them.
        self._vain = 0
        self._told: tuple[Team, Lanes] | None = None

    @property
    def teams(self) -> list[Team]:
        return [team for cta in self.ctas for team in cta.teams]

    def locate(self, own: CTA, address: int, lane: int) -> tuple[CTA, int]:
        """Return the CTA that a cluster address lies in, and the address in it."""
        rank = (address >> CLUSTER_BITS) - 1
        if rank < 0 or rank == own.rank:
            return own, address & (1 << CLUSTER_BITS) - 1
        if rank >= len(self.ctas):
            raise OutOfBounds(f"there is no CTA {rank} in the cluster", lane, address)
        if not self.ctas[rank].alive:
            raise Fault(f"CTA {rank} of the cluster has ended, and its memory with it", lane)
        return self.ctas[rank], address & (1 << CLUSTER_BITS) - 1

    @staticmethod
    def address(address: NDArray, rank: NDArray) -> NDArray:
        """mapa: return the cluster address of the same place in the CTA of a rank.

        Ranks outside the cluster are allowed, as compilers move mapa in front of branches.
        """
        rank = np.minimum(rank, 254)
        keep = np.array(~(255 << CLUSTER_BITS) % (1 << 8 * address.itemsize), address.dtype)
        shift = np.array(CLUSTER_BITS, address.dtype)
        return address & keep | (rank.astype(address.dtype) + np.ones_like(rank)) << shift

    def run(self) -> None:
        """Run all warps to their end."""
        teams, left = self.teams, self.launch.limit * len(self.ctas)
        while True:
            ready = [team for team in teams if team.paths]
            if not ready:
                if self.pass_time() or self._rouse():
                    continue
                break
            team = ready[int(self._random.integers(len(ready)))]
            left -= team.advance(min(int(self._random.integers(1, _TURN)), left))
            if left <= 0:
                limit = self.launch.limit
                fault = Runaway(f"the CTA executed more than {limit} instructions")
                raise team.located(fault, self.ctas[0].program[min(team.paths, default=0)])
        for cta in self.ctas:
            cta.end()

    # ---- sleeping, and what asynchronous operations do meanwhile

    def sleep(self, team: Team, pc: int, lanes: Lanes, what: str) -> None:
        """Let lanes sleep until something happens, then run the instruction at ``pc`` again."""
        team.issued[pc] -= int(lanes.reshape(-1, WARP).any(axis=1).sum())
        self._asleep.append((team, pc, lanes, what))

    def happened(self) -> None:
        """Note an arrival: all sleepers look again."""
        self._vain = 0
        asleep, self._asleep = self._asleep, []
        for team, pc, lanes, _ in asleep:
            team.push(pc, lanes)

    def pass_time(self) -> bool:
        """Complete a random pending arrival or bulk copy; return whether there was one."""
        teams = [team for team in self.teams if team.copies.arrivals]
        if teams:
            copies = teams[int(self._random.integers(len(teams)))].copies
            copies.land_arrival(int(self._random.integers(len(copies.arrivals))))
        return bool(teams)

    def gives_up(self, team: Team, lanes: Lanes) -> bool:
        """Return whether a wait of these lanes gives up: because it was told to, or at random."""
        told = self._told is not None and self._told[0] is team and some(self._told[1] & lanes)
        if told:
            self._told = None
        return bool(told or self._random.integers(4) == 0)

    def _rouse(self) -> bool:
        """Nothing else can happen: let one sleeper give up; if that never helps, a deadlock."""
        if not self._asleep:
            return False
        number = int(self._random.integers(len(self._asleep)))
        team, pc, lanes, what = self._asleep[number]
        self._vain += 1
        if self._vain > 16 * (1 + len(self._asleep)):
            fault = Deadlock(f"no warp can advance: waits for {what}", int(lanes.argmax()))
            raise team.located(fault, team.cta.program[pc])
        del self._asleep[number]
        self._told = (team, lanes)
        team.push(pc, lanes)
        return True

    def progressed(self) -> None:
        """Note progress for which no lane sleeps."""
        self._vain = 0


class ClusterBarrier:
    """barrier.cluster: when all threads that have not exited have arrived, waiters go on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._arrived: set[int] = set()
        # The number of completed phases, and per warp the phase that it arrived for.
        self._phase = 0
        self._joined: dict[int, int] = {}
        known = cluster.clocks.known
        self._coming = np.zeros(known.shape[1], np.int32)
        self._done = self._coming
        # What each warp knew at its last fence: a relaxed arrival releases only that.
        self._fenced = np.zeros_like(known)

    def fence(self, warps: NDArray[np.intp]) -> None:
        """Fence with cluster scope, or a wider one, by warps."""
        known = self._cluster.clocks.known
        self._fenced[warps] = known[warps]
        known[warps, warps] += 1

    def arrive(self, warp: int, relaxed: bool, lane: int) -> None:
        """Let a warp arrive."""
        if warp in self._arrived or self._joined.get(warp, 0) > self._phase:
            raise Divergent("a second barrier.cluster.arrive without a wait in between", lane)
        known = self._cluster.clocks.known
        self._coming = np.maximum(self._coming, (self._fenced if relaxed else known)[warp])
        if not relaxed:
            known[warp, warp] += 1
        self._arrived.add(warp)
        self._joined[warp] = self._phase + 1
        self.check()

    def check(self) -> None:
        """Complete the phase if all warps that have not exited have arrived."""
        missing = [w for team in self._cluster.teams for w in team.alive_warps()]
        if self._arrived and self._arrived.issuperset(missing):
            self._phase += 1
            self._arrived = set()
            self._done, self._coming = self._coming, np.zeros_like(self._coming)
            self._cluster.happened()

    def wait(self, warp: int, lane: int) -> bool:
        """Let a warp wait; return False if others must arrive first."""
        if warp not in self._joined:
            raise Divergent("barrier.cluster.wait without an arrival before it", lane)
        if self._joined[warp] > self._phase:
            return False
        del self._joined[warp]
        known = self._cluster.clocks.known
        known[warp] = np.maximum(known[warp], self._done)
        return True
