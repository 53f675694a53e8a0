"""Facts that have been found out about cells, which outlive the Coordinates of them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING

from .graphs import is_dynamo_compiling

if TYPE_CHECKING:
    from torch import Tensor

    from ..maps.foresight import Run
    from ..maps.two_way import TwoWay
    from .coordinates import Coordinates
    from .repeats import Repeats
    from .table import Table


def version_of(cells: Tensor) -> int:
    """Return how often a tensor was written to; of one of inference mode nobody counts."""
    if is_dynamo_compiling():
        return 0  # nobody writes to what is traced
    return -1 if cells.is_inference() else cells._version


class KnownCells:
    """Facts that have been found out about cells.

    It knows what maps from these cells lead to, never what leads to them, so there is no circle. It
    outlives the Coordinates of cells that a map made, which are made anew when they are asked for.
    """

    handle: weakref.ref[Coordinates] | None = None
    table: Table | None = None
    total: Tensor | None = None
    by_image: tuple[Tensor, Tensor, Tensor] | None = None
    repeats: Repeats | None = None
    corner: tuple[int, ...] | None = None
    coords: Tensor | None = None  # counted from zero, where the cells are not
    run: tuple[Run, int] | None = None  # what layers ask of a cloud, and which level these are
    version: int | None = None  # of the cells, when they were first looked at
    # Maps to cells that were given, as long as there are those; None before the first.
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
        # By what they were asked for with: the map, and the cells that it made.
        self.made: dict[Hashable, tuple[TwoWay, int, KnownCells | None]] = {}

    def written(self) -> bool:
        """Return whether somebody wrote to the cells since this was first asked."""
        if is_dynamo_compiling():
            return False
        cells = self.cells
        now = -1 if cells.is_inference() else cells._version  # as ``version_of`` has it
        if self.version is None:
            self.version = now
        return now != self.version
