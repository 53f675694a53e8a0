"""Access costs: bank conflicts in shared memory, sectors in global memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from .budget import table_size
from .composed import ComposedLayout
from .errors import LayoutValueError, expect, whole
from .layout import Layout, as_like
from .swizzle import Swizzle


class SharedAccess(NamedTuple):
    """The cost of one access of a warp to shared memory.

    ``wavefronts`` is the number of passes, ``ideal`` the minimum for so many bytes on these banks,
    ``ways`` the most words that one bank serves in one phase: 1 is conflict-free.

    >>> bank_conflicts(Layout(32, 2), 32)
    SharedAccess(wavefronts=2, ideal=1, ways=2)
    """

    wavefronts: int
    ideal: int
    ways: int

    @property
    def conflict_free(self) -> bool:
        """Tell if no bank serves two words in one phase."""
        return self.ways == 1


def bank_conflicts(
    layout: Any, element_bits: int, vector: int = 1, *, banks: int = 32, bank_bytes: int = 4
) -> SharedAccess:
    """Count the bank conflicts of an instruction that accesses ``vector`` elements per thread.

    ``layout`` maps (thread, value) to offsets in elements, or thread alone. Each thread accesses
    values 0 .. vector-1, which must be consecutive and aligned if there are several. As in the
    hardware, 16-byte accesses run in phases of 8 threads, 8-byte ones in phases of 16; threads that
    access the same word count once.

    >>> bank_conflicts(Layout((32, 8), (8, 1)), 16, vector=8).ways
    1
    >>> rows = Layout(((8, 4), 8), ((64, 8), 1))
    >>> bank_conflicts(rows, 16, vector=8).ways
    8
    >>> bank_conflicts(ComposedLayout(Swizzle(3, 3, 3), 0, rows), 16, vector=8).ways
    1
    """
    expect("bank_conflicts", int, "element_bits, an integer", element_bits)
    expect("bank_conflicts", int, "vector, an integer", vector)
    expect("bank_conflicts", int, "banks, an integer", banks)
    expect("bank_conflicts", int, "bank_bytes, an integer", bank_bytes)
    if banks < 1 or bank_bytes < 1:
        raise LayoutValueError(
            f"bank_conflicts: expected banks of at least 1 byte, got {banks} of {bank_bytes}"
        )
    vector_bytes = vector * element_bits // 8
    if vector_bytes * 8 != vector * element_bits or vector_bytes not in (1, 2, 4, 8, 16):
        raise LayoutValueError(
            "bank_conflicts: expected an access of 1, 2, 4, 8 or 16 bytes, "
            f"got {vector} elements of {element_bits} bits"
        )
    starts = _byte_addresses("bank_conflicts", layout, element_bits, vector)
    group = 32 * bank_bytes // max(vector_bytes, bank_bytes)
    wavefronts = ways = 0
    words_in_all = set()
    for first in range(0, len(starts), group):
        words = {
            (address + byte) // bank_bytes
            for address in starts[first : first + group]
            for byte in range(0, vector_bytes, min(vector_bytes, bank_bytes))
        }
        words_in_all |= words
        asked: dict[int, int] = {}
        for word in words:
            asked[word % banks] = asked.get(word % banks, 0) + 1
        wavefronts += max(asked.values())
        ways = max(ways, *asked.values())
    return SharedAccess(wavefronts, -(-len(words_in_all) // banks), ways)


class GlobalAccess(NamedTuple):
    """The cost of one access of a warp to global memory, in sectors of 32 bytes.

    ``sectors`` is the number of sectors moved, ``ideal`` the number that the bytes would fill,
    ``lines`` the number of 128-byte lines touched.

    >>> access = coalescing(Layout(32, 2), 32)
    >>> access.sectors, access.ideal, access.efficiency
    (8, 4, 0.5)
    """

    sectors: int
    ideal: int
    lines: int

    @property
    def efficiency(self) -> float:
        """Return the requested share of the sectors moved: ``ideal / sectors``."""
        return self.ideal / self.sectors


def coalescing(layout: Any, element_bits: int, vector: int = 1) -> GlobalAccess:
    """Count the sectors of an instruction in which each thread accesses ``vector`` elements.

    ``layout`` is as in :func:`bank_conflicts`; offset 0 begins a line.

    >>> coalescing(Layout(32, 1), 32)
    GlobalAccess(sectors=4, ideal=4, lines=1)
    >>> coalescing(Layout(32, 8), 32).efficiency
    0.125
    """
    starts = _byte_addresses("coalescing", layout, element_bits, vector)
    length = max(1, vector * element_bits // 8)
    if length > 128:
        raise LayoutValueError(
            f"coalescing: expected at most 128 bytes per thread, one line, got {length}"
        )
    touched = {address + byte for address in starts for byte in range(length)}
    sectors = {byte // 32 for byte in touched}
    return GlobalAccess(len(sectors), -(-len(touched) // 32), len({s // 4 for s in sectors}))


def _byte_addresses(name: str, layout: Any, element_bits: int, vector: int) -> list[int]:
    """Return where each thread's access starts, after checking that its values are one vector."""
    for what, n in (("bits of an element", element_bits), ("elements of a vector", vector)):
        if type(n) is not int or n < 1:
            raise LayoutValueError(f"{name}: expected at least 1 {what}, got {n!r}")
    layout = as_like(name, layout)
    if not isinstance(layout, Layout | ComposedLayout):
        layout = layout.layout
    table_size(name, layout, 16 * layout.size())
    per_thread = layout.rank > 1
    threads = layout[0].size() if per_thread else layout.size()
    addresses = []
    for t in range(threads):
        start = whole(name, layout(t, 0) if per_thread else layout(t))
        for v in range(1, vector):
            at = layout(t, v) if per_thread else None
            if at != start + v:
                raise LayoutValueError(
                    f"{name}: value {v} of thread {t} is at {at}, not next to value 0 at {start}"
                )
        if start % vector:
            raise LayoutValueError(
                f"{name}: thread {t} begins at {start}, which is not aligned to {vector} elements"
            )
        addresses.append(start * element_bits // 8)
    return addresses


__all__ = ["GlobalAccess", "SharedAccess", "Swizzle", "bank_conflicts", "coalescing"]
