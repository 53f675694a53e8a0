"""Scans: an inclusive scan of a warp's lanes, and an exclusive scan of a CTA's threads."""

from __future__ import annotations

from typing import Any

from ..common.dsl import Constexpr, Int32, cute, range_constexpr
from ..common.plain_types import AnyList
from ..common.walk import select
from .cooperative import WARP


def sum_upto(count: Any, lane: Any) -> Any:
    """Inclusive scan of a warp: the sum of ``count`` over the lanes up to this one."""
    upto = count
    for bit in range(5):
        below = cute.arch.shuffle_sync_up(upto, 1 << bit)
        upto = select(lane >= (1 << bit), upto + below, upto)
    return upto


@cute.jit
def sums_before(own: AnyList, sums: Any, tid: Any, threads: Constexpr) -> Any:
    """Exclusive scan of a CTA, of several numbers at once: return their sums over the threads
    before this one, and then their totals.

    ``sums``, in shared memory, has an Int32 per warp for each number. Before a later write to it,
    the CTA needs a barrier.
    """
    lane, warp, warps = tid & 31, tid >> 5, threads // WARP
    through = [sum_upto(number, lane) for number in own]
    if lane == 31:
        for n in range_constexpr(len(own)):
            sums[n * warps + warp] = through[n]
    cute.arch.sync_threads()
    before, total = [], []
    for n in range_constexpr(len(own)):
        of_warp = sums[n * warps + select(lane < warps, lane, 0)]
        upto = sum_upto(select(lane < warps, of_warp, Int32(0)), lane)
        of_others = cute.arch.shuffle_sync(upto - of_warp, warp)
        before.append(of_others + through[n] - own[n])
        total.append(cute.arch.shuffle_sync(upto, warps - 1))
    return *before, *total
