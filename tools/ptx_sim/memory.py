"""Global memory: NumPy arrays at made-up 64-bit addresses, far apart, with exact extents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from .faults import DataRace, Misaligned, OutOfBounds, ReadOnly, Uninitialised
from .masks import some

Addresses = NDArray[np.int64]  # byte addresses; or offsets and granules from the start of a memory
Numbers = NDArray[np.intp]  # the lane, or the warp, of each address

# Buffers start 64 GiB apart, above 32 bits, so that neither a stray index nor an address that lost
# its upper half can land in another buffer. Address space is free: nothing is allocated for it.
FIRST_ADDRESS = 0x10_0000_0000
SPACING = 0x10_0000_0000

# Per width of a word in bytes: its log2, and the mask of the address bits below it. As NumPy
# numbers, since NumPy takes these in two thirds of the time of Python's.
LOG = {width: np.int64(width.bit_length() - 1) for width in (1, 2, 4, 8, 16)}
_BELOW = {width: np.int64(width - 1) for width in LOG}

# Writers of an output's byte other than threads.
_NOBODY, _ATOMIC = -1, -2


@cache
def word_dtype(width: int) -> np.dtype:
    """Return the dtype that moves ``width`` bytes: an unsigned integer, or 16 opaque bytes."""
    return np.dtype("V16") if width == 16 else np.dtype(f"u{width}")


def as_words(raw: NDArray[np.uint8], width: int) -> NDArray:
    """View ``raw`` as words of ``width`` bytes, without a remainder that none can touch."""
    return raw[: raw.size - raw.size % width].view(word_dtype(width))


def outside(offsets: Addresses, last: int) -> bool:
    """Return whether any offset is below zero or beyond ``last``."""
    return last < 0 or some(offsets.view(np.uint64) > np.uint64(last))


def first_of(wrong: NDArray, lanes: Numbers, addresses: Addresses) -> tuple[int, int]:
    """Return lane and address of the first wrong access, for its fault."""
    bad = int(wrong.reshape(len(lanes), -1).any(axis=1).argmax())
    return int(lanes[bad]), int(addresses[bad])


def check_alignment(addresses: Addresses, width: int, lanes: Numbers) -> None:
    """Fault unless every address is a multiple of ``width`` bytes."""
    if width > 1:
        off = addresses & _BELOW[width]
        if some(off):
            said = f"an access of {width} bytes is misaligned"
            raise Misaligned(said, *first_of(off, lanes, addresses))


@dataclass
class Buffer:
    """An array: its name, first address, bytes, and for an output the writer of each byte."""

    name: str
    address: int
    raw: NDArray[np.uint8]
    writable: bool
    writer: NDArray[np.int64] | None
    _words: dict[int, tuple[NDArray, np.int64, np.uint64]] = field(default_factory=dict)

    def words(self, width: int) -> tuple[NDArray, np.int64, np.uint64]:
        """Return its words of ``width`` bytes (one or more), address, and the last word's index."""
        found = self._words.get(width)
        if found is None:
            words = as_words(self.raw, width)
            found = words, np.int64(self.address), np.uint64(words.size - 1)
            self._words[width] = found
        return found


