"""Flatten nested arguments and results of modules into tensors, and rebuild them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import is_dataclass
from typing import Any

Structure = Hashable


def taken_apart(value: Any) -> tuple[Structure, list[Any]]:
    """Flatten nested tuples, lists and dicts: return their structure and their leaves.

    >>> structure, leaves = taken_apart({"x": 1, "y": [2, (3,)]})
    >>> leaves, put_together(structure, iter([10, 20, 30]))
    ([1, 2, 3], {'x': 10, 'y': [20, (30,)]})
    """
    leaves: list[Any] = []
    return _structure(value, leaves), leaves


def put_together(structure: Any, leaves: Iterator[Any]) -> Any:
    """Rebuild what :func:`taken_apart` flattened, from leaves in order."""
    if structure is None:
        return next(leaves)
    kind, parts = structure
    if issubclass(kind, dict):
        named = {name: put_together(part, leaves) for name, part in parts}
        if is_dataclass(kind):  # one that is also a dict
            return kind(**named)  # type: ignore[operator]
        made = kind()
        made.update(named)
        return made
    values = [put_together(part, leaves) for part in parts]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def with_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each leaf of a nested value.

    >>> with_leaves({"x": 1, "y": [2, (3,)]}, lambda leaf: 10 * leaf)
    {'x': 10, 'y': [20, (30,)]}
    """
    structure, leaves = taken_apart(value)
    return put_together(structure, map(function, leaves))


def _structure(value: Any, leaves: list[Any]) -> Structure:
    kind = type(value)
    if isinstance(value, dict):
        return kind, tuple((name, _structure(one, leaves)) for name, one in value.items())
    if kind in (tuple, list) or (isinstance(value, tuple) and _has_names(kind)):
        return kind, tuple(_structure(one, leaves) for one in value)
    leaves.append(value)
    return None


def _has_names(kind: Any) -> bool:
    """Return whether a tuple class has named fields: Python's, or those that torch returns."""
    return hasattr(kind, "_fields") or kind.__module__ == "torch.return_types"
