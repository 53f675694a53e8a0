"""Errors about cells: they name rows, or say how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from torch import Tensor


def outside(name: str, cells: Tensor, limits: Sequence[int], row: int) -> ArgumentError:
    """Return the error of an argument whose ``row`` has a number outside [0, limit)."""
    cell = cells[row].tolist()
    axis = next(a for a, limit in enumerate(limits) if not 0 <= cell[a] < limit)
    count = int(((cells[:, axis] >= limits[axis]) | (cells[:, axis] < 0)).sum())
    rows = "1 row is" if count == 1 else f"{count} rows are"
    got = f"{cell} in row {row} ({rows} outside)"
    return ArgumentError(name, f"column {axis} in [0, {limits[axis]})", got)


def repeated(name: str, cell: list[int], one: int, other: int) -> ArgumentError:
    """Return the error of an argument that has one cell in two rows."""
    ways = "lc.sparse.merge_repeated joins them, lc.sparse.Coordinates(repeated=True) keeps them"
    return ArgumentError(name, "distinct cells", f"{cell} in rows {one} and {other} ({ways})")


def overflow(total: int, capacity: int) -> ArgumentError:
    """Return the error of a capacity that is too small."""
    expected = f"{total} rows or more, as that many cells are reached"
    return ArgumentError("capacity", expected, capacity)


def traced(name: str) -> ArgumentTypeError:
    """Return the error of calls in ``torch.jit.trace``, which would keep one cloud's maps."""
    expected = (
        "no call in torch.jit.trace, which would keep the kernel maps of its example for all "
        "clouds: torch.export.export and lc.pack take sparse networks"
    )
    return ArgumentTypeError(name, expected, "one")
