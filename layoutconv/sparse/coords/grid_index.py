"""The index buffer of a grid: the row stored at each cell."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .coordinates import Coordinates
from .keys import key_strides, pack

if TYPE_CHECKING:
    from torch import Tensor


def dense_index(
    coordinates: Coordinates,
    box: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Tensor:
    """Return the index buffer of a grid: the row stored at each of its cells.

    Args:
        coordinates: the cells that have a row.
        box: a part of the grid: its first cell and the cell past its last, each ``(z, y, x)``. It
            may reach outside the grid, where no cell has a row. By default the whole grid.

    Returns:
        int32 (N, D, H, W) of the box, contiguous; -1 where there is no row.

    Raises ``ArgumentError`` for a coordinate outside the grid, for a cell that two rows share, and
    for a box of 2**31 cells or more.

    >>> import torch
    >>> cells = torch.tensor([[0, 0, 1, 2], [0, 0, 0, 1]], dtype=torch.int32)
    >>> coordinates = Coordinates(cells, (1, 2, 3), 1)
    >>> dense_index(coordinates)
    tensor([[[[-1,  1, -1],
              [-1, -1,  0]]]], dtype=torch.int32)
    >>> dense_index(coordinates, box=((0, 1, 1), (1, 3, 4)))
    tensor([[[[-1,  0, -1],
              [-1, -1, -1]]]], dtype=torch.int32)
    """
    if not isinstance(coordinates, Coordinates):
        got = type(coordinates).__name__
        raise ArgumentTypeError("coordinates", "Coordinates, those of a sparse tensor", got)
    coords, shape = coordinates.check_distinct().cells, coordinates.spatial_shape
    batch_size = coordinates.batch_size
    try:
        low, high = box if box is not None else ((0,) * len(shape), shape)
        extents = [index(b) - index(a) for a, b in zip(low, high, strict=True)]
    except (TypeError, ValueError):
        extents = []
    if len(extents) != len(shape) or min(extents) < 0:
        raise ArgumentError("box", "a first cell and a cell past the last, (z, y, x) each", box)
    strides = key_strides(extents, batch_size)
    cells = batch_size * strides[0]
    if cells >= 2**31:
        raise ArgumentError("box", "fewer than 2**31 cells", f"{cells} in {tuple(extents)}")
    corner = coords.new_tensor([0, *low])
    past = coords.new_tensor([batch_size, *high])
    rows = ((coords >= corner) & (coords < past)).all(1).nonzero()[:, 0]
    found = torch.full((cells,), -1, dtype=torch.int32, device=coords.device)
    keys = pack(coords[rows] - corner, strides)
    found[keys] = rows.int()
    return found.view(batch_size, *extents)
