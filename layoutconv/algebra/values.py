"""Immutable values: attributes are set once, in ``__init__``."""

from __future__ import annotations

from typing import Any, NoReturn


class Immutable:
    """A value whose attributes cannot change."""

    __slots__ = ()
    __array_ufunc__ = None  # so that our reflected operators handle a NumPy array on the left

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name}")

    def __format__(self, spec: str) -> str:
        """Format the value as its text: ``f"{layout:>20}"``."""
        return format(str(self), spec)

    def __setstate__(self, state: Any) -> None:
        """Set the attributes of a copy, users' strides included, without ``__setattr__``."""
        for attributes in state if isinstance(state, tuple) else (state,):
            for name, value in (attributes or {}).items():
                object.__setattr__(self, name, value)


class Shaped(Immutable):
    """A value that may stand for its ``shape``: a layout, a tensor."""

    __slots__ = ()

    @property
    def shape(self) -> Any:
        """The shape of the domain."""
        raise NotImplementedError
