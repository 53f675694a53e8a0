"""Chunks of a ``.laz`` file: found and measured here, decompressed by the package lazrs.

M. Isenburg, "LASzip: lossless compression of LiDAR data", 2013. The points begin with the position
of a table behind them, which has the size of every chunk. The package trusts such numbers: it would
allocate what they say, and could end the process. So it only gets measured chunks, some at a time,
and memory for as many points as they may hold.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .las_header import LasHeader
from .las_points import LasPoints
from .source import PIECE, Source

if TYPE_CHECKING:
    import numpy as np

_USER, _NUMBER = b"laszip encoded", 22204
_HEAD = struct.Struct("<HHBBHIIqqH")
_ITEM = struct.Struct("<HHH")
_SIZE_AT = 12  # bytes before the number of points of a chunk
_BY_POINT, _BY_LAYER = 2, 3  # how a chunk is compressed
_VARIABLE = 2**32 - 1  # as chunk size: each chunk has its own
# Points per byte: 660 for a million equal points.
_MOST_POINTS = 1 << 10


def decompressed(
    source: Source, header: LasHeader, points: LasPoints
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the records of a compressed file in pieces: their range, and an array.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    import numpy as np

    lazrs = _lazrs(source)
    record, by_layer, size = _description(source, header, points)
    at, chunks = _chunks(source, header, lazrs, record, size)
    done = 0
    for part in _batches(chunks, header.point_size if by_layer else PIECE):
        count, length = (sum(column) for column in zip(*part, strict=True))
        data = source.read(at, length, "chunks")
        if by_layer:
            _check_layers(source, header, points, data, part)
            table = bytearray(count * header.point_size)
            _guarded(source, lazrs.decompress_points_with_chunk_table, data, record, table, part)
        else:
            table = _by_point(source, header, lazrs, record, data, count)
        yield slice(done, done + count), np.frombuffer(table, points.dtype, count)
        done, at = done + count, at + length


def _by_point(
    source: Source, header: LasHeader, lazrs: Any, record: bytes, data: bytes, count: int
) -> bytearray:
    """Return the points of a chunk that is compressed point by point.

    Damaged bytes also decompress to points, but hardly ever end where the chunk does. So a chunk of
    one known point, which is stored uncompressed, is appended, and must come out unchanged.
    """
    mark = bytes(at * 37 % 251 for at in range(header.point_size))
    behind = mark + bytes(16)
    # A file of its own: the position of its table, both chunks, and an empty table, with bytes that
    # old versions of the package read ahead.
    whole = struct.pack("<q", 8 + len(data) + len(behind)) + data + behind + bytes(24)
    sized = record[:_SIZE_AT] + struct.pack("<I", count) + record[_SIZE_AT + 4 :]
    table = bytearray((count + 1) * header.point_size)
    reader = _guarded(source, lazrs.LasZipDecompressor, io.BytesIO(whole), sized)
    _guarded(source, reader.decompress_many, table)
    if table[-header.point_size :] != mark:
        raise source.error(
            "the compressed points are broken: they do not end where their chunk does"
        )
    return table


def _lazrs(source: Source) -> Any:
    try:
        import lazrs  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise source.error(
            "compressed points are read by lazrs, which is not installed: "
            'pip install "layoutconv[points]"'
        ) from error
    return lazrs


def _description(source: Source, header: LasHeader, points: LasPoints) -> tuple[bytes, bool, int]:
    """Return the compression record, whether it is by layers, and the points per chunk."""
    found = [
        record.data for record in header.records if (record.user, record.number) == (_USER, _NUMBER)
    ]
    if len(found) != 1 or len(found[0]) < _HEAD.size:
        raise source.error(f"expected one record that describes the compression, got {len(found)}")
    compressor, coder, _, _, _, _, size, _, _, count = _HEAD.unpack_from(found[0])
    if len(found[0]) != _HEAD.size + count * _ITEM.size:
        raise source.error(f"{len(found[0])} bytes cannot describe a compression of {count} items")
    items = [*_ITEM.iter_unpack(found[0][_HEAD.size :])]
    by_layer = header.point_format > 5
    if compressor != (_BY_LAYER if by_layer else _BY_POINT) or coder:
        raise source.error(f"expected a compression in chunks, got {compressor} with coder {coder}")
    expected = _items(header.point_format, header.point_size - points.base)
    versions = {version for _, _, version in items}
    if [item[:2] for item in items] != expected or not versions <= ({3, 4} if by_layer else {1, 2}):
        raise source.error(f"expected the compressed items {expected}, got {items}")
    if not size:
        raise source.error("expected chunks of 1 point or more, got 0")
    return found[0], by_layer, size


def _items(point_format: int, extra: int) -> list[tuple[int, int]]:
    """Return the item types of a compressed point, and the bytes of each."""
    if point_format > 5:
        colours = {7: [(11, 6)], 8: [(12, 8)], 10: [(12, 8)]}.get(point_format, [])
        wave = [(13, 29)] if point_format > 8 else []
        found = [(10, 30), *colours, *wave, (14, extra)]
    else:
        time = [(7, 8)] if point_format in (1, 3, 4, 5) else []
        colours = [(8, 6)] if point_format in (2, 3, 5) else []
        wave = [(9, 29)] if point_format > 3 else []
        found = [(6, 20), *time, *colours, *wave, (0, extra)]
    return found if extra else found[:-1]


def _chunks(
    source: Source, header: LasHeader, lazrs: Any, record: bytes, size: int
) -> tuple[int, list[tuple[int, int]]]:
    """Return where chunks begin, and the number of points and bytes of each."""
    begin, table, count = _table(source, header, size)
    data = source.read(table, min(source.size - table, 64 + 16 * count), "the chunk table")
    found = _guarded(source, lazrs.read_chunk_table_only, io.BytesIO(data), lazrs.LazVlr(record))
    chunks = [(int(points), int(length)) for points, length in found]
    if size != _VARIABLE:  # the table has no numbers of points: all chunks but the last are full
        whole, over = divmod(header.points, size)
        counts = [size] * whole + [over] * bool(over)
        chunks = [(points, length) for points, (_, length) in zip(counts, chunks, strict=True)]
    total, room = sum(points for points, _ in chunks), sum(length for _, length in chunks)
    if (total, room) != (header.points, table - begin):
        raise source.error(
            f"expected chunks of {header.points} points in {table - begin} bytes, got {total} in "
            f"{room}"
        )
    if chunks and not chunks[-1][0]:  # some writers append an empty chunk
        chunks.pop()
    for points, length in chunks:
        if not points or not max(header.point_size, points / _MOST_POINTS) <= length <= room:
            raise source.error(f"a chunk claims {points} points in {length} bytes")
    return begin, chunks


def _table(source: Source, header: LasHeader, size: int) -> tuple[int, int, int]:
    """Return where chunks begin, where they end and their table begins, and their number."""
    begin = header.start + 8
    place = source.read(header.start, 8, "the place of the chunk table")
    if place == bytes([255] * 8):  # the writer could not seek back: it is at the end
        place = source.read(source.size - 8, 8, "the place of the chunk table")
    (table,) = struct.unpack("<q", place)
    if not begin <= table <= source.size - 8:
        raise source.error(
            f"expected a chunk table between bytes {begin} and {source.size}, got {table}"
        )
    version, count = struct.unpack("<II", source.read(table, 8, "the chunk table"))
    # Each chunk has an uncompressed point, except an empty last chunk of some writers.
    most = (table - begin) // header.point_size + 1
    fitting = count <= most if size == _VARIABLE else count == -(-header.points // size) <= most
    if version or not fitting:
        raise source.error(
            f"expected a chunk table for {header.points} points in {table - begin} bytes, got "
            f"{count} chunks"
        )
    return begin, table, count


def _batches(chunks: Sequence[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield batches of chunks, with some 16 MiB of points of ``size`` bytes."""
    part: list[tuple[int, int]] = []
    taken = 0
    for points, length in chunks:
        if part and (taken + points) * size > PIECE:
            yield part
            part, taken = [], 0
        part.append((points, length))
        taken += points
    if part:
        yield part


def _check_layers(
    source: Source, header: LasHeader, points: LasPoints, data: bytes, chunks: list[tuple[int, int]]
) -> None:
    """Raise unless the sizes stored in chunks of layers add up to the chunks' lengths.

    A chunk has its first point, its number of points, the sizes of its layers, and the layers.
    """
    layers = 9 + (header.point_format in (7, 8, 10)) + (header.point_format in (8, 10))
    layers += (header.point_format > 8) + header.point_size - points.base
    at = 0
    for count, length in chunks:
        first = at + header.point_size
        at += length
        if first + 4 * (1 + layers) > at:
            raise source.error(
                f"a chunk of {length} bytes has no room for the sizes of {layers} layers"
            )
        found, *sizes = struct.unpack_from(f"<{1 + layers}I", data, first)
        if found != count or first + 4 * (1 + layers) + sum(sizes) != at:
            raise source.error(
                f"expected a chunk of {count} points in {length} bytes, got {found} in layers of "
                f"{sum(sizes)} bytes"
            )


def _guarded(source: Source, function: Any, *arguments: Any) -> Any:
    """Call the package; its exceptions and panics become errors about the file."""
    try:
        return function(*arguments)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic is no Exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise source.error(f"the compressed points are broken: {reason}") from error
