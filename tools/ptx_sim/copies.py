"""Asynchronous copies in flight: cp.async, which lands as late as it may, and bulk copies.

A copy may land at any moment between its issue and the issuing thread's wait. Landing at the last
moment exposes a wait that is missing or too lax; landing at once, a copy issued too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .masks import every, some

if TYPE_CHECKING:
    from .cta import CTA
    from .mbarriers import MBarrier
    from .team import Team


@dataclass
class _Batch:
    """The copies that one instruction issued, one per lane, with their groups."""

    number: int
    lanes: NDArray[np.intp]
    groups: NDArray[np.int64]
    addresses: NDArray[np.int64]
    words: NDArray


@dataclass
class _Arrival:
    """Arrivals of lanes at mbarriers, due once the lanes' batches before ``number`` have landed.

    ``known`` is the vector clock of each lane's warp at the request.
    """

    lanes: NDArray[np.intp]
    barriers: list[MBarrier]
    number: int
    known: NDArray[np.int32]


@dataclass
class _Bulk:
    """A bulk copy to a CTA, which completes bytes at an mbarrier; ``known`` as in _Arrival."""

    cta: CTA
    addresses: NDArray[np.int64]
    words: NDArray
    barrier: MBarrier
    known: NDArray[np.int32]


class PendingCopies:
    """The asynchronous copies of a team's threads."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._batches: list[_Batch] = []
        self._issued = 0
        # Pending events of mbarriers, in any order: arrivals that wait for copies, bulk copies.
        self.arrivals: list[_Arrival | _Bulk] = []
        # Per lane, the number of committed groups.
        self._committed = np.zeros(team.numbers.size, np.int64)

    def issue(self, addresses: NDArray[np.int64], words: NDArray) -> None:
        """Let each active lane copy one word to an address of shared memory."""
        team = self._team
        lanes = team.chosen
        shared = team.cta.shared
        shared.start_copy(addresses, words.dtype.itemsize, lanes, team.warp_of[lanes])
        batch = _Batch(self._issued, lanes, self._committed[lanes], addresses, words)
        self._issued += 1
        if team.cta.launch.late:
            self._batches.append(batch)
        else:
            self._land(batch)

    def commit(self) -> None:
        """Close a group in the active lanes."""
        self._committed[self._team.active] += 1

    def wait(self, newest: int | None) -> None:
        """Let the active lanes wait for all but their ``newest`` groups; for all, if None."""
        limit = np.full(self._committed.shape, np.iinfo(np.int64).min)
        active = self._team.active
        if newest is None:
            limit[active] = np.iinfo(np.int64).max
        else:
            limit[active] = self._committed[active] - newest
        self._land_some(lambda batch: batch.groups < limit[batch.lanes])

    def arrive(self, lanes: NDArray[np.intp], barriers: list[MBarrier]) -> None:
        """Let lanes arrive at mbarriers, one each, when their copies so far have landed."""
        team = self._team
        clocks, warps = team.cta.clocks, team.warp_of[lanes]
        self.arrivals.append(_Arrival(lanes, barriers, self._issued, clocks.known[warps]))
        clocks.known[np.unique(warps), np.unique(warps)] += 1
        if not team.cta.launch.late:
            self.land_arrival(0)

    def issue_bulk(
        self,
        lane: int,
        addresses: NDArray[np.int64],
        words: NDArray,
        barrier: MBarrier,
        to: CTA | None = None,
    ) -> None:
        """Let a lane copy words to shared memory; the copy completes its bytes at an mbarrier.

        ``to`` is the CTA that owns the memory and the mbarrier, by default the lane's own.
        """
        team = self._team
        clocks, warp = team.cta.clocks, int(team.warp_of[lane])
        lanes = np.full(addresses.size, lane)
        width = words.dtype.itemsize
        cta = to or team.cta
        cta.shared.start_copy(addresses, width, lanes, team.warp_of[lanes])
        self.arrivals.append(_Bulk(cta, addresses, words, barrier, clocks.known[warp].copy()))
        clocks.known[warp, warp] += 1
        if not team.cta.launch.late:
            self.land_arrival(0)

    def land_arrival(self, number: int) -> None:
        """Perform one of ``arrivals``, after landing the copies that it waits for."""
        arrival = self.arrivals.pop(number)
        cta = self._team.cta
        if isinstance(arrival, _Bulk):
            cta = arrival.cta
            cta.shared.land_copy(arrival.addresses, arrival.words, None, fenced=True)
            cta.mbarriers.land(arrival.barrier, arrival.known, 0)
            cta.mbarriers.expect(arrival.barrier, -arrival.words.nbytes)
            return
        chosen = np.zeros(self._committed.shape, np.bool_)
        chosen[arrival.lanes] = True
        self._land_some(
            lambda batch: chosen[batch.lanes] & (batch.number < arrival.number), waited=False
        )
        for barrier, known in zip(arrival.barriers, arrival.known, strict=True):
            cta.mbarriers.land(barrier, known, 1)

    def _land_some(self, which: Callable[[_Batch], NDArray[np.bool_]], waited: bool = True) -> None:
        remaining = []
        for batch in self._batches:
            done = which(batch)
            if every(done):
                self._land(batch, waited)
            elif some(done):
                self._land(_part(batch, done), waited)
                remaining.append(_part(batch, ~done))
            else:
                remaining.append(batch)
        self._batches = remaining

    def _land(self, batch: _Batch, waited: bool = True) -> None:
        team = self._team
        warps = team.warp_of[batch.lanes] if waited else None
        team.cta.shared.land_copy(batch.addresses, batch.words, warps)


def _part(batch: _Batch, chosen: NDArray[np.bool_]) -> _Batch:
    parts = (x[chosen] for x in (batch.lanes, batch.groups, batch.addresses, batch.words))
    return _Batch(batch.number, *parts)
