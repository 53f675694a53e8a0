"""Draw from weighted choices, the same for a seed on every machine."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import TypeVar

Item = TypeVar("Item")


class Draw:
    """A stream of choices that its name and a seed determine.

    >>> Draw("shape", 7).log_int(1, 512) == Draw("shape", 7).log_int(1, 512)
    True
    """

    def __init__(self, name: str, seed: int) -> None:
        self._of = name, seed
        self._random = random.Random(f"{name} {seed}")

    def aside(self, name: str) -> Draw:
        """Another stream: what is new is drawn from one, so that seeds keep their problems."""
        return Draw(f"{self._of[0]}, {name}", self._of[1])

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def int(self, low: int, high: int) -> int:
        """An integer of ``[low, high]``, each as likely."""
        return self._random.randint(low, high)

    def log_int(self, low: int, high: int) -> int:
        """An integer of ``[low, high]``, each power of two as likely; ``low >= 1``."""
        if high <= low:
            return low
        return min(high, int(exp(self._random.uniform(log(low), log(high + 1)))))

    def of(self, items: Sequence[Item]) -> Item:
        return self._random.choice(items)

    def weighted(self, weights: Mapping[Item, float]) -> Item:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def per_mode(self, rank: int, alike: float, weights: Mapping[Item, float]) -> tuple[Item, ...]:
        """Return an item for each mode: the same for all by a coin of probability ``alike``."""
        if self.chance(alike):
            return (self.weighted(weights),) * rank
        return tuple(self.weighted(weights) for _ in range(rank))

    def some(self, items: Sequence[Item], share: float) -> tuple[Item, ...]:
        """Return the ``items`` that a coin of probability ``share`` picks, in order."""
        return tuple(item for item in items if self.chance(share))

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self._random.sample(list(items), len(items))
