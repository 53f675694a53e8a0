"""The orders that compact strides come in, by the names that C++ gives them."""

from __future__ import annotations

from typing import Any

from .int_tuple import IntTuple
from .shapes import prefix_product, suffix_product


class LayoutLeft:
    """Compact strides, the first mode fastest: ``make_layout(shape, LayoutLeft)``.

    >>> LayoutLeft.strides((4, (2, 3)))
    (1, (4, 8))
    """

    @staticmethod
    def strides(shape: IntTuple) -> IntTuple:
        """The strides of a shape in this order."""
        return prefix_product(shape)


class LayoutRight:
    """Compact strides, the last mode fastest: ``make_layout(shape, LayoutRight)``.

    >>> LayoutRight.strides((4, (2, 3)))
    (6, (3, 1))
    """

    @staticmethod
    def strides(shape: IntTuple) -> IntTuple:
        """The strides of a shape in this order."""
        return suffix_product(shape)


def make_shape(*modes: Any) -> tuple[Any, ...]:
    """A tuple of its arguments, which is all that a shape is in Python.

    ``make_stride``, ``make_coord`` and ``make_tile`` are the same function.

    >>> make_shape(4, make_shape(2, 3))
    (4, (2, 3))
    """
    return modes


make_stride = make_coord = make_tile = make_shape
