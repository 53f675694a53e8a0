"""The header of a ``.las`` or ``.laz`` file, and the variable length records behind it.

ASPRS, "LAS Specification", 1.0 to 1.4 R15. Files of 1.5, whose header is that of 1.4 with an
extension, are read, too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .source import Source

# Bytes of a header, and the existing point formats, by the minor version.
_SIZES = (227, 227, 227, 235, 375, 393)
_FORMATS = (range(2), range(2), range(4), range(6), range(11), range(6, 11))
# Signature, ..., version, ..., sizes, numbers of points, ..., scales, offsets, ...
_COMMON = struct.Struct("<4s 20x BB 68x HIIBHI 20x 3d 3d 48x")
_RECORD = struct.Struct("<2x 16s HH 32x")
_EXTENDED = struct.Struct("<2x 16s H Q 32x")
_COMPRESSED, _UNKNOWN = 0x80, 0x40  # bits of the point format
_WAVEFORMS_INSIDE = 2  # a bit of the global encoding


class LasRecord(NamedTuple):
    """A variable length record."""

    user: bytes
    number: int
    data: bytes


@dataclass(frozen=True)
class LasHeader:
    """The part of a header that reading the points needs."""

    point_format: int
    point_size: int  # bytes, including those beyond the format
    points: int
    scales: tuple[float, float, float]
    offsets: tuple[float, float, float]
    start: int  # of the points
    stop: int  # start of the data behind them, or the file's end
    compressed: bool
    records: list[LasRecord]


def read_header(source: Source) -> LasHeader:
    """Read the header and all records that it counts.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    head = source.head(max(_SIZES))
    if head[:4] != b"LASF":
        raise source.error("not a LAS file, which starts with 'LASF'")
    head = source.read(0, _SIZES[0], "the header")
    (
        _, major, minor, size, start, records, point_format, point_size, points, *doubles,
    ) = _COMMON.unpack(head)  # fmt: skip
    if major != 1 or minor >= len(_SIZES):
        raise source.error(
            f"expected LAS of version 1.0 to 1.{len(_SIZES) - 1}, got {major}.{minor}"
        )
    if size < _SIZES[minor]:
        raise source.error(f"expected a header of {_SIZES[minor]} bytes, got {size}")
    head = source.read(0, size, "the header")
    compressed, point_format = bool(point_format & _COMPRESSED), point_format & ~_COMPRESSED
    if point_format & _UNKNOWN or point_format not in _FORMATS[minor]:
        known = f"{_FORMATS[minor].start} to {_FORMATS[minor].stop - 1}"
        raise source.error(
            f"expected a point format of {known} for LAS 1.{minor}, got {point_format}"
        )
    if not all(map(math.isfinite, doubles)) or min(doubles[:3]) <= 0:
        raise source.error(f"expected positive scales and finite offsets, got {doubles}")
    if not size <= start <= source.size:
        raise source.error(
            f"expected points after the header's {size} bytes, got byte {start} of {source.size}"
        )
    points, stop = _count_and_stop(source, head, minor, points)
    if not start <= stop <= source.size:
        raise source.error(f"expected records after the points, got byte {stop} of {source.size}")
    return LasHeader(
        point_format, point_size, points, tuple(doubles[:3]), tuple(doubles[3:]), start, stop,
        compressed, [*_records(source, records, size, start)],
    )  # fmt: skip


def _count_and_stop(source: Source, head: bytes, minor: int, legacy: int) -> tuple[int, int]:
    """Return the number of points, and where the data behind them begin."""
    if minor < 3:
        return legacy, source.size
    stop, points = source.size, legacy
    if head[6] & _WAVEFORMS_INSIDE:
        stop = struct.unpack_from("<Q", head, 227)[0] or stop
    if minor > 3:
        start, records, points = struct.unpack_from("<QIQ", head, 235)
        if legacy not in (0, points):  # a number for readers of old versions
            raise source.error(f"the header has two numbers of points, {legacy} and {points}")
        if records:
            stop = min(stop, start)
            _walk_extended(source, start, records)
    return points, stop


def _records(source: Source, count: int, start: int, stop: int) -> Iterator[LasRecord]:
    """Yield the records between the header and the points."""
    if count * _RECORD.size > stop - start:
        raise source.error(
            f"expected {count} records of {_RECORD.size} bytes or more in the {stop - start} bytes "
            f"between header and points"
        )
    for _ in range(count):
        user, number, size = _RECORD.unpack(source.read(start, _RECORD.size, "a record"))
        start += _RECORD.size
        if start + size > stop:
            raise source.error(
                f"a record of {size} bytes ends after byte {stop}, where the points begin"
            )
        yield LasRecord(user.rstrip(b"\0"), number, source.read(start, size, "a record"))
        start += size


def _walk_extended(source: Source, start: int, count: int) -> None:
    """Raise unless all records behind the points, which are not needed, exist."""
    what = f"{count} records behind the points"
    source.check_room(start, count * _EXTENDED.size, what)
    for _ in range(count):
        _, _, size = _EXTENDED.unpack(source.read(start, _EXTENDED.size, what))
        start += _EXTENDED.size + size
        source.check_room(start, 0, what)
