"""Arguments of other libraries' functions that have to be tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import ArgumentTypeError


def check_tensors(**tensors: Any) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` for an argument that is no torch tensor.

    >>> check_tensors(coords=[[0, 1]])
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `coords`: expected a torch tensor, got list
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(value).__name__)
