"""Any tile that is legal, in place of the one that the cost model expects to be the fastest.

A model picks few tiles for what problems are drawn, and others for a user's layer. With ``--tiles
any`` each problem of the template takes one at random, the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from layoutconv.gpu import select
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.machine import Machine
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.tile_time import Problem


def install() -> None:
    """Choose among all tiles from now on, in this process."""
    chooses: Any = select
    chooses.ranked = shuffled


def shuffled(problem: Problem, machine: Machine) -> Iterator[tuple[TileConfig, int]]:
    """Yield the pairs of ``ranked`` in an order that the problem decides."""
    pairs = list(ranked(problem, machine))
    random.Random(repr(problem)).shuffle(pairs)
    return iter(pairs)
