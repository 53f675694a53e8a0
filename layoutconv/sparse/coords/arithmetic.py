"""Element-wise arithmetic of sparse tensors, over the union of their cells."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ArgumentError
from .bounds import joint
from .coordinates import Coordinates
from .keys import key_strides, pack
from .rows import spread

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[[Any, Any], Any]
Rows = tuple["Tensor", Coordinates]  # features (rows, C), and the cell of each row


def with_features(function: Function, features: Tensor, other: Any) -> Tensor | None:
    """Apply ``function`` to features (rows, C) and a number, or a tensor that broadcasts to them;
    return None for anything else.

    >>> import torch
    >>> with_features(operator.mul, torch.ones(2, 2), torch.tensor([3.0, 4.0]))
    tensor([[3., 4.],
            [3., 4.]])
    """
    if isinstance(other, torch.Tensor):
        shape = tuple(features.shape)
        try:
            fits = tuple(torch.broadcast_shapes(shape, other.shape)) == shape
        except RuntimeError:
            fits = False
        if not fits:
            expected = f"a sparse tensor, a number, or a tensor that broadcasts to {shape}"
            raise ArgumentError("other", expected, f"shape {tuple(other.shape)}")
    elif not isinstance(other, Number):
        return None
    made: Tensor = function(features, other)
    return made


def of_both(function: Function, x: Rows, other: Rows) -> Rows:
    """Apply ``function`` to the features of two clouds of rows; return the result and its cells:
    the union of both, where absent features count as zero.

    Raises :class:`~layoutconv.errors.ArgumentError` for other channels, another grid, and a
    quotient of rows with different cells.
    """
    if x[0].shape[1] != other[0].shape[1]:
        expected = f"a tensor of {x[0].shape[1]} channels"
        raise ArgumentError("other", expected, other[0].shape[1])
    if x[1] is other[1]:
        return function(x[0], other[0]), x[1]
    check_one_grid(x[1], other[1])
    (ours, a), (theirs, b) = unpadded(*x), unpadded(*other)
    cells, (of_x, of_y) = union([a, b])
    count = len(cells)
    if function is operator.truediv and not len(a) == len(b) == count:
        expected = "a tensor of the same cells, as other cells have no divisor"
        raise ArgumentError("other", expected, f"{count} cells in both, {len(b)} in this")
    return function(spread(ours, of_x, count), spread(theirs, of_y, count)), cells


def unpadded(features: Tensor, cells: Coordinates) -> Rows:
    """Return the rows that have a cell, in their order (waits for the device).

    Raises ``ArgumentError`` if cells are missing, since a capacity was too small for them.
    """
    if not cells.padded:
        return features, cells
    cells.refuse_overflow()
    rows = (cells.cells[:, 0] >= 0).nonzero()[:, 0]
    return features[rows], cells.at(cells.cells[rows], padded=False)


def check_one_grid(a: Coordinates, b: Coordinates) -> None:
    """Raise ``ArgumentError`` unless both are of one grid, or without bounds, on one device."""
    ours, theirs = (_grid(cells) for cells in (a, b))
    if ours != theirs:
        raise ArgumentError("other", f"a tensor on the same grid, {ours}", theirs)


def _grid(cells: Coordinates) -> str:
    extents = f"spatial_shape {cells.spatial_shape}, batch_size {cells.batch_size}"
    if cells.corner is not None:
        extents = f"{cells.rank} modes without bounds"
    return f"{extents}, on {cells.device}"


def union(clouds: list[Coordinates]) -> tuple[Coordinates, list[Tensor]]:
    """Return the union of several clouds' cells, in lexicographic order, and for each cloud the row
    there of each of its rows, int64. None is padded; all are of one grid, or have no bounds.

    >>> import torch
    >>> a, b = torch.tensor([[0, 4], [0, 1]]).int(), torch.tensor([[0, -2], [0, 4]]).int()
    >>> found, (of_a, of_b) = union([Coordinates.unbounded(a), Coordinates.unbounded(b)])
    >>> found.coords.tolist(), of_a.tolist(), of_b.tolist()
    ([[0, -2], [0, 1], [0, 4]], [2, 1], [0, 2])
    """
    first = clouds[0]
    corner, shape, images = first.corner, first.spatial_shape, first.batch_size
    cells = [cloud.check_distinct().cells for cloud in clouds]
    if corner is not None:
        images = max(cloud.batch_size for cloud in clouds)
        corner, shape = joint([(c.corner or (), c.spatial_shape) for c in clouds])
        moves = [[a - b for a, b in zip(c.corner or (), corner, strict=True)] for c in clouds]
        cells = [c + c.new_tensor([0, *move]) for c, move in zip(cells, moves, strict=True)]
    strides = key_strides(shape, images)
    keys = torch.cat([pack(each, strides) for each in cells])
    found, place = torch.unique(keys, return_inverse=True)
    made = Coordinates.of_keys(found, shape, images).placed(corner)
    return made, list(place.split([len(cloud) for cloud in clouds]))
