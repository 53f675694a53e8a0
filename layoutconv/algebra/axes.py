"""Axes: the modes of a layout's coordinates, each of which may add in its own way."""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis
from .int_tuple import map_leaves
from .layout import Layout, make
from .protocol import Path, is_zero
from .xor import F2


def has_axes(a: Layout) -> bool:
    """Tell if each stride moves one mode of the coordinates, by an integer or by XOR.

    >>> from layoutconv.algebra import E
    >>> has_axes(Layout((8, 8), (ScaledBasis(F2(9), (0,)), E(1)))), has_axes(Layout(8, F2(9)))
    (True, False)
    """
    strides = [d for _, d in a._leaves]
    return any(isinstance(d, ScaledBasis) for d in strides) and all(
        is_zero(d) or (isinstance(d, ScaledBasis) and type(d.value) in (int, F2)) for d in strides
    )


def axes(a: Layout) -> dict[Path, Layout]:
    """Split a layout with :func:`has_axes` into a layout for each mode of its coordinates, by path.

    >>> from layoutconv.algebra import E
    >>> for path, layout in axes(Layout((4, 8), (E(1), E(0)))).items():
    ...     print(path, layout)
    (1,) (4,8):(1,0)
    (0,) (4,8):(0,1)
    """
    paths = [d.path for _, d in a._leaves if isinstance(d, ScaledBasis)]
    return {path: make(a.shape, _along(a.stride, path)) for path in paths}


def _along(stride: Any, path: Path) -> Any:
    def value(d: Any) -> Any:
        return d.value if isinstance(d, ScaledBasis) and d.path == path else 0

    return map_leaves(value, stride)
