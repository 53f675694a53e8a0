"""Readers of point files: ``.bin``, ``.npy`` and ``.ply``, to float32 rows that start x, y, z."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

# x, y, z, intensity: what lidars of cars write, and what a file without a header is taken for.
_BIN_COLUMNS = 4

_PLY_ORDER = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_PLY_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1",
    "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip


class PointFileError(ValueError):
    """A file that cannot be read, or that does not hold a point cloud; the message says why."""


def read_points(path: str | os.PathLike[str], columns: int | None = None) -> np.ndarray:
    """The points of a file, float32 (points, columns), x, y, z first.

    Args:
        path: a file whose suffix says what it is: ``.bin``, rows of little-endian float32 and
            nothing else; ``.npy``, an array (points, columns) of numbers; ``.ply``, ascii or
            binary of either byte order, whose vertices have properties x, y, z and others, which
            follow in the order of the file (colours from 0 to 255).
        columns: how many columns. A ``.bin`` file does not say, and has 4 unless told otherwise;
            of other files the first so many are kept, all of them by default.

    Raises :class:`PointFileError`: a file that is missing or truncated or of another kind, fewer
    columns than asked for, no points, values that are not finite (and how many).

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

    path = Path(path)
    if columns is not None and columns < 3:
        raise ArgumentError("columns", "3 (x, y, z) or more", columns)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PointFileError(
            f"{path}: cannot tell the format from the suffix {path.suffix!r}; "
            f"known are {', '.join(_READERS)}"
        )
    try:
        with np.errstate(over="ignore"):  # a double too large for float32 is reported below
            points = reader(path, columns).astype(np.float32, copy=False)
    except OSError as error:
        raise PointFileError(f"{path}: {error.strerror or error}") from error
    if not len(points):
        raise PointFileError(f"{path}: has no points")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise PointFileError(
            f"{path}: {np.count_nonzero(~finite)} of {len(points)} points have values that are not "
            f"finite float32 numbers, the first of them point {row}: {points[row].tolist()}"
        )
    return points


def _read_bin(path: Path, columns: int | None) -> np.ndarray:
    import numpy as np

    columns = columns or _BIN_COLUMNS
    data = path.read_bytes()
    if len(data) % (4 * columns):
        raise PointFileError(
            f"{path}: {len(data)} bytes are not a whole number of points of {columns} float32 "
            f"columns ({4 * columns} bytes); truncated, or with another number of columns"
        )
    return np.frombuffer(data, "<f4").reshape(-1, columns).copy()


def _read_npy(path: Path, columns: int | None) -> np.ndarray:
    import numpy as np

    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise PointFileError(f"{path}: not a whole .npy file: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise PointFileError(
            f"{path}: an array of numbers (points, columns) expected, "
            f"got {array.dtype} {array.shape}"
        )
    return _first_columns(path, array, columns)


def _read_ply(path: Path, columns: int | None) -> np.ndarray:
    import numpy as np

    data = path.read_bytes()
    order, elements, start = _ply_header(path, data)
    names = [element.name for element in elements]
    if "vertex" not in names:
        raise PointFileError(f"{path}: has no element named vertex, only {names}")
    before, vertex = elements[: names.index("vertex")], elements[names.index("vertex")]
    missing = [name for name in "xyz" if name not in vertex.properties]
    if missing or None in vertex.properties.values():
        raise PointFileError(
            f"{path}: vertices with properties x, y, z and no lists expected, got "
            f"{', '.join(vertex.properties)}"
        )

    if order == "=":
        # An element of an ascii file is a line.
        skipped = sum(element.count for element in before)
        lines = data[start:].split(b"\n")[skipped : skipped + vertex.count]
        try:
            values = np.array(b" ".join(lines).split(), dtype=np.float64)
        except ValueError as error:
            raise PointFileError(f"{path}: a vertex is not made of numbers: {error}") from error
        if len(values) != vertex.count * len(vertex.properties):
            raise PointFileError(
                f"{path}: {vertex.count} vertices of {len(vertex.properties)} properties expected, "
                f"but there are {len(values)} values; truncated?"
            )
        table = dict(zip(vertex.properties, values.reshape(vertex.count, -1).T, strict=True))
    else:
        if any(None in element.properties.values() for element in before):
            raise PointFileError(f"{path}: lists in front of the vertices are not supported")
        start += sum(element.count * element.dtype(order).itemsize for element in before)
        dtype = vertex.dtype(order)
        if len(data) - start < vertex.count * dtype.itemsize:
            raise PointFileError(
                f"{path}: {vertex.count} vertices of {dtype.itemsize} bytes expected, but only "
                f"{max(0, len(data) - start)} bytes follow the header; truncated?"
            )
        rows = np.frombuffer(data, dtype, vertex.count, start)
        table = {name: rows[name] for name in vertex.properties}

    ordered = [*"xyz", *(name for name in table if name not in ("x", "y", "z"))]
    points = np.stack([table[name].astype(np.float64) for name in ordered], axis=1)
    return _first_columns(path, points, columns)


@dataclass
class _PlyElement:
    name: str
    count: int
    properties: dict[str, str | None] = field(default_factory=dict)  # None: a list

    def dtype(self, order: str) -> np.dtype:
        import numpy as np

        return np.dtype([(name, order + (kind or "")) for name, kind in self.properties.items()])


def _ply_header(path: Path, data: bytes) -> tuple[str, list[_PlyElement], int]:
    """Byte order ("=" for ascii), the elements, and where the header ends."""
    if data[:3] != b"ply":
        raise PointFileError(f"{path}: not a PLY file, which starts with the line 'ply'")
    end = data.find(b"end_header")
    start = data.find(b"\n", end) + 1
    if end < 0 or not start:
        raise PointFileError(f"{path}: the header has no end; truncated?")
    order, elements = "", []
    for line in data[:end].decode("latin-1").splitlines():
        match line.split():
            case ["format", name, "1.0"] if name in _PLY_ORDER:
                order = _PLY_ORDER[name]
            case ["element", name, count] if count.isdigit():
                elements.append(_PlyElement(name, int(count)))
            case ["property", "list", _, _, name] if elements:
                elements[-1].properties[name] = None
            case ["property", kind, name] if elements and kind in _PLY_TYPES:
                elements[-1].properties[name] = _PLY_TYPES[kind]
            case [] | ["ply"] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise PointFileError(f"{path}: the header has a line that is not PLY: {line!r}")
    if not order:
        raise PointFileError(f"{path}: the header has no line 'format'")
    return order, elements, start


def _first_columns(path: Path, array: np.ndarray, columns: int | None) -> np.ndarray:
    columns = array.shape[1] if columns is None else columns
    if array.shape[1] < max(3, columns):
        raise PointFileError(
            f"{path}: {max(3, columns)} columns expected, but the file has {array.shape[1]}"
        )
    return array[:, :columns]


_READERS = {".bin": _read_bin, ".npy": _read_npy, ".ply": _read_ply}