class Memory:
    """Global memory of one launch.

    >>> memory = Memory()
    >>> x = memory.add(np.arange(4, dtype=np.float32), name="x")
    >>> memory.describe(x + 4)
    'byte 4 of x (16 bytes)'
    """

    def __init__(self) -> None:
        self._buffers: list[Buffer] = []

    def add(
        self,
        array: NDArray,
        name: str | None = None,
        *,
        writable: bool = True,
        output: bool = False,
    ) -> int:
        """Give a C-contiguous array an address; kernels read and write the array itself.

        A write to a buffer that is not writable is a fault. For an output it is a fault to read a
        byte that no kernel wrote, and to write a byte non-atomically by two threads;
        :meth:`written` returns which bytes have been written.
        """
        name = name or f"buffer {len(self._buffers)}"
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} must be C-contiguous, its strides are {array.strides}")
        if writable and not array.flags.writeable:
            raise ValueError(f"{name} is a read-only array; add it with writable=False")
        raw = array.reshape(-1).view(np.uint8)
        address = FIRST_ADDRESS + SPACING * len(self._buffers)
        if raw.size > SPACING // 2:
            raise ValueError(f"{name} has {raw.size} bytes, more than {SPACING // 2}")
        writer = np.full(raw.size, _NOBODY) if output else None
        self._buffers.append(Buffer(name, address, raw, writable, writer))
        return address

    def written(self, address: int) -> NDArray[np.bool_]:
        """Return, per byte of the output at ``address``, whether a kernel has written it."""
        for buffer in self._buffers:
            if buffer.address == address and buffer.writer is not None:
                return buffer.writer != _NOBODY
        raise ValueError(f"no output starts at {address:#x}")

    def find(self, name: str) -> int:
        """Return the address of the buffer with that name."""
        return next(buffer.address for buffer in self._buffers if buffer.name == name)

    def describe(self, address: int) -> str:
        """Describe, for messages, where ``address`` lies relative to the nearest buffer."""
        if not self._buffers:
            return "global memory has no buffers"
        nearest = min(self._buffers, key=lambda b: abs(address - b.address - b.raw.size // 2))
        return f"byte {address - nearest.address} of {nearest.name} ({nearest.raw.size} bytes)"

    def load(self, addresses: Addresses, width: int, lanes: Numbers) -> NDArray:
        """Load one word of ``width`` bytes per address; faults name the accessing ``lanes``."""
        found = self._in_one(addresses, width)
        if found is not None:
            buffer, words, index = found
            if buffer.writer is not None:
                self._check_written(buffer, addresses, width, lanes)
            return words[index]
        out = np.zeros(addresses.shape, word_dtype(width))
        for buffer, chosen in self._split(addresses, width, lanes):
            index = (addresses[chosen] - buffer.address) // width
            if buffer.writer is not None:
                self._check_written(buffer, addresses[chosen], width, lanes[chosen])
            out[chosen] = as_words(buffer.raw, width)[index]
        return out

    def store(
        self,
        addresses: Addresses,
        words: NDArray,
        lanes: Numbers,
        writers: NDArray[np.int64] | None = None,
    ) -> None:
        """Write one word per address; if several lanes write one address, the last wins.

        ``writers`` are the lanes' numbers in the grid, None for an atomic access.
        """
        width = words.dtype.itemsize
        found = self._in_one(addresses, width)
        if found is not None and found[0].writable:
            buffer, memory, index = found
            memory[index] = words
            if buffer.writer is not None:
                self._claim(buffer, addresses, width, lanes, writers)
            return
        for buffer, chosen in self._split(addresses, width, lanes):
            if not buffer.writable:
                raise ReadOnly(
                    f"write to the read-only buffer {buffer.name}",
                    int(lanes[chosen][0]),
                    int(addresses[chosen][0]),
                )
            offset = addresses[chosen] - buffer.address
            as_words(buffer.raw, width)[offset // width] = words[chosen]
            if buffer.writer is not None:
                by = None if writers is None else writers[chosen]
                self._claim(buffer, addresses[chosen], width, lanes[chosen], by)

    def _in_one(
        self, addresses: Addresses, width: int
    ) -> tuple[Buffer, NDArray, NDArray[np.int64]] | None:
        """Return the buffer that contains all of the aligned words, its words, and their indices.

        Return None if they span buffers, or anything is wrong.
        """
        if not addresses.size:
            return None
        number = int(addresses[0]) // SPACING - FIRST_ADDRESS // SPACING
        if not 0 <= number < len(self._buffers) or self._buffers[number].raw.size < width:
            return None
        buffer = self._buffers[number]
        words, start, last = buffer.words(width)
        offsets = addresses - start
        if width > 1 and some(offsets & _BELOW[width]):
            return None
        index = offsets >> LOG[width] if width > 1 else offsets
        return None if some(index.view(np.uint64) > last) else (buffer, words, index)

    def _split(
        self, addresses: Addresses, width: int, lanes: Numbers
    ) -> Iterator[tuple[Buffer, NDArray[np.bool_]]]:
        """Yield the buffers that the addresses lie in, each with the mask of its addresses."""
        if not addresses.size:
            return
        check_alignment(addresses, width, lanes)
        numbers = (addresses - FIRST_ADDRESS) // SPACING
        ends = np.array([b.address + b.raw.size for b in self._buffers] or [0], np.int64)
        beyond = (numbers < 0) | (numbers >= len(self._buffers))
        beyond |= addresses + width > ends[np.clip(numbers, 0, len(ends) - 1)]
        if some(beyond):
            lane, address = first_of(beyond, lanes, addresses)
            said = f"global access of {width} bytes out of bounds: {self.describe(address)}"
            raise OutOfBounds(said, lane, address)
        for number in np.unique(numbers):
            yield self._buffers[number], numbers == number

    @staticmethod
    def _check_written(buffer: Buffer, addresses: Addresses, width: int, lanes: Numbers) -> None:
        assert buffer.writer is not None
        offsets = (addresses - buffer.address)[:, None] + np.arange(width)
        missing = buffer.writer[offsets] == _NOBODY
        if some(missing):
            said = f"read of {buffer.name} before anything wrote it"
            raise Uninitialised(said, *first_of(missing, lanes, addresses))

    @staticmethod
    def _claim(
        buffer: Buffer,
        addresses: Addresses,
        width: int,
        lanes: Numbers,
        writers: NDArray[np.int64] | None,
    ) -> None:
        """Record the writers; a byte that another thread wrote before is a fault."""
        assert buffer.writer is not None
        offsets = (addresses - buffer.address)[:, None] + np.arange(width)
        if writers is None:
            buffer.writer[offsets] = _ATOMIC
            return
        before = buffer.writer[offsets]
        buffer.writer[offsets] = writers[:, None]
        # The second look finds lanes that write the same byte in this very instruction.
        for previous in (before, buffer.writer[offsets]):
            clash = (previous >= 0) & (previous != writers[:, None])
            if some(clash):
                bad, column = (int(i[0]) for i in clash.nonzero())
                raise DataRace(
                    f"write to {buffer.name} where thread {previous[bad, column]} of the grid did",
                    int(lanes[bad]),
                    int(addresses[bad]),
                )
