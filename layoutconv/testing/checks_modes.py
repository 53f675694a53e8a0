"""Checks of operations that change modes but keep the function, and of sums and casts."""

from __future__ import annotations

from typing import Any

from ..algebra import Layout
from .compare import (
    added,
    every,
    has_xor,
    is_still,
    layout_of,
    leaf_modes,
    nest,
    peeled,
    said_of,
    same_table,
    same_values,
    wrong_unless,
)
from .oracle import components, image, leaves, plus, refines, split, table, value, volume


def _depth(shape: Any) -> int:
    return 1 + max(map(_depth, shape), default=0) if isinstance(shape, tuple) else 0


def check_coalesce(a: Any, result: Any) -> None:
    """Check that the result has the values of ``a`` at all positions, and depth 1 at most.

    >>> check_coalesce(Layout((2, 4)), Layout(8))
    >>> check_coalesce(Layout((2, 4)), Layout(8, 2))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: coalesce((2,4):(1,2)) = 8:2: at 1 it is 2, not 1
    """
    _check_flat("coalesce", layout_of(a), layout_of(result))


def check_flatten(a: Any, result: Any) -> None:
    """Check that the result has the leaves of ``a`` as its modes, and depth 1 at most.

    >>> check_flatten(Layout(((2, 2), 3)), Layout((2, 2, 3)))
    """
    a, result = layout_of(a), layout_of(result)
    _check_flat("flatten", a, result)
    said = said_of("flatten", a, result)
    wrong_unless(leaves(result.shape) == leaves(a.shape), said, "it has other leaves")


def _check_flat(name: str, a: Any, result: Any) -> None:
    said = said_of(name, a, result)
    same_table(said, table(result), table(a))
    deep = _depth(result.shape)
    wrong_unless(deep <= 1, said, f"it has depth {deep}")


def check_coalesce_x(a: Any, result: Any) -> None:
    """Check that the result has the values of ``a``, also beyond its size.

    >>> check_coalesce_x(Layout((4, 1), (1, 7)), Layout(4))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: coalesce_x((4,1):(1,7)) = 4:1: at 4 it is 4, not 7
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("coalesce_x", a, result)
    numbers = range(3 * volume(a.shape))
    same_values(said, ((i, value(result, i), value(a, i)) for i in numbers))


def check_filter(a: Any, result: Any) -> None:
    """Check that the result has the same offsets as ``a``, and no mode of stride 0.

    >>> check_filter(Layout((2, 3, 4), (0, 1, 3)), Layout(12))
    >>> check_filter(Layout((2, 3), (0, 1)), Layout((2, 3), (0, 1)))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: filter((2,3):(0,1)) = (2,3):(0,1): \
it has a mode of stride 0
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("filter", a, result)
    lost = image(a) ^ image(result)
    wrong_unless(not lost, said, f"offset {min(lost, key=str) if lost else 0} is not in both")
    if isinstance(result, Layout) and volume(result.shape) > 1:
        still = any(is_still(d) for s, d in leaf_modes(result) if s > 1)
        wrong_unless(not still, said, "it has a mode of stride 0")


def check_filter_zeros(a: Any, result: Any) -> None:
    """Check that extents of stride 0 are 1, and that everything else is unchanged.

    >>> check_filter_zeros(Layout((2, 3), (0, 1)), Layout((1, 3), (0, 1)))
    """
    a, result = peeled(layout_of(a), layout_of(result))
    said = said_of("filter_zeros", a, result)
    wrong_unless(isinstance(result, Layout), said, "what is outside of the layout is another")
    extents = [1 if is_still(d) else s for s, d in leaf_modes(a)]
    wrong_unless(leaves(result.shape) == extents, said, f"its extents are not {extents}")
    for crd in every(tuple(extents)):
        same_values(said, [(crd, value(result, nest(crd, result.shape)),
                            value(a, nest(crd, a.shape)))])  # fmt: skip


def check_group_modes(a: Any, begin: int, end: int, result: Any) -> None:
    """Check that modes ``begin`` to ``end - 1`` are one mode, and that the values are unchanged.

    >>> check_group_modes(Layout((2, 3, 4)), 0, 2, Layout(((2, 3), 4)))
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("group_modes", a, begin, end, result)
    shape = (*a.shape[:begin], a.shape[begin:end], *a.shape[end:])
    wrong_unless(result.shape == shape, said, f"its shape is not {shape}")
    same_table(said, table(result), table(a))


def check_with_shape(a: Any, shape: Any, result: Any) -> None:
    """Check that the values are unchanged, and that the shape of the result refines ``shape``.

    >>> check_with_shape(Layout(8), (2, 4), Layout((2, 4)))
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("with_shape", a, shape, result)
    wrong_unless(refines(shape, result.shape), said, f"its shape does not refine {shape}")
    same_table(said, table(result), table(a))


def check_slice_and_offset(crd: Any, a: Any, result: Any) -> None:
    """Check that ``offset + rest(c)`` is ``a`` at ``crd`` with its open places filled by ``c``.

    >>> check_slice_and_offset((None, 3), Layout((4, 8), (8, 1)), (Layout(4, 8), 3))
    >>> check_slice_and_offset((None, 3), Layout((4, 8), (8, 1)), (Layout(4, 8), 2))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: slice_and_offset((_,3), (4,8):(8,1)) = (4:8,2): \
at (0) it is 2, not 3
    """
    _check_slice("slice_and_offset", crd, layout_of(a), *result)


