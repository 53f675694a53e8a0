"""Checks of a kernel map from the caller, and of the arguments that exclude one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError
from ..sparse import Coordinates, KernelMap, SparseTensor


def check_map(kernel_map: Any, **beside: tuple[Any, Any]) -> KernelMap:
    """Return ``kernel_map`` if it is one, and all arguments beside it have their defaults.

    ``beside`` has the given value and the default of each argument, by name: a map does not know
    the sizes that it was made with, so other values would be ignored.

    Raises :class:`~layoutconv.errors.ArgumentError`.
    """
    if type(kernel_map) is not KernelMap and not isinstance(kernel_map, KernelMap):
        raise ArgumentTypeError("kernel_map", "a KernelMap", type(kernel_map).__name__)
    for name, (given, usual) in beside.items():
        if given is not usual and not _is_all(given, usual):
            raise ArgumentError(name, f"{usual} beside `kernel_map`, which determines it", given)
    return kernel_map


def _is_all(given: Any, usual: Any) -> bool:
    """Return whether an argument, one for all spatial modes or one for each, is the default."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return all(_is_all(one, usual) for one in given)
    return given is usual or (isinstance(given, int) and given == usual)


def check_cells_of_map(name: str, x: SparseTensor, cells: Coordinates, side: str) -> None:
    """Raise ``ArgumentError`` unless ``x`` is at the cells of a kernel map's ``side``.

    They must be the same Coordinates, or the same memory. Values are not compared, as that would
    need a device-to-host sync.
    """
    own = x.coordinates
    if own is cells or own.cells is cells.cells:
        return
    same = own.cells.data_ptr() == cells.cells.data_ptr() and own.cells.shape == cells.cells.shape
    if not same or own.device != cells.device or not len(own):
        expected = f"a map whose {side} are the cells of `{name}`, {own}"
        raise ArgumentError("kernel_map", expected, f"a map of other {cells}")
