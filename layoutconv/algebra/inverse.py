"""Inverses: what leads from offsets, or coordinates, back to the positions of a layout."""

from __future__ import annotations

from typing import Any

from .coalesce import from_leaves, from_plain, has_f2, is_zero, merge, normal_form
from .errors import LayoutTypeError, inexact
from .f2 import left_inverse_f2, nullspace_f2, right_inverse_f2
from .interpolate import interpolate
from .layout import Layout, make
from .packing import Path
from .stride import ScaledBasis

Mode = tuple[int, int, int]  # extent, stride, and the place: how far the mode moves the position


def right_inverse(a: Layout) -> Layout:
    """The longest layout ``R`` with ``a(R(k)) == k`` for every k below ``size(R)``.

    The longest there is if no two positions of ``a`` share an offset (modes of stride 0 aside);
    otherwise the longest whose modes are modes of ``a`` or the beginnings of such. For scaled bases
    R takes coordinates: it has a mode for each mode of them. CUTLASS: cute/layout.hpp.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    >>> print(right_inverse(Layout((3, 4), (1, 2))))
    (2,4):(1,3)
    """
    if has_f2(a):
        return right_inverse_f2(a)
    by_path = _modes_by_path("right_inverse", a)
    if not by_path:
        return from_plain(_right(_placed(a)))
    return _over_coordinates({path: _right(modes) for path, modes in by_path.items()})


def left_inverse(a: Layout) -> Layout:
    """A layout ``L`` with ``L(a(i)) == i`` for every position i of ``a``.

    Between the offsets of ``a`` it is free: there it stays where it is, as in CuTe. Modes of ``a``
    of stride 0 do not count: their coordinate comes back as 0. For scaled bases L takes
    coordinates.

    Raises :class:`LayoutValueError` if no layout does that: two positions share an offset (the
    ``witness``), or the offsets are too irregular for one. CUTLASS: cute/layout.hpp.

    >>> print(left_inverse(Layout((4, 8), (1, 5))), left_inverse(Layout(4, 2)))
    (5,8):(1,4) (2,4):(0,1)
    >>> print(left_inverse(Layout((2, 2), (2, 3))))
    (2,3):(1,1)
    """
    if has_f2(a):
        return left_inverse_f2(a)
    by_path = _modes_by_path("left_inverse", a)
    if not by_path:
        return from_plain(_left(a, _placed(a)))
    return _over_coordinates({path: _left(a, modes) for path, modes in by_path.items()})


def nullspace(a: Layout) -> Layout:
    """The positions that ``a`` maps to 0 by strides of 0; for F2 strides all of its kernel.

    ``a(N(j)) == 0`` for all j, and ``size(N) * size(filter(a)) == size(a)``. CUTLASS:
    cute/layout.hpp.

    >>> print(nullspace(Layout((4, 2, 3), (1, 0, 0))))
    (2,3):(4,8)
    """
    if has_f2(a):
        return nullspace_f2(a)
    place = 1
    leaves = []
    for s, d in a._leaves:
        if is_zero(d) and s != 1:
            leaves.append((s, place))
        place = place * s
    return from_leaves(leaves)


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """The longest ``R`` along which both are the identity: ``a(R(i)) == i == b(R(i))``.

    What one vectorised copy from a tensor of layout ``a`` to one of layout ``b`` can move. CUTLASS:
    cute/layout.hpp.

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1))))
    8:4
    """
    from .composition import compose

    done: list[tuple[int, int]] = []
    size = 1
    for extent, stride in right_inverse(b)._leaves:
        low, high = 1, extent  # the identity on a beginning is one on every shorter beginning
        while low < high:
            middle = (low + high + 1) // 2
            candidate = from_leaves([*done, (middle, stride)])
            if _is_identity(a, candidate, compose):
                low = middle
            else:
                high = middle - 1
        if low > 1:
            done.append((low, stride))
            size *= low
        if low < extent:
            break
    return from_leaves(merge(done))


def _is_identity(a: Layout, candidate: Layout, compose: Any) -> bool:
    try:
        return merge(compose(a, candidate)._leaves) in ([(candidate.size(), 1)], [])
    except ValueError:
        return False


def max_common_vector(a: Layout, b: Layout) -> int:
    """How many elements a copy from ``a`` to ``b`` can move at once: the size of the common layout.

    >>> max_common_vector(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    8
    """
    return int(max_common_layout(a, b).size())


def _placed(a: Layout) -> list[Mode]:
    result = []
    place = 1
    for s, d in a._leaves:
        if s != 1 and d != 0:
            result.append((s, d, place))
        place *= s
    return result


def _modes_by_path(name: str, a: Layout) -> dict[Path, list[Mode]]:
    """The modes of each mode of the coordinates that ``a`` gives; {} if it gives integers."""
    if a._plain or not any(isinstance(d, ScaledBasis) for _, d in a._leaves):
        if not a._plain and not all(isinstance(x, int) for leaf in a._leaves for x in leaf):
            raise LayoutTypeError(f"{name}: expected integer, F2 or scaled-basis strides, got {a}")
        return {}
    result: dict[Path, list[Mode]] = {}
    place = 1
    for s, d in a._leaves:
        if not is_zero(d):
            if not isinstance(d, ScaledBasis):
                raise LayoutTypeError(f"{name}: {a} has strides that are no scaled bases")
            modes = result.setdefault(d.path, [])
            if s != 1:
                modes.append((s, d.value, place))
        place *= s
    return result


