"""Warpgroups: the wgmmas that four warps have issued, their completion, and waits for them.

A wgmma begins when all four warps have issued it, and reads shared memory until it completes. If
any of the warps has waited for it, it is complete for all, so one thread may signal the producer.
Results are computed when a warp issues. Any later moment would give the same, since it is a fault
to change its source before it completes, or to touch its registers before its own warp has waited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .faults import Divergent, Fault

if TYPE_CHECKING:
    from .cta import CTA
    from .team import Team

# Warps of a warpgroup.
GROUP = 4


@dataclass
class _Wgmma:
    """One wgmma: a key that must be the same in all four warps, and the registers it uses."""

    key: tuple[int, ...]
    registers: tuple[int, ...]


@dataclass
class _Warp:
    """A warp's progress: wgmmas issued, wgmmas waited for, and the ends of its groups."""

    issued: int = 0
    waited: int = 0
    groups: list[int] = field(default_factory=list)


class WarpGroups:
    """The warpgroups of a CTA."""

    def __init__(self, cta: CTA) -> None:
        self._cta, self._first = cta, cta.first_warp
        warps = -(-cta.threads // 32)
        self._warps = [_Warp() for _ in range(warps)]
        self._issued: list[list[_Wgmma]] = [[] for _ in range(-(-warps // GROUP))]

    def issue(
        self, warp: int, key: tuple[int, ...], registers: tuple[int, ...], units: NDArray[np.int64]
    ) -> None:
        """Issue a warp's wgmma, which reads the 16-byte words at ``units``."""
        local = warp - self._first
        first = local // GROUP * GROUP
        if first + GROUP > len(self._warps):
            raise Fault("wgmma in a warpgroup that has fewer than 128 threads")
        mine, all_of_group = self._warps[local], self._issued[local // GROUP]
        if mine.issued < len(all_of_group):
            if all_of_group[mine.issued].key != key:
                raise Divergent("the warps of a warpgroup issue different wgmmas")
        else:
            all_of_group.append(_Wgmma(key, registers))
            column = self._cta.clocks.of_group(warp // GROUP)
            self._cta.shared.keep(units, 16, column, len(all_of_group))
        mine.issued += 1
        self._cta.cluster.happened()

    def commit(self, warp: int) -> None:
        """Close a warp's group."""
        mine = self._warps[warp - self._first]
        mine.groups.append(mine.issued)

    def wait(self, team: Team, warp: int, newest: int) -> bool:
        """Let a warp wait for all but its ``newest`` groups; False if others must issue first."""
        local = warp - self._first
        mine, first = self._warps[local], local // GROUP * GROUP
        ended = mine.groups[: len(mine.groups) - newest]
        target = ended[-1] if ended else 0
        if any(w.issued < target for w in self._warps[first : first + GROUP]):
            return False
        for wgmma in self._issued[local // GROUP][mine.waited : target]:
            for index in wgmma.registers:
                team.take_back(index, warp - int(team.warp_of[0]))
        mine.waited = max(mine.waited, target)
        clocks = self._cta.clocks
        clocks.known[warp, clocks.of_group(warp // GROUP)] = mine.waited
        return True
