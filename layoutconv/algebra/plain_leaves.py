"""Shapes and strides of plain integers, in loops fast enough for everyday calls.

Plain extents are exactly ``int`` and positive, plain strides exactly ``int``: :func:`is_plain` and
:func:`compact` tell. The functions for offsets assume such integers and check nothing more.
"""

from __future__ import annotations

from typing import Any

from .errors import DEEPEST

IntTuple = Any  # int | tuple[IntTuple, ...]: recursive aliases help neither readers nor checkers


def paired_leaves(shape: IntTuple, stride: IntTuple) -> list[tuple[Any, Any]]:
    """Return the leaves of ``shape``, each with its stride.

    The profile is that of ``shape``, so a stride leaf may itself be an arithmetic tuple.
    """
    if not isinstance(shape, tuple):
        return [(shape, stride)]
    result: list[tuple[Any, Any]] = []
    for s, d in zip(shape, stride, strict=True):
        if isinstance(s, tuple):
            result += paired_leaves(s, d)
        else:
            result.append((s, d))
    return result


def digits_offset(index: int, shape: IntTuple, stride: IntTuple) -> int:
    """Return the offset of an integer coordinate of a mode of plain integers, split by leaf.

    The last leaf is unbounded.
    """
    offset, leaf, step = 0, 1, 0
    for leaf, step in paired_leaves(shape, stride):
        offset += index % leaf * step
        index //= leaf
    return offset + index * leaf * step


def plain_offset(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> int | None:
    """Return the offset of a coordinate of plain integers; None for others and wrong profiles."""
    if type(shape) is not tuple or len(crd) != len(shape):
        return None
    offset = 0
    for c, s, d in zip(crd, shape, stride):  # noqa: B905
        if type(c) is int:
            offset += c * d if type(s) is int else digits_offset(c, s, d)
        elif type(c) is tuple:
            inner = plain_offset(c, s, d)
            if inner is None:
                return None
            offset += inner
        else:
            return None
    return offset


def is_plain(shape: IntTuple, stride: IntTuple, levels: int = DEEPEST) -> bool:
    """Tell if profiles agree, every leaf is exactly an int and every extent is positive.

    Two levels are unrolled without calls or pairs: this is half of the time to construct a layout.
    """
    if type(shape) is not tuple or type(stride) is not tuple:
        return type(shape) is int and type(stride) is int and shape > 0
    if len(shape) != len(stride):
        return False
    i = 0
    for s in shape:
        d = stride[i]
        i += 1
        if type(s) is int and type(d) is int:
            if s < 1:
                return False
            continue
        if type(s) is not tuple or type(d) is not tuple or len(s) != len(d):
            return False
        for extent in s:
            if type(extent) is not int or extent < 1:
                break
        else:
            for step in d:
                if type(step) is not int:
                    return False
            continue
        if not levels:
            raise RecursionError
        if not is_plain(s, d, levels - 1):
            return False
    return True


def compact(shape: IntTuple, current: int, levels: int = DEEPEST - 1) -> tuple[IntTuple, int]:
    """Return compact strides from ``current`` on, and the next one; (None, 0) if not all plain."""
    if type(shape) is not tuple:
        return (current, current * shape) if type(shape) is int and shape > 0 else (None, 0)
    strides = []
    for s in shape:
        if type(s) is int and s > 0:
            strides.append(current)
            current *= s
        else:
            if not levels:
                raise RecursionError
            stride, current = compact(s, current, levels - 1)
            if not current:
                return None, 0
            strides.append(stride)
    return tuple(strides), current
