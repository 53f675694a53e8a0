"""Drawing hooks: values of the algebra come to be drawn although the algebra knows of no pictures.

What can be drawn has a ``draw`` method, and values of the algebra show themselves in notebooks. The
drawing itself is a function that whoever has one hands in: the package does, as its last step of
being imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from .errors import LayoutError
from .values import Immutable

_DRAW: list[Callable[..., Any]] = []


def draw_with(function: Callable[..., Any]) -> None:
    """Let ``function(obj, path, **options)`` draw from now on."""
    _DRAW[:] = [function]


class Pictured:
    """A value with a picture, which it shows in notebooks."""

    __slots__ = ()

    def draw(self, path: Any = None, **options: Any) -> Any:
        """The picture of this, written to ``path`` as well if there is one: ``l.draw("l.svg")``.

        :func:`layoutconv.drawing.draw` describes the options.
        """
        return _DRAW[0](self, path, **options)

    def _repr_svg_(self) -> str | None:
        try:
            drawn: str = self.draw()._repr_svg_()
            return drawn
        except (LayoutError, ArgumentError):
            # No numbers to draw, in a kernel that is being traced, or no rows of a view: text then.
            return None


class Drawable(Pictured, Immutable):
    """An immutable value with a picture."""

    __slots__ = ()
