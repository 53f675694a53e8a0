"""Checks of composition, complement and inverses, on which other operations are built.

Each check compares a result of any library with the definition of its operation over the whole
domain, and raises :class:`WrongResultError` with the first coordinate at which they differ. Any
object with a ``shape`` and a ``stride`` is a layout; so are swizzled and composed layouts of this
library.
"""

from __future__ import annotations

from typing import Any

from ..algebra import Layout
from .compare import (
    at_modes,
    distinct,
    every,
    has_xor,
    is_still,
    layout_of,
    leaf_modes,
    modes_of,
    moving,
    said_of,
    same_table,
    same_values,
    wrong_unless,
)
from .oracle import components, hashable, is_layout, plus, refines, table, value, volume


def check_composition(a: Any, b: Any, result: Any) -> None:
    """Check that the result is ``c -> a(b(c))``, and that its shape refines that of ``b``.

    A tuple ``b`` works by mode. The result may drop or keep modes of ``a`` beyond it.

    >>> check_composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)), Layout(12))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: composition((6,2):(8,2), (4,3):(3,1)) = 12:1: \
its shape does not refine (4,3)
    """
    if isinstance(b, tuple):
        _check_by_mode(a, b, result)
        return
    a, b, result = layout_of(a), layout_of(b), layout_of(result)
    said = said_of("composition", a, b, result)
    shown = str(b.shape).replace(" ", "")
    wrong_unless(refines(b.shape, result.shape), said, f"its shape does not refine {shown}")
    same_table(said, table(result), [value(a, v) for v in table(b)])


def _check_by_mode(a: Any, tiler: tuple[Any, ...], result: Any) -> None:
    a, result = layout_of(a), layout_of(result)
    said = said_of("composition", a, tiler, result)
    extents = modes_of(a.shape)
    tiles = [Layout(s) if t is None else layout_of(t)
             for s, t in zip(extents, tiler, strict=False)]  # fmt: skip
    kept = modes_of(result.shape)[len(tiles) :]
    wrong_unless(kept in ((), extents[len(tiles) :]), said, f"it has the modes {kept} left")
    sizes = tuple([volume(t.shape) for t in tiles])
    wrong_unless(modes_of(result.shape)[: len(tiles)] == sizes, said, f"its modes are not {sizes}")

    def wanted(c: tuple[int, ...]) -> Any:
        places = [value(t, x) for t, x in zip(tiles, c, strict=False)]
        rest = c[len(tiles) :] or (0,) * (len(extents) - len(tiles))
        return at_modes(a, (*places, *rest))

    same_values(said, ((c, at_modes(result, c), wanted(c)) for c in every((*sizes, *kept))))


def check_complement(a: Any, bound: int, result: Any) -> None:
    """Check that the offsets increase, and that copies of ``a`` at them are disjoint and leave no
    offset below ``bound`` out, if ``a`` admits that.

    >>> check_complement(Layout((8, 64), (72, 1)), 1728, Layout(3, 576))
    >>> check_complement(Layout(4, 2), 24, Layout(3, 8))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: complement(4:2, 24) = 3:8: offset 1 is left out
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("complement", a, bound, result)
    starts, own = table(result), {hashable(v): v for v in table(a)}.values()
    if has_xor(a) or not all(isinstance(v, int) for v in (*starts, *own)):
        xored = has_xor(a)
        distinct(said, (o ^ s if xored else plus(o, s) for o in own for s in starts))
        return
    wrong_unless(starts == sorted(set(starts)), said, "its offsets do not increase")
    distinct(said, (o + s for o in own for s in starts))
    reached = {o - min(own) + s for o in own for s in starts}
    modes = moving(a)
    ends = [d * s for d, s in modes]
    gapless = all(d % e == 0 for (d, _), e in zip(modes[1:], ends, strict=False))
    lost = next((n for n in range(bound) if n not in reached), None)
    wrong_unless(not gapless or lost is None, said, f"offset {lost} is left out")


def check_right_inverse(a: Any, result: Any, longest: bool = False) -> None:
    """Check that ``a(result(k)) == k`` for every k below the size of the result.

    With ``longest``, also check that no larger layout does so, if ``a`` is injective.

    >>> check_right_inverse(Layout((8, 4), (4, 1)), Layout((4, 8), (8, 1)))
    >>> check_right_inverse(Layout((2, 4), (4, 1)), Layout(4, 2), longest=True)
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: right_inverse((2,4):(4,1)) = 4:2: \
there is one of size 8
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("right_inverse", a, result)
    values = table(a)
    if not all(isinstance(v, int) for v in values):
        same_values(said, _of_coordinates(a, result))
        return
    for k, position in enumerate(table(result)):
        wrong_unless(
            isinstance(position, int) and 0 <= position < len(values) and values[position] == k,
            said,
            f"at {k} it is {position}, where {a} is not {k}",
        )
    if longest and len(set(values)) == len(values):
        place = {v: i for i, v in enumerate(values)}
        known = next(k for k in range(len(values) + 1) if k not in place)
        most = max((m for m in range(1, known + 1) if is_layout([place[k] for k in range(m)])),
                   default=0)  # fmt: skip
        wrong_unless(volume(result.shape) >= most, said, f"there is one of size {most}")


