"""Integer arguments of other libraries' interfaces: sizes of layers, and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError, shown
from .tensor_arguments import check_tensors


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument as an int: an int, NumPy's, a tensor of one, or a float such as 2.0.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for anything else, also a ``bool`` or 2.5,
    and :class:`~layoutconv.errors.ArgumentError` for less than ``least``.

    >>> whole("stride", 2.0)
    2
    >>> whole("stride", 2.5)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `stride`: expected an integer, got 2.5
    """
    number = value if type(value) is int else _index(value)
    if number is None:
        raise ArgumentTypeError(name, "an integer", repr(value))
    if least is not None and number < least:
        raise ArgumentError(name, f"an integer >= {least}", number)
    return number


def _index(value: Any) -> int | None:
    if isinstance(value, str | bytes | bool):
        return None
    try:
        return index(value)
    except TypeError:
        pass
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return int(number) if number.is_integer() else None


def whole_per_mode(name: str, value: Any, rank: int, least: int | None = None) -> list[int]:
    """Return an argument, an integer or one per mode, as a list of ints.

    Raises :class:`~layoutconv.errors.ArgumentError` for another number of them, and for less than
    ``least``.

    >>> whole_per_mode("stride", 2, 3), whole_per_mode("stride", torch.tensor([1, 2]), 2)
    ([2, 2, 2], [1, 2])
    """
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not (several or getattr(value, "ndim", False)):
        return [whole(name, value, least)] * rank
    values = [whole(name, one, least) for one in value]
    if len(values) != rank:
        raise ArgumentError(name, f"a number, or {rank} of them", value)
    return values


def whole_numbers(name: str, value: Any, least: int, expected: str) -> list[int]:
    """Return a sequence, an array or a tensor of integers as ints; messages say ``expected``.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for anything else, also a scalar, and
    :class:`~layoutconv.errors.ArgumentError` for less than ``least``.

    >>> whole_numbers("size", 3, 0, "two sizes")
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `size`: expected two sizes, got 3
    """
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not several and getattr(value, "ndim", 0) != 1:
        raise ArgumentTypeError(name, expected, shown(value))
    return [whole(name, one, least) for one in value]


def triple(name: str, value: Any, least: int) -> tuple[int, ...]:
    """Return an argument, a number or one for each of three modes, as three ints.

    Raises :class:`~layoutconv.errors.ArgumentError` that names it, also for less than ``least``.

    >>> triple("stride", 2, 1)
    (2, 2, 2)
    """
    return tuple(whole_per_mode(name, value, 3, least))


def int32_cells(name: str, coords: Tensor) -> Tensor:
    """Return coordinates, of any dtype, as int32.

    Raises :class:`~layoutconv.errors.ArgumentError` for a value that int32 cannot hold: it would be
    another cell. Unless they are int32, the check waits for the device; it is skipped while a CUDA
    graph is captured.

    >>> int32_cells("coords", torch.tensor([[0.0, 3.0]]))
    tensor([[0, 3]], dtype=torch.int32)
    >>> int32_cells("coords", torch.tensor([[0, 2**32]]))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `coords`: expected whole numbers that fit\
 in 32 bits, got 4294967296
    """
    check_tensors(**{name: coords})
    if coords.dtype == torch.int32:
        return coords
    if coords.is_complex() or coords.dtype == torch.bool:
        raise ArgumentTypeError(name, "a tensor of whole numbers", coords.dtype)
    cells = coords.int()
    if coords.is_cuda and torch.cuda.is_current_stream_capturing():
        return cells
    wide = coords.double() if coords.is_floating_point() else coords
    other = cells.to(wide.dtype) != wide
    if bool(other.any()):
        raise ArgumentError(name, "whole numbers that fit in 32 bits", coords[other][0].item())
    return cells
