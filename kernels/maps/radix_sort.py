"""Stable radix sort of numbers in shared memory, by one CTA.

Each warp has a contiguous part of the numbers, and takes 32 at a time. For each bit of a digit, a
ballot narrows down which of the 32 share a value; the warp counts its numbers of each value. An
exclusive scan of these counts, over values and then warps, gives the positions of the numbers.
"""

from __future__ import annotations

from typing import Any

from ..common.dsl import Constexpr, Int32, cute, cutlass, range_constexpr
from ..common.plain_types import AnyList
from ..common.walk import select
from .cooperative import WARP, Arrays
from .scan import sums_before

FEWEST_BITS = 5  # of a digit: at least one count per thread
MOST_BITS = 7


def digits_of(bits: int) -> tuple[int, int]:
    """Return how many digits sort that many bits, and the bits of each.

    >>> digits_of(12), digits_of(19), digits_of(3)
    ((2, 6), (3, 7), (1, 5))
    """
    count = -(-bits // MOST_BITS)
    return count, max(FEWEST_BITS, -(-bits // count))


def arrays_for(log: int, bits: int, threads: int) -> Arrays:
    """Return the shared memory that ``sort`` needs for ``2^log`` numbers: two buffers of numbers,
    the rank of each among those of its warp with its value; counts of values; and sums."""
    # Odd: neither the counts of a value over warps, nor of a warp over values, conflict in banks.
    stride = (1 << digits_of(bits)[1]) + 1
    warps, items = threads // WARP, 1 << log
    return [(Int32, (items, 2)), (Int32, (items,)), (Int32, (stride, warps)), (Int32, (warps,))]


@cute.jit
def sort(
    worker: Constexpr, count: Any, low: Constexpr, bits: Constexpr,
    arrays: AnyList,
) -> None:  # fmt: skip
    """Sort ``count`` numbers, Int32 of at least 0, by ``bits`` bits from ``low`` on. They are in
    half 0 of the first array before, and in half ``digits_of(bits)[0] % 2`` after.

    The caller needs a barrier before; there is one at the end.
    """
    items, places, counts, sums = arrays
    tid, threads = worker.tid, worker.threads
    lane, warp, warps = tid % WARP, tid // WARP, threads // WARP
    digits, width = digits_of(bits)
    values, each = 1 << width, (1 << width) // WARP
    rounds = (count + threads - 1) // threads
    first = warp * rounds * WARP + lane
    for digit in cutlass.range(digits, unroll=1):
        shift, half = low + digit * width, digit % 2
        for u in range_constexpr(each):
            counts[lane + u * WARP, warp] = Int32(0)
        cute.arch.sync_warp()
        for turn in cutlass.range(rounds, unroll=1):
            i = first + turn * WARP
            # Past the last, use the greatest number, which stays at the end.
            item = select(i < count, items[select(i < count, i, 0), half], Int32((1 << 31) - 1))
            value = (item >> shift) & (values - 1)
            same = lanes_with(value, width)
            before = counts[value, warp]
            lower = count_of_lanes(same & Int32(cute.arch.lanemask_lt()))
            cute.arch.sync_warp()
            if lower == 0:
                counts[value, warp] = before + count_of_lanes(same)
            if i < count:
                places[i] = before + lower
            cute.arch.sync_warp()
        cute.arch.sync_threads()
        own, total = cute.make_rmem_tensor(each, Int32), Int32(0)
        for u in range_constexpr(each):
            number = tid * each + u
            own[u] = counts[number // warps, number % warps]
            total = total + own[u]
        before, _ = sums_before([total], sums, tid, threads)
        for u in range_constexpr(each):
            number = tid * each + u
            counts[number // warps, number % warps] = before
            before = before + own[u]
        cute.arch.sync_threads()
        for turn in cutlass.range(rounds, unroll=1):
            i = first + turn * WARP
            if i < count:
                item = items[i, half]
                value = (item >> shift) & (values - 1)
                items[places[i] + counts[value, warp], half ^ 1] = item
        cute.arch.sync_threads()


def lanes_with(value: Any, bits: int) -> Any:
    """Return the mask of the warp's lanes that have this lane's value, of ``bits`` bits."""
    same = Int32(-1)
    for bit in range(bits):
        there = value & (1 << bit) != 0
        votes = Int32(cute.arch.vote_ballot_sync(there))
        same = same & select(there, votes, ~votes)
    return same


def count_of_lanes(lanes: Any) -> Any:
    return Int32(cute.arch.popc(lanes))
