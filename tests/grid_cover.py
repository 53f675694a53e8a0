"""A cover of a grid of cases: few of its cells, and all that there is to meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest


def with_deep(cases: Iterable[Any], *deep: object) -> list[Any]:
    """Return the cases of a list, with some marked ``deep``: whose choices others have as well."""
    every = list(cases)
    assert all(case in every for case in deep), f"cases {deep} of {every}"
    return [pytest.param(c, marks=pytest.mark.deep) if c in deep else c for c in every]


def uncovered(cells: list[dict[str, object]]) -> list[bool]:
    """Tell which cells, given by the values of their parameters, a cover does without.

    A cover is like rooks on a chessboard, one in every row and every column: it has each value of
    each axis and, of three axes or more, each two values of two axes that meet in the grid. Its
    cells are picked one by one, those first that bring most of what is missing.
    """
    axes = _axes(cells)
    together = min(2, max(1, len(axes) - 1))
    brings = [set(combinations(enumerate(cell), together)) for cell in zip(*axes, strict=True)]
    missing, left = set[object]().union(*brings), list(range(len(cells)))
    used: Counter[object] = Counter()
    while missing:  # of those that bring as much, one whose values are rare so far
        best = max(left, key=lambda i: (len(brings[i] & missing), -sum(used[v] for v in brings[i])))
        missing -= brings[best]
        used.update(brings[best])
        left.remove(best)
    return [i in set(left) for i in range(len(cells))]


def _axes(cells: list[dict[str, object]]) -> list[tuple[int, ...]]:
    """The coordinates of the cells of a grid along each of its axes, the longest first."""
    axes: list[tuple[int, ...]] = []
    for name in cells[0]:
        numbers: dict[int, int] = {}
        axes.append(tuple(numbers.setdefault(id(cell[name]), len(numbers)) for cell in cells))
    axes.sort(key=lambda axis: -len(set(axis)))
    return [
        axis for place, axis in enumerate(axes)  # but for those that another one determines
        if not any(len(set(zip(axis, a, strict=True))) == len(set(a)) for a in axes[:place])
    ]  # fmt: skip
