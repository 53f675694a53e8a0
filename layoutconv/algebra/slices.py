"""Slices: the modes that a coordinate leaves open, and the offset of the modes that it fixes."""

from __future__ import annotations

from typing import Any

from .arrays import fitted, has_array
from .checks import is_leaf
from .composed import ComposedLayout
from .errors import LayoutTypeError, refuse_deep, text
from .int_tuple import IntTuple, offset_at, paired_leaves, shape_of, sum_of
from .layout import IDENTITY, Layout, as_like, carried, make, make_all_plain
from .like import LayoutLike
from .numbers import expect_numbers
from .plain_leaves import digits_offset
from .protocol import zero_of
from .stride import ScaledBasis, finished, is_xor


def slice_(crd: IntTuple, target: Any) -> Any:
    """Return the modes that ``crd`` leaves open with None, as in CuTe: *without* the offset.

    ``target`` is a layout, a composed layout or a tensor (these two do keep the offset), or a
    tuple. :func:`slice_and_offset` returns the modes and the offset.

    >>> print(slice_((None, 2), Layout((4, (2, 3)), (1, (4, 8)))))
    (4):(1)
    >>> print(slice_((1, (None, None)), Layout((4, (2, 3)), (1, (4, 8)))))
    (2,3):(4,8)
    """
    if isinstance(crd, LayoutLike):
        raise LayoutTypeError(f"slice_: the coordinate comes first, before {crd}")
    if isinstance(target, tuple) or is_leaf(target):
        target = shape_of("slice_", target)
        return target if crd is None else _open_modes(crd, target)
    target = as_like("slice_", target)
    return target if crd is None else slice_and_offset(crd, target)[0]


def slice_and_offset(crd: IntTuple, layout: Any) -> tuple[Any, Any]:
    """Return the modes that ``crd`` leaves open, and the offset of the modes that it fixes.

    ``layout(c) == offset + rest(open modes of c)`` for every ``c`` that agrees with ``crd``; XOR
    strides add by XOR. A composed layout and a tensor keep the offset, so 0 is returned.

    >>> rest, offset = slice_and_offset((None, 3), Layout((4, 8), (8, 1)))
    >>> print(rest, offset)
    (4):(8) 3
    """
    if type(layout) is Layout:
        if layout._plain and type(crd) is tuple:
            shapes: list[IntTuple] = []
            strides: list[IntTuple] = []
            at = _plain_slice(crd, layout.shape, layout.stride, shapes, strides)
            if at is not None:
                return make_all_plain(tuple(shapes), tuple(strides)), at
        rest, total = cut(crd, layout)
        return rest, finished(total)
    layout = as_like("slice_and_offset", layout)
    if isinstance(layout, Layout):
        return slice_and_offset(crd, layout)
    return layout.sliced(crd), 0


def cut(crd: IntTuple, layout: Layout) -> tuple[Layout, Any]:
    """Return the open modes of a layout, and the sum of the strides at the fixed ones."""
    if crd is None:
        return layout, 0
    refuse_deep("slice_", crd)
    if has_array(crd):
        crd = fitted(crd, layout.shape, layout.stride)
    if not isinstance(crd, tuple):
        return make((), ()), layout.raw(crd)
    shapes: list[IntTuple] = []
    strides: list[IntTuple] = []
    terms: list[Any] = []
    _collect(crd, layout.shape, layout.stride, shapes, strides, terms)
    return carried(make(tuple(shapes), tuple(strides)), layout), sum_of(terms)


def _collect(
    crd: IntTuple,
    shape: IntTuple,
    stride: IntTuple,
    shapes: list[IntTuple],
    strides: list[IntTuple],
    terms: list[Any],
) -> None:
    if crd is None:
        shapes.append(shape)
        strides.append(stride)
        for _, d in paired_leaves(shape, stride):  # a coordinate keeps its modes
            zero = zero_of(d)
            if type(zero) is not int:
                terms.append(zero)
    elif not isinstance(crd, tuple):
        terms.append(offset_at(crd, shape, stride))
    elif not isinstance(shape, tuple) or len(crd) != len(shape):
        raise LayoutTypeError(f"slice_: {text(crd)} does not have the profile of {text(shape)}")
    else:
        for c, s, d in zip(crd, shape, stride, strict=True):
            _collect(c, s, d, shapes, strides, terms)


def _plain_slice(
    crd: IntTuple,
    shape: IntTuple,
    stride: IntTuple,
    shapes: list[IntTuple],
    strides: list[IntTuple],
) -> int | None:
    """Return the offset for plain integers, and append the open modes to the lists; else None."""
    if type(shape) is not tuple or len(crd) != len(shape):
        return None
    offset = 0
    for c, s, d in zip(crd, shape, stride):  # noqa: B905
        if c is None:
            shapes.append(s)
            strides.append(d)
        elif type(c) is int:
            offset += c * d if type(s) is int else digits_offset(c, s, d)
        elif type(c) is tuple:
            inner = _plain_slice(c, s, d, shapes, strides)
            if inner is None:
                return None
            offset += inner
        else:
            return None
    return offset


def moved_slice(crd: IntTuple, layout: Layout) -> tuple[Any, Any]:
    """Return the open modes of a layout, and an offset to add to their values.

    XOR strides add by XOR, so a composed layout of those modes carries the offset, and the second
    value is 0; in a coordinate each mode knows how it adds.
    """
    rest, offset = cut(crd, layout)
    if not is_xor(offset):
        return rest, finished(offset)
    if isinstance(offset, ScaledBasis | tuple):
        return rest, offset
    return ComposedLayout(IDENTITY, offset, rest), 0


def opened(crd: Any) -> Any:
    """Replace ``:`` by None in a coordinate."""
    if isinstance(crd, tuple):
        return tuple([opened(c) for c in crd])
    return None if isinstance(crd, slice) and crd == slice(None) else crd


__all__ = ["LayoutLike", "cut", "moved_slice", "opened", "slice_", "slice_and_offset"]


def _open_modes(crd: IntTuple, t: IntTuple) -> tuple[Any, ...]:
    """Return the modes of ``t`` that ``crd`` leaves open with None, as one flat tuple."""
    if crd is None:
        return (t,)
    if not isinstance(crd, tuple):
        if type(crd) is not int:
            expect_numbers("slice_", "crd", crd)
        return ()
    if not isinstance(t, tuple) or len(crd) != len(t):
        raise LayoutTypeError(f"slice_: {text(crd)} does not have the profile of {text(t)}")
    return tuple(kept for c, mode in zip(crd, t, strict=True) for kept in _open_modes(c, mode))
