"""Arrays of coordinates: evaluated in a type that holds the offsets, or refused.

This handles NumPy, torch and libraries like them without importing any: an array has a ``dtype``
and an ``ndim``. The layout and the type of the coordinates decide the type. The values count only
if coordinates far outside the layout may exceed 64 bits.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError, LayoutValueError
from .int_tuple import IntTuple, flatten, paired_leaves
from .numbers import is_no_integer
from .protocol import bounds, is_integer

Interval = tuple[int, int]
_INT64: Interval = (-(1 << 63), (1 << 63) - 1)


def is_array(c: Any) -> bool:
    """Tell if ``c`` is an array of NumPy, torch or a similar library."""
    return hasattr(c, "dtype") and hasattr(c, "ndim")


def has_array(crd: IntTuple) -> bool:
    """Tell if a coordinate contains an array."""
    return any(map(has_array, crd)) if isinstance(crd, tuple) else is_array(crd)


def type_range(c: Any) -> Interval:
    """Return the smallest and the largest integer of an array's type."""
    dtype = c.dtype
    bits = 8 * dtype.itemsize
    kind = getattr(dtype, "kind", None)
    signed = kind == "i" if isinstance(kind, str) else bool(dtype.is_signed)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def in_int64(c: Any) -> Any:
    """Convert an array of integers to signed 64 bits."""
    most = type_range(c)
    if most == _INT64:
        return c
    to_int64 = getattr(c, "long", None)  # torch
    result = to_int64() if callable(to_int64) else c.astype("int64")
    if most[1] > _INT64[1] and _extremes(result)[0] < 0:
        raise LayoutValueError(f"an array of {c.dtype} has values above 64 signed bits")
    return result


def is_negative(c: Any) -> bool:
    """Tell if some integer of an array is below 0."""
    return type_range(c)[0] < 0 and _extremes(c)[0] < 0


def computable(c: Any) -> Any:
    """Widen an array that its library cannot compute with: torch's unsigned types, except bytes.

    >>> import torch
    >>> computable(torch.tensor([40000], dtype=torch.uint16)) % 7
    tensor([2])
    """
    dtype = c.dtype
    if isinstance(getattr(dtype, "kind", None), str) or dtype.is_signed or dtype.itemsize == 1:
        return c
    return in_int64(c)


def product_of(c: Any, factor: Any) -> Any:
    """Return ``c * factor``, in a type that holds it."""
    c = in_int64(c)
    if isinstance(factor, int) and abs(factor) >> 1:
        low, high = _extremes(c)
        if not _inside((min(low * factor, high * factor), max(low * factor, high * factor))):
            raise LayoutValueError(f"an array of {c.dtype} times {factor} needs more than 64 bits")
    return c * factor


def moved(c: Any, offset: int) -> Any:
    """Return ``c + offset``, in a type that holds it."""
    if not offset:
        return c
    c = in_int64(c)
    if abs(offset) >> 31:
        low, high = _extremes(c)
        if not _inside((low + offset, high + offset)):
            raise LayoutValueError(
                f"{offset} added to an array of {c.dtype} needs more than 64 bits"
            )
    return c + offset


