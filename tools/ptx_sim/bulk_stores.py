"""Bulk stores: copies from shared to global memory, in groups that the issuing thread waits for.

A store may read shared memory until its thread waits with ``.read``, and write global memory until
the thread waits without it, or the kernel ends. A change of the source meanwhile is a fault, so the
bytes are read at issue; they reach global memory as late as the waits allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .faults import InFlight

if TYPE_CHECKING:
    from .team import Team


@dataclass
class _Store:
    """One store of a lane: the group it belongs to, its number in its warp, where it was issued."""

    lane: int
    group: int
    number: int
    pc: int
    addresses: NDArray[np.int64]
    words: NDArray
    reads: bool = True


class BulkStores:
    """The pending bulk stores of a team's threads."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._stores: list[_Store] = []
        # Per lane the number of committed groups, per warp the number of issued stores.
        self._committed = np.zeros(team.numbers.size, np.int64)
        self._issued = [0] * team.warps

    def read(self, lane: int, units: NDArray[np.int64]) -> NDArray:
        """Return the 16-byte words that a lane's store reads."""
        team, lanes = self._team, np.full(units.size, lane)
        return team.cta.shared.load_async(units, 16, lanes, team.warp_of[lanes])

    def issue(
        self, lane: int, addresses: NDArray[np.int64], words: NDArray, units: NDArray[np.int64]
    ) -> None:
        """Issue a lane's store, which reads shared memory at ``units`` until it is waited for."""
        team = self._team
        warp = int(team.warp_of[lane])
        local = warp - int(team.warp_of[0])
        self._issued[local] += 1
        number = self._issued[local]
        team.cta.shared.keep(units, 16, team.cta.clocks.of_stores(warp), number)
        group = int(self._committed[lane])
        store = _Store(lane, group, number, team.pc, addresses, words)
        self._stores.append(store)
        if not team.cta.launch.late:
            self._write(store)

    def commit(self) -> None:
        """Close a group in the active lanes."""
        self._committed[self._team.active] += 1

    def wait(self, newest: int, only_read: bool) -> None:
        """Let the active lanes wait for all but their ``newest`` groups, or for their reads."""
        team, remaining = self._team, []
        for store in self._stores:
            over = team.active[store.lane] and store.group < self._committed[store.lane] - newest
            store.reads = store.reads and not over
            if not over or only_read:
                remaining.append(store)
            elif team.cta.launch.late:
                self._write(store)
        self._stores = remaining
        clocks = team.cta.clocks
        for warp in np.unique(team.warp_of[team.chosen]).tolist():
            reading = [s.number for s in remaining if s.reads and team.warp_of[s.lane] == warp]
            done = min(reading, default=self._issued[warp - int(team.warp_of[0])] + 1) - 1
            clocks.known[warp, clocks.of_stores(warp)] = done

    def end(self) -> None:
        """End the CTA: a store that still reads shared memory is a fault; the others land."""
        team = self._team
        for store in self._stores:
            if store.reads:
                fault = InFlight("the CTA ends while a bulk store reads its memory", store.lane)
                raise team.located(fault, team.cta.program[store.pc])
            if team.cta.launch.late:
                self._write(store)
        self._stores = []

    def _write(self, store: _Store) -> None:
        team, lanes = self._team, np.full(store.addresses.size, store.lane)
        team.cta.memory.store(store.addresses, store.words, lanes, team.grid_threads[lanes])
