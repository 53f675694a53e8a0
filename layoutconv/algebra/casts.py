"""The same memory seen as elements of another size."""

from __future__ import annotations

from math import gcd
from typing import Any

from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .int_tuple import flatten, idx2crd, unflatten
from .layout import Layout, make
from .swizzle import Swizzle


def upcast(layout: Any, n: int) -> Any:
    """The layout in units of ``n`` elements: positions that share a unit become one.

    A leaf of stride d divides its extent by ``k = ceil(n / |d|)`` and its stride by n, both rounded
    up, so that ``layout(c) // n == upcast(layout, n)(c // k)`` by leaf; one that never leaves its
    unit ends with extent 1. Swizzles and composed layouts too. CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` where that equation fails, with the coordinate as ``witness``.

    >>> print(upcast(Layout((8, 4), (1, 8)), 4), upcast(Layout((2, 2), (1, 2)), 4))
    (2,4):(1,2) (1,1):(1,1)
    >>> print(upcast(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))), 8))
    S<3,0,3> o 0 o (8,8):(8,1)
    """
    _positive("upcast", n)
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(upcast(layout.outer, n), _divided(layout, n), upcast(layout.inner, n))
    if isinstance(layout, Swizzle):
        return _moved("upcast", layout, n, -1)
    leaves = _integer_leaves("upcast", layout)
    result = []
    within = 0
    clear = True
    for s, d in leaves:
        share = -(-n // abs(d)) if d else 1  # positions that share a unit
        result.append((-(-s // share), _sign(d) * -(-abs(d) // n)))
        if d % n:
            within += abs(d) * (min(s, share) - 1)
            clear = clear and d > 0 and ((s - 1) * d < n or n % d == 0)
    if not clear or within >= n:
        _verify(layout, n, _like(layout, result))
    return _like(layout, result)


def _sign(d: int) -> int:
    return (d > 0) - (d < 0)


def downcast(layout: Any, n: int) -> Any:
    """The layout in units of the n-th part of an element: each position becomes n of them.

    The mode of stride 1 (the first one) grows by n; all other strides do. Without one the n parts
    become a mode of their own in front of the first leaf, where CuTe refuses. So offset r of part r
    of position c is ``n * layout(c) + r``. CUTLASS: cute/layout.hpp.

    >>> print(downcast(Layout((2, 4), (1, 2)), 4), downcast(Layout(4, 2), 2))
    (8,4):(1,8) (2,4):(1,4)
    """
    _positive("downcast", n)
    if isinstance(layout, ComposedLayout):
        if not isinstance(layout.offset, int):
            raise LayoutTypeError(f"downcast: the offset of {layout} is no integer")
        return ComposedLayout(
            downcast(layout.outer, n), layout.offset * n, downcast(layout.inner, n)
        )
    if isinstance(layout, Swizzle):
        return _moved("downcast", layout, n, 1)
    leaves = _integer_leaves("downcast", layout)
    if n == 1:
        return layout
    unit = next((i for i, (s, d) in enumerate(leaves) if d == 1 and s > 1), None)
    if unit is None:
        unit = next((i for i, (_, d) in enumerate(leaves) if d == 1), None)
    result: list[tuple[Any, Any]] = []
    for i, (s, d) in enumerate(leaves):
        if i == unit:
            result.append((s * n, 1))
        elif unit is None and i == 0:
            result.append(((n, s), (1, d * n)))
        else:
            result.append((s, d * n))
    return _like(layout, result)


def recast(layout: Any, old_bits: int, new_bits: int) -> Any:
    """The layout of elements of ``new_bits`` over the memory of elements of ``old_bits``.

    >>> print(recast(Layout((8, 4), (1, 8)), 16, 32), recast(Layout((8, 4), (1, 8)), 32, 16))
    (4,4):(1,4) (16,4):(1,16)
    """
    _positive("recast", old_bits)
    _positive("recast", new_bits)
    common = gcd(old_bits, new_bits)
    return downcast(upcast(layout, new_bits // common), old_bits // common)


def _positive(name: str, n: Any) -> None:
    if type(n) is not int or n < 1:
        raise LayoutValueError(f"{name}: expected an integer >= 1, got {n!r}")


def _integer_leaves(name: str, layout: Any) -> list[tuple[Any, Any]]:
    if not isinstance(layout, Layout):
        raise LayoutTypeError(f"{name}: {layout!r} is not a layout")
    for s, d in layout._leaves:
        if not isinstance(s, int) or not isinstance(d, int):
            raise LayoutTypeError(f"{name}: expected integer strides, got {s}:{d} in {layout}")
    return layout._leaves


def _like(layout: Layout, leaves: list[tuple[Any, Any]]) -> Layout:
    return make(
        unflatten(iter([s for s, _ in leaves]), layout.shape),
        unflatten(iter([d for _, d in leaves]), layout.shape),
    )


def _verify(layout: Layout, n: int, best: Layout) -> None:
    """Compare every position with its unit; refuse at the first that differs."""
    shares = [-(-n // abs(d)) if d else 1 for _, d in layout._leaves]
    for i in range(layout.size()):
        crd = flatten(idx2crd(i, layout.shape))
        unit = unflatten(iter([c // k for c, k in zip(crd, shares, strict=True)]), layout.shape)
        witness = unflatten(iter(crd), layout.shape)
        if best(unit) != layout(witness) // n:
            inexact(
                "upcast",
                (layout, n),
                f"at {text(witness)} the offset {layout(witness)} is in unit "
                f"{layout(witness) // n}, not in {best(unit)}",
                witness=witness,
                exact=layout(witness) // n,
                best=best,
            )


def _divided(layout: ComposedLayout, n: int) -> int:
    if not isinstance(layout.offset, int):
        raise LayoutTypeError(f"upcast: the offset of {layout} is no integer")
    if layout.offset % n:
        inexact("upcast", (layout, n), f"its offset is not a multiple of {n}", witness=0)
    return layout.offset // n


def _moved(name: str, swizzle: Swizzle, n: int, direction: int) -> Swizzle:
    bits = n.bit_length() - 1
    base = swizzle.base + direction * bits
    if 1 << bits != n or (base < 0 and swizzle.bits):
        inexact(name, (swizzle, n), "it would move parts of a unit", witness=1 << swizzle.base)
    return Swizzle(swizzle.bits, max(base, 0), swizzle.shift)
