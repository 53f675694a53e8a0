"""The numbers in coordinates, and values that only look like numbers."""

from __future__ import annotations

from numbers import Integral, Number
from typing import Any

from .errors import wrong_argument
from .late import late
from .values import Shaped

_NO_INTEGERS = (
    *(float, complex, str, bytes, list, dict, set, frozenset, bool, slice, range, Shaped),
    *(type(Ellipsis), type),
)


def is_no_integer(c: Any) -> bool:
    """Tell if a value only looks like an integer: a float, a fraction, their array, a stride."""
    if isinstance(c, _NO_INTEGERS) or hasattr(c, "can_merge") or not hasattr(c, "__mul__"):
        return True
    if (isinstance(c, Number) and not isinstance(c, Integral)) or (
        getattr(c, "is_integer", None) is False or getattr(c, "is_Boolean", False)  # of sympy
    ):
        return True
    dtype = getattr(c, "dtype", None)
    if dtype is None:
        return False
    kind = getattr(dtype, "kind", None)  # NumPy
    if kind is not None:
        return kind not in "iu" if isinstance(kind, str) else False
    if getattr(dtype, "is_floating_point", False) or getattr(dtype, "is_complex", False):  # torch
        return True
    return str(dtype) == "torch.bool"


def expect_numbers(operation: str, argument: str, x: Any) -> None:
    """Refuse a value that is not a number, an array, a stride or a tuple of them: an offset.

    >>> expect_numbers("Tensor", "offset", (1, None))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: Tensor: argument `offset`: expected an integer, \
a stride, or a tuple of them, got (1, None)
    """
    try:
        numbers = _has_numbers(x)
    except RecursionError:
        numbers = False
    if not numbers:
        raise wrong_argument(operation, argument, "an integer, a stride, or a tuple of them", x)


def plain_numbers(operation: str, argument: str, x: Any) -> Any:
    """Check as :func:`expect_numbers`, and convert numbers of NumPy and sympy to plain ones."""
    expect_numbers(operation, argument, x)
    return late("plain")(x)


def _has_numbers(x: Any) -> bool:
    if isinstance(x, tuple):
        return all(type(part) is int or _has_numbers(part) for part in x)
    return hasattr(x, "can_merge") or not is_no_integer(x)
