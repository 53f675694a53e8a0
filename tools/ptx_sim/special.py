"""Special registers (PTX ISA 10), such as ``%tid.x``, as functions of the team."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .team import WARP, Team


def _lane(t: Team) -> NDArray[np.intp]:
    return t.numbers % WARP


def _axis(axis: int) -> dict[str, Callable[[Team], NDArray | int]]:
    """Return positions and extents along x, y or z; without clusters a CTA is one by itself."""

    def extent(t: Team) -> int:
        return t.cta.launch.cluster[axis]

    def thread(t: Team) -> NDArray:
        before = int(np.prod(t.cta.launch.block[:axis]))
        return t.threads // before % t.cta.launch.block[axis]

    letter = "xyz"[axis]
    return {
        f"%tid.{letter}": thread,
        f"%ntid.{letter}": lambda t: t.cta.launch.block[axis],
        f"%ctaid.{letter}": lambda t: t.cta.index[axis],
        f"%nctaid.{letter}": lambda t: t.cta.launch.grid[axis],
        f"%clusterid.{letter}": lambda t: t.cta.index[axis] // extent(t),
        f"%nclusterid.{letter}": lambda t: t.cta.launch.grid[axis] // extent(t),
        f"%cluster_ctaid.{letter}": lambda t: t.cta.index[axis] % extent(t),
        f"%cluster_nctaid.{letter}": extent,
    }


SPECIAL: dict[str, Callable[[Team], NDArray | int]] = {
    **_axis(0),
    **_axis(1),
    **_axis(2),
    "%laneid": _lane,
    "%warpid": lambda t: t.warp_of - t.cta.first_warp,
    "%nwarpid": lambda t: -(-t.cta.threads // WARP),
    "%lanemask_eq": lambda t: 1 << _lane(t),
    "%lanemask_lt": lambda t: (1 << _lane(t)) - 1,
    "%lanemask_le": lambda t: (2 << _lane(t)) - 1,
    "%lanemask_gt": lambda t: (1 << WARP) - (2 << _lane(t)),
    "%lanemask_ge": lambda t: (1 << WARP) - (1 << _lane(t)),
    "%dynamic_smem_size": lambda t: t.cta.launch.dynamic_size,
    "%total_smem_size": lambda t: t.cta.launch.shared_size,
    "%cluster_ctarank": lambda t: t.cta.rank,
    "%cluster_nctarank": lambda t: len(t.cta.cluster.ctas),
}
