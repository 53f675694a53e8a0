"""Any tile that is legal, in place of the one that the cost model expects to be the fastest.

A model picks few tiles for what problems are drawn, and others for a user's layer. With ``--tiles
any`` each problem of the template takes one at random, the same in every run, and half of those
whose lines of channels may be padded are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import Any

from layoutconv.gpu import select
from layoutconv.planning.channel_padding import padded_lines
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.cost_problem import Problem
from layoutconv.planning.machine import Machine
from layoutconv.planning.tile import TileConfig
from layoutconv.view.gemm_view import GemmView


def install() -> None:
    """Choose among all tiles from now on, in this process."""
    chooses: Any = select
    chooses.ranked = shuffled
    chooses.padded_lines, chooses.GAIN_OF_LINES = some_padded_lines, inf


def shuffled(problem: Problem, machine: Machine) -> Iterator[tuple[TileConfig, int]]:
    """Yield the pairs of ``ranked`` in an order that the problem decides."""
    pairs = list(ranked(problem, machine))
    random.Random(repr(problem)).shuffle(pairs)
    return iter(pairs)


def some_padded_lines(view: GemmView, line: int) -> GemmView | None:
    """Return the view with padded lines, None where it has none, or its sizes decide so."""
    sizes = view.m, view.n, view.k, line
    return padded_lines(view, line) if random.Random(repr(sizes)).random() < 0.5 else None
