"""``PointColumns``: the rows that a reader returns, x, y, z first, filled piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .source import Source

if TYPE_CHECKING:
    import numpy as np

MOST_COLUMNS = 1 << 12  # of a point: a name is kept for each


class WantedColumns(NamedTuple):
    """The result for which the caller asks."""

    columns: int | None  # how many; None: all
    dtype: np.dtype  # float32 or float64


class PointColumns:
    """Rows (points, columns) of the wanted columns of a file.

    Args:
        names: of the file's columns, in its order; among them ``x``, ``y`` and ``z`` once each.
        points: how many rows.

    Attributes:
        order: the file's columns that are kept, as indices in ``names``.
        rows: the result, to be filled.
    """

    def __init__(
        self, source: Source, names: Sequence[str], points: int, wanted: WantedColumns
    ) -> None:
        if any(names.count(axis) != 1 for axis in "xyz"):
            raise source.error(f"expected columns x, y, z, got {_listed(names)}")
        first = [names.index(axis) for axis in "xyz"]
        rest = [at for at in range(len(names)) if at not in first]
        self.order = (first + rest)[: wanted.columns]
        check_columns(source, len(names), wanted)
        self.rows = allocated(source, points, len(self.order), wanted)

    def fill(
        self, pieces: Iterable[tuple[slice, Any]], column: Callable[[Any, int], np.ndarray]
    ) -> np.ndarray:
        """Write all pieces, where ``column(piece, place)`` returns one column; return the rows."""
        for rows, piece in pieces:
            for to, place in enumerate(self.order):
                self.rows[rows, to] = doubles(column(piece, place))
        return self.rows


def doubles(found: np.ndarray) -> np.ndarray:
    """Convert 64-bit numbers to float64, so that float32 rows are always rounded float64 rows."""
    return found.astype("f8") if found.dtype.itemsize == 8 else found


def check_columns(source: Source, found: int, wanted: WantedColumns) -> None:
    """Raise unless a file has x, y, z and as many columns as are wanted."""
    least = max(3, wanted.columns or 0)
    if found < least:
        raise source.error(f"expected {least} columns, but the file has {found}")


def allocated(source: Source, points: int, columns: int, wanted: WantedColumns) -> np.ndarray:
    """Allocate an array for the result, or raise an error that says how large it would be."""
    import numpy as np

    if not points:
        raise source.error("has no points")
    size = points * columns * wanted.dtype.itemsize
    if size <= _memory():
        with suppress(MemoryError):
            return np.empty((points, columns), wanted.dtype)
    raise source.error(
        f"{points} points of {columns} columns take {size / 2**30:.1f} GiB, which is more than "
        f"the memory"
    )


def _memory() -> int:
    """Return the bytes of the machine's memory, or more than any machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # on systems that do not say
        return 1 << 46


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:20])
    return shown + (", ..." if len(names) > 20 else "")
