"""``ComposedLayout``: ``outer o (offset + inner)``, evaluated step by step, never folded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .errors import LayoutTypeError, shortly
from .int_tuple import IntTuple
from .late import late
from .like import LayoutLike
from .numbers import plain_numbers
from .protocol import is_stride, map_integers
from .stride import add, is_xor, shifted
from .symbols import same

_SET = object.__setattr__


class ComposedLayout(LayoutLike):
    """The function ``c -> outer(offset + inner(c))`` on the domain of ``inner``.

    ``outer`` is a layout, plain or composed, or any function; ``inner`` is a layout, plain or
    composed; ``offset`` is an integer or a coordinate of ``outer``. CUTLASS:
    cute/layout_composed.hpp.

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
            raise LayoutTypeError(f"ComposedLayout: outer is {shortly(outer)}, not a function")
        if not isinstance(inner, LayoutLike) and not _is_a_layout(inner):
            raise LayoutTypeError(f"ComposedLayout: inner is {shortly(inner)}, not a layout")
        if type(offset) is not int:
            offset = plain_numbers("ComposedLayout", "offset", offset)
        _SET(self, "outer", outer)
        _SET(self, "offset", offset)
        _SET(self, "inner", inner)

    def __reduce__(self) -> Any:
        return ComposedLayout, (self.outer, self.offset, self.inner)

    def __call__(self, *crd: Any) -> Any:
        return self.outer(shifted(self.inner(*crd), self.offset))

    @property
    def shape(self) -> IntTuple:
        """The shape of ``inner``, which is the domain."""
        return self.inner.shape

    def size(self) -> Any:
        """Return the number of coordinates in the domain."""
        return self.inner.size()

    def on_domain(self, operation: Callable[[Any], Any]) -> Any:
        """Apply ``operation`` to ``inner``, and keep the outer map and the offset."""
        return ComposedLayout(self.outer, self.offset, operation(self.inner))

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the same with ``fn`` applied to every integer of the layouts and the offset."""
        outer = self.outer.map_integers(fn) if isinstance(self.outer, LayoutLike) else self.outer
        inner = self.inner.map_integers(fn) if isinstance(self.inner, LayoutLike) else self.inner
        return ComposedLayout(outer, _mapped(fn, self.offset), inner)

    def parts(self) -> tuple[Any, ...]:
        """Return the plain layouts in the outer and inner maps."""
        both = (self.outer, self.inner)
        return tuple([p for x in both if isinstance(x, LayoutLike) for p in x.parts()])

    def cosize(self) -> Any:
        """Return the largest offset minus the smallest, plus 1, if ``outer`` gives integers."""
        return late("cosize")(self)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[ComposedLayout]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> ComposedLayout:
        """Mode ``key``, the others at 0; for a coordinate with None, the slice with its offset."""
        if isinstance(key, tuple):
            return self.sliced(late("opened")(key))
        return ComposedLayout(self.outer, self.offset, self.inner[key])

    def sliced(self, crd: IntTuple) -> ComposedLayout:
        """Return the slice of the modes with None in ``crd``; the others join the offset.

        A slice of a gather is therefore a gather with an offset.
        """
        if crd is None:
            return self
        if isinstance(self.inner, ComposedLayout):
            return ComposedLayout(self.outer, self.offset, self.inner.sliced(crd))
        rest, offset = late("moved_slice")(crd, self.inner)
        if isinstance(rest, ComposedLayout) and is_xor(self.offset):
            return ComposedLayout(self.outer, self.offset + rest.offset, rest.inner)
        return ComposedLayout(self.outer, add(offset, self.offset), rest)

    def compose(self, other: Any) -> ComposedLayout:
        """Return ``composition(self, other)``: the same outer map on a recomposed domain."""
        result: ComposedLayout = late("composition")(self, other)
        return result

    def offsets(self) -> Any:
        """Return all values of ``outer``, nested like :meth:`Layout.offsets`."""
        table = self.inner.offsets()
        return _over(lambda x: self.outer(shifted(x, self.offset)), table)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComposedLayout):
            return NotImplemented
        if not same(self.offset, other.offset) or not self.outer == other.outer:
            return False
        return bool(self.inner == other.inner)

    def __hash__(self) -> int:
        return hash((self.outer, self.offset, self.inner))

    def __repr__(self) -> str:
        return f"ComposedLayout({self.outer!r}, {self.offset!r}, {self.inner!r})"

    def __str__(self) -> str:
        offset = self.offset
        shown = "(" + ",".join(map(str, offset)) + ")" if isinstance(offset, tuple) else str(offset)
        return f"{self.outer} o {shown} o {self.inner}"


def _is_a_layout(inner: Any) -> bool:
    """Tell if a value of another class behaves like a layout, such as a kernel's."""
    return hasattr(inner, "shape") and callable(inner) and not isinstance(inner, type)


def _mapped(fn: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, tuple) and not is_stride(x):
        return type(x)([_mapped(fn, part) for part in x])
    return map_integers(fn, x)


def _over(fn: Callable[[Any], Any], table: Any) -> Any:
    return [_over(fn, row) for row in table] if isinstance(table, list) else fn(table)
