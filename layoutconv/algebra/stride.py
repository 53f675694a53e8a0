"""Strides beyond integers, one door to all kinds of them.

``ScaledBasis`` keeps the modes of a coordinate apart, ``ArithmeticTuple`` is what its sums are,
``F2`` adds without carry, which is what a swizzle does, ``CustomStride`` applies a function first:
an index buffer. ``Stride`` is the protocol that they follow, and one of your own can follow.
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
    """A sum of strides as the coordinate or the offset that it stands for.

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
    """Tell if a sum of strides, or a mode of it, adds by XOR to what comes after it."""
    if isinstance(total, ScaledBasis):
        return is_xor(total.value)
    if isinstance(total, tuple):
        return any(map(is_xor, total))
    return isinstance(total, F2) and not total.is_zero()


def shifted(value: Any, offset: Any) -> Any:
    """``value + offset``; an offset of XOR strides is added as they add."""
    if isinstance(offset, F2):
        return value ^ offset.value
    if is_xor(offset):
        offset = offset.as_tuple() if isinstance(offset, ScaledBasis) else offset
        modes = zip_longest(value if isinstance(value, tuple) else (), offset, fillvalue=0)
        return coordinate([shifted(v, d) for v, d in modes])
    if is_array(value) and type(offset) is int:
        return moved(value, offset)
    return finished(add(value, offset))
