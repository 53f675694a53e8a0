"""``complement``: the layout of everything that a layout skips."""

from __future__ import annotations

from typing import Any

from .coalesce import filtered, from_leaves, from_plain, has_f2, merge
from .errors import LayoutTypeError, inexact, text
from .int_tuple import IntTuple, product
from .layout import Layout
from .packing import Path
from .stride import ScaledBasis

Leaf = tuple[Any, Any]


def complement(a: Layout | int, bound: IntTuple = 1) -> Layout:
    """The ordered layout ``R`` such that ``(a, R)`` reaches every offset below ``bound`` once.

    More exactly: R increases strictly, ``a(i) + R(j)`` is different for all offsets ``a(i)`` and
    all j, and these sums are the integers from ``min(a)`` on without a gap, at least
    ``max(bound, cosize(a))`` of them: the end is rounded up. ``bound`` is an integer or a shape
    (its size counts), by default 1. Modes of stride 0 do not count; a negative stride counts as its
    positive one, shifted. For scaled bases ``bound`` is the shape of the coordinates, and R fills
    each mode of it.

    By de Bruijn's theorem on complementing sets of integers such an R exists if and only if, the
    modes sorted by stride, each stride is a multiple of the one before times its extent.

    Raises :class:`LayoutValueError` where it does not. Its ``witness`` is an offset that no
    complement can reach just once, ``best`` the complement up to there. CUTLASS: cute/layout.hpp.

    >>> print(complement(Layout(4, 2), 24), complement(Layout((2, 2), (1, 6)), 24))
    (2,3):(1,8) (3,2):(2,12)
    """
    if isinstance(a, int):
        a = Layout(a)
    if not isinstance(a, Layout):
        raise LayoutTypeError(f"complement: {a!r} is not a layout")
    if a._plain:
        limit = bound if type(bound) is int else int(product(bound))
        return from_plain(gaps(a, a._leaves, limit))
    if has_f2(a):
        from .f2 import complement_f2

        return complement_f2(a, int(product(bound)))
    leaves = filtered(a)
    if all(isinstance(d, int) for _, d in leaves):
        return from_leaves(gaps(a, leaves, int(product(bound))))
    return _complement_by_path(a, leaves, bound)


def gaps(a: Layout, leaves: list[Leaf], bound: int) -> list[Leaf]:
    """The leaves of the complement of integer ``leaves``; ``a`` is named in the error."""
    result: list[Leaf] = []
    current = 1
    for d, s in sorted([(abs(d), s) for s, d in leaves if d and s != 1]):
        gap, rest = divmod(d, current)
        if rest or not gap:
            _refuse(a, leaves, bound, d, result)
        if gap > 1:
            result.append((gap, current))
        current = d * s
    if current < bound:
        result.append((-(-bound // current), current))
    return result


def _complement_by_path(a: Layout, leaves: list[Leaf], bound: IntTuple) -> Layout:
    by_path: dict[Path, list[Leaf]] = {path: [] for path in _paths(bound)}
    for s, d in leaves:
        if not isinstance(d, ScaledBasis) or not isinstance(d.value, int):
            raise LayoutTypeError(f"complement: expected integers or scaled bases, got {a}")
        by_path.setdefault(d.path, []).append((s, d.value))
    result: list[Leaf] = []
    for path in sorted(by_path):
        limit = int(product(_at(bound, path)))
        for s, d in gaps(a, by_path[path], limit):
            result.append((s, ScaledBasis(d, path)))
    return from_leaves(merge(result))


def _paths(bound: IntTuple, path: Path = ()) -> list[Path]:
    if isinstance(bound, tuple):
        return [p for i, mode in enumerate(bound) for p in _paths(mode, (*path, i))]
    return [path] if path else []


def _at(bound: IntTuple, path: Path) -> IntTuple:
    for mode in path:
        if not isinstance(bound, tuple) or mode >= len(bound):
            return 1
        bound = bound[mode]
    return bound


def _refuse(a: Layout, leaves: list[Leaf], bound: int, stride: int, done: list[Leaf]) -> None:
    """Complete the offsets of the modes up to ``stride`` greedily: every step is forced."""
    offsets = [0]
    for s, d in sorted(leaves, key=lambda leaf: abs(leaf[1])):
        if 0 < abs(d) <= stride:
            offsets = [o + i * abs(d) for i in range(s) for o in offsets]
    twice = len(set(offsets)) < len(offsets)
    reached: set[int] = set()
    n = 0
    while not reached.intersection(copy := {n + o for o in offsets}) and not twice:
        reached |= copy
        while n in reached:
            n += 1
    at = min(o for o in offsets if offsets.count(o) > 1) if twice else n
    why = (
        f"two of its coordinates have the offset {at}"
        if twice
        else f"offset {at} can only be reached by a copy that starts there, and that copy meets "
        f"{min(reached & copy)} again"
    )
    inexact("complement", (a, text(bound)), why, witness=at, best=from_leaves(done))
