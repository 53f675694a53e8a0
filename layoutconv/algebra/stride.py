"""Strides beyond integers: one module to import all kinds from.

``ScaledBasis`` keeps the modes of a coordinate apart, and its sums are ``ArithmeticTuple``. ``F2``
adds without carry, as a swizzle does. ``CustomStride`` applies a function first, such as an index
buffer. ``Stride`` is the protocol that they follow; you can write a stride of your own.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from .arrays import is_array, moved
from .basis import (
    ArithmeticTuple,
    E,
    ScaledBasis,
    add,
    basis_terms,
    coordinate,
    scaled,
    stride_text,
)
from .gather import CustomStride, IndexedGather, StridedGather
from .protocol import Stride
from .xor import F2

__all__ = [
    "F2",
    "ArithmeticTuple",
    "CustomStride",
    "E",
    "IndexedGather",
    "ScaledBasis",
    "Stride",
    "StridedGather",
    "add",
    "basis_terms",
    "finished",
    "is_xor",
    "scaled",
    "shifted",
    "stride_text",
]


def finished(total: Any) -> Any:
    """Turn a sum of strides into the coordinate or the offset that it stands for.

    >>> finished(2 * E(1)), finished(F2(5))
    (ArithmeticTuple((0, 2)), 5)
    """
    if type(total) is int:
        return total
    if isinstance(total, ScaledBasis):
        total = total.as_tuple()
    if isinstance(total, tuple):
        if all(type(mode) is int for mode in total):
            return total
        return coordinate([finished(mode) for mode in total])
    return total.value if isinstance(total, F2) else total


def is_xor(total: Any) -> bool:
    """Tell if a sum of strides, or a mode of it, adds to others by XOR."""
    if isinstance(total, ScaledBasis):
        return is_xor(total.value)
    if isinstance(total, tuple):
        return any(map(is_xor, total))
    return isinstance(total, F2) and not total.is_zero()


def shifted(value: Any, offset: Any) -> Any:
    """Return ``value + offset``; an offset of XOR strides is XOR-ed instead."""
    if isinstance(offset, F2):
        return value ^ offset.value
    if is_xor(offset):
        offset = offset.as_tuple() if isinstance(offset, ScaledBasis) else offset
        modes = zip_longest(value if isinstance(value, tuple) else (), offset, fillvalue=0)
        return coordinate([shifted(v, d) for v, d in modes])
    if is_array(value) and type(offset) is int:
        return moved(value, offset)
    return finished(add(value, offset))
