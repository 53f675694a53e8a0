"""``LasPoints``: the numbers of a LAS file's points, and how to extract them."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

from .columns import MOST_COLUMNS
from .las_header import LasHeader
from .source import Source

if TYPE_CHECKING:
    import numpy as np

# The columns of each number of a format, in order. A number that holds several columns has the bits
# of each after its name.
_XYZ = [("x", "i4"), ("y", "i4"), ("z", "i4"), ("intensity", "u2")]
_OLD = [
    *_XYZ,
    ("return_number:3 number_of_returns:3 scan_direction_flag:1 edge_of_flight_line:1", "u1"),
    ("classification:5 synthetic:1 key_point:1 withheld:1", "u1"),
    ("scan_angle_rank", "i1"), ("user_data", "u1"), ("point_source_id", "u2"),
]  # fmt: skip
_NEW = [
    *_XYZ,
    ("return_number:4 number_of_returns:4", "u1"),
    ("synthetic:1 key_point:1 withheld:1 overlap:1 scanner_channel:2 scan_direction_flag:1 "
     "edge_of_flight_line:1", "u1"),
    ("classification", "u1"), ("user_data", "u1"), ("scan_angle", "i2"),
    ("point_source_id", "u2"), ("gps_time", "f8"),
]  # fmt: skip
_TIME = [("gps_time", "f8")]
_COLOUR = [("red", "u2"), ("green", "u2"), ("blue", "u2")]
_NIR = [("nir", "u2")]
_WAVE = [
    ("wavepacket_index", "u1"), ("wavepacket_offset", "u8"), ("wavepacket_size", "u4"),
    ("return_point_wave_location", "f4"), ("x_t", "f4"), ("y_t", "f4"), ("z_t", "f4"),
]  # fmt: skip
_FORMATS = (
    _OLD, _OLD + _TIME, _OLD + _COLOUR, _OLD + _TIME + _COLOUR, _OLD + _TIME + _WAVE,
    _OLD + _TIME + _COLOUR + _WAVE,
    _NEW, _NEW + _COLOUR, _NEW + _COLOUR + _NIR, _NEW + _WAVE, _NEW + _COLOUR + _NIR + _WAVE,
)  # fmt: skip

_EXTRA = struct.Struct("<2x BB 32s 4x 72x 3d 3d 32x")
_EXTRA_USER, _EXTRA_NUMBER = b"LASF_Spec", 4
_EXTRA_KINDS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
_HAS_SCALE, _HAS_OFFSET = 8, 16


class _Column(NamedTuple):
    """One number of a point: how it is stored, and how it is scaled."""

    name: str
    field: int  # of the record
    shift: int = 0  # of bits
    bits: int = 0  # 0: all
    scale: float = 1.0
    offset: float = 0.0


class LasPoints:
    """The columns of the points of a file, x, y, z first, as the header scales and shifts them.

    Attributes:
        dtype: of a point's record.
        names: of its columns.
        base: how many bytes of a record belong to its format; the others are extra.
    """

    def __init__(self, source: Source, header: LasHeader) -> None:
        import numpy as np

        self._columns: list[_Column] = []
        kinds: list[str] = []
        for name, kind in _FORMATS[header.point_format]:
            shift = 0
            for part in name.split():
                part, _, bits = part.partition(":")
                self._columns.append(_Column(part, len(kinds), shift, int(bits or 0)))
                shift += int(bits or 0)
            kinds.append(kind)
        for axis, (scale, offset) in enumerate(zip(header.scales, header.offsets, strict=True)):
            self._columns[axis] = self._columns[axis]._replace(scale=scale, offset=offset)
        self.base = sum(int(kind[1]) for kind in kinds)
        if header.point_size < self.base:
            raise source.error(
                f"expected points of {self.base} bytes or more for point format "
                f"{header.point_format}, got {header.point_size}"
            )
        self._add_extra(source, header, kinds)
        self.names = [column.name for column in self._columns]
        self.dtype = np.dtype([(f"f{at}", "<" + kind) for at, kind in enumerate(kinds)])

    def column(self, records: np.ndarray, place: int) -> np.ndarray:
        """Return a column of some records: float64 if it is scaled, else in the file's type."""
        import numpy as np

        column = self._columns[place]
        found: np.ndarray = records[f"f{column.field}"]
        if column.bits:
            return (found >> column.shift) & ((1 << column.bits) - 1)
        if (column.scale, column.offset) != (1, 0):
            return found.astype(np.float64) * column.scale + column.offset
        return found

    def _add_extra(self, source: Source, header: LasHeader, kinds: list[str]) -> None:
        """Add the columns of bytes beyond the format: as their record says, or one per byte."""
        left = header.point_size - self.base
        found = [
            record.data
            for record in header.records
            if (record.user, record.number) == (_EXTRA_USER, _EXTRA_NUMBER)
        ]
        if len(found) > 1:
            raise source.error(f"expected one record of extra bytes, got {len(found)}")
        data = found[0] if found and left else b""
        if len(data) % _EXTRA.size:
            raise source.error(
                f"expected whole entries of {_EXTRA.size} bytes that describe extra bytes, "
                f"got {len(data)}"
            )
        for kind, options, name, *doubles in _EXTRA.iter_unpack(data):
            left -= self._add_described(source, kinds, kind, options, name, doubles)
        if left < 0:
            raise source.error(
                f"the header describes {-left} more extra bytes than the points have"
            )
        if len(self._columns) + left > MOST_COLUMNS:
            raise source.error(f"points have more than {MOST_COLUMNS} numbers")
        for _ in range(left):
            self._columns.append(_Column("extra_bytes", len(kinds)))
            kinds.append("u1")

    def _add_described(
        self, source: Source, kinds: list[str], kind: int, options: int, name: bytes, doubles: list
    ) -> int:
        """Add the columns of one description; return how many bytes it takes."""
        if not kind:  # undocumented bytes, with their number in place of options
            several, number, options = options, "u1", 0
        elif kind <= 3 * len(_EXTRA_KINDS):  # two or three numbers, in old files
            several, at = divmod(kind - 1, len(_EXTRA_KINDS))
            several, number = several + 1, _EXTRA_KINDS[at]
        else:
            raise source.error(
                f"expected extra bytes of type 0 to {3 * len(_EXTRA_KINDS)}, got {kind}"
            )
        scales = doubles[:3] if options & _HAS_SCALE else [1.0] * 3
        offsets = doubles[3:] if options & _HAS_OFFSET else [0.0] * 3
        if not all(map(math.isfinite, scales + offsets)):
            raise source.error(f"expected finite scales of extra bytes, got {scales}, {offsets}")
        text = name.rstrip(b"\0").decode("latin-1")
        for at in range(several):
            scaled = (scales[at], offsets[at]) if kind else (1.0, 0.0)
            self._columns.append(_Column(f"extra {text}", len(kinds), 0, 0, *scaled))
            kinds.append(number)
        return several * int(number[1])
