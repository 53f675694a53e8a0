"""Arguments and results of modules, taken apart into what they are made of, and put together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

Structure = Hashable


def taken_apart(value: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of tuples, lists and dicts to ``leaves``; return how they are nested.

    >>> leaves = []
    >>> structure = taken_apart({"x": 1, "y": [2, (3,)]}, leaves)
    >>> leaves, put_together(structure, [10, 20, 30].__iter__().__next__)
    ([1, 2, 3], {'x': 10, 'y': [20, (30,)]})
    """
    kind = type(value)
    if isinstance(value, dict):
        return kind, tuple((name, taken_apart(one, leaves)) for name, one in value.items())
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind, tuple(taken_apart(one, leaves) for one in value)
    leaves.append(value)
    return None


def put_together(structure: Any, following: Callable[[], Any]) -> Any:
    """The opposite of :func:`taken_apart`, of leaves that follow each other."""
    if structure is None:
        return following()
    kind, parts = structure
    if issubclass(kind, dict):
        made = kind()
        made.update((name, put_together(part, following)) for name, part in parts)
        return made
    values = [put_together(part, following) for part in parts]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)
