"""Taps of a filter, and the order of rows by them, as kernels of maps take them.

Their classes stand above the kernels, in ``layoutconv/sparse/maps/``.
"""

from __future__ import annotations

from typing import Protocol

Ints = tuple[int, ...]


class TapOrderLike(Protocol):
    """The order of rows by their tap masks: ``layoutconv.sparse.maps.row_orders.TapOrder``."""

    @property
    def visits(self) -> Ints: ...
    @property
    def weights(self) -> Ints: ...
    def window(self, rows: int) -> int: ...
    def __hash__(self) -> int: ...


class TapsLike(Protocol):
    """Offsets and stride of taps, and their order: ``layoutconv.sparse.maps.taps.Taps``."""

    @property
    def offsets(self) -> tuple[Ints, ...]: ...
    @property
    def stride(self) -> Ints: ...
    @property
    def order(self) -> TapOrderLike: ...
    def __hash__(self) -> int: ...