def check_slice(crd: Any, a: Any, result: Any) -> None:
    """Check a slice without its offset, which is ``a`` at ``crd`` with the open places at 0.

    >>> check_slice((None, 3), Layout((4, 8), (8, 1)), Layout(4, 8))
    """
    a = layout_of(a)
    closed = value(a, nest(_filled(crd, a.shape, iter(lambda: 0, 1)), a.shape))
    first = value(layout_of(result), 0)
    offset = closed if not components(first) else 0
    _check_slice("slice", crd, a, result, offset)


def _check_slice(name: str, crd: Any, a: Any, rest: Any, offset: Any) -> None:
    rest = layout_of(rest)
    shown = (rest, offset) if name == "slice_and_offset" else rest
    said = said_of(name, crd, a, shown)
    add = added(a) if isinstance(rest, Layout) else plus
    offset = offset if isinstance(offset, int | dict) else components(offset)
    have, need = len(leaves(rest.shape)), len(_opened(crd, a.shape))
    wrong_unless(have == need, said, f"it has {have} leaves, though {need} are open")
    for c in every(tuple(leaves(rest.shape))):
        digits = _filled(crd, a.shape, iter(c))
        got = value(rest, nest(c, rest.shape))
        same_values(said, [(c, add(got, offset), value(a, nest(digits, a.shape)))])


def _opened(crd: Any, shape: Any) -> list[Any]:
    """Return the extents of the leaves that a slice's coordinate leaves open."""
    if crd is None:
        return list(leaves(shape))
    if isinstance(crd, tuple):
        return [s for c, part in zip(crd, shape, strict=True) for s in _opened(c, part)]
    return []


def _filled(crd: Any, shape: Any, opened: Any) -> list[int]:
    """Return a slice's coordinate with its open places filled by digits."""
    if crd is None:
        return [next(opened) for _ in leaves(shape)]
    if isinstance(crd, tuple):
        return [d for c, s in zip(crd, shape, strict=True) for d in _filled(c, s, opened)]
    return list(split(crd, shape))


def check_layout_add(a: Any, b: Any, result: Any) -> None:
    """Check that the result is ``a(i) + b(i)``, by XOR where strides add so.

    >>> check_layout_add(Layout((2, 2), (1, 0)), Layout((2, 2), (0, 8)), Layout((2, 2), (1, 8)))
    """
    a, b, result = layout_of(a), layout_of(b), layout_of(result)
    add = added(b) if has_xor(b) else added(a)
    wanted = [add(v, w) for v, w in zip(table(a), table(b), strict=True)]
    same_table(said_of("layout_add", a, b, result), table(result), wanted)


def check_upcast(a: Any, n: int, result: Any) -> None:
    """Check that the result has one element per n elements of ``a``: ``a(c) // n`` in their place.

    >>> check_upcast(Layout((8, 4), (1, 8)), 2, Layout((4, 4), (1, 4)))
    >>> check_upcast(Layout((8, 4), (1, 8)), 2, Layout((4, 4), (1, 8)))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: upcast((8,4):(1,8), 2) = (4,4):(1,8): \
it has another image
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("upcast", a, n, result)
    units = {v // n for v in table(a)}
    wrong_unless(units == set(table(result)), said, "it has another image")
    if not isinstance(a, Layout) or has_xor(a):
        return
    shares = [-(-n // abs(d)) if d else 1 for _, d in leaf_modes(a)]
    for c in every(tuple(leaves(a.shape))):
        place = [x // share for x, share in zip(c, shares, strict=True)]
        same_values(said, [(c, value(result, nest(place, a.shape)),
                            value(a, nest(c, a.shape)) // n)])  # fmt: skip


def check_downcast(a: Any, n: int, result: Any) -> None:
    """Check that the result has, for each element of ``a``, the n elements that it consists of.

    >>> check_downcast(Layout((4, 4), (1, 4)), 2, Layout((8, 4), (1, 8)))
    """
    a, result = layout_of(a), layout_of(result)
    said = said_of("downcast", a, n, result)
    wanted = sorted(n * v + r for v in table(a) for r in range(n))
    wrong_unless(sorted(table(result)) == wanted, said, "it has other offsets")


def check_recast(a: Any, old_bits: int, new_bits: int, result: Any) -> None:
    """Check an upcast or a downcast between types of ``old_bits`` and ``new_bits``.

    >>> check_recast(Layout((8, 4)), 8, 16, Layout((4, 4)))
    """
    if new_bits >= old_bits:
        check_upcast(a, new_bits // old_bits, result)
    else:
        check_downcast(a, old_bits // new_bits, result)


def check_cosize(a: Any, result: int) -> None:
    """Check that the result is the largest offset minus the smallest, plus 1; for coordinates, the
    product of that over components.

    >>> check_cosize(Layout((4, 8), (16, 1)), 56)
    """
    values = [components(v) for v in table(layout_of(a))]
    wanted = 1
    for path in {path for v in values for path in v}:
        parts = [v.get(path, 0) for v in values]
        wanted *= max(parts) - min(parts) + 1
    wrong_unless(result == wanted, said_of("cosize", layout_of(a), result), f"it is {wanted}")


def check_is_injective(a: Any, result: bool) -> None:
    """Check that the result is True exactly if no two coordinates have the same offset.

    >>> check_is_injective(Layout((2, 2), (1, 2)), True)
    """
    a = layout_of(a)
    wanted = len(image(a)) == volume(a.shape)
    wrong_unless(bool(result) == wanted, said_of("is_injective", a, result), f"it is {wanted}")


def check_is_surjective(a: Any, result: bool) -> None:
    """Check that the result is True exactly if no offset from least to largest is missing.

    >>> check_is_surjective(Layout(4, 2), False)
    """
    a = layout_of(a)
    values = set(table(a))
    wanted = len(values) == max(values) - min(values) + 1
    wrong_unless(bool(result) == wanted, said_of("is_surjective", a, result), f"it is {wanted}")
