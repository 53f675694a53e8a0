"""A hash set of keys, Int32 or Int64, in global memory, as pieces that kernels are made of.

Open addressing over a power of two of slots, at least twice as many as keys, one group of them
after the other. A slot holds a key, at least 0, or ``EMPTY``; a key never moves and never leaves,
so a look-up may trust any slot that it once saw taken. Which slot a key gets depends on who came
first. Whatever must not depend on it is kept beside the slot and combined by an atomic operation
that commutes.
"""

from __future__ import annotations

from typing import Any

from ..common.dsl import Constexpr, Int32, Int64, Uint32, Uint64, cute
from ..common.walk import at, select

EMPTY = -1
NOWHERE = -2  # the key of what is not there: no slot has it, taken or not
GROUP_BITS = 2
FEWEST_BITS = 3

# Odd numbers with about half of their bits set; the first is 2^32 over the golden ratio.
_FACTORS = 0x9E3779B9, 0x85EBCA6B, 0xD6E8FEB9


def bits_for(keys: int) -> int:
    """The binary logarithm of how many slots a table of that many keys has.

    >>> [bits_for(n) for n in (0, 4, 5, 90_000)]
    [3, 3, 4, 18]
    """
    return max(FEWEST_BITS, (2 * keys - 1).bit_length())


def home(key: Any, bits: Any) -> Any:
    """The slot where a key is looked for first, an Int32, of ``2^bits``.

    Four keys in a row, four cells along x, have four slots in a row: one sector of 32 bytes. Taps
    of a filter and rows of a sorted cloud ask for such neighbours: of street scans (164k and 203k
    voxels, 3x3x3) CTAs read half of the sectors that they would read if neighbours were
    scattered, for 1.1 to 1.2 times the probes (counted on the host). Numbers of 32 bits are mixed:
    a multiplication of 64 bits is four, and there are eight to a row. One multiplication by the
    golden ratio keeps numbers that follow each other apart, and so the blocks of a cloud: of nine
    clouds (lidar, indoor, shapes) 0 to 6.4% of the blocks around others are not at home or nowhere,
    where a second one, which leaves nothing of an order, has 1.3 to 6.9% (counted on the host).
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
    """The slot behind one: as far into the next group of slots; of the last group, the next slot of
    the first one.

    Keys side by side fill a group, and the next one if two groups of keys share a home. A warp that
    looks for 8 blocks a lane in a street scan (90k voxels) goes on 3.7 times, in place of 6.8 if it
    went from slot to slot; the last of 1024 rows is inserted after 1.5 steps, not 3.6 (counted on
    the host).
    """
    behind = Uint32(slot) + Uint32(1 << GROUP_BITS)
    last = (behind >> Uint32(bits)) != 0
    return Int32(select(last, (behind + 1) & Uint32((1 << GROUP_BITS) - 1), behind))


@cute.jit
def insert(keys: Any, key: Any, bits: Any) -> Any:
    """The slot of a key, which is put there if need be, and whether this call was the one that did.

    Where many insert one key, most of them only read. What is read may be older than what is there,
    but a slot changes once, so whoever claims it is told.
    """
    slot = home(key, bits)
    seen = at(keys, Int64(slot))
    return inserted(keys, key, slot, seen, claimed(keys, key, slot, seen), bits)


@cute.jit
def claimed(keys: Any, key: Any, slot: Any, seen: Any, words: Constexpr = 1) -> Any:
    """Return what a slot had, which was read before, when a key was put there if it was free.

    Keys are the first of the ``words`` of every slot.
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
    """As ``insert``, from what was read in the key's first slot, and what was ``claimed``."""
    while (found != key) & ((seen != EMPTY) | (found != EMPTY)):
        slot = following(slot, bits)
        seen = at(keys, Int64(slot) * words)
        found = claimed(keys, key, slot, seen, words)
    return slot, (seen == EMPTY) & (found == EMPTY)
