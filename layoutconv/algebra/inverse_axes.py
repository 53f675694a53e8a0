"""Inverses if modes of a layout's coordinates add by XOR: one for each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .axes import axes
from .errors import LayoutTypeError
from .f2 import integer_strides
from .f2_linear import bit_columns
from .int_tuple import unflatten
from .layout import Layout, make
from .normal import Arithmetic, arithmetic, nested_by_path, simplified
from .protocol import Path
from .xor import F2


def inverse_by_axis(name: str, a: Layout, inverse: Callable[[Layout], Layout]) -> Layout:
    """Return the layout of coordinates whose mode k is the ``inverse`` of mode k of ``a``.

    Raises :class:`LayoutTypeError` if the inverses of two modes add differently: positions that
    carry cannot be added to positions that do not.
    """
    found = {path: inverse(layout) for path, layout in axes(a).items()}
    refuse_clashes(name, a, found)
    return nested_by_path({p: list(r._leaves) for p, r in _alike(name, a, found).items()})


def refuse_clashes(name: str, a: Layout, paths: Any) -> None:
    """Raise if a layout gives a mode of its coordinates as an integer and as a tuple."""
    for path in paths:
        if any(path != other and path == other[: len(path)] for other in paths):
            raise LayoutTypeError(f"{name}: {a} gives mode {path} as an integer and as a tuple")


def _alike(name: str, a: Layout, found: dict[Path, Layout]) -> dict[Path, Layout]:
    """Convert the inverses to one kind of strides: integers if possible, else XOR."""
    integers = {path: _as_integers(r) for path, r in found.items()}
    whole = {path: r for path, r in integers.items() if r is not None}
    if len(whole) == len(found):
        return whole
    taken = 0
    for r in found.values():
        columns, mask = bit_columns(simplified(r)), 0
        for leaf in columns or ():
            for column in leaf:
                mask |= column
        if columns is None or taken & mask:
            raise LayoutTypeError(
                f"{name}: {a} gives modes that add by XOR and modes that add with carries; "
                f"invert them apart"
            )
        taken |= mask
    return {path: _as_xor(r) for path, r in found.items()}


def _as_integers(r: Layout) -> Layout | None:
    return integer_strides(r) if arithmetic(r) is Arithmetic.XOR else r


def _as_xor(r: Layout) -> Layout:
    return make(r.shape, unflatten(iter([F2(int(d)) for _, d in r._leaves]), r.shape))
