"""``.pcd``: the format of the Point Cloud Library, ascii, binary or compressed.

https://pointclouds.org/documentation/tutorials/pcd_file_format.html describes it, except for the
compressed form: two uint32, the sizes of the compressed and the uncompressed data, then LZF of all
numbers of the first field, all of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .columns import PointColumns, WantedColumns
from .lzf import MOST, decompress
from .pcd_header import PcdField, PcdHeader, read_header
from .source import Source
from .text_lines import Lines, check_text, numbers

if TYPE_CHECKING:
    import numpy as np

    Pieces = Iterator[tuple[slice, Any]]


def read_pcd(source: Source, wanted: WantedColumns) -> np.ndarray:
    """Return the rows of a ``.pcd`` file, without unseen points, whose x, y, z are NaN.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    import numpy as np

    header = read_header(source)
    # For each column of the result: its field, and its number or colour there.
    places, names = [], []
    for at, field in enumerate(header.fields):
        if field.is_padding:
            continue
        for which in range(3 if field.is_colour else field.count):
            places.append((at, which))
            several = field.is_colour or field.count > 1
            names.append(f"{field.name}[{which}]" if several else field.name)
    read = {"ascii": _ascii, "binary": _binary, "binary_compressed": _compressed}[header.data]
    pieces = read(source, header)
    columns = PointColumns(source, names, header.points, wanted)

    def column(piece: Any, place: int) -> np.ndarray:
        at, which = places[place]
        found: np.ndarray = piece[f"f{at}"]
        if not header.fields[at].is_colour:
            return found[:, which]
        packed = np.ascontiguousarray(found[:, 0]).view(np.uint32)
        return (packed >> (16 - 8 * which)) & 255

    rows = columns.fill(pieces, column)
    unseen = np.isnan(rows[:, :3]).all(axis=1)
    return rows[~unseen] if unseen.any() else rows


def _binary(source: Source, header: PcdHeader) -> Pieces:
    dtype = _dtype(header.fields)
    end = header.end + header.points * dtype.itemsize
    what = f"{header.points} points of {dtype.itemsize} bytes"
    source.check_room(header.end, end - header.end, what)
    source.check_end(end, what)
    return source.records(dtype, header.points, header.end, what)


def _compressed(source: Source, header: PcdHeader) -> Pieces:
    import numpy as np

    sizes = source.read(header.end, 8, "the sizes of the compressed data")
    packed, size = (int.from_bytes(part, "little") for part in (sizes[:4], sizes[4:]))
    point = sum(field.size for field in header.fields)
    if size != header.points * point:
        raise source.error(
            f"expected {header.points} points of {point} bytes, got {size} bytes, compressed"
        )
    data = source.read(header.end + 8, packed, "the compressed data")
    source.check_end(header.end + 8 + packed, "the compressed data")
    if size > MOST * packed:
        raise source.error(f"{packed} bytes of LZF cannot be compressed from {size}")
    table = decompress(data, size)
    if table is None:
        raise source.error(f"the compressed data are not LZF of {size} bytes")

    def pieces() -> Pieces:
        fields, begin = {}, 0
        for at, field in enumerate(header.fields):
            found = np.frombuffer(table, "<" + field.kind, header.points * field.count, begin)
            fields[f"f{at}"] = found.reshape(header.points, field.count)
            begin += header.points * field.size
        yield slice(0, header.points), fields

    return pieces()


def _ascii(source: Source, header: PcdHeader) -> Pieces:
    kinds = [field.kind for field in header.fields for _ in range(field.count)]
    check_text(source, header.end, header.points, len(kinds), "points")

    def pieces() -> Pieces:
        lines = Lines(source, header.end)
        for rows, part in lines.take(header.points, "points"):
            table = numbers(source, part, kinds, "points")
            fields, begin = {}, 0
            for at, field in enumerate(header.fields):
                found = table[:, begin : begin + field.count]
                # Round float32 as in a binary file, and keep the bits of packed colours.
                exact = field.is_colour or field.kind == "f4"
                fields[f"f{at}"] = found.astype(field.kind) if exact else found
                begin += field.count
            yield rows, fields
        lines.check_end("points")

    return pieces()


def _dtype(fields: list[PcdField]) -> np.dtype:
    import numpy as np

    return np.dtype(
        [(f"f{at}", "<" + field.kind, (field.count,)) for at, field in enumerate(fields)]
    )
