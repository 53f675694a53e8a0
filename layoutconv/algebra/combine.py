"""Two layouts over one domain: their common refinement, and their sum."""

from __future__ import annotations

from typing import Any

from .carry import Carry, carries_of, clash, split
from .coalesce import from_leaves, normal_form
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .int_tuple import IntTuple, flatten, idx2crd, product, unflatten
from .layout import Layout
from .packing import Packing


def greatest_common_domain(a: IntTuple, b: IntTuple) -> IntTuple:
    """The coarsest flat shape whose coordinates are coordinates of both shapes.

    Every function that is a layout on ``a`` or on ``b`` is one on it.

    Raises :class:`LayoutValueError` if the sizes differ, or if there is none: the ``witness`` is
    the pair of places, one of each shape, of which neither divides the other.

    >>> greatest_common_domain((4, 6), (8, 3)), greatest_common_domain((4, (2, 3)), 24)
    ((4, 2, 3), (4, 2, 3))
    """
    if product(a) != product(b):
        raise LayoutValueError(
            f"greatest_common_domain: {text(a)} and {text(b)} differ in size: "
            f"{product(a)} and {product(b)}"
        )
    places = sorted({1, *_places(a), *_places(b)})
    for before, place in zip(places, places[1:]):  # noqa: B905, RUF007
        if place % before:
            inexact(
                "greatest_common_domain",
                (text(a), text(b)),
                f"a mode ends at {before} and one at {place}, which does not divide",
                witness=(before, place),
            )
    extents = tuple([after // before for before, after in zip(places, places[1:])])  # noqa: B905, RUF007
    return extents if len(extents) != 1 else extents[0]


def _places(shape: IntTuple) -> list[int]:
    result = []
    place = 1
    for extent in flatten(shape):
        place *= extent
        result.append(place)
    return result


def layout_add(a: Layout, b: Layout) -> Layout:
    """The layout ``R`` with ``R(i) == a(i) + b(i)`` for every position i; both have one size.

    On equal shapes the strides add; otherwise the result is coalesced.

    Raises :class:`LayoutValueError` if the sum is not a layout, with a position as ``witness``.

    >>> print(layout_add(Layout((4, 6), (1, 4)), Layout((8, 3), (2, 0))))
    (8,3):(3,8)
    """
    if not isinstance(a, Layout) or not isinstance(b, Layout):
        raise LayoutTypeError(f"layout_add: expected two layouts, got {a!r} and {b!r}")
    if a.size() != b.size():
        raise LayoutValueError(f"layout_add: {a} has {a.size()} elements, {b} {b.size()}")
    if a.shape == b.shape:
        sums = [_plus(x, y) for (_, x), (_, y) in zip(a._leaves, b._leaves, strict=True)]
        return Layout(a.shape, unflatten(iter(sums), a.shape))
    size = int(a.size())
    packing = Packing([d for _, d in [*a._leaves, *b._leaves]], 4 * size * size)
    forms = [[(int(s), packing.pack(d)) for s, d in normal_form(x)] for x in (a, b)]
    carries = _summed([*carries_of(forms[0]), *carries_of(forms[1])])
    parts = split(carries, (1,), size)
    best = from_leaves([(s, packing.unpack(_at(forms, step[0]))) for s, step in parts.modes])
    witness = parts.broken_at
    if witness is None:
        digits = clash(carries, parts.modes)
        if digits is None:
            return best
        witness = sum(x * step[0] for x, (_, step) in zip(digits, parts.modes, strict=True))
    inexact(
        "layout_add",
        (a, b),
        f"at {witness} the sum is {_plus(a(witness), b(witness))}, the best layout "
        f"{best(idx2crd(witness, best.shape))}",
        witness=witness,
        exact=_plus(a(witness), b(witness)),
        best=best,
    )


def _plus(x: Any, y: Any) -> Any:
    if isinstance(x, int) and x == 0:
        return y
    return x if isinstance(y, int) and y == 0 else x + y


def _summed(carries: list[Carry]) -> list[Carry]:
    weights: dict[int, int] = {}
    for _, place, weight in carries:
        weights[place] = weights.get(place, 0) + weight
    return [Carry(0, place, weight) for place, weight in sorted(weights.items()) if weight]


def _at(forms: list[list[tuple[int, int]]], n: int) -> int:
    total = 0
    for form in forms:
        rest = n
        for extent, stride in form[:-1]:
            total += rest % extent * stride
            rest //= extent
        if form:
            total += rest * form[-1][1]
    return total
