"""A context manager that sets a context variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def setting(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a variable to ``value`` inside the block, in this thread or task.

    >>> depth = ContextVar("depth", default=0)
    >>> with setting(depth, 1):
    ...     depth.get()
    1
    >>> depth.get()
    0
    """
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)
