"""``Tensor``: an engine, which holds values, composed with a layout, which says where."""

from __future__ import annotations

from typing import Any

from .composed import ComposedLayout
from .display import Drawable
from .errors import LayoutTypeError
from .int_tuple import IntTuple, has_none
from .layout import Layout, slice_and_offset
from .stride import add

_SET = object.__setattr__


class Tensor(Drawable):
    """The function ``c -> engine[offset + layout(c)]``.

    ``engine`` is anything that is indexed by what the layout gives: a list, a one-dimensional NumPy
    or torch array, or for layouts of scaled bases an array with as many modes. The tensor is a
    view: a slice shares the engine, and ``tensor[c] = value`` writes into it.

    >>> rows = Tensor(list(range(24)), Layout((4, 6), (6, 1)))
    >>> rows[1, 2], rows[2, None][3]
    (8, 15)
    >>> print(rows[None, 2])
    (4):(6) + 2 over list
    """

    __slots__ = ("engine", "layout", "offset")

    engine: Any
    layout: Any
    offset: Any

    def __init__(self, engine: Any, layout: Any, offset: Any = 0) -> None:
        if not isinstance(layout, Layout | ComposedLayout):
            raise LayoutTypeError(f"Tensor: layout is {layout!r}, not a layout")
        if not hasattr(engine, "__getitem__"):
            raise LayoutTypeError(f"Tensor: engine is {engine!r}, which cannot be indexed")
        _SET(self, "engine", engine)
        _SET(self, "layout", layout)
        _SET(self, "offset", offset)

    def __reduce__(self) -> Any:
        return Tensor, (self.engine, self.layout, self.offset)

    @property
    def shape(self) -> IntTuple:
        """The shape of the layout."""
        return self.layout.shape

    @property
    def stride(self) -> IntTuple:
        """The strides of the layout, where it is a plain one."""
        return self.layout.stride

    @property
    def rank(self) -> int:
        """How many top-level modes there are."""
        return self.layout.rank

    def size(self) -> Any:
        """How many elements there are."""
        return self.layout.size()

    def __len__(self) -> int:
        return len(self.layout)

    def at(self, *crd: Any) -> Any:
        """Where in the engine the element of a coordinate is."""
        place = add(self.layout(*crd), self.offset)
        return tuple(place) if isinstance(place, tuple) else place

    def __call__(self, *crd: Any) -> Any:
        """The element of a coordinate; for arrays of coordinates an array of elements."""
        return self.engine[self._checked(self.at(*crd))]

    def __getitem__(self, crd: Any) -> Any:
        """An element; with None (or ``:``) for some modes the tensor of those, the rest fixed."""
        crd = _open(crd)
        return self.sliced(crd) if has_none(crd) else self(crd)

    def __setitem__(self, crd: Any, value: Any) -> None:
        crd = _open(crd)
        if has_none(crd):
            raise LayoutTypeError(f"Tensor: cannot assign to the slice {crd}; assign elements")
        self.engine[self._checked(self.at(crd))] = value

    def sliced(self, crd: IntTuple) -> Tensor:
        """The tensor of the modes that ``crd`` leaves open with None."""
        if crd is None:
            return self
        if isinstance(self.layout, ComposedLayout):
            return Tensor(self.engine, self.layout.sliced(crd), self.offset)
        rest, offset = slice_and_offset(crd, self.layout)
        return Tensor(self.engine, rest, add(offset, self.offset))

    def compose(self, other: Any) -> Tensor:
        """The same engine over ``composition(layout, other)``."""
        return Tensor(self.engine, self.layout.compose(other), self.offset)

    __matmul__ = compose

    def _checked(self, place: Any) -> Any:
        if not isinstance(place, int) or not hasattr(self.engine, "__len__"):
            return place
        if not 0 <= place < len(self.engine):
            raise IndexError(f"Tensor: offset {place} is outside an engine of {len(self.engine)}")
        return place

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        mine, theirs = (self.layout, self.offset), (other.layout, other.offset)
        return self.engine is other.engine and mine == theirs

    def __hash__(self) -> int:
        return hash((id(self.engine), self.layout, self.offset))

    def __repr__(self) -> str:
        return f"Tensor({self.engine!r}, {self.layout!r}, {self.offset!r})"

    def __str__(self) -> str:
        shift = f" + {self.offset}" if not isinstance(self.offset, int) or self.offset else ""
        return f"{self.layout}{shift} over {type(self.engine).__name__}"


def _open(crd: Any) -> Any:
    if isinstance(crd, tuple):
        return tuple([_open(c) for c in crd])
    return None if isinstance(crd, slice) and crd == slice(None) else crd
