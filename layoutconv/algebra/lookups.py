"""Values of functions as bit planes: of lists, of a stride, and of a table at some places."""

from __future__ import annotations

from typing import Any

from .bit_planes import planes_of
from .budget import EVALUATIONS, once
from .errors import LayoutValueError
from .layout import Layout
from .listed import of_integers
from .plane_values import Planes, Values, bytes_of, planes_of_bytes
from .protocol import is_stride
from .stride import finished

_BYTE = 256  # places that fit in a byte
_LISTS = 4  # entries per place from which a list of all entries does not pay off


def of_stride(d: Any, extent: int) -> Values | None:
    """Return a stride's values at ``extent`` coordinates, if known at once or few; else None.

    >>> from .gather import CustomStride, IndexedGather
    >>> of_stride(CustomStride(IndexedGather([4, 0, 2]), 10), 3).listed().tolist()
    [40, 0, 20]
    """
    found: Values | None = once(d, extent, lambda: known_values(d, extent) or _called(d, extent))
    return found


def known_values(d: Any, extent: int) -> Values | None:
    """Return the values of a stride that knows them without calls; None otherwise."""
    found = d.values(extent) if is_stride(d) else None
    if found is None:
        return None
    values = found if isinstance(found, Values) else of_integers(found)
    if values is not None and values.count != extent:
        raise LayoutValueError(f"{d}: values({extent}) gave {values.count} of them")
    return values


def _called(d: Any, extent: int) -> Values | None:
    if extent > EVALUATIONS:
        return None
    found = [finished(c * d) for c in range(extent)]
    return of_integers(found) if {type(x) for x in found} == {int} else None


def repeated(values: Values, times: int, count: int) -> Planes:
    """Return the planes of values, each repeated ``times``, and all repeated up to ``count``.

    >>> repeated(Values([0b10], 2, 0), 3, 10)  # 0 0 0 1 1 1 0 0 0 1
    [568]
    """
    planes, length = values.planes, values.count * times
    if times > 1:
        planes = []
        for k in range(0, len(values.planes), 8):
            column = bytes_of(values.planes[k : k + 8], values.count)
            planes += planes_of_bytes(_stretched(column, times))
        planes = planes[: len(values.planes)]
    result = []
    for plane in planes:
        done = length
        while done < count:
            more = min(done, count - done)
            plane |= (plane & ((1 << more) - 1)) << done
            done += more
        result.append(plane)
    return result


def _stretched(column: bytes | bytearray, times: int) -> bytes | bytearray:
    """Return bytes, each repeated ``times``."""
    if times >= len(column):
        return b"".join([column[i : i + 1] * times for i in range(len(column))])
    result = bytearray(len(column) * times)
    for k in range(times):
        result[k::times] = column
    return result


def counted(values: Values, first: int = 0, step: int = 1) -> int:
    """Return how many leading values are ``first``, ``first + step``, and so on.

    >>> counted(of_integers([0, 1, 2, 3, 8, 9]))
    4
    """
    count = values.count
    planes = planes_of(Layout(count, step), 0, (count * step).bit_length())
    end = values.first_difference(Values(planes, count, first))
    return count if end is None else end


def at_places(table: Values, places: Values) -> Values | None:
    """Return the entries of a table at some places.

    >>> at_places(of_integers([7, 5, -3]), of_integers([2, 0, 2, 1])).listed().tolist()
    [-3, 7, -3, 5]
    """
    if table.count > _BYTE:
        first, ones = places.at(0), (1 << places.count) - 1
        if counted(places, first) == places.count:
            return Values([p >> first & ones for p in table.planes], places.count, table.low)
        entries = table.listed()
        if table.count < _LISTS * places.count:
            entries = list(entries)
        return of_integers(list(map(entries.__getitem__, places.listed())))
    index = bytes(bytes_of(places.above(0)[:8], places.count))
    planes: Planes = []
    for k in range(0, len(table.planes), 8):
        row = bytes(bytes_of(table.planes[k : k + 8], table.count)).ljust(_BYTE, b"\0")
        planes += planes_of_bytes(index.translate(row))
    return Values(planes[: len(table.planes)], places.count, table.low)
