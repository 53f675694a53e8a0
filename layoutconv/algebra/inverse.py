"""Inverses: layouts from offsets or coordinates back to positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, TypeVar

from .axes import has_axes
from .basis import ScaledBasis
from .budget import Budget
from .composed import ComposedLayout
from .composition import compose
from .errors import LayoutBudgetError, LayoutTypeError, LayoutValueError, inexact
from .f2 import (
    integer_strides,
    is_bitwise,
    left_inverse_f2,
    left_inverse_of_coordinates,
    refuse_clashing_bits,
    right_inverse_f2,
)
from .int_tuple import map_leaves
from .interpolate import interpolate
from .inverse_axes import inverse_by_axis, refuse_clashes
from .inverse_composed import left_inverse_of_composed, right_inverse_of_composed
from .inverse_table import identical, inside, right_inverse_of_table
from .layout import Layout, as_like, make
from .like import at_present, present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    from_leaves,
    from_plain,
    merge,
    merge_plain,
    nested_by_path,
    normal_form,
    require_known,
    simplified,
)
from .protocol import Path, is_integer, is_zero, terms
from .sums import collision, solution
from .swizzle import Swizzle
from .xor import F2

_FEW = 1024  # positions up to which a single layout is sought as the inverse of XOR strides
Inverse = TypeVar("Inverse")
Mode = tuple[Any, Any, Any]  # stride, extent, and place: the step of the mode in positions


def right_inverse(a: Any) -> Any:
    """Return the longest layout ``R`` with ``a(R(k)) == k`` for every k below ``size(R)``.

    It is the longest of all if no two positions of ``a`` share an offset (modes of stride 0
    aside); otherwise the longest whose modes are modes of ``a`` or prefixes of them. For scaled
    bases R takes coordinates, with a mode for each of theirs. A tensor stands for its layout. The
    inverse of a composed layout composes the inverses of its parts, as in CuTe. CUTLASS:
    cute/layout.hpp.

    Raises :class:`LayoutValueError` if position 0 has an offset other than 0, as in a gather.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    >>> print(right_inverse(Layout((3, 4), (1, 2))))
    (2,4):(1,3)
    >>> print(right_inverse(ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 2), (2, 1)))))
    (2,4):(4,1) o 0 o S<1,0,2> o 0 o 8:1
    """
    return _of_any_kind(right_inverse, _right, _right_inverse, _right_of_composed, a)


def _of_any_kind(
    inverse: Callable[[Any], Any],
    plain: Callable[[Layout, list[Mode]], Any],
    of_layout: Callable[[Layout], Any],
    of_composed: Callable[[ComposedLayout], Any],
    a: Any,
) -> Any:
    """Compute ``inverse(a)`` by the kind of layout; ``plain`` is for layouts of integers."""
    if type(a) is Layout and a._plain:
        return from_plain(plain(a, _sorted_placed(a)))
    if isinstance(a, Swizzle):
        return a
    a = as_like(inverse.__name__, a)
    if isinstance(a, ComposedLayout):
        return symbolically(of_composed, a, name=inverse.__name__)
    if not isinstance(a, Layout):
        return inverse(a.layout)
    return symbolically(of_layout, a)


def _right_of_composed(a: ComposedLayout) -> Any:
    return right_inverse_of_composed(at_present("right_inverse", a), right_inverse)


def _left_of_composed(a: ComposedLayout) -> Any:
    return left_inverse_of_composed(at_present("left_inverse", a), left_inverse)


def _right_inverse(a: Layout) -> Layout:
    require_known("right_inverse", a)
    if arithmetic(a) is Arithmetic.OPAQUE:
        if has_axes(a):
            return inverse_by_axis("right_inverse", a, _right_inverse)
        return right_inverse_of_table("right_inverse", a)
    of_table = partial(right_inverse_of_table, "right_inverse")
    return _of_strides("right_inverse", a, _right, right_inverse_f2, of_table)


def _of_strides(
    name: str,
    a: Layout,
    of_modes: Callable[[Layout, list[Mode]], list[tuple[Any, Any]]],
    of_bits: Callable[[Layout], Inverse],
    of_table: Callable[[Layout], Inverse],
) -> Layout | Inverse:
    """Invert a layout of multiples: by modes, or for XOR strides by bits, or by a table."""
    if arithmetic(a) is Arithmetic.XOR:
        a = at_present(name, a)
        if is_bitwise(a):
            return of_bits(a)
        integers = integer_strides(a)
        if integers is None:
            return of_table(a)
        a = integers
    leaves = {path: of_modes(a, modes) for path, modes in _modes_by_path(name, a).items()}
    return from_leaves(leaves[()]) if () in leaves else nested_by_path(leaves)


def left_inverse(a: Any) -> Any:
    """Return a layout ``L`` with ``L(a(i)) == i`` for every position i of ``a``.

    Between the offsets of ``a``, L is free: it stays at its last value, as in CuTe. Modes of ``a``
    of stride 0 do not count: their coordinate comes back as 0. For scaled bases L takes
    coordinates. A tensor stands for its layout. The inverse of a composed layout composes the
    inverses of its parts, as in CuTe.

    CuTe needs strides that divide each other; for others, this searches for a layout through all
    points. For XOR strides over extents that are not powers of two, if no single layout is found,
    the inverse has two steps: to the bits of the coordinates, then to positions.

    Raises :class:`LayoutValueError` if none is found: two positions share an offset (the
    ``witness``), or the offsets are too irregular. CUTLASS: cute/layout.hpp.

    >>> print(left_inverse(Layout((4, 8), (1, 5))), left_inverse(Layout(4, 2)))
    (5,8):(1,4) (2,4):(0,1)
    >>> print(left_inverse(Layout((2, 2), (2, 3))))
    (2,3):(1,1)
    >>> print(left_inverse(Layout((6, 3), (F2(1), F2(9)))))
    (8,4):(1,6) o 0 o (8,4):(f1,f9)
    """
    return _of_any_kind(left_inverse, _left, _left_inverse, _left_of_composed, a)


def _left_inverse(a: Layout) -> Layout | ComposedLayout:
    require_known("left_inverse", a)
    if arithmetic(a) is Arithmetic.OPAQUE:
        if has_axes(a):
            return inverse_by_axis("left_inverse", a, _left_of_axis)
        raise LayoutTypeError(
            f"left_inverse: {a} has strides that are functions, which no layout inverts"
        )
    return _of_strides("left_inverse", a, _left, left_inverse_f2, _left_of_bits)


def _left_of_bits(a: Layout) -> Layout | ComposedLayout:
    """Return the left inverse of XOR strides over extents that are not powers of two."""
    return _left_of_table(a) or left_inverse_of_coordinates(a)


def _left_of_axis(a: Layout) -> Layout:
    """Return the left inverse of a layout that gives one mode of coordinates."""
    found = _left_inverse(a)
    if not isinstance(found, Layout):
        raise LayoutTypeError(
            f"left_inverse: the inverse of {a} is {found}, which is not a plain layout"
        )
    return found


def _left_of_table(a: Layout) -> Layout | None:
    """Search for one layout that undoes XOR strides over extents that are not powers of two."""
    refuse_clashing_bits(a)
    size = int(a.size())
    if size > _FEW:
        return None
    still = make(a.shape, map_leaves(lambda _, d: int(is_zero(d)), a.shape, a.stride))
    # A mode of stride 0 comes back as 0.
    points = {int(a(i)): i for i in range(size) if not still(i)}
    try:
        leaves = interpolate(points, Budget("left_inverse", (a,), 20_000))
    except LayoutBudgetError:
        return None
    return None if leaves is None else from_leaves(normal_form(from_leaves(leaves)))


def require_zero_start(name: str, a: Any) -> None:
    first = a(0)
    zero = all(x == 0 for x in first) if isinstance(first, tuple) else first == 0
    if not zero:
        raise LayoutValueError(f"{name}: position 0 of {a} is at {first}, not at 0", witness=0)


def _sorted_placed(a: Layout) -> list[Mode]:
    """Return the modes of a layout of plain integers, ascending by stride."""
    result = []
    place = 1
    for s, d in a._leaves:
        if d and s != 1:
            result.append((d, s, place))
        place *= s
    result.sort()
    return result


def placed(a: Layout) -> list[Mode]:
    """Return the modes with a stride other than 0, each with its place, ascending by stride."""
    result = []
    place: Any = 1
    for s, d in a._leaves:
        if not is_zero(d) and not (type(s) is int and s == 1):
            result.append((d, s, place))
        place = place * s
    return by_stride(result, 0)


def _modes_by_path(name: str, a: Layout) -> dict[Path, list[Mode]]:
    """Return the modes that feed each mode of the coordinates of ``a``, ``()`` for integers."""
    a = simplified(a)
    if arithmetic(a) is Arithmetic.INTEGER:
        return {(): placed(a)}
    result: dict[Path, list[Mode]] = {}
    place: Any = 1
    for s, d in a._leaves:
        if type(s) is int and s == 1:  # it moves nothing, but names its modes of the coordinates
            for path, _ in terms(d) or ():
                result.setdefault(path, [])
        elif not is_integer(d):
            if not isinstance(d, ScaledBasis):
                raise LayoutTypeError(f"{name}: {a} has strides that are not scaled bases")
            result.setdefault(d.path, []).append((d.value, s, place))
        place = place * s
    refuse_clashes(name, a, result)
    return {path: by_stride(modes, 0) for path, modes in result.items()}


def _right(a: Layout, modes: list[Mode]) -> list[tuple[Any, Any]]:
    """Return the leaves of the right inverse of integer modes."""
    result: list[tuple[Any, Any]] = []
    current: Any = 1
    for d, s, place in modes:
        if d > current:
            break
        if d < current:  # an overlap, or a negative stride
            return _right_in_general(a, _at_present("right_inverse", a, modes))
        result.append((s, place))
        current = d * s
    return merge(result)


def _at_present(name: str, a: Layout, modes: list[Mode]) -> list[Mode]:
    """Return modes of integers at their present values."""
    if all(type(x) is int for mode in modes for x in mode):
        return modes
    at_present(name, a)  # records the assumption, or raises
    return sorted([(present(d), present(s), present(p)) for d, s, p in modes])


def _right_in_general(a: Layout, modes: list[Mode]) -> list[tuple[int, int]]:
    if any(d < 0 for d, _, _ in modes):
        budget = Budget("right_inverse", (a,))
        if collision([(s, d) for d, s, _ in modes], budget) is None:
            return merge(_forced(a, modes, budget))
    return merge(_longest_chain([mode for mode in modes if mode[0] > 0]))


def _forced(a: Layout, modes: list[Mode], budget: Budget) -> list[tuple[int, int]]:
    """Return the leaves of the longest layout whose offsets are 0, 1, 2, ...: each is forced."""
    pairs = [(s, d) for d, s, _ in modes]
    leaves: list[tuple[int, int]] = []
    done = 1
    own = _alone(a, modes)
    size = int(own.size())
    count = prod(s for s, _ in pairs)
    while done < count:
        found = solution(done, pairs, budget)
        if found is None:
            break
        step = sum(c * place for c, (_, _, place) in zip(found, modes, strict=True))
        extent = longest(own, leaves, step, count // done, size)
        if extent < 2:
            break
        leaves.append((extent, step))
        done *= extent
    return leaves


_ELSEWHERE = 1 << 128  # a stride that no sum of others cancels


def _alone(a: Layout, modes: list[Mode]) -> Layout:
    """Return ``a`` with only these modes; a step along another coordinate leads far away.

    Positions carry from mode to mode, so every mode keeps its place.
    """
    strides = {place: d for d, _, place in modes}
    leaves = []
    place = 1
    for s, d in a._leaves:
        extent = int(present(s))
        still = extent == 1 or is_zero(d)
        leaves.append((extent, 0 if still else strides.get(place, _ELSEWHERE)))
        place *= extent
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def longest(a: Layout, done: list[tuple[int, Any]], stride: Any, most: int, size: int) -> int:
    """Return the largest n for which ``a o (done, n:stride)`` is the identity."""
    if arithmetic(a) is Arithmetic.XOR:
        most = min(most, inside(done, stride, size))
        found = identical(a, from_leaves([*done, (most, stride)]))
        if found is not None:
            return max(1, found // prod([s for s, _ in done]))
    low, high = 1, most  # if a prefix is the identity, so is every shorter one
    middle = most  # usually the answer
    while low < high:
        candidate = from_leaves([*done, (middle, stride)])
        reach = sum((s - 1) * int(d) for s, d in candidate._leaves)
        if reach < size and is_identity(a, candidate):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def is_identity(a: Layout, candidate: Layout) -> bool:
    """Tell if ``a`` composed with ``candidate`` is the identity on its size."""
    try:
        whole = compose(a, candidate)
    except LayoutBudgetError:
        raise
    except LayoutValueError:
        return False
    if not isinstance(whole, Layout):
        return all(whole(i) == i for i in range(int(candidate.size())))
    if whole._plain:
        plain = merge_plain(whole._leaves)
        return not plain or (len(plain) == 1 and plain[0][1] == 1)
    form = merge(whole._leaves)
    return not form or (len(form) == 1 and form[0][1] in (1, F2(1)))


def _longest_chain(modes: list[Mode]) -> list[tuple[int, int]]:
    """Return the prefixes of modes that continue each other from stride 1 as far as possible."""
    chains: dict[int, list[Mode]] = {}  # by the stride of the last mode: the modes that lead to it
    for d, s, place in modes:
        if d == 1:
            chains[1] = max(chains.get(1, []), [(1, s, place)])
            continue
        for d_before in sorted(chains, reverse=True):
            before = chains[d_before]
            s_before = before[-1][1]
            if d_before < d and d % d_before == 0 and d // d_before <= s_before:
                if d not in chains or chains[d][-1][1] < s:
                    chains[d] = [*before, (d, s, place)]
                break
    if not chains:
        return []
    best = max(chains.values(), key=lambda chain: chain[-1][0] * chain[-1][1])
    ends = [d for d, _, _ in best[1:]] + [best[-1][0] * best[-1][1]]
    return [(end // d, place) for (d, _, place), end in zip(best, ends, strict=True)]


def _left(a: Layout, modes: list[Mode]) -> list[tuple[Any, Any]]:
    """Return the leaves of the left inverse of integer modes; ``a`` is for the error."""
    shapes: list[Any] = []
    strides: list[Any] = [0]
    reach: Any = 1
    last: Any = 1
    for d, s, place in modes:
        if d <= 0 or d % reach or d < reach * last:
            return _left_in_general(a, _at_present("left_inverse", a, modes))
        shapes.append(d // reach)
        strides.append(place)
        reach, last = d, s
    return merge(list(zip([*shapes, last], strides)))  # noqa: B905


def _left_in_general(a: Layout, modes: list[Mode]) -> list[tuple[int, int]]:
    budget = Budget("left_inverse", (a,))
    apart = collision([(s, d) for d, s, _ in modes], budget)
    if apart is not None:
        here = sum(max(x, 0) * p for x, (_, _, p) in zip(apart, modes, strict=True))
        there = sum(max(-x, 0) * p for x, (_, _, p) in zip(apart, modes, strict=True))
        offset = sum(max(x, 0) * d for x, (d, _, _) in zip(apart, modes, strict=True))
        here, there = sorted((here, there))
        why = f"its positions {here} and {there} have the same offset {offset}"
        inexact("left_inverse", (a,), why, witness=(here, there))
    proved = True
    for points in _points(modes):
        try:
            leaves = interpolate(points, Budget("left_inverse", (a,), 4_500))
        except LayoutBudgetError:
            proved = False
            break
        if leaves is None:
            break
        found = from_leaves(leaves)
        if _undoes(found, modes):
            return normal_form(found)
    why = "no layout takes every offset to its position"
    if not proved:
        why = f"its strides do not divide each other, and {why} as far as was searched"
    inexact("left_inverse", (a,), why, witness=tuple(sorted(points))[:16])


def _points(modes: list[Mode]) -> Any:
    """Yield some offsets with their positions, then all of them if they are few."""
    size = 1
    for _, s, _ in modes:
        size *= s
    for few in (3, size):
        points = {0: 0}
        for d, s, place in modes:
            steps = sorted({*range(min(s, few)), s - 1})
            points = {n + i * d: p + i * place for n, p in points.items() for i in steps}
            if len(points) > 600:
                break
        yield points
        if size > 600:
            return


def _undoes(found: Layout, modes: list[Mode]) -> bool:
    """Tell if a layout maps every offset of the modes to its position."""
    shape, stride = tuple([s for _, s, _ in modes]), tuple([d for d, _, _ in modes])
    try:
        whole = compose(found, Layout(shape, stride))
    except LayoutValueError:
        return False
    wanted = Layout(shape, tuple([p for _, _, p in modes]))
    return all(merge(x._leaves) == merge(y._leaves) for x, y in zip(whole, wanted, strict=True))
