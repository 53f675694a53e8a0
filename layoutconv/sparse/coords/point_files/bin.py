"""``.bin``: rows of little-endian float32 and nothing else, the format of KITTI and nuScenes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from .columns import WantedColumns, allocated
from .source import Source

if TYPE_CHECKING:
    import numpy as np

_USUAL = 4  # x, y, z, intensity
_OTHERS = (5, 6)  # with a ring or a time, with colours


def read_bin(source: Source, wanted: WantedColumns) -> np.ndarray:
    """Return the rows of a ``.bin`` file.

    A file does not say how many columns it has. The default is 4, with a warning if the file's size
    also fits other common numbers.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    import numpy as np

    columns = _USUAL if wanted.columns is None else wanted.columns
    fitting = [count for count in (_USUAL, *_OTHERS) if source.size % (4 * count) == 0]
    if wanted.columns is None and len(fitting) > 1 and _USUAL in fitting:
        several = ", ".join(str(count) for count in fitting)
        warnings.warn(
            f"{source.path}: {source.size} bytes fit {several} float32 columns; {_USUAL} are read: "
            f"pass columns={_USUAL} if that is right, or another number",
            stacklevel=3,
        )
    points, over = divmod(source.size, 4 * columns)
    if over:
        others = [str(count) for count in fitting if count != columns]
        hint = f"; they would fit columns={' and '.join(others)}" if others else ""
        raise source.error(
            f"{source.size} bytes are not a whole number of points of {columns} float32 columns "
            f"({4 * columns} bytes); truncated, or with another number of columns{hint}"
        )
    rows = allocated(source, points, columns, wanted)
    for at, piece in source.records(np.dtype(("<f4", (columns,))), points, 0, "points"):
        rows[at] = piece
    return rows