def _over_coordinates(leaves_by_path: dict[Path, list[tuple[int, int]]]) -> Layout:
    """A layout whose coordinate has each path as a mode; modes in between have extent 1."""
    top: dict[int, dict[Path, list[tuple[int, int]]]] = {}
    for path, leaves in leaves_by_path.items():
        top.setdefault(path[0], {})[path[1:]] = leaves
    modes = []
    for i in range(max(top) + 1):
        inner = top.get(i, {(): []})
        mode = from_leaves(inner[()]) if () in inner else _over_coordinates(inner)
        modes.append(mode)
    return make(tuple([m.shape for m in modes]), tuple([m.stride for m in modes]))


def _right(modes: list[Mode]) -> list[tuple[int, int]]:
    """The leaves of the right inverse of integer modes."""
    result: list[tuple[int, int]] = []
    current = 1
    for d, s, place in sorted([(d, s, p) for s, d, p in modes]):
        if d > current:
            break
        if d < current:  # an overlap, or a negative stride
            return _right_in_general(modes)
        result.append((s, place))
        current = d * s
    return merge(result)


def _right_in_general(modes: list[Mode]) -> list[tuple[int, int]]:
    if any(d < 0 for _, d, _ in modes):
        position: dict[int, int] = {0: 0}
        size = 1
        for s, d, place in modes:
            size *= s
            position = {n + i * d: p + i * place for n, p in position.items() for i in range(s)}
        if len(position) == size:
            return merge(_table_prefix(position))
    return merge(_longest_chain([mode for mode in modes if mode[1] > 0]))


def _table_prefix(position: dict[int, int]) -> list[tuple[int, int]]:
    """The leaves of the longest layout R with ``R(k) == position[k]``: they are forced."""
    leaves: list[tuple[int, int]] = []
    values = [0]
    while len(values) in position:
        size, step = len(values), position[len(values)]
        longer = list(values)
        while all(position.get(len(longer) + k) == len(longer) // size * step + v
                  for k, v in enumerate(values)):  # fmt: skip
            longer += [len(longer) // size * step + v for v in values]
        if len(longer) == size:
            break
        leaves.append((len(longer) // size, step))
        values = longer
    return leaves


def _longest_chain(modes: list[Mode]) -> list[tuple[int, int]]:
    """The beginnings of modes that continue each other from 1 as far as possible."""
    ordered = sorted(modes, key=lambda mode: mode[1])
    chains: dict[int, list[Mode]] = {}  # the modes that lead to the stride of each that is reached
    for s, d, place in ordered:
        if d == 1:
            chains[1] = max(chains.get(1, []), [(s, 1, place)])
            continue
        for d_before in sorted(chains, reverse=True):
            before = chains[d_before]
            s_before = before[-1][0]
            if d_before < d and d % d_before == 0 and d // d_before <= s_before:
                longer = [*before, (s, d, place)]
                if d not in chains or chains[d][-1][0] < s:
                    chains[d] = longer
                break
    if not chains:
        return []
    best = max(chains.values(), key=lambda chain: chain[-1][0] * chain[-1][1])
    ends = [d for _, d, _ in best[1:]] + [best[-1][0] * best[-1][1]]
    return [(end // d, place) for (_, d, place), end in zip(best, ends, strict=True)]


def _left(a: Layout, modes: list[Mode]) -> list[tuple[int, int]]:
    """The leaves of the left inverse of integer modes; ``a`` is named in the error."""
    shapes: list[int] = []
    strides = [0]
    reach = 1
    last = 1
    for d, s, place in sorted([(d, s, p) for s, d, p in modes]):
        if d <= 0 or d % reach or d < reach * last:
            return _left_in_general(a, modes)
        shapes.append(d // reach)
        strides.append(place)
        reach, last = d, s
    return merge(list(zip([*shapes, last], strides)))  # noqa: B905


def _left_in_general(a: Layout, modes: list[Mode]) -> list[tuple[int, int]]:
    position: dict[int, int] = {0: 0}
    for s, d, place in modes:
        longer: dict[int, int] = {}
        for i in range(s):
            for n, p in position.items():
                at, here = n + i * d, p + i * place
                if at in longer:
                    inexact(
                        "left_inverse",
                        (a,),
                        f"its positions {longer[at]} and {here} have the same offset {at}",
                        witness=(longer[at], here),
                    )
                longer[at] = here
        position = longer
    leaves = interpolate(position)
    if leaves is None:
        inexact(
            "left_inverse",
            (a,),
            "no layout takes every offset to its position",
            witness=tuple(sorted(position)),
        )
    return normal_form(from_leaves(leaves))
