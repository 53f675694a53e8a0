"""Errors about arguments: the argument, the expected value, the value that came.

The algebra has errors of its own (``layoutconv.LayoutError``), about operations that have no exact
result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ArgumentError(ValueError):
    """An argument has a value that the call cannot take.

    >>> raise ArgumentError("stride", "an int >= 1", 0)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `stride`: expected an int >= 1, got 0
    """

    def __init__(self, name: str, expected: str, got: Any) -> None:
        super().__init__(name, expected, got)
        self.name = name
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"argument `{self.name}`: expected {self.expected}, got {self.got}"


def shown(value: Any) -> str:
    """Return an argument as text for a message; an array as its shape, not its numbers.

    >>> shown("0.5")
    "'0.5'"
    """
    if getattr(value, "shape", ()):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return repr(value)


def are_several(values: Any) -> bool:
    """Return whether an argument is several values, like a list; text and a scalar are one value.

    >>> import numpy as np
    >>> are_several([1, 2]), are_several(np.ones(2)), are_several("ab"), are_several(np.array(1))
    (True, True, False, False)
    """
    some = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    return some and getattr(values, "ndim", 1) != 0


def check_choice(name: str, value: Any, known: Iterable[str], expected: str = "") -> None:
    """Raise :class:`ArgumentError` unless a value is one of the known names.

    Arrays, whose comparisons are arrays, and unhashable values are refused, too.

    >>> check_choice("mode", "max", ("max", "sum"))
    >>> check_choice("mode", ["max"], ("max", "sum"))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `mode`: expected one of max, sum, got ['max']
    """
    if not (isinstance(value, str) and value in known):
        raise ArgumentError(name, expected or f"one of {', '.join(known)}", shown(value))


def truth_of(name: str, value: Any) -> bool:
    """Return whether a flag is true; raise an :class:`ArgumentTypeError` if that is undefined.

    Arrays and tensors of several elements have no truth.

    >>> truth_of("check", 1)
    True
    >>> import numpy as np
    >>> truth_of("check", np.ones(2))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `check`: expected True or False, got ndarray of \
shape (2,)
    """
    try:
        return bool(value)
    except (RuntimeError, TypeError, ValueError):
        raise ArgumentTypeError(name, "True or False", shown(value)) from None


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type or dtype that the call cannot take."""


class DeviceError(RuntimeError):
    """A GPU, or its driver, cannot run kernels; the message says what to do."""


class PointFileError(ValueError):
    """A file that cannot be read, or that holds no point cloud; the message says which and why."""


class RankError(RuntimeError):
    """Another rank of a process group has failed, has ended, or is in another call."""
