"""``ComposedLayout``: ``outer o (offset + inner)``, evaluated, never folded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .display import Drawable
from .errors import LayoutTypeError
from .int_tuple import IntTuple
from .layout import _value, slice_and_offset
from .stride import add

_SET = object.__setattr__


class ComposedLayout(Drawable):
    """The function ``c -> outer(offset + inner(c))`` with the domain of ``inner``.

    ``outer`` is a layout (composed ones included) or any function; ``inner`` a layout, composed or
    not; ``offset`` an integer or a coordinate of ``outer``. CUTLASS: cute/layout_composed.hpp.

    >>> from layoutconv.algebra import E, Layout
    >>> im2col = Layout((4, 3), (E(0), E(0)))
    >>> padded = ComposedLayout(Layout((6,), (10,)), (-1,), im2col)
    >>> padded(2, 1), str(padded)
    (20, '(6):(10) o (-1) o (4,3):(1@0,1@0)')
    """

    __slots__ = ("inner", "offset", "outer")

    outer: Any
    offset: Any
    inner: Any

    def __init__(self, outer: Any, offset: Any, inner: Any) -> None:
        if not callable(outer):
            raise LayoutTypeError(f"ComposedLayout: outer is {outer!r}, not a function")
        if not hasattr(inner, "shape") or not callable(inner):
            raise LayoutTypeError(f"ComposedLayout: inner is {inner!r}, not a layout")
        _SET(self, "outer", outer)
        _SET(self, "offset", offset)
        _SET(self, "inner", inner)

    def __reduce__(self) -> Any:
        return ComposedLayout, (self.outer, self.offset, self.inner)

    def __call__(self, *crd: Any) -> Any:
        return self.outer(_value(add(self.inner(*crd), self.offset)))

    @property
    def shape(self) -> IntTuple:
        """The shape of ``inner``: the domain."""
        return self.inner.shape

    @property
    def rank(self) -> int:
        """How many top-level modes the domain has."""
        return self.inner.rank

    @property
    def depth(self) -> int:
        """How deep the domain nests."""
        return self.inner.depth

    def size(self) -> Any:
        """How many coordinates the domain has."""
        return self.inner.size()

    def cosize(self) -> int:
        """The largest offset less the smallest, plus 1, where ``outer`` gives integers."""
        offsets = [self(i) for i in range(self.size())]
        return max(offsets) - min(offsets) + 1

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[ComposedLayout]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ComposedLayout:
        """Mode ``key``, the others at 0; for a coordinate with None the slice, its offset kept."""
        if isinstance(key, tuple):
            return self.sliced(tuple([None if k == slice(None) else k for k in key]))
        return ComposedLayout(self.outer, self.offset, self.inner[key])

    def sliced(self, crd: IntTuple) -> ComposedLayout:
        """What ``crd`` leaves open with None, the rest fixed: its offset joins ours.

        So a slice of a gather is a gather with an offset.
        """
        if crd is None:
            return self
        if isinstance(self.inner, ComposedLayout):
            return ComposedLayout(self.outer, self.offset, self.inner.sliced(crd))
        rest, offset = slice_and_offset(crd, self.inner)
        return ComposedLayout(self.outer, add(offset, self.offset), rest)

    def compose(self, other: Any) -> ComposedLayout:
        """``composition(self, other)``: the same outer map on a recomposed domain."""
        from .composition import composition

        return composition(self, other)

    __matmul__ = compose

    def offsets(self) -> Any:
        """The whole table, as :meth:`Layout.offsets`, of whatever ``outer`` gives."""
        table = self.inner.offsets()
        return _mapped(lambda x: self.outer(_value(add(x, self.offset))), table)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComposedLayout):
            return NotImplemented
        mine, theirs = (self.outer, self.offset), (other.outer, other.offset)
        return mine == theirs and bool(self.inner == other.inner)

    def __hash__(self) -> int:
        return hash((self.outer, self.offset, self.inner))

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.inner!r})"

    def __str__(self) -> str:
        offset = self.offset
        shown = "(" + ",".join(map(str, offset)) + ")" if isinstance(offset, tuple) else str(offset)
        return f"{self.outer} o {shown} o {self.inner}"


def _mapped(fn: Any, table: Any) -> Any:
    if isinstance(table, list):
        return [_mapped(fn, row) for row in table]
    return fn(table)
