"""``ComposedLayout``: ``outer o (offset + inner)``, evaluated, never folded."""

from __future__ import annotations

from typing import Any

from .int_tuple import IntTuple


class ComposedLayout:
    """The function ``c -> outer(offset + inner(c))`` with the domain of ``inner``.

    ``outer`` is a layout (composed ones included) or any function; ``inner`` a layout, composed or not.

    >>> from .layout import Layout
    >>> from .stride import E
    >>> im2col = Layout((4, 3), (E(0), E(0)))
    >>> padded = ComposedLayout(Layout((6,), (10,)), (-1,), im2col)
    >>> padded(2, 1), str(padded)
    (20, '(6):(10) o (-1) o (4,3):(1@0,1@0)')
    """

    __slots__ = ("inner", "offset", "outer")

    def __init__(self, outer: Any, offset: Any, inner: Any) -> None:
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "offset", offset)
        object.__setattr__(self, "inner", inner)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"ComposedLayout is immutable; cannot set {name}")

    def __reduce__(self) -> Any:
        return ComposedLayout, (self.outer, self.offset, self.inner)

    def __call__(self, *crd: Any) -> Any:
        return self.outer(self.inner(*crd) + self.offset)

    @property
    def shape(self) -> IntTuple:
        return self.inner.shape

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComposedLayout):
            return NotImplemented
        return (self.outer, self.offset, self.inner) == (other.outer, other.offset, other.inner)

    def __hash__(self) -> int:
        return hash((self.outer, self.offset, self.inner))

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.inner!r})"

    def __str__(self) -> str:
        offset = self.offset
        text = "(" + ",".join(map(str, offset)) + ")" if isinstance(offset, tuple) else str(offset)
        return f"{self.outer} o {text} o {self.inner}"
