"""Slots of the hash table of blocks: a block's key, its first place, and a bit for every cell.

A slot is four words of the type of keys: a key, a first place, and cells in 64 bits. Keys have 32
bits, so that a slot is 16 bytes, which are read at once; in a grid of more than 2^31 blocks keys
have 64, and a slot is 32 bytes.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64

from .hash_table import following
from .together import Part
from .walk import put, read, select

MOST_NARROW = 2**31  # blocks of a grid: keys from 0 on, and what is below 0 is none
WORDS = 4  # of a slot, of a key's type


class OfSlots(Part):
    """A part that knows slots: those of ``wide`` keys, of 64 bits, or of others."""

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
    """Where keys are, the first of the ``WORDS`` of every slot."""
    return cute.recast_ptr(slots, dtype=kind)


def cells_at(slots: Any, slot: Any, kind: Any) -> Any:
    """Where the cells of a slot are: a bit for every one that is not there."""
    return slots + (Int64(slot) * 2 + 1) * (kind.width // 32)


def put_first(slots: Any, slot: Any, first: Any, kind: Any) -> None:
    """Write the first place of a slot's block."""
    put(keys_at(slots, kind), Int64(slot) * WORDS + 1, kind(first))


def read_slot(slots: Any, slot: Any, kind: Any) -> tuple[Any, Any, Any]:
    """The key, the first place, and a bit for every cell that is not there."""
    count = WORDS * kind.width // 64
    found = read(slots + cute.assume(Int64(slot) * count, divby=count), Int64, count)
    if kind is Int64:
        return found[0], Int32(found[1]), found[2]
    return Int32(found[0]), Int32(found[0] >> 32), found[1]


@cute.jit
def settle(slots: Any, asked: Any, slot: Any, key: Any, read: tuple, bits: Any):
    """A block's first place and its cells, 0 if there is none, from what was ``read`` in the first
    slot of its key.

    Any slot was read for a key that is not ``asked`` for: there is none.
    """
    seen, first, free = read
    while asked & (seen != key) & (seen >= 0):  # a key is, and EMPTY is not
        slot = following(slot, bits)
        seen, first, free = read_slot(slots, slot, type(key))
    return first, select(asked & (seen == key), ~free, Int64(0))
