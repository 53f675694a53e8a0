"""Shared and local memory: bytes with a record of which may be read, and by which warps.

The records are per *granule*, the width of the kernel's narrowest access to that memory: every
access is aligned and at least that wide, so no precision is lost, and a kernel that moves 16-byte
vectors needs few records.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .faults import DataRace, Fault, InFlight, OutOfBounds, Unfenced, Uninitialised
from .masks import every, some
from .memory import LOG, Addresses, Numbers, as_words, check_alignment, first_of, outside

# States of a granule.
_READY = 1
_IN_FLIGHT = 2


class Scratch:
    """Zeroed bytes at ``[base, base + size)`` that must be written before they are read."""

    def __init__(self, name: str, base: int, size: int, granule: int = 1) -> None:
        self.name, self.base, self.size, self.granule = name, base, size, granule
        # Whole 16-byte words, so that a view as words of any width covers every byte.
        self._raw = np.zeros(size + -size % 16, np.uint8)
        self._state = np.zeros(self._raw.size // granule, np.uint8)
        self._words = {width: as_words(self._raw, width) for width in LOG}
        self._start = np.int64(base)

    def load(self, addresses: Addresses, width: int, lanes: Numbers) -> NDArray:
        """Load one word of ``width`` bytes per address; faults name the accessing ``lanes``."""
        offsets = self._offsets(addresses, width, lanes)
        return self._read(offsets, self._granules(offsets, width), addresses, width, lanes)

    def _read(
        self, offsets: Addresses, granules: Addresses, addresses: Addresses, width: int,
        lanes: Numbers,
    ) -> NDArray:  # fmt: skip
        state = self._state[granules]
        if not every(state == _READY):
            bad = int((state != _READY).any(axis=1).argmax())
            flying = (state[bad] & _IN_FLIGHT).any()
            raise (InFlight if flying else Uninitialised)(
                f"read of {self.name} memory that "
                + ("an asynchronous copy is still writing" if flying else "nothing has written"),
                int(lanes[bad]),
                int(addresses[bad]),
            )
        return self._words[width][offsets >> LOG[width]]

    def store(self, addresses: Addresses, words: NDArray, lanes: Numbers) -> None:
        """Write one word per address."""
        offsets = self._offsets(addresses, words.dtype.itemsize, lanes)
        granules = self._granules(offsets, words.dtype.itemsize)
        self._write(offsets, granules, addresses, words, lanes)

    def _write(
        self, offsets: Addresses, granules: Addresses, addresses: Addresses, words: NDArray,
        lanes: Numbers,
    ) -> None:  # fmt: skip
        width = words.dtype.itemsize
        self._refuse_in_flight(granules, addresses, lanes)
        self._words[width][offsets >> LOG[width]] = words
        self._state[granules] = _READY

    def _offsets(self, addresses: Addresses, width: int, lanes: Numbers) -> Addresses:
        check_alignment(addresses, width, lanes)
        offsets = addresses - self._start
        if outside(offsets, self.size - width):
            bad = int(((offsets < 0) | (offsets + width > self.size)).argmax())
            raise OutOfBounds(
                f"{self.name} access of {width} bytes out of bounds: byte {offsets[bad]} of "
                f"{self.size} bytes",
                int(lanes[bad]),
                int(addresses[bad]),
            )
        return offsets

    def _granules(self, offsets: Addresses, width: int) -> Addresses:
        """Return the granules of accesses: shape (accesses, granules of one access)."""
        first = (offsets >> LOG[self.granule] if self.granule > 1 else offsets)[:, None]
        return first if width <= self.granule else first + np.arange(width // self.granule)

    def _refuse_in_flight(self, granules: Addresses, addresses: Addresses, lanes: Numbers) -> None:
        flying = self._state[granules] & _IN_FLIGHT
        if some(flying):
            said = f"write to {self.name} memory that an asynchronous copy is still writing"
            raise InFlight(said, *first_of(flying, lanes, addresses))


class Clocks:
    """A vector clock per warp, joined at barriers.

    ``known[w, v]`` is the last interval of warp v whose accesses are ordered before warp w's next
    access; ``known[w, w]`` is w's own current interval (Lamport's happens-before; the access
    history kept by SharedMemory is that of FastTrack, Flanagan and Freund, PLDI 2009).

    Further columns count the completed reads of asynchronous readers of shared memory: the wgmmas
    of every warpgroup, and with ``stores`` the bulk stores of every warp.
    """

    def __init__(self, warps: int, stores: bool = False) -> None:
        self.groups = -(-warps // 4)
        self.known = np.eye(warps, warps + self.groups + stores * warps, dtype=np.int32)

    def of_group(self, group: int) -> int:
        """Return the column of a warpgroup's wgmmas."""
        return len(self.known) + group

    def of_stores(self, warp: int) -> int:
        """Return the column of a warp's bulk stores."""
        return len(self.known) + self.groups + warp

    def reader(self, column: int) -> str:
        """Name the asynchronous reader of a column."""
        return "wgmma" if column < len(self.known) + self.groups else "bulk store"

    def join(self, arrived: Numbers, waiting: Numbers) -> None:
        """A barrier: waiting warps acquire the clocks of arrived ones, which start an interval."""
        self.known[waiting] = self.known[arrived].max(axis=0)
        self.known[arrived, arrived] += 1


