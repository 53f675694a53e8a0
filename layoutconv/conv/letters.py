"""The extents of a problem under the letters of the literature."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..view.operands import runtime, static
from .problem import ConvProblem, checked_problem


class Extents(NamedTuple):
    """The extents of a problem under their letters, in the order of memory.

    ``C`` and ``K`` are the channels of all ``groups``, ``Cg`` and ``Kg`` those of one group. A
    single channel per group has no letter, and if there are C groups, their letter is ``C``.
    """

    input: tuple[Any, ...]
    output: tuple[Any, ...]
    taps: tuple[Any, ...]
    groups: Any
    group_input: Any
    group_output: Any

    @classmethod
    def of(cls, problem: ConvProblem) -> Extents:
        checked_problem(problem)

        def named(extents: tuple[int, ...], letters: str, kind: Any = runtime) -> tuple[Any, ...]:
            return tuple(map(kind, extents, letters[-len(extents) :]))

        N, C, K = runtime(problem.N, "N"), static(problem.C, "C"), static(problem.K, "K")
        groups = problem.groups
        Cg: int = C
        Kg: int = K
        if groups > 1:
            Cg, Kg = _of_group(problem.C // groups, "Cg"), _of_group(problem.K // groups, "Kg")
        G = C if groups == problem.C else static(groups, "G")
        return cls(
            input=(N, *named(problem.spatial, "DHW"), C),
            output=(N, *named(problem.output_spatial, "ZPQ"), K),
            taps=named(problem.taps, "TRS", static),
            groups=G,
            group_input=Cg,
            group_output=Kg,
        )

    @property
    def filter(self) -> tuple[Any, ...]:
        """``(K, T, R, S, C)`` of the stored filter, where C is the channels of a group."""
        return (self.output[-1], *self.taps, self.group_input)

    @property
    def spatial_modes(self) -> range:
        """The spatial modes of a coordinate such as ``(n, d, h, w, c)``, fastest first."""
        return range(len(self.taps), 0, -1)


def _of_group(channels: int, letter: str) -> int:
    return channels if channels == 1 else static(channels, letter)
