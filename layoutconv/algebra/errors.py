"""The errors of the algebra: every one says which operation, on what, why, and where it shows."""

from __future__ import annotations


class LayoutError(Exception):
    """An operation has no exact result, or its input is malformed.

    Raised as one of its two subclasses, so that ``except ValueError`` and ``except TypeError`` work too.
    """


class LayoutValueError(LayoutError, ValueError):
    """The input is of the right kind but the operation has no exact result on it."""


class LayoutTypeError(LayoutError, TypeError):
    """The input is of the wrong kind: a float extent, a coordinate of the wrong profile, ..."""