def fitting(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> IntTuple:
    """Convert the arrays of ``crd`` to a type in which the layout can be evaluated.

    Raises :class:`LayoutValueError` if 64 bits do not hold the offsets.
    """
    arrays = [c for c in flatten(crd) if is_array(c)]
    by_type = _reach(crd, shape, stride, type_range)
    unbounded = any(_is_unbounded(s, d) for s, d in paired_leaves(shape, stride))
    smallest = min(map(type_range, arrays), key=lambda interval: interval[1])
    constants = [x for x in (*flatten(shape), *flatten(stride)) if isinstance(x, int)]
    needed = min(by_type[0], *constants, 0), max(by_type[1], *constants, 0)
    if not unbounded and smallest[0] <= needed[0] and needed[1] <= smallest[1]:
        return crd
    widest = max(constants, key=abs, default=0)
    if not _inside((widest, widest)):
        raise LayoutValueError(
            f"{widest}, an extent or a stride at an array of coordinates, needs more than 64 bits; "
            "evaluate Python integers"
        )
    if unbounded or not _inside(by_type):
        by_value = _reach(crd, shape, stride, _extremes)
        if not _inside(by_value):
            bits = max(abs(by_value[0]), abs(by_value[1])).bit_length() + 1
            raise LayoutValueError(
                f"the offsets at an array of coordinates need {bits} bits, which no integer type "
                "of its library has; evaluate Python integers"
            )
    return _mapped(crd)


def checked_arrays(c: IntTuple) -> IntTuple:
    """Make integers of array libraries plain in a coordinate, and refuse arrays of floats."""
    if isinstance(c, tuple):
        return type(c)([checked_arrays(part) for part in c])
    if not is_array(c):
        return c
    if is_no_integer(c):
        raise LayoutTypeError(f"the coordinate {c!r} is not an array of integers")
    return int(c) if c.ndim == 0 and hasattr(c.dtype, "kind") else computable(c)


def fitted(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> IntTuple:
    """Check the arrays of a coordinate, and convert them to a type that holds the offsets."""
    crd = checked_arrays(crd)
    return fitting(crd, shape, stride) if has_array(crd) else crd


def dividing(c: Any, extents: Any) -> Any:
    """Convert an array of positions to a type that holds the extents to divide by."""
    c = checked_arrays(c)
    constants = [x for x in extents if isinstance(x, int)]
    if max(constants, default=0) > _INT64[1]:
        raise LayoutValueError(
            f"an extent of {max(constants)} at an array of positions needs more than 64 bits; "
            "evaluate Python integers"
        )
    return in_int64(c) if is_array(c) and max(constants, default=0) > type_range(c)[1] else c


def at_array(c: Any, leaves: list[tuple[int, int]]) -> Any:
    """Evaluate a layout of plain integers at an array, already of a type that holds the offsets."""
    total: Any = None
    for s, d in leaves[:-1]:
        if s & (s - 1) == 0:  # masks and shifts take a fifth of the time of divisions
            low, c = c & (s - 1), c >> (s.bit_length() - 1)
        else:
            low, c = c % s, c // s
        if d:
            term = low if d == 1 else low * d
            total = term if total is None else total + term
    if not leaves:
        return c * 0
    d = leaves[-1][1]
    if total is None:
        return c * d
    return total + c * d if d else total


def _mapped(crd: IntTuple) -> IntTuple:
    if isinstance(crd, tuple):
        return type(crd)([_mapped(c) for c in crd])
    return in_int64(crd) if is_array(crd) else crd


def _inside(interval: Interval) -> bool:
    return _INT64[0] <= interval[0] and interval[1] <= _INT64[1]


def _plus(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _extremes(c: Any) -> Interval:
    if 0 in c.shape:
        return 0, 0
    try:
        return int(c.min()), int(c.max())
    except RuntimeError:  # torch's meta device, or a graph that is being traced
        raise LayoutValueError(f"the values of a tensor of {c.dtype} are not known") from None


def _is_unbounded(s: Any, d: Any) -> bool:
    """Tell if a stride gives no bounds on its values; 64 bits are then the best choice."""
    if isinstance(d, int) or is_integer(d) or not isinstance(s, int):
        return False
    return bounds(d, -1, s) is None


def _reach(crd: IntTuple, shape: IntTuple, stride: IntTuple, range_of: Any) -> Interval:
    """Return bounds on every partial sum of a layout's value at these coordinates."""
    if isinstance(crd, tuple) and isinstance(shape, tuple):
        total = (0, 0)
        for c, s, d in zip(crd, shape, stride):  # noqa: B905
            total = _plus(total, _reach(c, s, d, range_of))
        return total
    if crd is None:  # an open mode of a slice
        return 0, 0
    low, high = range_of(crd) if is_array(crd) else (crd, crd)
    if not isinstance(low, int) or not isinstance(high, int):
        return 0, 0
    if not isinstance(shape, tuple):
        return _of_leaf(stride, low, high)
    total = (0, 0)
    leaves = paired_leaves(shape, stride)
    for i, (s, d) in enumerate(leaves):
        if i == len(leaves) - 1 or not isinstance(s, int):
            return _plus(total, _of_leaf(d, low, high))
        digit = (low, high) if low >= 0 and high < s else (0, s - 1)
        total = _plus(total, _of_leaf(d, *digit))
        low, high = low // s, high // s
    return total


def _of_leaf(d: Any, low: int, high: int) -> Interval:
    if isinstance(d, int):
        return min(low * d, high * d, 0), max(low * d, high * d, 0)
    found = None if is_integer(d) else bounds(d, low, high)
    if not found or not all(isinstance(x, int) for ends in found.values() for x in ends):
        return 0, 0
    return min(0, *[a for a, _ in found.values()]), max(0, *[b for _, b in found.values()])
