"""Slots of the hash table of blocks: a block's key, its first place and an absence bit per cell.

A slot has four words of the key type: the key, the first place, and the 64 bits of the cells. With
32-bit keys a slot is 16 bytes, which one load reads. A grid of more than 2^31 blocks needs 64-bit
keys, and its slots are 32 bytes.
"""

from __future__ import annotations

from typing import Any

from ..common.dsl import Int32, Int64, cute
from ..common.walk import put, read, select
from .cooperative import StagePart
from .hash_table import EMPTY, following, home

MOST_NARROW = 2**31  # blocks of a grid: 32-bit keys are 0 or more, and negative values mean no key
WORDS = 4  # of a slot, each as wide as a key


class OfSlots(StagePart):
    """A part that reads slots: with ``wide`` (64-bit) keys or 32-bit ones."""

    def __init__(self, rank: int, wide: bool = False) -> None:
        super().__init__(rank)
        self.wide = wide

    @property
    def key(self) -> tuple[Any, ...]:
        return *super().key, self.wide

    @property
    def kind(self) -> Any:
        """The type of keys."""
        return Int64 if self.wide else Int32


def keys_at(slots: Any, kind: Any) -> Any:
    """Return a pointer to the keys: the first of the ``WORDS`` of every slot."""
    return cute.recast_ptr(slots, dtype=kind)


def cells_at(slots: Any, slot: Any, kind: Any) -> Any:
    """Return a pointer to a slot's cells: a bit is set while its cell is absent."""
    return slots + (Int64(slot) * 2 + 1) * (kind.width // 32)


def put_first(slots: Any, slot: Any, first: Any, kind: Any) -> None:
    """Write the first place of a slot's block."""
    put(keys_at(slots, kind), Int64(slot) * WORDS + 1, kind(first))


def read_slot(slots: Any, slot: Any, kind: Any) -> tuple[Any, Any, Any]:
    """Return a slot's key, its first place and its absence bits, one per cell."""
    count = WORDS * kind.width // 64
    found = read(slots + cute.assume(Int64(slot) * count, divby=count), Int64, count)
    if kind is Int64:
        return found[0], Int32(found[1]), found[2]
    return Int32(found[0]), Int32(found[0] >> 32), found[1]


def another(key: Any, seen: Any) -> Any:
    """Return whether the probe goes on: the slot holds another key than the one looked up."""
    return (seen != key) & ((seen | key) >= 0)


@cute.jit
def read_home(slots: Any, key: Any, bits: Any) -> Any:
    """Read a key's home slot; of a negative key none, and it is ``EMPTY``."""
    kind = type(key)
    seen, first, free = kind(EMPTY), Int32(0), Int64(-1)
    if key >= 0:
        seen, first, free = read_slot(slots, home(key, bits), kind)
    return seen, first, free


@cute.jit
def look_further(slots: Any, key: Any, bits: Any) -> Any:
    """Look up a block whose home slot holds another key: its first place and its cells."""
    slot = following(home(key, bits), bits)
    seen, first, free = read_slot(slots, slot, type(key))
    while another(key, seen):
        slot = following(slot, bits)
        seen, first, free = read_slot(slots, slot, type(key))
    return first, select(seen == key, ~free, Int64(0))


@cute.jit
def look_up(slots: Any, key: Any, bits: Any) -> Any:
    """Look up a block: its first place and its cells, 0 if it is absent or the key negative."""
    seen, first, free = read_home(slots, key, bits)
    word = select(seen == key, ~free, Int64(0))
    if another(key, seen):
        first, word = look_further(slots, key, bits)
    return first, word
