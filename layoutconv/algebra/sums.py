"""Sums of modes as sets of integers: which are reached, and is one reached twice?

A mode ``(s, d)`` contributes ``c * d`` for one ``c`` of ``0 .. s - 1``. Finding a choice of all
``c`` with a given sum is the bounded subset-sum problem. Layouts are easy instances of it: a stride
that exceeds the reach of all smaller ones, or that a common divisor of the others separates,
determines its own coordinate. What remains is searched, within a budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from .budget import Budget

Mode = tuple[int, int]  # an extent and a stride


def collision(modes: list[Mode], budget: Budget) -> list[int] | None:
    """Return differences of coordinates, not all 0, that move nothing; None if there are none.

    Two coordinates with these differences share an offset. Entry i is for mode i; its absolute
    value is below the extent.

    >>> collision([(4, 1), (8, 5)], Budget("", ())) is None
    True
    >>> collision([(4, 1), (8, 3)], Budget("", ()))
    [-3, 1]
    """
    for i, (s, d) in enumerate(modes):
        if s > 1 and d == 0:
            return [int(j == i) for j in range(len(modes))]
    active = _undecided({i: (s - 1, d, 1) for i, (s, d) in enumerate(modes) if s > 1}, budget)
    if not active:
        return None
    keys = sorted(active, key=lambda i: -abs(active[i][1]))
    found = _pair(active, keys) or _met(active, keys, budget)
    if found is None:
        return None
    return [found.get(i, 0) * (active[i][2] if i in active else 1) for i in range(len(modes))]


Active = dict[int, tuple[int, int, int]]  # mode: the largest difference, stride, and its unit


def _undecided(active: Active, budget: Budget) -> Active:
    """Return the modes that remain after dropping those whose difference can only be 0.

    The difference of a mode is bounded by the reach of all others, and is a multiple of the factor
    that makes its step a multiple of their common divisor. Bounds lower each other step by step,
    within half of the budget.
    """
    changed, left = True, budget.left // 2
    while changed and active and budget.left > left:
        changed = False
        budget.spend(8 * len(active))
        for i in list(active):
            most, d, unit = active[i]
            others = [(m, e) for j, (m, e, _) in active.items() if j != i]
            common = gcd(*[e for _, e in others])
            factor = common // gcd(common, d) if common else 0
            bound = sum(m * abs(e) for m, e in others) // abs(d)
            new = min(most, bound) // factor if factor else 0
            if new == 0:
                del active[i]
                changed = True
            elif (new, factor) != (most, 1):
                active[i] = new, d * factor, unit * factor
                changed = True
    return active


def _pair(active: Active, keys: list[int]) -> dict[int, int] | None:
    """Return differences of two modes that cancel."""
    for n, i in enumerate(keys):
        for j in keys[:n]:
            common = gcd(active[i][1], active[j][1])
            x, y = active[j][1] // common, active[i][1] // common
            if abs(x) <= active[i][0] and abs(y) <= active[j][0]:
                return {i: x, j: -y}
    return None


def _met(active: Active, keys: list[int], budget: Budget) -> dict[int, int] | None:
    """Find differences that cancel, by the sums of two halves of the modes."""
    halves: tuple[list[int], list[int]] = ([], [])
    counts = [1, 1]
    for i in sorted(keys, key=lambda i: -active[i][0]):
        side = counts[1] < counts[0]
        halves[side].append(i)
        counts[side] *= 2 * active[i][0] + 1
    if max(counts) > budget.left:
        return _searched(active, keys, budget)
    sums: dict[int, tuple[int, ...]] = {}
    for total, differences in _all_sums(active, halves[0], budget):
        if total == 0 and any(differences):
            return dict(zip(halves[0], differences, strict=True))
        sums[total] = differences
    for total, differences in _all_sums(active, halves[1], budget):
        if any(differences) and -total in sums:
            return dict(zip((*halves[0], *halves[1]), (*sums[-total], *differences), strict=True))
    return None


def _all_sums(
    active: Active, keys: list[int], budget: Budget
) -> Iterator[tuple[int, tuple[int, ...]]]:
    sums: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    for i in keys:
        most, d, _ = active[i]
        budget.spend(len(sums) * (2 * most + 1))
        sums = [(t + x * d, (*c, x)) for t, c in sums for x in range(-most, most + 1)]
    return iter(sums)


def _searched(active: Active, keys: list[int], budget: Budget) -> dict[int, int] | None:
    """Find differences that cancel, one mode after the other, the largest stride first."""
    for n, i in enumerate(keys):
        rest = keys[n + 1 :]
        most, d, _ = active[i]
        modes = [(2 * active[j][0] + 1, active[j][1]) for j in rest]
        middle = sum(active[j][0] * active[j][1] for j in rest)
        for x in range(1, most + 1):
            budget.spend(4)  # a question takes that long even without a search
            found = solution(middle - x * d, modes, budget)
            if found is not None:
                moved = {j: c - active[j][0] for j, c in zip(rest, found, strict=True)}
                return {i: x, **moved}
    return None


def solution(target: int, modes: list[Mode], budget: Budget) -> list[int] | None:
    """Return a coordinate of each mode such that the sum is ``target``; None if there are none.

    >>> solution(11, [(4, 1), (3, 5)], Budget("", ()))
    [1, 2]
    """
    order = sorted(range(len(modes)), key=lambda i: -abs(modes[i][1]))
    flipped = [(modes[i][0], abs(modes[i][1])) for i in order]
    for s, d in modes:
        if d < 0:
            target += (s - 1) * -d
    found = _descend(target, flipped, budget)
    if found is None:
        return None
    result = [0] * len(modes)
    for i, c in zip(order, found, strict=True):
        result[i] = c if modes[i][1] >= 0 else modes[i][0] - 1 - c
    return result


def _descend(target: int, modes: list[Mode], budget: Budget) -> list[int] | None:
    """Return the :func:`solution` for strides >= 0 in descending order."""
    count = len(modes)
    reach, common = [0] * (count + 1), [0] * (count + 1)
    for k in range(count - 1, -1, -1):
        s, d = modes[k]
        reach[k] = reach[k + 1] + (s - 1) * d
        common[k] = gcd(common[k + 1], d) if s > 1 else common[k + 1]
    failed: set[tuple[int, int]] = set()

    def search(k: int, left: int) -> list[int] | None:
        if not 0 <= left <= reach[k] or (left % common[k] if common[k] else left):
            return None
        if k == count:
            return []
        s, d = modes[k]
        if d == 0:
            rest = search(k + 1, left)
            return None if rest is None else [0, *rest]
        if (k, left) in failed:
            return None
        low, high = max(0, -(-(left - reach[k + 1]) // d)), min(s - 1, left // d)
        for c in range(high, low - 1, -1):
            budget.spend()
            rest = search(k + 1, left - c * d)
            if rest is not None:
                return [c, *rest]
        failed.add((k, left))
        return None

    return search(0, target)


def within(low: int, high: int, modes: list[Mode], budget: Budget) -> Iterator[int]:
    """Iterate over the sums from ``low`` to ``high``, unordered, with some repeated.

    >>> sorted(within(4, 7, [(4, 1), (3, 5)], Budget("", ())))
    [5, 6, 7]
    """
    order = sorted([(abs(d), s) for s, d in modes if s > 1 and d], reverse=True)
    base = sum((s - 1) * d for s, d in modes if d < 0)
    reach = [0] * (len(order) + 1)
    for k in range(len(order) - 1, -1, -1):
        reach[k] = reach[k + 1] + (order[k][1] - 1) * order[k][0]
    seen: set[tuple[int, int]] = set()
    stack = [(0, base)]
    while stack:
        k, total = stack.pop()
        if total > high or total + reach[k] < low or (k, total) in seen:
            continue
        budget.spend()
        seen.add((k, total))
        if k == len(order):
            yield total
            continue
        d, s = order[k]
        first = max(0, -(-(low - total - reach[k + 1]) // d))
        last = min(s - 1, (high - total) // d)
        budget.spend(max(0, last - first))
        stack += [(k + 1, total + c * d) for c in range(first, last + 1)]


def interval(modes: list[Mode]) -> int:
    """Return the n such that sums of non-negative strides include 0 .. n - 1 but not n.

    >>> interval([(4, 1), (3, 2), (2, 20)]), interval([(2, 2)])
    (8, 1)
    """
    reach = 1
    for d, s in sorted([(d, s) for s, d in modes if d and s > 1]):
        if d > reach:
            break
        reach += (s - 1) * d
    return reach
