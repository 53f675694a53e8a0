"""The normal form of a layout, and the arithmetic of its strides.

The normal form determines a layout's function on every integer: it has no extents of 1 except a
last one, and no neighbours that continue each other. The way in which the strides add decides what
operations can do with a layout; operations ask here.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from .basis import ScaledBasis, sum_of_bases
from .errors import LayoutTypeError, LayoutValueError, refuse_deep, text
from .int_tuple import IntTuple, unflatten
from .layout import NORMAL, Layout, Leaf, make, make_layout, make_plain
from .protocol import Path, can_merge, is_integer, is_stride, is_zero, terms, xor
from .relations import known


class Arithmetic(Enum):
    """The way in which the strides of a layout add up."""

    INTEGER = "integer"  # integers, or strides that act like them
    COORDINATE = "coordinate"  # scaled bases and their sums: vectors
    XOR = "xor"  # without carry
    OPAQUE = "opaque"  # by unknown functions, or in several ways
    TRACED = "traced"  # integers of a kernel whose values are not known yet


def arithmetic(layout: Layout) -> Arithmetic:
    """Return the arithmetic of a layout's strides.

    >>> from layoutconv.algebra import E, F2
    >>> arithmetic(Layout((4, 2), (E(0), 0))).value, arithmetic(Layout((4, 2), (F2(3), 0))).value
    ('coordinate', 'xor')
    """
    if layout._plain:
        return Arithmetic.INTEGER
    paths: set[bool] = set()
    additive = traced = True
    for s, d in layout._leaves:
        found = terms(d)
        traced = traced and (is_integer(s) and (found is not None or is_stride(d)))
        if found is None:
            additive = False
        else:
            paths.update(path != () for path, _ in found)
    if not traced:
        return Arithmetic.TRACED
    if additive and len(paths) < 2:
        return Arithmetic.COORDINATE if True in paths else Arithmetic.INTEGER
    if all(xor(d) is not None for _, d in layout._leaves):
        return Arithmetic.XOR
    return Arithmetic.OPAQUE


def require_known(operation: str, *layouts: Layout) -> None:
    """Refuse layouts with extents or strides whose values are not known yet."""
    for layout in layouts:
        if arithmetic(layout) is Arithmetic.TRACED:
            raise LayoutTypeError(
                f"{operation}: exactness is decided on Python integers; {layout} has values that "
                "a kernel computes"
            )


def simplified(layout: Layout) -> Layout:
    """Return the same function, with integers and scaled bases for all strides that act like them.

    >>> from layoutconv.algebra import F2, CustomStride, StridedGather
    >>> print(simplified(Layout((4, 2), (CustomStride(StridedGather(3), 2), F2(0)))))
    (4,2):(6,0)
    """
    if layout._plain:
        return layout
    changed = False
    strides = []
    for _, d in layout._leaves:
        found = terms(d) if is_stride(d) else None
        if found is None:
            strides.append(d)
            continue
        new: Any = _stride_of(found)
        changed = changed or type(new) is not type(d)
        strides.append(new)
    return make(layout.shape, unflatten(iter(strides), layout.shape)) if changed else layout


def _stride_of(found: Any) -> Any:
    if not found:
        return 0
    if found[0][0] == ():
        return found[0][1]
    return sum_of_bases([ScaledBasis(value, path) for path, value in found])


def merge(leaves: list[Leaf]) -> list[Leaf]:
    """Drop extents of 1 from ``leaves``, and join neighbours that continue each other."""
    result: list[Leaf] = []
    for s, d in leaves:
        if type(s) is int and s == 1 and starts_at_zero(d):
            continue
        if result:
            s0, d0 = result[-1]
            if s0 * d0 == d if type(d0) is int and type(d) is int and type(s0) is int else (
                can_merge(s0, d0, d)
            ):  # fmt: skip
                result[-1] = (s0 * s, d0)
                continue
        result.append((s, d))
    return result


def merge_plain(leaves: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge leaves that are plain integers, like :func:`merge`."""
    result: list[tuple[int, int]] = []
    size = step = 0
    for s, d in leaves:
        if s == 1:
            continue
        if size and size * step == d:
            size *= s
            result[-1] = (size, step)
        else:
            size, step = s, d
            result.append((s, d))
    return result


def starts_at_zero(d: Any) -> bool:
    """Tell if a stride is known to give 0 at coordinate 0; an index buffer need not."""
    return not is_stride(d) or terms(d) is not None or xor(d) is not None


