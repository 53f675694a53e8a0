"""Types of options beside click's own: regular expressions, extents, numbers, new files."""

from __future__ import annotations

import re
import warnings
from math import isfinite
from pathlib import Path
from typing import Any

import click


def pattern(text: str, inside: str = "{}") -> str:
    """Check a regular expression, and return it inserted into ``inside``.

    Raises ``ValueError`` with a message for an invalid expression.

    >>> pattern("unet.* fprop"), pattern("a|b", "^map (?:{})")
    ('unet.* fprop', '^map (?:a|b)')
    >>> pattern("(")
    Traceback (most recent call last):
    ValueError: expected a regular expression, got '(': missing ), unterminated subpattern at position 0
    """  # noqa: E501
    whole = inside.format(text)
    try:
        re.compile(text)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # of Python 3.10: an error since
            re.compile(whole)
    except (re.error, OverflowError, RecursionError, MemoryError, DeprecationWarning) as error:
        why = str(error) or "it nests too deeply"
        raise ValueError(f"expected a regular expression, got {text!r}: {why}") from None
    return whole


class Pattern(click.ParamType):
    """A regular expression, which is inserted into ``inside``."""

    name = "pattern"

    def __init__(self, inside: str = "{}") -> None:
        self._inside = inside

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the expression, or fail with an error that says what is wrong."""
        try:
            return pattern(value, self._inside)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ExtentsParam(click.ParamType):
    """Integers, separated by commas or ``x``, such as 2,32,64 or 16x8."""

    name = "extents"

    def __init__(self, example: str, least: int, most: int) -> None:
        self._example = example
        self._counts = range(least, most + 1)

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Return the integers, or fail with an error that shows an example."""
        found = re.split("[,x]", value)
        if len(found) not in self._counts or not all(re.fullmatch("[0-9]{1,9}", e) for e in found):
            self.fail(f"expected {self._example}, got {value!r}", param, ctx)
        return tuple(map(int, found))


class TileParam(ExtentsParam):
    """Two extents, or a layout in its notation, which the command evaluates."""

    def __init__(self) -> None:
        super().__init__("two extents such as 16,8", 2, 2)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the integers; return a layout, which has a ":", as typed."""
        return value if ":" in value else super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A finite number in a range: click's ranges admit NaN and infinity."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number, or fail with an error that shows the input."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"expected a finite number, got {value!r}", param, ctx)
        return number


class NewFile(click.Path):
    """A file to write in an existing folder: checked first, as the work may take minutes.

    ``suffixes``: the file suffixes that are allowed; all, if none is given.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the path, or fail with an error that says why it cannot be written."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}", param, ctx)
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            expected = f"a name that ends in {', '.join(self._suffixes)}"
            self.fail(f"expected {expected}, got {path.name!r}", param, ctx)
        return path
