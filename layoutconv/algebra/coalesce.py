"""Change the modes of a layout but not its function: coalesce, filter, flatten, group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .checks import is_leaf
from .errors import LayoutTypeError
from .int_tuple import IntTuple, flatten, shape_of
from .layout import Layout, as_like, carried, make, make_layout
from .like import symbolically
from .normal import by_mode, filtered, from_leaves, from_plain, merge, merge_plain, normal_form


def coalesce(layout: Any, profile: IntTuple = None) -> Any:
    """Return the same function on the same domain, with as few modes as possible.

    A tuple ``profile``, or a layout in its place, coalesces mode by mode: each entry coalesces one
    mode of the layout on its own; an entry None leaves its mode alone. Without a profile, the
    result has depth <= 1 and no mode of extent 1, unless it is ``1:0`` or an index buffer, whose
    first entry need not be 0. A composed layout and a tensor are coalesced in their domain.
    CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` if the profile has more modes than the layout.

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1)))
    (2,6):(1,2)
    """
    return _by_profile(coalesce, _coalesce, layout, profile)


def _coalesce(layout: Layout) -> Layout:
    if layout._plain:
        return from_plain(merge_plain(layout._leaves))
    return from_leaves(merge(layout._leaves))


def _by_profile(
    operation: Callable[[Any, IntTuple], Any],
    whole: Callable[[Layout], Layout],
    layout: Any,
    profile: IntTuple,
) -> Any:
    """Return ``operation(layout, profile)``: apply ``whole`` to a layout, or to each mode that a
    tuple ``profile`` has an entry for. A composed layout and a tensor change in their domain.
    """
    name = operation.__name__
    if type(layout) is not Layout:
        return as_like(name, layout).on_domain(lambda inner: operation(inner, profile))
    if profile is not None:
        profile = shape_of(name, profile)
        if isinstance(profile, tuple):
            return by_mode(
                lambda mode, entry: mode if entry is None else operation(mode, entry),
                name, layout, profile,
            )  # fmt: skip
    return whole(layout) if layout._plain else symbolically(whole, layout)


def coalesce_x(layout: Any, profile: IntTuple = None) -> Any:
    """Coalesce, and keep the extended domain: the same function on *every* integer.

    The last leaf is unbounded, so it stays last even if its extent is 1. A tuple ``profile`` is as
    in :func:`coalesce`. CUTLASS: ``detail::coalesce_x``.

    >>> L = Layout((4, 1), (1, 7))
    >>> print(coalesce(L), coalesce_x(L), L(4))
    4:1 (4,1):(1,7) 7
    >>> print(coalesce_x(Layout(((4, 2), (2, 1)), ((1, 4), (8, 0))), (1, None)))
    (8,(2,1)):(1,(8,0))
    """
    return _by_profile(coalesce_x, _coalesce_x, layout, profile)


def _coalesce_x(layout: Layout) -> Layout:
    return from_leaves(normal_form(layout))


def filter(layout: Any, profile: IntTuple = None) -> Any:
    """Drop the modes of stride 0, then coalesce: the same image without the repeats of these modes.

    A tuple ``profile`` is as in :func:`coalesce`.

    >>> print(filter(Layout((4, 2, 3), (1, 0, 4))))
    12:1
    """
    return _by_profile(filter, _filter, layout, profile)


def _filter(layout: Layout) -> Layout:
    return from_leaves(filtered(layout))


def flatten_layout(layout: Any) -> Any:
    """Return the same leaves in one level of modes; for a tuple, its leaves; for a leaf, itself.

    >>> print(flatten_layout(Layout((4, (2, 3)), (1, (4, 8)))), flatten_layout((4, (2, 3))))
    (4,2,3):(1,4,8) (4, 2, 3)
    >>> from .stride import E
    >>> flatten_layout(4), flatten_layout(Layout(4, E(1)).stride)
    (4, E(1))
    """
    if type(layout) is not Layout:
        if isinstance(layout, tuple) or is_leaf(layout):
            found = shape_of("flatten_layout", layout)
            return flatten(found) if isinstance(found, tuple) else found
        return as_like("flatten_layout", layout).on_domain(flatten_layout)
    if not isinstance(layout.shape, tuple):
        return layout
    leaves = layout._leaves
    return carried(make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves])), layout)


def group_modes(layout: Any, begin: int, end: int | None = None) -> Any:
    """Modes ``begin`` to ``end`` (exclusive) as one mode; of a tuple as one entry.

    Without ``end``, group all modes from ``begin`` on.

    >>> print(group_modes(Layout((2, 3, 4, 5)), 1, 3), group_modes((2, 3, 4), 1))
    (2,(3,4),5):(1,(2,6),24) (2, (3, 4))
    """
    if isinstance(layout, tuple):
        layout = shape_of("group_modes", layout)
        end = len(layout) if end is None else end
        _check_modes(layout, len(layout), begin, end)
        return (*layout[:begin], layout[begin:end], *layout[end:])
    if type(layout) is not Layout:
        like = as_like("group_modes", layout)
        return like.on_domain(lambda inner: group_modes(inner, begin, end))
    count = layout.rank if isinstance(layout.shape, tuple) else 0
    end = count if end is None else end
    _check_modes(layout, count, begin, end)
    modes = list(layout)
    return make_layout([*modes[:begin], make_layout(modes[begin:end]), *modes[end:]])


def _check_modes(x: Any, count: int, begin: int, end: int) -> None:
    if type(begin) is not int or type(end) is not int or not 0 <= begin < end <= count:
        raise LayoutTypeError(f"group_modes: {x} has no modes {begin} to {end}")
