"""The expected time of kernels that run at the same time, from the times that each takes alone."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from .cost_problem import Problem
from .group_tile import GroupTile
from .tile import TileConfig

# Microseconds of a kernel alone in which its SMs do not multiply, and that a further launch takes.
# Idle SMs of a wave do that share of a CTA's work for the next kernel. Fitted to 115 gradients of
# two to eight stride phases on an H200: off by 13% on average, where a sum of times is off by 27%.
START, STEP, TAKEN = 1.5, 0.6, 0.8


class KernelAlone(NamedTuple):
    """A kernel by itself: its microseconds, and the share of SMs that are busy in its waves."""

    time: float
    busy: float = 1.0

    @classmethod
    def of(cls, time: float, problem: Problem, tile: TileConfig, at_once: int) -> KernelAlone:
        """Return a kernel of which ``at_once`` CTAs fit the GPU.

        >>> problem = Problem(6400, 128, 576, 64, "float16", 2)
        >>> KernelAlone.of(10.0, problem, TileConfig((128, 128, 32)), 200)
        KernelAlone(time=10.0, busy=0.25)
        """
        if isinstance(tile, GroupTile) or tile.persistent:
            return cls(time)
        m = ceil(problem.m * problem.halo_growth) if tile.halo_taps > 1 else problem.m
        ctas = -(-m // tile.m) * -(-problem.n // tile.n) * problem.groups * tile.cluster_k
        return cls(time, ctas / (max(1, -(-ctas // at_once)) * at_once))


def time_together(kernels: Iterable[KernelAlone]) -> float:
    """Return the microseconds of kernels that start while those before them run.

    >>> half = KernelAlone(20.0, 0.5)
    >>> round(time_together([half])), round(time_together([half, half]))
    (20, 24)
    """
    bodies = [(max(each.time - START, 0.0), each.busy) for each in kernels]
    longest = max(body for body, _ in bodies)
    work = sum(body * (1 - TAKEN + TAKEN * busy) for body, busy in bodies)
    return START + max(longest, work) + STEP * (len(bodies) - 1)
