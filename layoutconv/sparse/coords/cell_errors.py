"""Errors of cells that name rows, or how many there are."""

from __future__ import annotations

from ...errors import ArgumentError


def repeated(cell: list[int], one: int, other: int) -> ArgumentError:
    """The error of a cell that two rows have."""
    ways = "lc.sparse.merge_repeated joins them, lc.sparse.Coordinates(repeated=True) keeps them"
    return ArgumentError("coords", "no cell twice", f"{cell} in rows {one} and {other} ({ways})")


def overflow(total: int, capacity: int) -> ArgumentError:
    """The error of a capacity that is too small."""
    expected = f"{total} rows or more: that many cells are reached"
    return ArgumentError("capacity", expected, capacity)
