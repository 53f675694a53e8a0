"""``.las`` and ``.laz``: the LASer formats of surveys, uncompressed and compressed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .columns import PointColumns, WantedColumns
from .las_header import LasHeader, read_header
from .las_points import LasPoints
from .laz import decompressed
from .source import Source

if TYPE_CHECKING:
    import numpy as np


def read_las(source: Source, wanted: WantedColumns) -> np.ndarray:
    """Return the rows of a ``.las`` or ``.laz`` file, whatever its suffix.

    Raises :class:`~layoutconv.errors.PointFileError`, also for coordinates that would be rounded by
    more than the file's steps.
    """
    header = read_header(source)
    points = LasPoints(source, header)
    pieces = (
        decompressed(source, header, points)
        if header.compressed
        else _plain(source, header, points)
    )
    rounding = _Rounding(source, header, wanted)

    def column(records: np.ndarray, place: int) -> np.ndarray:
        found = points.column(records, place)
        if place < 3:
            rounding.see(found, place)
        return found

    rows = PointColumns(source, points.names, header.points, wanted).fill(pieces, column)
    rounding.check()
    return rows


def _plain(
    source: Source, header: LasHeader, points: LasPoints
) -> Iterator[tuple[slice, np.ndarray]]:
    what = f"{header.points} points of {header.point_size} bytes"
    end = header.start + header.points * header.point_size
    source.check_room(header.start, end - header.start, what)
    if end > header.stop:
        raise source.error(f"{what} end after byte {header.stop}, where other records begin")
    source.check_end(end, what, header.stop)
    return source.records(points.dtype, header.points, header.start, what)


class _Rounding:
    """The distance between coordinates and their rounded values in the result."""

    def __init__(self, source: Source, header: LasHeader, wanted: WantedColumns) -> None:
        self.source, self.header, self.dtype = source, header, wanted.dtype
        self.worst = [0.0] * 3
        self.largest = 0.0

    def see(self, exact: np.ndarray, axis: int) -> None:
        import numpy as np

        if self.dtype.itemsize < 8:
            off = float(np.abs(exact.astype(self.dtype) - exact).max(initial=0))
            self.worst[axis] = max(self.worst[axis], off)
            self.largest = max(self.largest, float(np.abs(exact).max(initial=0)))

    def check(self) -> None:
        scales = self.header.scales
        if any(off > scale for off, scale in zip(self.worst, scales, strict=True)):
            raise self.source.error(
                f"coordinates up to {self.largest:.10g}, in steps of {min(scales):g}, do not fit "
                f"{self.dtype}: read them with dtype='float64', and subtract an origin"
            )
