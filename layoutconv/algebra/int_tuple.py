"""Hierarchical tuples of integers: what shapes, strides and coordinates are made of.

A leaf is anything that has ``+ - * // %``: an ``int``, an integer array, a value of a kernel that is being traced.
Tuples are Python tuples. Orders are colexicographic: the first mode runs fastest.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError

IntTuple = (
    Any  # int | tuple[IntTuple, ...]; recursive aliases help neither readers nor checkers here
)


def flatten(t: IntTuple) -> tuple[Any, ...]:
    """The leaves of ``t``, first mode first.

    >>> flatten((4, (2, 3)))
    (4, 2, 3)
    >>> flatten(5)
    (5,)
    """
    if not isinstance(t, tuple):
        return (t,)
    return tuple(leaf for mode in t for leaf in flatten(mode))


def product(t: IntTuple) -> Any:
    """The product of the leaves of ``t``; 1 for the empty tuple.

    >>> product((4, (2, 3)))
    24
    """
    if not isinstance(t, tuple):
        return t
    result: Any = 1
    for leaf in flatten(t):
        result = result * leaf
    return result


def rank(t: IntTuple) -> int:
    """How many top-level modes ``t`` has; an integer has one."""
    return len(t) if isinstance(t, tuple) else 1


def depth(t: IntTuple) -> int:
    """How deep ``t`` nests; an integer has depth 0."""
    return 1 + max((depth(mode) for mode in t), default=0) if isinstance(t, tuple) else 0


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether ``a`` and ``b`` have the same profile.

    >>> congruent((4, (2, 3)), (1, (4, 8)))
    True
    >>> congruent((4, 2, 3), (1, (4, 8)))
    False
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def map_leaves(fn: Any, *ts: IntTuple) -> IntTuple:
    """``fn`` over the leaves of congruent tuples, in their profile.

    >>> map_leaves(lambda s, d: s * d, (4, (2, 3)), (1, (4, 8)))
    (4, (8, 24))
    """
    if isinstance(ts[0], tuple):
        return tuple(map_leaves(fn, *modes) for modes in zip(*ts, strict=True))
    return fn(*ts)


def divmod_leaf(c: Any, s: Any) -> tuple[Any, Any]:
    """``(c // s, c % s)``. An extent that brings its own ``__rdivmod__`` (a kernel's divisor) is asked first."""
    if isinstance(s, int):
        return c // s, c % s
    return divmod(c, s)


def crd2idx(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> Any:
    """The inner product of a coordinate and strides, after the coordinate took the profile of ``shape``.

    An integer coordinate of a hierarchical mode is split colexicographically; the last mode is not bounded, as in
    CuTe (Shah et al., *CuTe Layout Representation and Algebra*, section 2).

    >>> crd2idx((1, 5), (4, (2, 3)), (1, (4, 8)))
    21
    >>> crd2idx(5, (4, (2, 3)), (1, (4, 8)))
    5
    """
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) != len(shape):
            raise LayoutTypeError(f"crd2idx: coordinate {crd} does not fit the shape {shape}")
        result: Any = 0
        for c, s, d in zip(crd, shape, stride, strict=True):
            result = result + crd2idx(c, s, d)
        return result
    if isinstance(shape, tuple):
        result = 0
        for s, d in zip(shape[:-1], stride[:-1], strict=True):
            crd, low = divmod_leaf(crd, product(s))
            result = result + crd2idx(low, s, d)
        return result + crd2idx(crd, shape[-1], stride[-1]) if shape else 0
    return crd * stride
