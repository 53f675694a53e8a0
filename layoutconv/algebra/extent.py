"""Extents of the codomain: coshape, cosize, and the extremes that they follow from."""

from __future__ import annotations

from itertools import product as choices
from typing import Any

from .axes import axes, has_axes
from .basis import basis_terms
from .budget import Budget
from .composed import ComposedLayout
from .entries import Mode, get
from .errors import LayoutTypeError, whole
from .f2_linear import bit_columns
from .f2_span import Span
from .fold import folded, separated
from .int_tuple import IntTuple, at_mode, map_leaves, product, shape_of
from .layout import Layout, as_like
from .like import at_present, symbolically, values_of
from .normal import Arithmetic, arithmetic, require_known, simplified
from .protocol import Bounds, Path, bounds
from .sums import within
from .swizzle import Swizzle
from .value_tables import all_values
from .values_at_once import values_at_once


def size(layout: Any, mode: Mode = None) -> Any:
    """Return the number of coordinates of a layout, a tensor or a shape, or of one mode.

    >>> size(Layout((4, (2, 3)))), size((2, 3)), size(Layout((4, (2, 3))), mode=[1, 0])
    (24, 6, 2)
    """
    if mode is not None:
        return product(at_mode("size", shape_of("size", layout), mode))
    if type(layout) is Layout:
        return layout.size()
    return product(layout)


def coshape(layout: Any, mode: Mode = None) -> IntTuple:
    """Return the extent of the offsets; for coordinates, the extent of each of their modes.

    With ``mode``, it is the extent of one mode of the layout.

    An extent is the largest offset minus the smallest, plus 1, so negative strides count as
    positive ones. For F2 strides the smallest offset is 0. A tensor stands for its layout.

    >>> coshape(Layout((4, 2), (-1, 8)))
    12
    >>> from .stride import E
    >>> coshape(Layout((4, (2, 3)), (E(1), (E(0, 1), 2 * E(0, 0)))))
    ((5, 2), 4)
    """
    if mode is not None:
        return coshape(get(layout, mode))
    layout = as_like("coshape", layout)
    if isinstance(layout, ComposedLayout):
        return _coshape(values_of(layout))
    if not isinstance(layout, Layout):
        return coshape(layout.layout)
    return symbolically(_coshape, layout)


def coprofile(layout: Any) -> IntTuple:
    """Return the nesting of the values of a layout: 0 for integers, tuples of 0 for coordinates.

    >>> from .stride import E
    >>> coprofile(Layout(4, 2)), coprofile(Layout((4, 8), (E(0), E(1, 0))))
    (0, (0, (0,)))
    """
    return map_leaves(lambda _: 0, coshape(layout))


def _coshape(layout: Any) -> IntTuple:
    return _nested({path: high - low + 1 for path, (low, high) in ends("coshape", layout).items()})


def cosize(layout: Any, mode: Mode = None) -> Any:
    """Return the size of :func:`coshape`: the length of a memory that holds every offset.

    >>> cosize(Layout(4, -1)), cosize(Layout((4, 2), (1, 8))), cosize(Layout((4, 2), (1, 8)), 1)
    (4, 12, 9)
    >>> cosize(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    512
    """
    if type(layout) is Layout and mode is None:
        return layout.cosize()
    return product(coshape(layout, mode))


def _nested(extents: dict[Path, Any]) -> IntTuple:
    if () in extents:
        return extents[()]
    modes = []
    for i in range(max(path[0] for path in extents) + 1):
        inner = {path[1:]: extent for path, extent in extents.items() if path[0] == i}
        modes.append(_nested(inner) if inner else 1)
    return tuple(modes)


