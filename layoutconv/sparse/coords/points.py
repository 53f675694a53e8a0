"""Readers of point files, which return rows of floating-point numbers that start x, y, z."""

from __future__ import annotations

import os
from operator import index as as_int
from typing import TYPE_CHECKING, Any, Literal

from ...base.paths import name_of
from ...errors import ArgumentError, ArgumentTypeError, PointFileError
from .point_files.bin import read_bin
from .point_files.columns import WantedColumns
from .point_files.las import read_las
from .point_files.npy import read_npy
from .point_files.pcd import read_pcd
from .point_files.ply import read_ply
from .point_files.source import Source, opened

if TYPE_CHECKING:
    import numpy as np

_READERS = {
    ".bin": read_bin,
    ".npy": read_npy,
    ".ply": read_ply,
    ".pcd": read_pcd,
    ".las": read_las,
    ".laz": read_las,
}


def read_points(
    path: str | os.PathLike[str],
    columns: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
) -> np.ndarray:
    """Read the points of a file: (points, columns), x, y, z first.

    Args:
        path: a file whose suffix names its format:

            - ``.bin``, rows of little-endian float32 and nothing else;
            - ``.npy``, an array (points, columns) of numbers;
            - ``.ply``, ascii or binary of either byte order, whose vertices have properties x, y,
              z and others, which follow in the order of the file;
            - ``.pcd``, ascii, binary or compressed, likewise; packed colours become red, green and
              blue, and unseen points, whose x, y, z are NaN, are left out;
            - ``.las`` and ``.laz``, x, y, z as the header scales and shifts them, then intensity
              and the other columns in the order of the file. ``.laz`` needs
              ``pip install "layoutconv[points]"``.

            Colours are numbers as in the file, from 0 to 255, or to 65535 in ``.las``.
        columns: how many columns. A ``.bin`` file does not say: by default it has 4, with a warning
            if its size also fits 5 or 6. From other files the first so many are kept, by default
            all.
        dtype: ``float32`` or ``float64`` numbers. Map coordinates, millions of metres in ``.las``,
            do not fit float32, and are an error: subtract an origin from float64.

    Reading is strict. Every number of a header must fit the file's size, a line of text must have
    the numbers that the header announces, and only padding may follow the data. Nothing is
    skipped, guessed or unpickled. The file's size bounds memory, whatever the header says: the
    rows, of 4 or 8 bytes for each number of the file, and some 50 MB. LZF in a ``.pcd`` adds at
    most 88 times its bytes; a ``.laz`` may hold 1,024 points for each byte of a chunk.

    Raises :class:`~layoutconv.errors.PointFileError` with the path for files that are missing,
    empty, not regular, truncated, damaged or of another kind; a missing package to read them; fewer
    columns than asked for, no points, no memory for them, values that are not finite (and how
    many), and coordinates that would be rounded by more than the steps of a ``.las``. Raises
    :class:`~layoutconv.errors.ArgumentError` for arguments.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "corner.ply")
    >>> _ = path.write_text('''ply
    ... format ascii 1.0
    ... element vertex 2
    ... property uchar red
    ... property float x
    ... property float y
    ... property float z
    ... end_header
    ... 255 0.0 0.5 1.0
    ... 0 1.5 2.0 2.5
    ... ''')
    >>> read_points(path).tolist()
    [[0.0, 0.5, 1.0, 255.0], [1.5, 2.0, 2.5, 0.0]]
    """
    import numpy as np

    name = name_of(path)
    wanted = WantedColumns(_columns(columns), _kind(dtype))
    suffix = os.path.splitext(name)[1].lower()
    reader = _READERS.get(suffix)
    if reader is None:
        unpack = "; unpack it first" if suffix in (".gz", ".bz2", ".xz", ".zst", ".zip") else ""
        raise PointFileError(
            f"{name}: cannot tell the format from the suffix {suffix!r}; "
            f"known are {', '.join(_READERS)}{unpack}"
        )
    with opened(name) as source:
        try:
            # A double too large for float32 is reported below.
            with np.errstate(over="ignore", invalid="ignore"):
                points = reader(source, wanted)
        except MemoryError as error:
            raise source.error(f"not enough memory to read its {source.size} bytes") from error
        _check(source, points)
    return points


def _check(source: Source, points: np.ndarray) -> None:
    """Raise unless there are points, with finite numbers."""
    import numpy as np

    if not len(points):
        raise source.error("has no points")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        numbers = points[row, :16].tolist()
        raise source.error(
            f"{np.count_nonzero(~finite)} of {len(points)} points have values that are not "
            f"finite {points.dtype} numbers, the first of them point {row}: {numbers}"
        )


def _columns(columns: Any) -> int | None:
    if columns is None:
        return None
    try:
        number = as_int(columns)
    except TypeError:
        raise ArgumentTypeError("columns", "an int, or None", repr(columns)) from None
    if number < 3 or isinstance(columns, bool):
        raise ArgumentError("columns", "3 (x, y, z) or more", columns)
    return number


def _kind(dtype: Any) -> np.dtype:
    import numpy as np

    try:
        kind = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError):
        kind = None
    # A dtype equals None, which NumPy takes for float64.
    if kind is None or kind not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ArgumentError("dtype", "float32 or float64", dtype)
    return kind
