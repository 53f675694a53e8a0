"""Fold a composed layout whose outer map adds up into a plain layout."""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis, basis_terms
from .composed import ComposedLayout
from .composition import composition
from .errors import LayoutError
from .layout import Layout, make
from .normal import Arithmetic, arithmetic, from_leaves, simplified
from .protocol import Bounds, Stride, bounds, terms, xor
from .swizzle import Swizzle

_SET = object.__setattr__


class Along(Stride):
    """A stride evaluated along positions: ``c -> (offset + positions(c)) * stride``."""

    __slots__ = ("offset", "positions", "stride")

    offset: Any
    positions: Layout
    stride: Any

    def __init__(self, stride: Any, positions: Layout, offset: Any) -> None:
        _SET(self, "stride", stride)
        _SET(self, "positions", positions)
        _SET(self, "offset", offset)

    def at(self, c: Any) -> Any:
        """Return the value of the stride at the position of ``c``."""
        return (self.offset + self.positions(c)) * self.stride

    def bounds(self, low: Any, high: Any) -> Bounds | None:
        """Return the bounds of the stride if positions are consecutive, else None."""
        form = self.positions.stride
        if type(form) is int and form == 1:
            return bounds(self.stride, self.offset + low, self.offset + high)
        return None

    def __str__(self) -> str:
        return f"{self.stride} o {self.offset} o {self.positions}"


def folded(a: Any) -> tuple[Layout, Any] | None:
    """Write ``a`` as a layout plus a constant, if its outer map is a layout that adds up; or None.

    >>> outer, inner = Layout((9, 40), (7, 1)), Layout((4, 6), (ScaledBasis(1, (0,)), 0))
    >>> print(*folded(ComposedLayout(outer, (-1, 2), inner)))
    (4,6):(7,0) -5
    """
    if isinstance(a, Layout):
        return a, 0
    if not isinstance(a, ComposedLayout):
        return None
    if isinstance(a.outer, Swizzle) and not a.outer.bits:  # a swizzle that moves nothing
        inside, offset = folded(a.inner), a.offset
        if inside is None or type(offset) is not int or type(inside[1]) is not int:
            return None
        layout = simplified(inside[0])
        added = arithmetic(layout) is Arithmetic.INTEGER
        return (layout, inside[1] + offset) if added else None
    if not isinstance(a.outer, Layout):
        return None
    inside = folded(a.inner)
    if inside is None or arithmetic(a.outer) is not Arithmetic.INTEGER:
        return None
    inner, constant = inside
    start = _sum(constant, a.offset)
    if start is None or arithmetic(inner) not in (Arithmetic.INTEGER, Arithmetic.COORDINATE):
        return None
    if not _is_zero(start) and not _is_linear(a.outer, inner):
        return None
    try:
        return composition(a.outer, inner), a.outer(start)
    except LayoutError:
        return None


def _sum(constant: Any, offset: Any) -> Any:
    if type(constant) is int and constant == 0:
        return offset
    return constant + offset if type(constant) is int and type(offset) is int else None


def _is_zero(x: Any) -> bool:
    return not basis_terms(x) if isinstance(x, tuple) else x == 0


def _is_linear(outer: Layout, inner: Layout) -> bool:
    """Tell if a constant before ``outer`` equals one after it: it moves over no digits."""
    if arithmetic(inner) is Arithmetic.INTEGER:
        return len(outer._leaves) <= 1
    return isinstance(outer.shape, tuple) and all(not isinstance(s, tuple) for s in outer.shape)


def separated(a: Any) -> tuple[Layout, Any] | None:
    """Return a layout plus a constant with the values of a composed one, in another order; or None.

    If coordinates reach an outer layout of any strides, each of its modes depends only on its own
    coordinates. A tiled gather is therefore a sum again, as a set of values.
    """
    if isinstance(a, Layout):
        return a, 0
    if not isinstance(a, ComposedLayout) or not isinstance(a.outer, Layout):
        return None
    inner, outer = a.inner, a.outer
    if not isinstance(inner, Layout) or arithmetic(inner) is not Arithmetic.COORDINATE:
        return None
    if any(xor(d) for _, d in outer._leaves):
        return None  # not a sum: modes that begin at other values than 0 share bits
    if not isinstance(outer.shape, tuple) or any(isinstance(s, tuple) for s in outer.shape):
        return None
    leaves = simplified(inner)._leaves
    if not all(isinstance(d, ScaledBasis) and len(d.path) == 1 for _, d in leaves if d != 0):
        return None
    offset = a.offset if isinstance(a.offset, tuple) else (0,) * len(outer.shape)
    total: Any = 0
    result: list[tuple[Any, Any]] = [(s, 0) for s, d in leaves if type(d) is int]
    for i, d in enumerate(outer.stride):
        start = offset[i] if i < len(offset) else 0
        steps = [(s, e.value) for s, e in leaves if isinstance(e, ScaledBasis) and e.path == (i,)]
        if terms(d) is not None:
            total = total + start * d
            result += [(s, v * d) for s, v in steps]
        else:
            positions = from_leaves(steps)
            result.append((positions.size(), Along(d, positions, start)))
    return make(tuple([s for s, _ in result]), tuple([d for _, d in result])), total
