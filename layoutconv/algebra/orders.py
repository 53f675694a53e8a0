"""Orders of compact strides, and C++'s functions that make tuples, under their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .checks import plain
from .int_tuple import IntTuple
from .operands import expect_entries
from .shapes import prefix_product, suffix_product
from .values import Immutable


class StrideOrder(Immutable):
    """An order of compact strides: ``LayoutLeft`` (the first mode fastest) or ``LayoutRight``.

    ``make_layout(shape, LayoutRight)``, in C++ ``LayoutRight{}``, has the last mode fastest.

    >>> LayoutLeft.strides((4, (2, 3))), LayoutRight.strides((4, (2, 3)))
    ((1, (4, 8)), (6, (3, 1)))
    """

    __slots__ = ("name", "strides")

    name: str
    strides: Callable[[IntTuple], IntTuple]

    def __init__(self, name: str, strides: Callable[[IntTuple], IntTuple]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "strides", strides)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


LayoutLeft = StrideOrder("LayoutLeft", prefix_product)
LayoutRight = StrideOrder("LayoutRight", suffix_product)


def make_shape(*modes: Any) -> tuple[Any, ...]:
    """Return its arguments as a tuple, which is what a shape is in Python.

    ``make_stride``, ``make_coord`` and ``make_tile`` are the same function.

    >>> make_shape(4, make_shape(2, 3))
    (4, (2, 3))
    """
    for mode in modes:
        if type(mode) is not int:
            break
    else:  # plain integers need no conversion
        return modes
    for mode in modes:
        if type(mode) is not int and mode is not None:
            expect_entries("make_shape", "modes", mode)
    return tuple([mode if type(mode) is int else plain(mode) for mode in modes])


make_stride = make_coord = make_tile = make_shape
