"""Facts about cells, which outlive their Coordinates."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING

from .graphs import is_dynamo_compiling

if TYPE_CHECKING:
    from torch import Tensor

    from ..maps.foresight import AskedMaps
    from ..maps.two_way import TwoWay
    from .cell_table import Table
    from .coordinates import Coordinates
    from .repeats import Repeats


def version_of(cells: Tensor) -> int:
    """Return how often a tensor was written to; inference tensors have no counter."""
    if is_dynamo_compiling():
        return 0  # traced tensors are not written to
    return -1 if cells.is_inference() else cells._version


class KnownCells:
    """Facts about cells.

    It refers to the cells to which maps lead from these, never to those that lead here, so there is
    no cycle. It outlives the Coordinates of cells that a map made, which are recreated on demand.
    """

    handle: weakref.ref[Coordinates] | None = None
    table: Table | None = None
    total: Tensor | None = None
    by_image: tuple[Tensor, Tensor, Tensor] | None = None
    repeats: Repeats | None = None
    corner: tuple[int, ...] | None = None
    coords: Tensor | None = None  # relative to zero, if the cells are not
    run: tuple[AskedMaps, int] | None = (
        None  # a cloud's requests for maps, and the level of these cells
    )
    version: int | None = None  # of the cells, when first checked
    # Maps to given cells, while these exist; None before the first.
    given: weakref.WeakKeyDictionary[KnownCells, dict[Hashable, tuple[TwoWay, int]]] | None = None

    def __init__(
        self,
        cells: Tensor,
        spatial_shape: tuple[int, ...],
        batch_size: int,
        padded: bool,
        valid: bool,
        repeated: bool,
    ) -> None:
        self.cells, self.spatial_shape = cells, spatial_shape
        self.batch_size, self.padded, self.valid = batch_size, padded, valid
        self.repeated = repeated
        # By the key of a request: the map, and the cells that it made.
        self.made: dict[Hashable, tuple[TwoWay, int, KnownCells | None]] = {}

    def written(self) -> bool:
        """Return whether the cells were written to since the first call."""
        if is_dynamo_compiling():
            return False
        cells = self.cells
        now = -1 if cells.is_inference() else cells._version  # the same as ``version_of``
        if self.version is None:
            self.version = now
        return now != self.version
