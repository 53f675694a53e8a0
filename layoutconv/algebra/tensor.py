"""``Tensor``: an engine, which holds values, indexed by the offsets of a layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .composed import ComposedLayout
from .errors import LayoutTypeError, shortly
from .int_tuple import IntTuple, has_none, map_leaves
from .layout import Layout, as_like
from .like import LayoutLike
from .numbers import plain_numbers
from .protocol import map_integers
from .slices import moved_slice, opened
from .stride import add, shifted
from .symbols import same

_SET = object.__setattr__


class CoordinateEngine:
    """The engine of a tensor of coordinates: the value at each place is the place itself.

    A coordinate has an entry for each mode of the shape: 0 for modes in which the layout never
    moves.

    >>> engine = CoordinateEngine((4, (8, 2)))
    >>> engine[1, (2, 1)], engine[(3,)]
    ((1, (2, 1)), (3, (0, 0)))
    """

    __slots__ = ("origin",)

    def __init__(self, shape: IntTuple) -> None:
        self.origin = map_leaves(lambda _: 0, shape)

    def __getitem__(self, place: Any) -> Any:
        return _filled(place, self.origin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoordinateEngine) and self.origin == other.origin

    def __hash__(self) -> int:
        return hash((CoordinateEngine, self.origin))


def _filled(place: Any, origin: IntTuple) -> Any:
    """Return a coordinate with missing entries taken from ``origin``."""
    if not isinstance(origin, tuple) or not (isinstance(place, tuple) or _is_origin(place)):
        return place
    given = place if isinstance(place, tuple) else ()
    filled = [_filled(x, zero) for x, zero in zip(given, origin)]  # noqa: B905
    return (*filled, *given[len(origin) :], *origin[len(given) :])


def _is_origin(place: Any) -> bool:
    return type(place) is int and place == 0


class Tensor(LayoutLike):
    """The function ``c -> engine[offset + layout(c)]``.

    ``engine`` is indexed by the values of the layout: a list, a one-dimensional NumPy or torch
    array, or for layouts of scaled bases an array with as many modes. The tensor is a view: a slice
    shares the engine, and ``tensor[c] = value`` writes into it.

    It is a sequence of its elements in the order of linear coordinates: ``len`` is its size.
    Operations on layouts (coalesce, divide, compose, tile) give a view of the same engine.

    >>> rows = Tensor(list(range(24)), Layout((4, 6), (6, 1)))
    >>> rows[1, 2], rows[2, None][3]
    (8, 15)
    >>> print(rows[None, 2], list(rows[None, 2]), 14 in rows[None, 2])
    (4):(6) + 2 over list [2, 8, 14, 20] True
    """

    __slots__ = ("engine", "layout", "offset")

    engine: Any
    layout: Any
    offset: Any

    def __init__(self, engine: Any, layout: Any, offset: Any = 0) -> None:
        if isinstance(layout, str | tuple | int):
            layout = as_like("Tensor", layout)
        if not isinstance(layout, Layout | ComposedLayout):
            raise LayoutTypeError(f"Tensor: layout is {shortly(layout)}, not a layout")
        if not hasattr(engine, "__getitem__") or isinstance(engine, type):
            raise LayoutTypeError(f"Tensor: engine is {shortly(engine)}, which cannot be indexed")
        if type(offset) is not int:
            offset = plain_numbers("Tensor", "offset", offset)
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
        """The strides of the layout, if it is a plain one."""
        return self.layout.stride

    def size(self) -> Any:
        """Return the number of elements."""
        return self.layout.size()

    def on_domain(self, operation: Callable[[Any], Any]) -> Any:
        """Apply ``operation`` to the layout, and keep the engine and the offset."""
        return Tensor(self.engine, operation(self.layout), self.offset)

    def map_integers(self, fn: Callable[[Any], Any]) -> Any:
        """Return the same with ``fn`` applied to every integer of the layout and the offset."""
        return Tensor(self.engine, self.layout.map_integers(fn), map_integers(fn, self.offset))

    def parts(self) -> tuple[Any, ...]:
        """Return the layouts that it consists of."""
        found: tuple[Any, ...] = self.layout.parts()
        return found

    def __len__(self) -> int:
        return int(self.size())

    def __iter__(self) -> Iterator[Any]:
        return (self(i) for i in range(len(self)))

    def at(self, *crd: Any) -> Any:
        """Return the index into the engine of the element at a coordinate."""
        place = shifted(self.layout(*crd), self.offset)
        return tuple(place) if isinstance(place, tuple) else place

    def __call__(self, *crd: Any) -> Any:
        """Return the element at a coordinate; for arrays of coordinates, an array of elements."""
        return self.engine[self._checked(self.at(*crd))]

    def __getitem__(self, crd: Any) -> Any:
        """Return an element; if modes are None (or ``:``), the tensor of those modes."""
        crd = opened(crd)
        return self.sliced(crd) if has_none(crd) else self(crd)

    def __setitem__(self, crd: Any, value: Any) -> None:
        crd = opened(crd)
        if has_none(crd):
            raise LayoutTypeError(f"Tensor: cannot assign to the slice {crd}; assign elements")
        self.engine[self._checked(self.at(crd))] = value

    def sliced(self, crd: IntTuple) -> Tensor:
        """Return the tensor of the modes that ``crd`` leaves open with None."""
        if crd is None:
            return self
        if isinstance(self.layout, ComposedLayout):
            return Tensor(self.engine, self.layout.sliced(crd), self.offset)
        rest, offset = moved_slice(crd, self.layout)
        return Tensor(self.engine, rest, add(offset, self.offset))

    def compose(self, other: Any) -> Tensor:
        """Return the same engine over ``composition(layout, other)``."""
        return Tensor(self.engine, self.layout.compose(other), self.offset)

    def _checked(self, place: Any) -> Any:
        if not isinstance(place, int) or not hasattr(self.engine, "__len__"):
            return place
        if not 0 <= place < len(self.engine):
            raise IndexError(f"Tensor: offset {place} is outside an engine of {len(self.engine)}")
        return place

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        if not self._same_engine(other) or not same(self.offset, other.offset):
            return False
        return bool(self.layout == other.layout)

    def _same_engine(self, other: Tensor) -> bool:
        """Tell if both share an engine, or have equal coordinates, which are not in memory."""
        mine, theirs = self.engine, other.engine
        return mine is theirs or (isinstance(mine, CoordinateEngine) and mine == theirs)

    def __hash__(self) -> int:
        held = self.engine if isinstance(self.engine, CoordinateEngine) else id(self.engine)
        return hash((held, self.layout, self.offset))

    def __repr__(self) -> str:
        return f"Tensor({self.engine!r}, {self.layout!r}, {self.offset!r})"

    def __str__(self) -> str:
        shift = f" + {self.offset}" if not isinstance(self.offset, int) or self.offset else ""
        own = isinstance(self.engine, CoordinateEngine)
        return f"{self.layout}{shift} over {'Coordinates' if own else type(self.engine).__name__}"
