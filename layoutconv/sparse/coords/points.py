"""Readers of point files, to rows of floating-point numbers that start x, y, z.

``.pcd`` and ``.las`` are read by packages that are kept well, ``.bin`` and ``.npy`` by NumPy. The
package that reads ``.ply`` is under the GPL, so that format is read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import ArgumentError

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


def read_points(
    path: str | os.PathLike[str],
    columns: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
) -> np.ndarray:
    """The points of a file, (points, columns), x, y, z first.

    Args:
        path: a file whose suffix says what it is:

            - ``.bin``, rows of little-endian float32 and nothing else;
            - ``.npy``, an array (points, columns) of numbers;
            - ``.ply``, ascii or binary of either byte order, whose vertices have properties x, y,
              z and others, which follow in the order of the file;
            - ``.pcd``, ascii, binary or compressed, likewise; packed colours become red, green and
              blue, and points whose x, y, z are NaN, which were not seen, are left out;
            - ``.las`` and ``.laz``, x, y, z as the header scales and shifts them, then intensity
              and what else there is, in the order of the file.

            Colours are numbers as in the file, from 0 to 255, or to 65535 in ``.las``. ``.pcd``,
            ``.las`` and ``.laz`` want ``pip install "layoutconv[points]"``.
        columns: how many columns. A ``.bin`` file does not say, and has 4 unless told otherwise;
            of other files the first so many are kept, all of them by default.
        dtype: ``float32`` or ``float64`` numbers. Coordinates of maps, millions of metres in
            ``.las``, do not fit the first, and are an error: subtract an origin from the second.

    Raises :class:`.PointFileError`: a file that is missing or truncated or of another kind, or a
    package to read it that is missing; fewer columns than asked for, no points, values that are not
    finite (and how many), coordinates that would be rounded by more than the steps of a ``.las``.

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
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ArgumentError("dtype", "float32 or float64", dtype)
    kind = np.dtype(dtype)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PointFileError(
            f"{path}: cannot tell the format from the suffix {path.suffix!r}; "
            f"known are {', '.join(_READERS)}"
        )
    try:
        with np.errstate(over="ignore"):  # a double too large for float32 is reported below
            points = reader(path, columns, kind).astype(kind, copy=False)
    except OSError as error:
        raise PointFileError(f"{path}: {error.strerror or error}") from error
    if not len(points):
        raise PointFileError(f"{path}: has no points")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise PointFileError(
            f"{path}: {np.count_nonzero(~finite)} of {len(points)} points have values that are not "
            f"finite {kind} numbers, the first of them point {row}: {points[row].tolist()}"
        )
    return points


def _read_bin(path: Path, columns: int | None, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    columns = columns or _BIN_COLUMNS
    data = path.read_bytes()
    if len(data) % (4 * columns):
        raise PointFileError(
            f"{path}: {len(data)} bytes are not a whole number of points of {columns} float32 "
            f"columns ({4 * columns} bytes); truncated, or with another number of columns"
        )
    return np.frombuffer(data, "<f4").reshape(-1, columns).copy()


def _read_npy(path: Path, columns: int | None, dtype: np.dtype) -> np.ndarray:
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


def _read_ply(path: Path, columns: int | None, dtype: np.dtype) -> np.ndarray:
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


def _read_pcd(path: Path, columns: int | None, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    with path.open("rb") as file:
        pypcd4 = _package("pypcd4", path)
        try:
            cloud = pypcd4.PointCloud.from_fileobj(file)
        except Exception as error:  # of whatever kind the package raises for a broken file
            raise PointFileError(f"{path}: not a whole .pcd file: {_line(error)}") from error
    metadata, table = cloud.metadata, np.atleast_1d(cloud.pc_data)
    if len(table) != metadata.points:
        raise PointFileError(
            f"{path}: {metadata.points} points expected, but there are {len(table)}; truncated?"
        )
    fields = [name for name in table.dtype.names or () if not name.startswith("#")]  # padding
    if any(name not in fields for name in "xyz"):
        raise PointFileError(f"{path}: fields x, y, z expected, got {', '.join(fields)}")
    several = [n for n, c in zip(metadata.fields, metadata.count, strict=True) if c > 1]
    several = [name for name in several if not name.startswith("#")]
    if several and "compressed" in metadata.data.value:
        # Their numbers stand point by point, where the package takes them for separate fields.
        raise PointFileError(f"{path}: fields of several numbers, compressed: {several}")
    found = []
    for name in [*"xyz", *(name for name in fields if name not in ("x", "y", "z"))]:
        column = np.ascontiguousarray(table[name])
        if name in ("rgb", "rgba") and column.itemsize == 4:
            packed = column.view(np.uint32)
            found += [(packed >> shift) & 255 for shift in (16, 8, 0)]
        else:
            found.append(column)
    points = _side_by_side(found, columns)
    return _first_columns(path, points[~np.isnan(points[:, :3]).all(axis=1)], columns)


def _read_las(path: Path, columns: int | None, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    with path.open("rb"):  # what cannot be opened is said before what is not installed
        laspy = _package("laspy", path)
    if path.suffix.lower() == ".laz" and not laspy.LazBackend.detect_available():
        raise _missing("lazrs", path)
    try:
        las = laspy.read(path)
        names = [name for name in las.point_format.dimension_names if name not in ("X", "Y", "Z")]
        xyz = [np.asarray(las[name]) for name in "xyz"]
        points = _side_by_side([*xyz, *(np.asarray(las[name]) for name in names)], columns)
    except OSError:
        raise
    except Exception as error:  # of whatever kind the packages raise for a broken file
        raise PointFileError(f"{path}: not a whole file: {_line(error)}") from error
    if len(points) != las.header.point_count:
        raise PointFileError(
            f"{path}: {las.header.point_count} points expected, but there are {len(points)}"
        )
    rounding = np.abs(points[:, :3].astype(dtype) - points[:, :3]).max(axis=0, initial=0)
    if (rounding > las.header.scales).any():
        raise PointFileError(
            f"{path}: coordinates up to {np.abs(points[:, :3]).max():.10g}, in steps of "
            f"{las.header.scales.min():g}, do not fit {dtype}: read them with dtype='float64', and "
            f"subtract an origin"
        )
    return _first_columns(path, points, columns)


def _package(name: str, path: Path) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _missing(name, path) from error


def _missing(name: str, path: Path) -> PointFileError:
    return PointFileError(
        f"{path}: {path.suffix.lower()} files are read by {name}, which is not installed: "
        f'pip install "layoutconv[points]"'
    )


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _side_by_side(arrays: Iterable[np.ndarray], columns: int | None) -> np.ndarray:
    """float64 (points, columns) of arrays (points,) or (points, some): as many as are needed."""
    import numpy as np

    found: list[np.ndarray] = []
    for array in arrays:
        found += list(array.T) if array.ndim > 1 else [array]
        if columns is not None and len(found) >= columns:
            break
    return np.stack([column.astype(np.float64) for column in found], axis=1)


def _first_columns(path: Path, array: np.ndarray, columns: int | None) -> np.ndarray:
    columns = array.shape[1] if columns is None else columns
    if array.shape[1] < max(3, columns):
        raise PointFileError(
            f"{path}: {max(3, columns)} columns expected, but the file has {array.shape[1]}"
        )
    return array[:, :columns]


_READERS = {
    ".bin": _read_bin,
    ".npy": _read_npy,
    ".ply": _read_ply,
    ".pcd": _read_pcd,
    ".las": _read_las,
    ".laz": _read_las,
}
