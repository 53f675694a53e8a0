"""Checks of results of any library: a layout is what has a ``shape`` and a ``stride``.

Each check compares a result with the definition of its operation over the whole domain, and raises
:class:`WrongResultError` with the first coordinate at which they differ.
"""

from __future__ import annotations

from typing import Any

from ..algebra import Layout
from .oracle import coordinates, flat_strides, leaves, refines, table, value, volume


class WrongResultError(AssertionError):
    """The result of an operation is not what the definition says."""


def layout_of(x: Any) -> Layout:
    """A layout of another library as one of ours, by its ``shape`` and ``stride``.

    >>> print(layout_of(Layout((4, 8), (8, 1))))
    (4,8):(8,1)
    """
    return x if isinstance(x, Layout) else Layout(_tuple(x.shape), _tuple(x.stride))


def _tuple(tree: Any) -> Any:
    return tuple(map(_tuple, tree)) if isinstance(tree, tuple | list) else int(tree)


def check_coalesce(a: Any, result: Any) -> None:
    """The result has the values of ``a`` at all positions, in one level of modes.

    >>> check_coalesce(Layout((2, 4)), Layout(8))
    >>> check_coalesce(Layout((2, 4)), Layout(8, 2))
    Traceback (most recent call last):
        ...
    layoutconv.testing.checks.WrongResultError: coalesce((2,4):(1,2)) = 8:2: at 1 it is 2, not 1
    """
    a, result = layout_of(a), layout_of(result)
    said = f"coalesce({a}) = {result}"
    _same_table(said, table(result), table(a))
    if result.depth > 1:
        raise WrongResultError(f"{said}: it has depth {result.depth}")


def check_composition(a: Any, b: Any, result: Any) -> None:
    """The result is ``c -> a(b(c))``, and its shape refines that of ``b``.

    >>> check_composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)), Layout(12))
    Traceback (most recent call last):
        ...
    layoutconv.testing.checks.WrongResultError: composition((6,2):(8,2), (4,3):(3,1)) = 12:1: \
its shape does not refine (4,3)
    """
    a, b, result = layout_of(a), layout_of(b), layout_of(result)
    said = f"composition({a}, {b}) = {result}"
    if not refines(b.shape, result.shape):
        raise WrongResultError(f"{said}: its shape does not refine {_text(b.shape)}")
    _same_table(said, table(result), [value(a, v) for v in table(b)])


def check_complement(a: Any, bound: int, result: Any) -> None:
    """Copies of ``a`` at the offsets of the result, which increase, do not meet, and reach far.

    >>> check_complement(Layout((8, 64), (72, 1)), 1728, Layout(3, 576))
    >>> check_complement(Layout(4, 2), 24, Layout(3, 8))
    Traceback (most recent call last):
        ...
    layoutconv.testing.checks.WrongResultError: complement(4:2, 24) = 3:8: offset 1 is left out
    """
    a, result = layout_of(a), layout_of(result)
    said = f"complement({a}, {bound}) = {result}"
    own, starts = set(table(a)), table(result)
    if starts != sorted(set(starts)):
        raise WrongResultError(f"{said}: its offsets do not increase")
    _disjoint(said, [o + s for o in own for s in starts])
    reached = {o - min(own) + s for o in own for s in starts}
    modes = sorted((abs(d), s) for s, d in _moving(a))
    ends = [d * s for d, s in modes]
    gapless = all(d % e == 0 for (d, _), e in zip(modes[1:], ends, strict=False))
    lost = next((n for n in range(bound) if n not in reached), None)
    if gapless and lost is not None:
        raise WrongResultError(f"{said}: offset {lost} is left out")


