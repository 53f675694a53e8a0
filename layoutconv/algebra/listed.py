"""Bit planes of integers listed in a sequence or in the memory of an array."""

from __future__ import annotations

import sys
from array import array
from typing import Any

from .arrays import is_array
from .plane_values import Planes, Values, planes_of_bytes, trimmed

_WORD = 1 << 64
_SIGNED, _UNSIGNED = tuple("bhilq"), tuple("BHILQ")  # integers of the buffer protocol
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>"
_FLIPPED = bytes([byte ^ 0x80 for byte in range(256)])  # flips the sign bit


def of_integers(values: Any) -> Values | None:
    """Return the values of a sequence or an array of integers; None for anything else.

    >>> of_integers([5, -1, 7]).listed().tolist(), of_integers([1.5]), of_integers([1 << 70]).at(0)
    ([5, -1, 7], None, 1180591620717411303424)
    """
    wide: Any = _memory(values) if is_array(values) else None
    if wide is None:
        values = values.tolist() if is_array(values) else values
        try:
            wide = memoryview(array("q", values))
        except TypeError:
            return None
        except OverflowError:
            return _of_words(values)
    kind = wide.format.lstrip(_NATIVE)
    planes = _of_bytes(wide.tobytes(), wide.itemsize, signed=kind in _SIGNED)
    least = -(1 << 8 * wide.itemsize - 1) if kind in _SIGNED else 0
    return trimmed(planes, len(wide), least)


def _of_words(values: Any) -> Values | None:
    """Return the values of integers of more than 64 bits."""
    if not all(isinstance(x, int) for x in values):
        return None
    low = _of_bytes(array("Q", [x % _WORD for x in values]).tobytes(), 8, signed=False)
    high = of_integers([x // _WORD for x in values])
    return high and Values(low + high.planes, len(values), high.low * _WORD)


def _memory(values: Any) -> memoryview | None:
    """Return the memory of a contiguous array of integers, mostly NumPy's; None if unreadable."""
    try:
        wide = memoryview(values)
    except (TypeError, ValueError, BufferError):
        return None
    kind = wide.format.lstrip(_NATIVE)
    return wide if wide.ndim == 1 and kind in (*_SIGNED, *_UNSIGNED) else None


def _of_bytes(wide: bytes, size: int, *, signed: bool) -> Planes:
    """Return the planes of integers of ``size`` bytes, less the smallest integer of that type."""
    order = range(size) if sys.byteorder == "little" else range(size)[::-1]
    columns = [wide[k::size] for k in order]
    if signed:
        columns[-1] = columns[-1].translate(_FLIPPED)
    return [plane for column in columns for plane in planes_of_bytes(column)]
