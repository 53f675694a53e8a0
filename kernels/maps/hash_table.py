"""Hash set of keys, Int32 or Int64, in global memory, as building blocks of kernels.

Open addressing over a power of two of slots, at least twice as many as keys, in groups of four
adjacent slots. A slot holds a key, at least 0, or ``EMPTY``. Keys never move and are never removed,
so a look-up may trust any slot that it once saw taken. The slot of a key depends on the order of
insertions. State that must not depend on it is kept beside the slot and combined by a commutative
atomic operation.
"""

from __future__ import annotations

from typing import Any

from ..common.dsl import Constexpr, Int32, Int64, Uint32, Uint64, cute
from ..common.walk import at, select

EMPTY = -1
NOWHERE = -2  # the key of an absent cell or row: no slot ever holds it
GROUP_BITS = 2
FEWEST_BITS = 3

# Odd numbers with about half of their bits set; the first is 2^32 over the golden ratio.
_FACTORS = 0x9E3779B9, 0x85EBCA6B, 0xD6E8FEB9


def bits_for(keys: int) -> int:
    """Return the binary logarithm of the number of slots for that many keys.

    >>> [bits_for(n) for n in (0, 4, 5, 90_000)]
    [3, 3, 4, 18]
    """
    return max(FEWEST_BITS, (2 * keys - 1).bit_length())


def home(key: Any, bits: Any) -> Any:
    """Return the home slot of a key, an Int32 below ``2^bits``: the first slot of its probe.

    Four consecutive keys, four cells along x, have four consecutive slots: one sector of 32 bytes.
    Taps of a filter and rows of a sorted cloud look up such neighbours: in street scans (164k and
    203k voxels, 3x3x3) CTAs read half of the sectors that a scattering hash would read, for 1.1 to
    1.2 times the probes (counted on the host). The hash mixes 32-bit numbers: a 64-bit
    multiplication takes four of 32 bits, and a row makes eight hashes. One multiplication by the
    golden ratio keeps consecutive numbers apart, and so the blocks of a cloud: in nine clouds
    (lidar, indoor, shapes) 0 to 6.4% of the look-ups of neighbouring blocks go past the home slot.
    A second multiplication, which destroys all order, gives 1.3 to 6.9% (counted on the host).
    """
    if key.width == 32:
        mixed = (Uint32(key) >> GROUP_BITS) * Uint32(_FACTORS[0])
    else:
        group = Uint64(key) >> Uint64(GROUP_BITS)
        mixed = Uint32(group) * Uint32(_FACTORS[0]) + Uint32(group >> 32) * Uint32(_FACTORS[1])
        mixed = (mixed ^ (mixed >> 16)) * Uint32(_FACTORS[2])
    inside = (1 << GROUP_BITS) - 1
    return Int32(((mixed >> Uint32(32 - bits)) & ~Uint32(inside)) | (Uint32(key) & inside))


def following(slot: Any, bits: Any) -> Any:
    """Return the slot to probe after ``slot``: the same position in the next group of slots; after
    the last group, the next position in the first group.

    Adjacent keys fill a group, and also the next one if two groups of keys share a home. A warp
    that looks up 8 blocks per lane in a street scan (90k voxels) takes 3.7 further steps, 6.8 with
    linear probing; the last of 1024 rows is inserted after 1.5 steps, not 3.6 (counted on the
    host).
    """
    behind = Uint32(slot) + Uint32(1 << GROUP_BITS)
    last = (behind >> Uint32(bits)) != 0
    return Int32(select(last, (behind + 1) & Uint32((1 << GROUP_BITS) - 1), behind))


@cute.jit
def insert(keys: Any, key: Any, bits: Any) -> Any:
    """Insert a key unless it is there. Return its slot, and whether this call inserted it.

    If many threads insert one key, most of them only read. A read may be stale, but a slot changes
    only once, and the compare-and-swap that claims it returns the current value.
    """
    slot = home(key, bits)
    seen = at(keys, Int64(slot))
    return inserted(keys, key, slot, seen, claimed(keys, key, slot, seen), bits)


@cute.jit
def claimed(keys: Any, key: Any, slot: Any, seen: Any, words: Constexpr = 1) -> Any:
    """Claim a slot for a key if ``seen``, which was read before, is ``EMPTY``; return what it held.

    A key is the first of the ``words`` of a slot.
    """
    kind = type(key)
    found = kind(seen)
    if seen == EMPTY:
        found = kind(cute.arch.atomic_cas(keys + Int64(slot) * words, cmp=kind(EMPTY), val=key))
    return found


@cute.jit
def inserted(
    keys: Any, key: Any, slot: Any, seen: Any, found: Any, bits: Any,
    words: Constexpr = 1,
) -> Any:  # fmt: skip
    """Continue ``insert`` from the value read in the home slot and the result of ``claimed``."""
    while (found != key) & ((seen != EMPTY) | (found != EMPTY)):
        slot = following(slot, bits)
        seen = at(keys, Int64(slot) * words)
        found = claimed(keys, key, slot, seen, words)
    return slot, (seen == EMPTY) & (found == EMPTY)
