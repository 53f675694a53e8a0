"""Sums of numbers of a warp's lanes, or of a CTA's threads, up to each of them."""

from __future__ import annotations

from typing import Any

from ..common.dsl import Constexpr, Int32, cute, range_constexpr
from ..common.plain_types import AnyList
from ..common.walk import select
from .cooperative import WARP


def sum_upto(count: Any, lane: Any) -> Any:
    """The sum of the numbers of a warp's lanes, up to each."""
    upto = count
    for bit in range(5):
        below = cute.arch.shuffle_sync_up(upto, 1 << bit)
        upto = select(lane >= (1 << bit), upto + below, upto)
    return upto


@cute.jit
def sums_before(own: AnyList, sums: Any, tid: Any, threads: Constexpr) -> Any:
    """Scan each of some numbers of a CTA's threads: the sum of those of threads before; then of
    each that of all.

    ``sums``, in shared memory, has a number for each warp and each of them. Whoever writes there
    afterwards waits for a barrier first.
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