class SharedMemory(Scratch):
    """A CTA's shared memory: refuses bytes in flight and, with ``clocks``, finds data races.

    Methods take ``warps``, the warp of every access, next to ``lanes``.
    """

    def __init__(self, base: int, size: int, granule: int, clocks: Clocks | None) -> None:
        super().__init__("shared", base, size, granule)
        self._clocks = clocks
        self._mbarriers: set[int] = set()  # addresses of live mbarriers
        if clocks is not None:
            granules = self._state.size
            self._writer = np.zeros(granules, np.int16)
            self._write_time = np.zeros(granules, np.int32)
            self._read_time = np.zeros((granules, clocks.known.shape[1]), np.int32)
            # Written by ordinary stores or cp.async, with no fence.proxy.async since.
            self._unfenced = np.zeros(granules, np.bool_)

    def load_by(self, addresses: Addresses, width: int, lanes: Numbers, warps: Numbers) -> NDArray:
        """:meth:`load`, and check its order against other warps' writes."""
        offsets = self._offsets(addresses, width, lanes)
        granules = self._granules(offsets, width)
        words = self._read(offsets, granules, addresses, width, lanes)
        if self._clocks is not None and addresses.size:
            known = self._clocks.known
            self._check_writers(granules, addresses, lanes, warps, "read")
            self._read_time[granules, warps[:, None]] = known[warps, warps][:, None]
        return words

    def store_by(
        self, addresses: Addresses, words: NDArray, lanes: Numbers, warps: Numbers
    ) -> None:
        """:meth:`store`, and check its order against other warps' accesses."""
        self._refuse_mbarriers(addresses, words.dtype.itemsize, lanes)
        offsets = self._offsets(addresses, words.dtype.itemsize, lanes)
        granules = self._granules(offsets, words.dtype.itemsize)
        self._write(offsets, granules, addresses, words, lanes)
        self._claim(granules, addresses, lanes, warps)

    def start_copy(self, addresses: Addresses, width: int, lanes: Numbers, warps: Numbers) -> None:
        """Start an asynchronous copy to these addresses: until it lands, any access is a fault."""
        granules = self._granules(self._offsets(addresses, width, lanes), width)
        self._refuse_in_flight(granules, addresses, lanes)
        self._refuse_mbarriers(addresses, width, lanes)
        self._claim(granules, addresses, lanes, warps)
        self._state[granules] = _IN_FLIGHT

    def begin_mbarrier(self, address: int) -> None:
        """Make 8 bytes an mbarrier: from now on only mbarrier instructions may write them."""
        self._mbarriers.add(address)

    def end_mbarrier(self, address: int) -> None:
        """Make them ordinary memory again."""
        self._mbarriers.discard(address)

    def _refuse_mbarriers(self, addresses: Addresses, width: int, lanes: Numbers) -> None:
        """PTX ISA, ``mbarrier.inval``: an mbarrier must end before its bytes are written."""
        if not self._mbarriers or not addresses.size:
            return
        first, last = min(self._mbarriers), max(self._mbarriers)
        if addresses.max() + width <= first or addresses.min() >= last + 8:
            return
        held = np.fromiter(self._mbarriers, np.int64)
        met = (addresses[:, None] < held + 8) & (addresses[:, None] + width > held)
        if some(met):
            said = "write to shared memory that holds an mbarrier, which was not ended"
            raise Fault(said, *first_of(met, lanes, addresses))

    def load_async(
        self, addresses: Addresses, width: int, lanes: Numbers, warps: Numbers
    ) -> NDArray:
        """:meth:`load` by the asynchronous proxy: earlier writes must have been fenced.

        The reader announces the read by :meth:`keep`.
        """
        words = self.load(addresses, width, lanes)
        if self._clocks is not None:
            granules = self._granules(addresses - self.base, width)
            self._check_writers(granules, addresses, lanes, warps, "read")
            unfenced = self._unfenced[granules]
            if some(unfenced):
                raise Unfenced(
                    "an asynchronous read of shared memory that was written with no "
                    "fence.proxy.async since",
                    *first_of(unfenced, lanes, addresses),
                )
        return words

    def keep(self, addresses: Addresses, width: int, column: int, n: int) -> None:
        """Record an asynchronous reader's ``n``-th read, which lasts until it is waited for."""
        if self._clocks is not None:
            self._read_time[self._granules(addresses - self.base, width), column] = n

    def holds(self, address: int, values: list[int]) -> bool:
        """Return whether one of these 8-byte words is at an address; this counts as no access."""
        at = address - self.base
        inside = 0 <= at <= self.size - 8
        return inside and int(self._words[8][at // 8]) in values

    def fence(self, warps: Numbers) -> None:
        """fence.proxy.async by warps: writes that they know of may then be read asynchronously."""
        if self._clocks is not None:
            for known in self._clocks.known[warps]:
                self._unfenced &= self._write_time > known[self._writer]

    def land_copy(
        self,
        addresses: Addresses,
        words: NDArray,
        warps: Numbers | None,
        *,
        fenced: bool = False,
    ) -> None:
        """Land copies, as if ``warps``, which waited, wrote them now.

        ``warps`` None: an mbarrier signals the copy instead, and the write keeps the time of its
        issue. ``fenced``: the asynchronous proxy itself wrote the bytes.
        """
        width = words.dtype.itemsize
        offsets = addresses - self.base
        self._words[width][offsets >> LOG[width]] = words
        granules = self._granules(offsets, width)
        self._state[granules] = _READY
        if self._clocks is not None:
            self._unfenced[granules] = not fenced
            if warps is not None:
                self._write_time[granules] = self._clocks.known[warps, warps][:, None]

    def _claim(
        self, granules: Addresses, addresses: Addresses, lanes: Numbers, warps: Numbers
    ) -> None:
        """Check and record a write of every address by its warp."""
        if self._clocks is None or not addresses.size:
            return
        known = self._clocks.known
        self._check_writers(granules, addresses, lanes, warps, "write")
        early = self._read_time[granules] > known[warps][:, None, :]
        if some(early):
            bad, _, other = (int(i[0]) for i in early.nonzero())
            if other >= len(known):
                raise InFlight(
                    f"write to shared memory that a {self._clocks.reader(other)} reads, and no "
                    "wait for that is ordered before it",
                    int(lanes[bad]),
                    int(addresses[bad]),
                )
            raise self._race("write", "read", bad, other, addresses, lanes, warps)
        self._writer[granules] = warps[:, None]
        self._unfenced[granules] = True
        self._write_time[granules] = known[warps, warps][:, None]
        self._check_writers(granules, addresses, lanes, warps, "write")

    def _check_writers(
        self,
        granules: Addresses,
        addresses: Addresses,
        lanes: Numbers,
        warps: Numbers,
        what: str,
    ) -> None:
        assert self._clocks is not None
        writer = self._writer[granules]
        late = self._write_time[granules] > self._clocks.known[warps[:, None], writer]
        if some(late):
            bad, column = (int(i[0]) for i in late.nonzero())
            raise self._race(what, "write", bad, int(writer[bad, column]), addresses, lanes, warps)

    @staticmethod
    def _race(
        what: str,
        other_did: str,
        bad: int,
        other: int,
        addresses: Addresses,
        lanes: Numbers,
        warps: Numbers,
    ) -> DataRace:
        return DataRace(
            f"{what} of shared memory by warp {warps[bad]}, and a {other_did} by warp {other} "
            "that no barrier orders before it",
            int(lanes[bad]),
            int(addresses[bad]),
        )
