"""Layouts made from a shape: compact in a given order, or the identity."""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis
from .checks import as_integer
from .errors import LayoutTypeError, LayoutValueError, text
from .int_tuple import IntTuple, compact_stride, congruent, flatten, product, shape_of, unflatten
from .layout import Layout, as_like, innermost, make
from .like import symbolically
from .normal import Arithmetic, arithmetic, by_stride, require_known, simplified
from .protocol import Path, is_zero, terms, xor
from .symbols import same


def make_identity_layout(shape: IntTuple) -> Layout:
    """Return the layout that maps a coordinate to itself: each leaf's stride is its scaled basis.

    An integer shape has the stride ``E(0)``. CUTLASS: ``make_identity_layout``.

    >>> L = make_identity_layout((4, (2, 3)))
    >>> print(L, L(1, 5))
    (4,(2,3)):(1@0,(1@0@1,1@1@1)) (1,(1,2))
    """
    shape = shape_of("make_identity_layout", shape)
    if not isinstance(shape, tuple):
        return Layout(shape, ScaledBasis(1, (0,)))
    return Layout(shape, _bases(shape, ()))


def _bases(shape: IntTuple, path: tuple[int, ...]) -> IntTuple:
    if isinstance(shape, tuple):
        return tuple([_bases(s, (*path, i)) for i, s in enumerate(shape)])
    return ScaledBasis(1, path)


def make_ordered_layout(shape: IntTuple, order: IntTuple) -> Layout:
    """Return the compact layout whose modes run fastest in increasing ``order``.

    ``order`` has the profile of ``shape`` or is coarser: an entry for a mode orders all its leaves.
    Leaves of one entry, or of equal entries, stay colexicographic. Entries may be symbols if their
    order is known. CUTLASS: cute/layout.hpp.

    >>> print(make_ordered_layout((2, 3, 4), (2, 0, 1)))
    (2,3,4):(12,1,3)
    >>> print(make_ordered_layout((2, (3, 4)), (1, 0)))
    (2,(3,4)):(12,(1,3))
    >>> from .symbols import symbols
    >>> print(make_ordered_layout((4, 8), (symbols("P", minimum=2), 1)))
    (4,8):(8,1)
    """
    shape = shape_of("make_ordered_layout", shape)
    ranks = flatten(_spread(order, shape, order))
    result: Layout = symbolically(_make_ordered_layout, shape, ranks, shown=(shape, order))
    return result


def _make_ordered_layout(shape: IntTuple, ranks: tuple[Any, ...]) -> Layout:
    extents = flatten(shape)
    strides: list[Any] = [0] * len(extents)
    current: Any = 1
    for i, _ in by_stride(list(enumerate(ranks))):
        strides[i] = current
        current = current * extents[i]
    return Layout(shape, unflatten(iter(strides), shape))


def _spread(order: IntTuple, shape: IntTuple, whole: IntTuple) -> IntTuple:
    if isinstance(order, tuple):
        if not isinstance(shape, tuple) or len(order) != len(shape):
            raise LayoutTypeError(
                f"make_ordered_layout: the order {text(whole)} does not have the profile of "
                "the shape"
            )
        return tuple([_spread(o, s, whole) for o, s in zip(order, shape, strict=True)])
    place = order if type(order) is int else as_integer(order)
    if place is None:
        raise LayoutTypeError(f"make_ordered_layout: {order!r} in {text(whole)} is not an integer")
    return tuple([_spread(place, s, whole) for s in shape]) if isinstance(shape, tuple) else place


def make_layout_like(layout: Any) -> Layout:
    """Return the compact layout of the same shape, its modes in the stride order of ``layout``.

    Strides of 0 stay 0. Strides that are coordinates are ordered colexicographically: by the last
    mode that they step along, then by the distance; XOR strides by their value. For a composed
    layout or a tensor, the result is the plain layout of its domain's order. CUTLASS:
    cute/layout.hpp; for coordinates and XOR strides: NVlabs/CuTe.

    >>> print(make_layout_like(Layout((4, 2, 8), (0, 10, 1))))
    (4,2,8):(0,8,1)
    >>> from .notation import parse
    >>> print(make_layout_like(parse("(4,2,8):(1@1,2@0,1@0)")))
    (4,2,8):(16,8,1)
    """
    result: Layout = symbolically(_make_layout_like, innermost("make_layout_like", layout))
    return result


def _make_layout_like(layout: Layout) -> Layout:
    require_known("make_layout_like", layout)
    leaves = simplified(layout)._leaves
    found = [(i, d) for i, (_, d) in enumerate(leaves) if not is_zero(d)]
    if arithmetic(layout) is Arithmetic.INTEGER:
        ordered = by_stride([(i, abs(d)) for i, d in found])
    elif arithmetic(layout) is Arithmetic.COORDINATE:
        ordered = sorted(found, key=lambda mode: _steps(mode[1], layout))
    elif all(type(xor(d)) is int for _, d in found):
        ordered = sorted(found, key=lambda mode: int(xor(mode[1]) or 0))
    else:
        raise LayoutTypeError(f"make_layout_like: expected strides in an order, got {layout}")
    strides: list[Any] = [0] * len(leaves)
    current: Any = 1
    for i, _ in ordered:
        strides[i] = current
        current = current * leaves[i][0]
    return make(layout.shape, unflatten(iter(strides), layout.shape))


def _steps(d: Any, layout: Layout) -> list[tuple[Path, int]]:
    """Return the modes that a coordinate stride steps along, each with its distance, last first."""
    found = terms(d) or ()
    if not all(type(value) is int for _, value in found):
        raise LayoutTypeError(f"make_layout_like: the stride {d} of {layout} is not known")
    return sorted([(path, abs(value)) for path, value in found], reverse=True)


def _is(relation: Any, asking: str) -> bool:
    """Decide a relation; if it is unknown, the error names the operation that is ``asking``."""
    try:
        return bool(relation)
    except LayoutValueError as error:
        raise LayoutValueError(f"{asking}: {error}", unknown=error.unknown) from None


def with_shape(layout: Any, shape: IntTuple) -> Any:
    """Return the same function of linear coordinates on another shape of the same size.

    Raises :class:`LayoutValueError` if the sizes differ or the new shape cuts through a mode.

    >>> print(with_shape(Layout(24, 2), (4, (2, 3))))
    (4,(2,3)):(2,(8,16))
    """
    shape = shape_of("with_shape", shape)
    if type(layout) is not Layout:
        like = as_like("with_shape", layout)
        return like.on_domain(lambda inner: with_shape(inner, shape))
    if not _is(product(shape) == layout.size(), f"with_shape({layout}, {text(shape)})"):
        raise LayoutValueError(
            f"with_shape: {text(shape)} has {product(shape)} elements, "
            f"but {layout} has {layout.size()}"
        )
    if congruent(shape, layout.shape) and same(shape, layout.shape):
        return layout
    return layout.compose(Layout(shape, compact_stride(shape)))
