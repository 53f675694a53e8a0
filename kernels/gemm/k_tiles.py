"""The k-tiles that a CTA accumulates, and their order: count, first column, next column."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..common.runtime_integers import Extent
from .operand import Operand

WORD = 32  # bits


@dataclass
class KTiles:
    """The k-tiles of a sum, in the order in which the mainloop takes them.

    A k-tile is named by its first column, an index along k. ``KTiles.of(a, b, step)`` has all
    k-tiles. If an operand is k-contiguous and each k-tile lies within one tap, taps run fastest,
    then blocks of channels: neighbouring taps read mostly the same rows, which stay in cache
    (N4 16x32x32 C256 K256, fp16, H200: 420 TFLOP/s; with channels fastest 329).

    Active taps: ``active`` has a set bit for each *unit* that some row of the tile has; at least
    one bit is set. A unit is the shortest stretch of k that is both whole taps and whole k-tiles: a
    tap, if k-tiles lie within taps. ``own`` has the units of the thread's own warpgroup, if the
    warpgroup skips the others.

    Cluster split-K: CTA ``part`` of ``parts`` takes every ``parts``-th k-tile from number ``part``.
    """

    total: Any  # the length of the sums
    channels: int  # columns per tap; 0 or ``total``: k-tiles run in order, whatever the taps
    step: int  # columns per k-tile
    active: list[Any] = field(default_factory=list)  # 32-bit words; empty: all units
    own: list[Any] = field(default_factory=list)
    parts: int = 1
    part: Any = 0

    @classmethod
    def of(cls, a: Operand, b: Operand, step: int, taps: int = 1) -> KTiles:
        """Return all k-tiles; with halo reuse, those of the first tap in each group of ``taps``."""
        for operand in (a, b):
            if operand.hoist_rows:
                if operand.is_open:
                    return cls(operand.col_count, 0, step)
                total, channels = operand.col_count // taps, operand.vector_extent
                return cls(total, channels if channels % step == 0 else total, step)
        return cls(a.row_count, 0, step)

    @classmethod
    def of_active(
        cls, a: Operand, step: int, active: list[Any], own: list[Any] | None = None
    ) -> KTiles:
        """Return the k-tiles of active units; ``active`` and ``own`` are as for the class."""
        return cls(a.col_count, a.vector_extent, step, active, own or [])

    @property
    def unit(self) -> int:
        """Return the columns of a unit."""
        return lcm(self.channels, self.step)

    def in_order(self) -> KTiles:
        """Return the same k-tiles tap by tap: all of the first tap, then those of the next."""
        return replace(self, channels=self.total)

    def of_part(self, parts: int, part: Any) -> KTiles:
        return replace(self, parts=parts, part=part)

    @property
    def count(self) -> Any:
        if self.parts == 1:
            return self._all
        return cutlass.max(Int32(0), Int32(self._all - self.part + self.parts - 1) // self.parts)

    @property
    def _all(self) -> Any:
        if self.active:
            units = Int32(0)
            for word in self.active:
                units = units + cute.arch.popc(word)
            return units * (self.unit // self.step)
        return (self.total + self.step - 1) // self.step

    def first(self, number: Any) -> Any:
        """Return the first column of k-tile ``number`` of this CTA."""
        first = self._first(number)
        if self.parts > 1:  # a part without k-tiles starts at one that exists
            before = cutlass.min(Int32(self.part), Int32(self._all - 1))
            for i in range(self.parts - 1):
                first = cutlass.select_(i < before, self._next(first), first)
        return first

    def _first(self, number: Any) -> Any:
        if self.active:  # the first of all, whatever ``number``
            return _lowest(self.active) * self.unit
        if not self._by_tap:
            return number * self.step
        taps = self.total // self.channels
        return number % taps * self.channels + number // taps * self.step

    def advance(self, first: Any) -> Any:
        """Return the first column of this CTA's k-tile after the one at column ``first``."""
        for _ in range(self.parts):
            first = self._next(first)
        return first

    def is_own(self, first: Any) -> Any:
        """Return whether some row of the thread's warpgroup has the unit of the k-tile at
        ``first``.
        """
        unit, _ = divmod(first, Extent(self.unit))
        bit = Int32(0)
        for i, word in enumerate(self.own):
            here = (word >> (unit & (WORD - 1))) & 1
            bit = here if len(self.own) == 1 else cutlass.select_(unit // WORD == i, here, bit)
        return bit != 0

    def _next(self, first: Any) -> Any:
        if self.active:
            unit, column = divmod(first, Extent(self.unit))
            later = [word & _above(unit - WORD * i, i) for i, word in enumerate(self.active)]
            none = _any(later) == 0
            word = [cutlass.select_(none, a, b) for a, b in zip(self.active, later, strict=True)]
            column = column + cutlass.select_(none, Int32(self.step), Int32(0))
            return _lowest(word) * self.unit + column
        if not self._by_tap:
            return first + self.step
        past = Int32(self.total - 1 - self.channels - first) >> 31  # all ones after the last tap
        return first + self.channels - ((self.total - self.step) & past)

    @property
    def _by_tap(self) -> bool:
        return self.channels not in (0, self.total)


def _above(bit: Any, word: int) -> Int32:
    """Return the mask of the bits above ``bit`` of word number ``word``: all ones if ``bit`` is
    negative (in an earlier word), 0 if it is 31 or more (or in a later word).
    """
    if word == 0:
        bits = -(Int32(2) << cutlass.min(Int32(bit), Int32(WORD - 1)))  # 0 above bit 31
        return Int32(bits)
    inside = cutlass.min(cutlass.max(Int32(bit), Int32(0)), Int32(WORD - 1))
    above: Int32 = cutlass.select_(bit < 0, Int32(-1), -(Int32(2) << inside))
    return above


def _any(words: list[Any]) -> Any:
    every = words[0]
    for word in words[1:]:
        every = every | word
    return every


def _lowest(words: list[Any]) -> Int32:
    """The number of the lowest set bit over all words."""
    found = Int32(0)
    for i in reversed(range(len(words))):
        word = words[i]
        here = cute.arch.popc((word & -word) - 1) + WORD * i
        found = here if i == len(words) - 1 else cutlass.select_(word != 0, here, found)
    return Int32(found)
