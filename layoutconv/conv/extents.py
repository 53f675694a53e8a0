"""The extents of a problem under the letters of the literature."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..operands import runtime, static
from .problem import ConvProblem


class Extents(NamedTuple):
    """The extents of a problem under their letters, in the order of memory."""

    input: tuple[Any, ...]
    output: tuple[Any, ...]
    taps: tuple[Any, ...]

    @classmethod
    def of(cls, problem: ConvProblem) -> Extents:
        def named(extents: tuple[int, ...], letters: str, kind: Any = runtime) -> tuple[Any, ...]:
            return tuple(map(kind, extents, letters[-len(extents) :]))

        N, C, K = runtime(problem.N, "N"), static(problem.C, "C"), static(problem.K, "K")
        return cls(
            input=(N, *named(problem.spatial, "DHW"), C),
            output=(N, *named(problem.output_spatial, "ZPQ"), K),
            taps=named(problem.taps, "TRS", static),
        )

    @property
    def spatial_modes(self) -> range:
        """The spatial modes of a coordinate such as ``(n, d, h, w, c)``, fastest first."""
        return range(len(self.taps), 0, -1)
