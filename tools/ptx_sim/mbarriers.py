"""mbarrier objects (PTX ISA 9.7.13.15): phases that complete by arrivals and transferred bytes.

An object is 8 bytes of shared memory. Its state is kept here; the bytes hold a token that
identifies it. So a missing initialisation or an overwrite is noticed, and the first use needs a
barrier after the initialisation, like any other word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .faults import Fault, Misaligned

if TYPE_CHECKING:
    from .cta import CTA
    from .team import Team

_TOKEN = 0x6D62_6172 << 32
# Counts of arrivals and of bytes have 20 bits.
LARGEST_COUNT = (1 << 20) - 1


@dataclass
class MBarrier:
    """One object: arrivals expected in a phase and still pending, bytes pending, phases done.

    ``coming`` joins the clocks (see Clocks) of the arrivals in this phase; ``known`` is the joined
    clock of the last completed phase, which a successful wait acquires.
    """

    address: int
    expected: int
    pending: int
    coming: NDArray[np.int32]
    known: NDArray[np.int32]
    bytes: int = 0
    phase: int = 0

    def __str__(self) -> str:
        return (
            f"the mbarrier at address {self.address:#x} (phase {self.phase}: {self.pending} of "
            f"{self.expected} arrivals and {self.bytes} bytes are pending)"
        )


class MBarriers:
    """The mbarriers of a CTA."""

    def __init__(self, cta: CTA) -> None:
        self._cta = cta
        self._objects: list[MBarrier] = []

    def init(self, team: Team, lane: int, address: int, count: int) -> None:
        """Initialise, by a thread, an object whose phases take ``count`` arrivals."""
        if not 0 < count <= LARGEST_COUNT:
            raise Fault(f"an mbarrier of {count} arrivals does not exist", lane, address)
        at, lanes, warps = self._place(team, lane, address)
        if self._cta.shared.holds(address, self._tokens(address)):
            raise Fault("there is an mbarrier already, and it was not ended", lane, address)
        nobody = np.zeros(self._cta.clocks.known.shape[1], np.int32)
        token = np.array([_TOKEN + len(self._objects)], np.uint64)
        self._cta.shared.store_by(at, token, lanes, warps)
        self._cta.shared.begin_mbarrier(address)
        self._objects.append(MBarrier(address, count, count, nobody, nobody))

    def invalidate(self, team: Team, lane: int, address: int) -> None:
        """Invalidate an object, by a thread; its bytes are free for other use."""
        self.at(team, lane, address)
        at, lanes, warps = self._place(team, lane, address)
        self._cta.shared.end_mbarrier(address)
        self._cta.shared.store_by(at, np.zeros(1, np.uint64), lanes, warps)

    def at(self, team: Team, lane: int, address: int) -> MBarrier:
        """Return the object at an address; a fault if there is none that the thread may know of."""
        at, lanes, warps = self._place(team, lane, address)
        number = int(self._cta.shared.load_by(at, 8, lanes, warps)[0]) - _TOKEN
        if not 0 <= number < len(self._objects) or self._objects[number].address != address:
            raise Fault("there is no mbarrier here: it was ended or overwritten", lane, address)
        return self._objects[number]

    def arrive(self, barrier: MBarrier, warp: int, count: int, lane: int | None = None) -> None:
        """Make ``count`` arrivals by a thread, which release all that its warp did before."""
        clocks = self._cta.clocks
        self.land(barrier, clocks.known[warp], count, lane)
        clocks.known[warp, warp] += 1

    def land(
        self, barrier: MBarrier, known: NDArray[np.int32], count: int, lane: int | None = None
    ) -> None:
        """Make ``count`` arrivals with the clock ``known``."""
        if count > barrier.pending:
            raise Fault(f"{count} arrivals at {barrier}: too many", lane, barrier.address)
        barrier.coming = np.maximum(barrier.coming, known)
        barrier.pending -= count
        if count:
            self._complete(barrier)

    def expect(self, barrier: MBarrier, count: int, lane: int | None = None) -> None:
        """Let the phase wait for ``count`` more bytes (negative: bytes arrived)."""
        barrier.bytes += count
        if abs(barrier.bytes) > LARGEST_COUNT:
            raise Fault(f"{barrier}: too many bytes", lane, barrier.address)
        self._complete(barrier)

    def _complete(self, barrier: MBarrier) -> None:
        if not barrier.pending and not barrier.bytes:
            barrier.phase += 1
            barrier.pending = barrier.expected
            barrier.known = barrier.coming
        self._cta.cluster.happened()

    def learn(self, barrier: MBarrier, warp: int) -> None:
        """Let a warp acquire the clock of a completed phase, which a thread of it has seen."""
        known = self._cta.clocks.known
        known[warp] = np.maximum(known[warp], barrier.known)

    def _tokens(self, address: int) -> list[int]:
        """Return the values that bytes of a live mbarrier may hold."""
        return [_TOKEN + i for i, o in enumerate(self._objects) if o.address == address]

    def _place(
        self, team: Team, lane: int, address: int
    ) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.intp]]:
        if address % 8:
            raise Misaligned("an mbarrier takes 8 aligned bytes", lane, address)
        lanes = np.array([lane])
        return np.array([address]), lanes, team.warp_of[lanes]
