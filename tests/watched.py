"""Calls of the library's functions, watched: each runs as it would, and the test sees it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """A call that returned: what was given, and what came of it."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    result: Any


Watch = Callable[..., list[Any]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A function: the calls of ``name`` of modules or classes from now on, in a list that grows.

    Given ``note``, the list has what it makes of each ``Call``.
    """

    def watch(
        name: str, *owners: Any, note: Callable[[Call], Any] = lambda call: call
    ) -> list[Any]:
        found: list[Any] = []
        for owner in owners:
            monkeypatch.setattr(owner, name, _noting(getattr(owner, name), found, note))
        return found

    return watch


def _noting(
    function: Callable[..., Any], found: list[Any], note: Callable[[Call], Any]
) -> Callable[..., Any]:
    @wraps(function)
    def noted(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        found.append(note(Call(args, named, result)))
        return result

    return noted
