"""Find the layout through given points: a search over its extents.

A layout on every integer is a list of extents with as many strides, plus one stride for the
unbounded rest. For given extents, the strides solve linear equations, one for each point. The
search chooses one extent after the other. Most choices contradict the points at once, because
points with the same quotient may differ only by the digits chosen so far.
"""

from __future__ import annotations

from math import gcd

from .budget import Budget

Row = list[int]
Point = tuple[int, list[int], int]  # the quotient left of n, its digits so far, the value


def interpolate(points: dict[int, int], budget: Budget) -> list[tuple[int, int]] | None:
    """Return the leaves of a layout with ``L(n) == points[n]`` for all n; None if there is none.

    The last leaf is just long enough for the largest n.

    >>> interpolate({0: 0, 2: 1, 3: 2, 5: 3}, Budget("left_inverse", ()))
    [(2, 1), (3, 1)]
    >>> interpolate({0: 0, 1: 1, 2: 3, 3: 2}, Budget("left_inverse", ())) is None
    True
    """
    items: list[Point] = [(n, [], value) for n, value in points.items() if n or value]
    return _search([], items, budget)


def _search(extents: list[int], items: list[Point], budget: Budget) -> list[tuple[int, int]] | None:
    strides = _solve([[*digits, q, value] for q, digits, value in items], len(extents) + 1)
    if strides is not None:
        last = max((q for q, _, _ in items), default=0) + 1
        return list(zip([*extents, max(last, 1)], strides, strict=True))
    low, high = min(q for q, _, _ in items), max(q for q, _, _ in items)
    if low >= -1 and high <= 0:
        return None  # another digit would not separate any points
    limit = max(high, 1 - low)
    for extent in range(2, limit + 1):
        budget.spend(len(items) * (1 + len(extents)))
        finer = [(q // extent, [*digits, q % extent], value) for q, digits, value in items]
        if _may_work(finer):
            found = _search([*extents, extent], finer, budget)
            if found is not None:
                return found
    return None


def _may_work(items: list[Point]) -> bool:
    """Return whether points with equal quotients agree on some strides of the digits so far."""
    first: dict[int, tuple[list[int], int]] = {0: ([0] * len(items[0][1]), 0)}
    rows: list[Row] = []
    for q, digits, value in items:
        if q in first:
            other, base = first[q]
            rows.append([*[x - y for x, y in zip(digits, other, strict=True)], value - base])
        else:
            first[q] = digits, value
    return _eliminated(rows, len(items[0][1])) is not None


def _solve(rows: list[Row], unknowns: int) -> list[int] | None:
    """Return integers that satisfy every row (coefficients, then right-hand side), or None."""
    pivots = _eliminated(rows, unknowns)
    if pivots is None:
        return None
    solution = [0] * unknowns
    for column in sorted(pivots, reverse=True):
        row = pivots[column]
        right = row[-1] - sum([row[i] * solution[i] for i in range(column + 1, unknowns)])
        solution[column], rest = divmod(right, row[column])
        if rest:
            return None
    return solution


def _eliminated(rows: list[Row], unknowns: int) -> dict[int, Row] | None:
    """Return the rows in echelon form by leading column, or None if they contradict each other."""
    pivots: dict[int, Row] = {}
    for row in rows:
        for column in range(unknowns):
            if not row[column]:
                continue
            if column not in pivots:
                pivots[column] = row
                break
            a, b = pivots[column][column], row[column]
            row = [a * x - b * p for x, p in zip(row, pivots[column], strict=True)]
            common = gcd(*row)
            if common > 1:
                row = [x // common for x in row]
        else:
            if row[-1]:
                return None
    return pivots
