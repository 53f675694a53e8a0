"""Make a problem that fails smaller, one thing at a time, as long as it fails the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import problems
from .results import Result


def shrink(
    problem: Any, status: str, attempt: Callable[[Any], Result], most: int = 100
) -> tuple[Any, int]:
    """The smallest problem found with the same status, and how many were tried.

    Greedy: the first smaller problem that fails as well is taken, and smaller ones of that are
    tried from the start.

    Args:
        attempt: runs a problem, in a process of its own: a context may be lost.
        most: attempts.
    """
    family = problems.family(problem.family)
    tried: set[Any] = {problem}
    count = 0
    found = True
    while found and count < most:
        found = False
        for smaller in family.smaller(problem):
            if smaller in tried or not family.fits(smaller):
                continue
            tried.add(smaller)
            count += 1
            if attempt(smaller).status == status:
                problem, found = smaller, True
                break
            if count >= most:
                break
    return problem, count