def _of_coordinates(a: Any, result: Any) -> Any:
    for crd in every(modes_of(result.shape)):
        got = components(value(a, at_modes(result, crd)))
        yield crd, got, components(crd if isinstance(result.shape, tuple) else crd[0])


def check_left_inverse(a: Any, result: Any) -> None:
    """Check that ``result(a(i)) == i`` for every position i, with modes of stride 0 at 0.

    >>> check_left_inverse(Layout((4, 8), (1, 5)), Layout(4))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: left_inverse((4,8):(1,5)) = 4:1: \
at 5 it is 5, not 4
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("left_inverse", a, result)
    inner = a
    while not isinstance(inner, Layout):
        inner = inner.layout if hasattr(inner, "layout") else inner.inner
    extents = [1 if is_still(d) else s for s, d in leaf_modes(inner)]
    places = [1]
    for s, _ in leaf_modes(inner):
        places.append(places[-1] * s)
    for crd in every(tuple(extents)):
        position = sum(c * p for c, p in zip(crd, places, strict=False))
        offset = value(a, position)
        got = value(result, offset)
        same_values(said, [(offset, got, position)])


def check_nullspace(a: Any, result: Any) -> None:
    """Check that ``a`` is 0 at each value of the result, and that the values are distinct.

    >>> check_nullspace(Layout((2, 4, 6), (1, 2, 0)), Layout(6, 8))
    >>> check_nullspace(Layout((2, 4, 6), (1, 2, 0)), Layout(1, 0))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: nullspace((2,4,6):(1,2,0)) = 1:0: \
1 positions, though modes of stride 0 have 6
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("nullspace", a, result)
    places = table(result)
    distinct(said, places)
    for i in places:
        wrong_unless(0 <= i < volume(a.shape), said, f"{i} is not a position")
        wrong_unless(not components(value(a, i)), said, f"{a} is not 0 at {i}")
    if isinstance(a, Layout):
        still = volume(tuple([s for s, d in leaf_modes(a) if is_still(d)]) or 1)
        wrong_unless(len(places) >= still, said,
                     f"{len(places)} positions, though modes of stride 0 have {still}")  # fmt: skip


def check_max_common_layout(a: Any, b: Any, result: Any) -> None:
    """Check that both layouts give their first value plus i at the position ``result(i)``.

    >>> check_max_common_layout(Layout((4, 8)), Layout((4, 4)), Layout(16))
    """
    a, b, result = layout_of(a), layout_of(b), layout_of(result)
    said = said_of("max_common_layout", a, b, result)
    for layout in (a, b):
        first = value(layout, 0)
        places = list(enumerate(table(result)))
        same_values(said, ((i, value(layout, p), plus(first, i)) for i, p in places))


def check_max_common_vector(a: Any, b: Any, result: int) -> None:
    """Check that ``result`` offsets of both layouts, from the first on, lie at common positions.

    >>> check_max_common_vector(Layout((4, 8)), Layout((4, 4)), 16)
    >>> check_max_common_vector(Layout((4, 8)), Layout((4, 4)), 17)
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: max_common_vector((4,8):(1,4), (4,4):(1,4)) = 17: \
offset 16 is in no common place
    """
    a, b = layout_of(a), layout_of(b)
    said = said_of("max_common_vector", a, b, result)
    ours, theirs = table(a), table(b)
    first = ours[0], theirs[0]
    for i in range(1, result):
        found = any((v, w) == (plus(first[0], i), plus(first[1], i))
                    for v, w in zip(ours, theirs, strict=False))  # fmt: skip
        wrong_unless(found, said, f"offset {i} is in no common place")
