"""The nullspace of a layout: the coordinates whose offset is 0."""

from __future__ import annotations

from typing import Any

from .composed import ComposedLayout
from .f2 import (
    nullspace_f2,
)
from .inverse import require_zero_start
from .layout import Layout, as_like
from .like import at_present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    from_leaves,
)
from .protocol import is_zero


def nullspace(a: Any) -> Any:
    """Return the positions that ``a`` maps to 0 by strides of 0; for F2 strides its whole kernel.

    ``a(N(j)) == 0`` for all j. A tensor stands for its layout, a composed layout for its domain.
    CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` if ``a(0)`` is not 0, as in a gather or with an offset: then
    no layout of positions can start there.

    >>> print(nullspace(Layout((4, 2, 3), (1, 0, 0))))
    (2,3):(4,8)
    """
    a = as_like("nullspace", a)
    if isinstance(a, ComposedLayout):
        require_zero_start("nullspace", a)
        return _nullspace_of_domain(a.inner)
    if not isinstance(a, Layout):
        return nullspace(a.layout)
    return symbolically(_nullspace, a)


def _nullspace_of_domain(a: Any) -> Any:
    if isinstance(a, ComposedLayout):
        return _nullspace_of_domain(a.inner)
    return symbolically(_still_modes, a, name="nullspace")


def _nullspace(a: Layout) -> Layout:
    if arithmetic(a) is Arithmetic.OPAQUE:
        require_zero_start("nullspace", a)
    return _still_modes(a)


def _still_modes(a: Layout) -> Layout:
    if arithmetic(a) is Arithmetic.XOR:
        a = at_present("nullspace", a)
        if all(s & (s - 1) == 0 for s, _ in a._leaves):
            return nullspace_f2(a)
    place: Any = 1
    leaves = []
    for s, d in a._leaves:
        if is_zero(d) and not (type(s) is int and s == 1):
            leaves.append((s, place))
        place = place * s
    return from_leaves(leaves)