def extremes(a: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest offset of a layout that gives integers.

    >>> extremes(Layout((4, 2), (-1, 8)))
    (-3, 8)
    """
    found = ends("extremes", a)
    if set(found) - {()}:
        raise LayoutTypeError(f"extremes: {a} gives coordinates")
    return found.get((), (0, 0))


def ends(name: str, a: Any) -> Bounds:
    """Return the extremes of the values of a layout, by path: ``()`` for integers."""
    plain = folded(a) or separated(a)
    if plain is not None:
        layout, constant = plain
        found = _of_layout(name, layout)
        for term in _terms(constant):
            low, high = found.get(term[0], (0, 0))
            found[term[0]] = low + term[1], high + term[1]
        return found
    if isinstance(a.outer, Swizzle) and type(a.offset) is int and isinstance(a.inner, Layout):
        return {(): _of_swizzle(name, a)}
    return _of_values(name, a)


def _terms(constant: Any) -> list[tuple[Path, Any]]:
    if isinstance(constant, tuple):
        return [(term.path, term.value) for term in basis_terms(constant)]
    return [((), constant)] if constant != 0 else []


def _of_layout(name: str, layout: Layout) -> Bounds:
    require_known(name, layout)
    if arithmetic(layout) is Arithmetic.XOR:
        return {(): (0, _largest_xor(name, at_present(name, layout)))}
    if arithmetic(layout) is Arithmetic.OPAQUE and has_axes(layout):
        return {path: _of_layout(name, axis)[()] for path, axis in axes(layout).items()}
    result: Bounds = {}
    for s, d in layout._leaves:
        found = bounds(d, 0, s - 1)
        if found is None:
            found = _of_values(name, Layout(s, d))
        for path, (low, high) in found.items():
            before = result.get(path, (0, 0))
            result[path] = before[0] + low, before[1] + high
    if len(result) > 1 and () in result:
        if result[()] != (0, 0):
            raise LayoutTypeError(f"{name}: {layout} mixes integers and coordinates")
        del result[()]
    return result or {(): (0, 0)}


def _largest_xor(name: str, layout: Layout, after: Any = int) -> int:
    """Return the largest XOR of values, over every choice of aligned ranges of 2^k coordinates.

    ``after`` is a linear map to apply to the values.
    """
    budget = Budget(name, (layout,))
    pieces = []
    for (s, _), plain in zip(layout._leaves, bit_columns(layout) or [], strict=True):
        columns = list(map(after, plain))
        ranges = []
        for k in range(s.bit_length()):
            if s >> k & 1:
                fixed = s >> (k + 1) << (k + 1)
                base = 0
                for i, column in enumerate(columns):
                    base ^= column if fixed >> i & 1 else 0
                ranges.append((base, columns[:k]))
        pieces.append(ranges)
    best = 0
    for choice in choices(*pieces):
        base = 0
        free: list[int] = []
        for value, columns in choice:
            base ^= value
            free += columns
        budget.spend(1 + len(free) * 4)
        best = max(best, Span(tuple(free)).largest(base))
    return best


def _of_swizzle(name: str, a: ComposedLayout) -> tuple[int, int]:
    """Return the extremes of swizzled sums, which lie next to the extremes of the sums.

    A swizzle changes bits from ``base`` on, but not the bits above those that it writes. So the
    largest value comes from a sum whose upper bits are the largest.
    """
    kind = arithmetic(a.inner)
    if kind is Arithmetic.XOR and a.offset == 0:
        return 0, _largest_xor(name, a.inner, a.outer)
    at_once = values_at_once(a)
    if at_once is not None:
        return at_once.extremes()
    if kind is not Arithmetic.INTEGER:
        return _of_values(name, a)[()]
    inner, swizzle = simplified(a.inner), a.outer
    low, high = extremes(inner)
    low, high = low + a.offset, high + a.offset
    top = swizzle.base + swizzle.bits + max(-swizzle.shift, 0)  # bits from here on stay
    budget = Budget(name, (a,))
    modes = [(s, d) for s, d in inner._leaves]
    low, high = whole(name, low), whole(name, high)
    start, end = high >> top << top, ((low >> top) + 1) << top
    above = [
        swizzle(x + a.offset) for x in within(start - a.offset, high - a.offset, modes, budget)
    ]
    below = [
        swizzle(x + a.offset) for x in within(low - a.offset, end - 1 - a.offset, modes, budget)
    ]
    return min(below), max(above)


def _of_values(name: str, a: Any) -> Bounds:
    """Return the extremes of all values, enumerated one by one."""
    at_once = values_at_once(a)
    if at_once is not None:
        return {(): at_once.extremes()}
    found: dict[Path, tuple[Any, Any]] = {}
    values = all_values(name, a)
    if all(type(value) is int for value in values):
        return {(): (min(values), max(values))}
    for i, value in enumerate(values):
        terms = _terms(value) if isinstance(value, tuple) else [((), value)]
        if not isinstance(value, int | tuple):
            raise LayoutTypeError(f"{name}: {a} gives {value!r}, which is not an integer")
        given = dict(terms)
        for path in {*found, *given}:
            v = given.get(path, 0)
            low, high = found.get(path, (v if i == 0 else min(v, 0), v if i == 0 else max(v, 0)))
            found[path] = min(low, v), max(high, v)
    return found or {(): (0, 0)}