def check_logical_divide(a: Any, tile: Any, result: Any) -> None:
    """Mode 0 is ``a`` composed with the tile, and every element of ``a`` is in one tile.

    >>> check_logical_divide(Layout(24), Layout(4, 2), Layout((4, (2, 3)), (2, (1, 8))))
    """
    a, tile, result = layout_of(a), layout_of(tile), layout_of(result)
    said = f"logical_divide({a}, {tile}) = {result}"
    _same_table(f"{said}: in the tile", table(result[0]), [value(a, v) for v in table(tile)])
    got, wanted = sorted(table(result)), sorted(table(a))
    if len(got) == len(wanted) and got != wanted:
        raise WrongResultError(f"{said}: its offsets are not those of {a}")
    if not set(wanted) <= set(got):
        raise WrongResultError(f"{said}: offset {min(set(wanted) - set(got))} is lost")


def check_logical_product(a: Any, tile: Any, result: Any) -> None:
    """Mode 0 is ``a``, and the copies of it that mode 1 makes do not meet.

    >>> check_logical_product(Layout(4), 3, Layout((4, 3), (1, 3)))
    Traceback (most recent call last):
        ...
    layoutconv.testing.checks.WrongResultError: logical_product(4:1, 3:1) = (4,3):(1,3): \
offset 3 is in two copies
    """
    a, result = layout_of(a), layout_of(result)
    tile = Layout(tile) if isinstance(tile, int) else layout_of(tile)
    said = f"logical_product({a}, {tile}) = {result}"
    _same_table(f"{said}: in the block", table(result[0]), table(a))
    if volume(result[1].shape) != volume(tile.shape):
        raise WrongResultError(f"{said}: it has {volume(result[1].shape)} copies")
    own, starts = set(table(a)), set(table(result[1]))
    if len(starts) != len(set(table(tile))):
        raise WrongResultError(f"{said}: copies of different places are at one offset")
    _disjoint(said, [o + s for o in own for s in starts])


def check_right_inverse(a: Any, result: Any) -> None:
    """``a(result(k)) == k`` for every k below the size of the result.

    >>> check_right_inverse(Layout((4, 8), (8, 1)), Layout((8, 4), (4, 1)))
    """
    a, result = layout_of(a), layout_of(result)
    said = f"right_inverse({a}) = {result}"
    for k, position in enumerate(table(result)):
        if not 0 <= position < volume(a.shape) or value(a, position) != k:
            raise WrongResultError(f"{said}: at {k} it is {position}, where {a} is not {k}")


def check_left_inverse(a: Any, result: Any) -> None:
    """``result(a(i)) == i`` for every position i, those of stride 0 at 0.

    >>> check_left_inverse(Layout((4, 8), (1, 5)), Layout(4))
    Traceback (most recent call last):
        ...
    layoutconv.testing.checks.WrongResultError: left_inverse((4,8):(1,5)) = 4:1: at 5 it is 5, not 4
    """
    a, result = layout_of(a), layout_of(result)
    said = f"left_inverse({a}) = {result}"
    strides = flat_strides(a.shape, a.stride)
    for crd in coordinates(a.shape):
        kept = [c if d else 0 for c, d in zip(crd, strides, strict=True)]
        position, place = 0, 1
        for c, s in zip(kept, leaves(a.shape), strict=True):
            position, place = position + c * place, place * s
        offset = sum(c * d for c, d in zip(crd, strides, strict=True))
        if value(result, offset) != position:
            got = value(result, offset)
            raise WrongResultError(f"{said}: at {offset} it is {got}, not {position}")


def _same_table(said: str, got: list[Any], wanted: list[Any]) -> None:
    if len(got) != len(wanted):
        raise WrongResultError(f"{said}: it has {len(got)} elements, not {len(wanted)}")
    for i, (x, y) in enumerate(zip(got, wanted, strict=True)):
        if x != y:
            raise WrongResultError(f"{said}: at {i} it is {x}, not {y}")


def _disjoint(said: str, offsets: list[int]) -> None:
    seen: set[int] = set()
    for offset in sorted(offsets):
        if offset in seen:
            raise WrongResultError(f"{said}: offset {offset} is in two copies")
        seen.add(offset)


def _moving(a: Layout) -> list[tuple[int, int]]:
    pairs = zip(leaves(a.shape), flat_strides(a.shape, a.stride), strict=True)
    return [(s, d) for s, d in pairs if s > 1 and d]


def _text(shape: Any) -> str:
    return str(shape).replace(" ", "")