def normal_form(layout: Layout) -> list[Leaf]:
    """Return the leaves of ``coalesce_x(layout)``: equal functions of all integers have equal ones.

    They are kept with the layout. Only the extent of the last leaf does not affect the function.
    """
    try:
        return layout._normal
    except AttributeError:  # the slot is not set yet
        leaves = layout._leaves
    form = merge_plain(leaves) if layout._plain else merge(leaves)
    if leaves:
        last, stride = leaves[-1]
        if type(last) is int and last == 1 and starts_at_zero(stride):
            size, step = form[-1] if form else (1, 0)
            if not form or not can_merge(size, step, stride):
                form.append((1, stride))
    NORMAL(layout, form)
    return form


def from_leaves(leaves: list[Leaf]) -> Layout:
    """Make a layout of depth 1 with these leaves; of depth 0 for one leaf, ``1:0`` for none."""
    if len(leaves) == 1:
        return make(*leaves[0])
    if not leaves:
        return make_plain(1, 0, [(1, 0)])
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def nested_by_path(leaves_by_path: dict[Path, list[tuple[Any, Any]]]) -> Layout:
    """Make a layout whose coordinate has each path as a mode; modes in between have extent 1."""
    top: dict[int, dict[Path, list[tuple[Any, Any]]]] = {}
    for path, leaves in leaves_by_path.items():
        top.setdefault(path[0], {})[path[1:]] = leaves
    modes = []
    for i in range(max(top) + 1):
        inner = top.get(i, {(): []})
        modes.append(from_leaves(inner[()]) if () in inner else nested_by_path(inner))
    return make(tuple([m.shape for m in modes]), tuple([m.stride for m in modes]))


def from_plain(leaves: list[tuple[int, int]]) -> Layout:
    """Make a layout from leaves that are plain integers, like :func:`from_leaves`."""
    if len(leaves) == 1:
        return make_plain(*leaves[0], leaves)
    if not leaves:
        return make_plain(1, 0, [(1, 0)])
    return make_plain(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]), leaves)


def like_shape(layout: Layout, leaves: list[Leaf]) -> Layout:
    """Make a layout in the profile of ``layout``, with an entry of ``leaves`` for each leaf."""
    return make(
        unflatten(iter([s for s, _ in leaves]), layout.shape),
        unflatten(iter([d for _, d in leaves]), layout.shape),
    )


def filtered(layout: Layout) -> list[Leaf]:
    """Return the leaves of ``filter(layout)``."""
    if layout._plain:
        return merge_plain([(s, d) for s, d in layout._leaves if d])
    return merge([(s, d) for s, d in layout._leaves if not is_zero(d)])


def by_mode(
    operation: Any, name: str, layout: Layout, tiler: tuple[Any, ...], *, keep: bool = True
) -> Layout:
    """Apply ``operation`` to the first modes of ``layout``, each with its entry of ``tiler``.

    Modes beyond the tiler are kept or dropped.
    """
    modes = modes_for(name, layout, tiler)
    rest = modes[len(tiler) :] if keep else []
    return make_layout([operation(m, t) for m, t in zip(modes, tiler)] + rest)  # noqa: B905


def modes_for(name: str, layout: Layout, tiler: tuple[Any, ...]) -> list[Layout]:
    """Return the modes of ``layout``; refuse a ``tiler`` with more entries than modes."""
    for entry in tiler:
        if type(entry) is tuple:
            refuse_deep(name, tiler)
            break
    if len(tiler) > layout.rank:
        raise LayoutValueError(
            f"{name}: the tiler {text(tiler)} has {len(tiler)} modes, {layout} only {layout.rank}"
        )
    return list(layout)


def by_stride(leaves: list[Any], key: int = 1) -> list[Any]:
    """Sort ``leaves`` by the entry ``key``, which may be symbolic."""
    if all(type(leaf[key]) is int for leaf in leaves):
        return sorted(leaves, key=lambda leaf: leaf[key])
    result: list[Any] = []
    for leaf in leaves:  # insertion sort: each comparison may have to be decided
        at = len(result)
        while at and not _is_after(leaf[key], result[at - 1][key]):
            at -= 1
        result.insert(at, leaf)
    return result


def _is_after(d: Any, e: Any) -> bool:
    if known(d >= e):
        return True
    return not known(d <= e) and bool(d >= e)


__all__ = ["IntTuple", "normal_form"]
