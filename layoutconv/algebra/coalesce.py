"""The same function with fewer modes: coalesce, filter, flatten, group, and the normal form."""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError, LayoutValueError, text
from .int_tuple import IntTuple
from .layout import _NORMAL, Layout, make, make_layout, make_plain
from .stride import F2

Leaf = tuple[Any, Any]  # an extent and its stride


def merge(leaves: list[Leaf]) -> list[Leaf]:
    """``leaves`` without extents of 1, and neighbours that continue each other joined."""
    result: list[Leaf] = []
    for s, d in leaves:
        if isinstance(s, int) and s == 1:
            continue
        if result:
            s0, d0 = result[-1]
            if continues(s0, d0, d):
                result[-1] = (s0 * s, d0)
                continue
        result.append((s, d))
    return result


def continues(s0: Any, d0: Any, d: Any) -> bool:
    """Whether a mode of stride ``d`` goes on where ``s0:d0`` ends."""
    if type(d0) is int and type(d) is int:
        return bool(s0 * d0 == d)
    if isinstance(d0, F2) and s0 & (s0 - 1):
        return False  # bits of a coordinate below 3 are not the bits of its place
    try:
        return bool(s0 * d0 == d)
    except TypeError:
        return False


def from_leaves(leaves: list[Leaf]) -> Layout:
    """A layout of depth 1 with these leaves, of depth 0 for one, ``1:0`` for none."""
    if len(leaves) == 1:
        return make(*leaves[0])
    if not leaves:
        return make_plain(1, 0, [(1, 0)])
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def from_plain(leaves: list[tuple[int, int]]) -> Layout:
    """:func:`from_leaves` for leaves that are plain integers."""
    if len(leaves) == 1:
        return make_plain(*leaves[0], leaves)
    if not leaves:
        return make_plain(1, 0, [(1, 0)])
    return make_plain(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]), leaves)


def by_mode(
    operation: Any, name: str, layout: Layout, tiler: tuple[Any, ...], *, keep: bool = True
) -> Layout:
    """``operation`` on the first modes of ``layout``, each with its entry of ``tiler``.

    The modes after those are kept as they are, or dropped.
    """
    if len(tiler) > layout.rank:
        raise LayoutValueError(
            f"{name}: the tiler {text(tiler)} has {len(tiler)} modes, {layout} only {layout.rank}"
        )
    modes = list(layout)
    rest = modes[len(tiler) :] if keep else []
    return make_layout([operation(m, t) for m, t in zip(modes, tiler)] + rest)  # noqa: B905


def coalesce(layout: Layout, profile: IntTuple = None) -> Layout:
    """The same function of linear coordinates on the same domain, with as few modes as possible.

    With a tuple ``profile`` by mode: as many modes of the layout as it has entries are coalesced
    apart from each other; an entry of None leaves its mode alone. The result without profile has
    depth <= 1, and no mode of extent 1 unless it is ``1:0``. CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` for a profile of more modes than the layout.

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1)))
    (2,6):(1,2)
    """
    if isinstance(profile, tuple):
        return by_mode(_coalesce_mode, "coalesce", layout, profile)
    leaves = merge(layout._leaves)
    return from_plain(leaves) if layout._plain else from_leaves(leaves)


def _coalesce_mode(layout: Layout, profile: IntTuple) -> Layout:
    return layout if profile is None else coalesce(layout, profile)


def coalesce_x(layout: Layout) -> Layout:
    """Coalesced with the extended domain kept: the same function on *every* integer.

    The last leaf is not bounded, so it stays the last even where its extent is 1. CUTLASS:
    ``detail::coalesce_x``.

    >>> L = Layout((4, 1), (1, 7))
    >>> print(coalesce(L), coalesce_x(L), L(4))
    4:1 (4,1):(1,7) 7
    """
    return from_leaves(normal_form(layout))


def normal_form(layout: Layout) -> list[Leaf]:
    """The leaves of ``coalesce_x(layout)``: equal functions of all integers have equal ones.

    Kept with the layout. Only the extent of the last leaf says nothing about the function.
    """
    form = layout._normal
    if form is None:
        leaves = layout._leaves
        form = merge(leaves)
        if leaves:
            last, stride = leaves[-1]
            if isinstance(last, int) and last == 1:
                size, step = form[-1] if form else (1, 0)
                if not form or not continues(size, step, stride):
                    form.append((1, stride))
        _NORMAL(layout, form)
    return form


def filter(layout: Layout, profile: IntTuple = None) -> Layout:
    """Coalesced after the modes of stride 0 are dropped: the same image, each offset less often.

    By mode with a tuple ``profile``, as :func:`coalesce`.

    >>> print(filter(Layout((4, 2, 3), (1, 0, 4))))
    12:1
    """
    if isinstance(profile, tuple):
        return by_mode(_filter_mode, "filter", layout, profile)
    return from_leaves(filtered(layout))


def _filter_mode(layout: Layout, profile: IntTuple) -> Layout:
    return layout if profile is None else filter(layout, profile)


def filtered(layout: Layout) -> list[Leaf]:
    """The leaves of ``filter(layout)``."""
    return merge([(s, d) for s, d in layout._leaves if not is_zero(d)])


def has_f2(layout: Layout) -> bool:
    """Whether a stride of the layout adds without carry."""
    return not layout._plain and any(isinstance(d, F2) for _, d in layout._leaves)


def is_zero(d: Any) -> bool:
    """Whether a stride moves nothing."""
    return bool(d == 0) if isinstance(d, int) else bool(getattr(d, "value", 1) == 0)


def flatten_layout(layout: Layout) -> Layout:
    """The same leaves in one level of modes.

    >>> print(flatten_layout(Layout((4, (2, 3)), (1, (4, 8)))))
    (4,2,3):(1,4,8)
    """
    if not isinstance(layout.shape, tuple):
        return layout
    return make(tuple([s for s, _ in layout._leaves]), tuple([d for _, d in layout._leaves]))


def group_modes(layout: Layout, begin: int, end: int) -> Layout:
    """Modes ``begin`` to ``end`` (exclusive) as one mode.

    >>> print(group_modes(Layout((2, 3, 4, 5)), 1, 3))
    (2,(3,4),5):(1,(2,6),24)
    """
    if not isinstance(layout.shape, tuple) or not 0 <= begin < end <= layout.rank:
        raise LayoutTypeError(f"group_modes: {layout} has no modes {begin} to {end}")
    modes = list(layout)
    return make_layout([*modes[:begin], make_layout(modes[begin:end]), *modes[end:]])
