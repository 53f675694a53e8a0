"""Checks of paths that a user passes."""

from __future__ import annotations

import os
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError


def name_of(path: Any) -> str:
    """Return the name of a file given as ``path``.

    >>> from pathlib import Path
    >>> name_of(Path("sweep.bin")), name_of(b"sweep.bin")
    ('sweep.bin', 'sweep.bin')
    >>> name_of(None)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `path`: expected a path, a str or os.PathLike,\
 got NoneType
    """
    try:
        return os.fsdecode(path)
    except TypeError:
        expected = "a path, a str or os.PathLike"
        raise ArgumentTypeError("path", expected, type(path).__name__) from None


def file_name_of(path: Any) -> str:
    """Return the name of a file given as ``path``, and check that a file can have it.

    >>> file_name_of("net.pack"), file_name_of(b"net.pack")
    ('net.pack', 'net.pack')
    """
    name = name_of(path)
    if "\0" in name:  # each system function would refuse it with an error of its own
        raise ArgumentError("path", "a path without a null character", repr(name))
    return name
