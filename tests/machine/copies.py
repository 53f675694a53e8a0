"""cp.async in flight: what threads have issued, and how late it may land.

A copy may land at any moment between its issue and the issuing thread's wait. Landing at the last
moment is what shows a wait that is missing or too lax; landing at once, a copy issued too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .team import Team


@dataclass
class _Batch:
    """Copies that one instruction issued, one per lane, and the group that each belongs to."""

    lanes: NDArray[np.intp]
    groups: NDArray[np.int64]
    addresses: NDArray[np.int64]
    words: NDArray


class PendingCopies:
    """The asynchronous copies of a team's threads."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._batches: list[_Batch] = []
        # Per lane, the number of groups that it has committed.
        self._committed = np.zeros(team.numbers.size, np.int64)

    def issue(self, addresses: NDArray[np.int64], words: NDArray) -> None:
        """The active lanes each copy one word to an address of shared memory."""
        team = self._team
        lanes = team.chosen
        shared = team.cta.shared
        shared.start_copy(addresses, words.dtype.itemsize, lanes, team.warp_of[lanes])
        batch = _Batch(lanes, self._committed[lanes], addresses, words)
        if team.cta.launch.late:
            self._batches.append(batch)
        else:
            self._land(batch)

    def commit(self) -> None:
        """The active lanes close a group."""
        self._committed[self._team.active] += 1

    def wait(self, newest: int | None) -> None:
        """The active lanes wait for all but their ``newest`` groups; None waits for everything."""
        limit = np.full(self._committed.shape, np.iinfo(np.int64).min)
        active = self._team.active
        if newest is None:
            limit[active] = np.iinfo(np.int64).max
        else:
            limit[active] = self._committed[active] - newest
        remaining = []
        for batch in self._batches:
            done = batch.groups < limit[batch.lanes]
            if done.all():
                self._land(batch)
            elif done.any():
                self._land(_part(batch, done))
                remaining.append(_part(batch, ~done))
            else:
                remaining.append(batch)
        self._batches = remaining

    def _land(self, batch: _Batch) -> None:
        team = self._team
        team.cta.shared.land_copy(batch.addresses, batch.words, team.warp_of[batch.lanes])


def _part(batch: _Batch, chosen: NDArray[np.bool_]) -> _Batch:
    return _Batch(
        batch.lanes[chosen], batch.groups[chosen], batch.addresses[chosen], batch.words[chosen]
    )
