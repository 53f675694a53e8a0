"""The only list of late imports: functions that methods of a class need from modules above it.

A layout has methods such as ``compose``, whose operation is in a module that imports layouts.
These names are looked up on first use, here and nowhere else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "coalesce": "coalesce",  # Layout.coalesce
    "composition": "composition",  # Layout.compose, `a @ b`
    "nested_offsets": "value_tables",  # Layout.offsets
    "coshape": "extent",  # Layout.cosize
    "cosize": "extent",  # ComposedLayout.cosize
    "slice_": "slices",  # `layout[:, 3]`
    "opened": "slices",  # `composed[:, 3]`
    "moved_slice": "slices",  # the same
    "left_inverse": "inverse",  # LayoutLike.get_1d_coord
    "all_values": "value_tables",  # the same, if no layout is known to undo it
    "fitted": "arrays",  # crd2idx of arrays
    "dividing": "arrays",  # idx2crd of arrays
    "relation_of_sympy": "symbols",  # assuming(sympy.Eq(w % 8, 0))
    "plain": "checks",  # numbers of NumPy and sympy
    "plain_shape": "checks",  # numbers of tensors, too, for a shape or a count
    "parse": "notation",  # a string is a layout in notation
}
_FOUND: dict[str, Any] = {}


def late(name: str) -> Any:
    """Return the function of that name.

    >>> late("coalesce").__module__
    'layoutconv.algebra.coalesce'
    """
    found = _FOUND.get(name)
    if found is None:
        found = getattr(import_module(f".{_HOMES[name]}", __package__), name)
        _FOUND[name] = found
    return found
