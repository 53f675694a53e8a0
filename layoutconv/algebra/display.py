"""Drawing hooks: values of the algebra can be drawn although the algebra does not import drawing.

A drawable value has a ``draw`` method, and shows its picture in notebooks. The function that draws
is passed in by the package, as the last step of its import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from .errors import LayoutError
from .values import Immutable

_DRAW: list[Callable[..., Any]] = []


def draw_with(function: Callable[..., Any]) -> None:
    """Make ``function(obj, path, **options)`` the function that draws."""
    _DRAW[:] = [function]


class Pictured:
    """A value with a picture, which notebooks show."""

    __slots__ = ()

    def draw(self, path: Any = None, **options: Any) -> Any:
        """Draw this, and write the picture to ``path`` if given: ``l.draw("l.svg")``.

        :func:`layoutconv.drawing.draw` describes the options.
        """
        return _DRAW[0](self, path, **options)

    def _repr_svg_(self) -> str | None:
        try:
            drawn: str = self.draw()._repr_svg_()
            return drawn
        except (LayoutError, ArgumentError):
            # Show text instead: a kernel is being traced and has no numbers, or a view has no rows.
            return None


class Drawable(Pictured, Immutable):
    """An immutable value with a picture."""

    __slots__ = ()
