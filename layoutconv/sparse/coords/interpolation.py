"""From voxels to points: the features of the cells around a point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

import torch

from ...errors import ArgumentError, ArgumentTypeError, check_choice
from .coordinates import Coordinates
from .lattice import Lattice, voxel_edges
from .rows import take
from .sparse_tensor import SparseTensor
from .voxels import Voxels, joined

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

# torch's names of linear interpolation, by the number of modes.
_LINEAR = {"linear": None, "bilinear": 2, "trilinear": 3}


def devoxelize(
    voxels: SparseTensor,
    points: Tensor | ndarray | Sequence[Tensor | ndarray] | None = None,
    mode: Literal["nearest", "linear", "bilinear", "trilinear"] = "nearest",
    *,
    voxel_size: float | Sequence[float] | None = None,
    origin: Sequence[float] | None = None,
) -> Tensor:
    """Interpolate the features of voxels at points, (points, C): the counterpart of
    :func:`voxelize`.

    Args:
        voxels: the result of :func:`voxelize`, or its ``replace`` with other features; or any
            tensor of 1 to 4 spatial modes, with ``voxel_size`` and ``origin``.
        points: floating (points, modes or more), ``x, y, z`` first, on the device of ``voxels``; a
            list of clouds for a batch, one per image, whose rows follow each other in the result.
            None: the points that were voxelized, for ``nearest``, which needs no look-up then.
        mode: ``nearest``: the voxel that contains a point; zeros if there is none.
            ``linear``: the mean of the voxels whose centres are the eight around a point, two per
            mode, with the weights of linear interpolation. The weights of existing voxels are
            divided by their sum; if it is zero, so is the result. ``bilinear`` and ``trilinear``
            are ``linear`` for 2 and 3 modes.
        voxel_size, origin: the edge of a cell, or the edges ``(x, y, z)``, and the corner of
            ``coords`` 0 as ``(x, y, z)``, of a tensor that does not know them. After a convolution
            of stride 2 the cells are twice as large, and begin where its padding says.

    Returns features in the dtype of ``voxels``, summed in float32 at least. Differentiable in the
    features, with gradients added in the order of the points, so that they have the same bits every
    time; and in ``x, y, z`` for ``linear``.

    Raises ``ArgumentError`` for points that are not finite or on another device, a number of clouds
    that is not ``batch_size``, and ``voxel_size`` or ``origin`` that are missing or superfluous.

    >>> import torch
    >>> from layoutconv.sparse import voxelize
    >>> cloud = torch.tensor([[0.1, 0.1, 0.1, 8.0], [0.3, 0.1, 0.1, 4.0], [0.9, 0.1, 0.1, 5.0]])
    >>> v = voxelize(cloud, voxel_size=0.5)
    >>> devoxelize(v)[:, 3]
    tensor([6., 6., 5.])
    >>> between = torch.tensor([[0.5, 0.25, 0.25], [9.0, 9.0, 9.0]])
    >>> devoxelize(v, between, "trilinear")[:, 3]
    tensor([5.5000, 0.0000])
    """
    check_choice("mode", mode, ("nearest", *_LINEAR), "nearest, linear, bilinear or trilinear")
    lattice = lattice_of(voxels, voxel_size, origin)
    rank = len(lattice.shape)
    if _LINEAR.get(mode) not in (None, rank):
        raise ArgumentError("mode", f"linear or nearest for {rank} spatial modes", mode)
    if points is None:
        if mode != "nearest" or not isinstance(voxels, Voxels):
            raise ArgumentError(
                "points", "the points: only mode='nearest' of Voxels needs none", None
            )
        return take(voxels.features, voxels.point_to_voxel)
    cloud, batch = points_of(voxels, points, rank)
    xyz = cloud[:, :rank]
    if mode == "nearest":
        cells, inside = lattice.cells(xyz)
        own = [(0,) * rank]
        return take(voxels.features, _rows(voxels.coordinates, batch, cells, inside, own)[0])
    return _linear(voxels, lattice.positions(xyz), batch)


def points_of(
    voxels: SparseTensor, points: Tensor | ndarray | Sequence[Tensor | ndarray], rank: int
) -> tuple[Tensor, Tensor]:
    """Join as many clouds as there are images; return the points, and the image of each.

    Raises ``ArgumentError`` for another number of clouds, or another device.
    """
    cloud, batch, count = joined(points, rank)
    if count != voxels.batch_size:
        raise ArgumentError("points", f"{voxels.batch_size} clouds, one per image", count)
    if cloud.device != voxels.device:
        raise ArgumentError(
            "points", f"points on the device of voxels, {voxels.device}", cloud.device
        )
    return cloud, batch


def lattice_of(
    voxels: SparseTensor,
    voxel_size: float | Sequence[float] | None,
    origin: Sequence[float] | None,
) -> Lattice:
    """Return the lattice of a tensor's cells: that of voxels, or the caller's."""
    given = ("voxel_size", voxel_size), ("origin", origin)
    if isinstance(voxels, Voxels):
        for name, value in given:
            if value is not None:
                raise ArgumentError(name, "None, as `voxels` are Voxels, which know it", value)
        return voxels.lattice
    if not isinstance(voxels, SparseTensor):
        raise ArgumentTypeError("voxels", "Voxels or a SparseTensor", type(voxels).__name__)
    if voxel_size is None or origin is None:
        name = "voxel_size" if voxel_size is None else "origin"
        raise ArgumentError(
            name, "a value, as `voxels` are a SparseTensor, which does not know it", None
        )
    corner = tuple(float(x) for x in origin)
    cells = voxels.coordinates
    if len(corner) != cells.rank:
        raise ArgumentError("origin", f"a corner of {cells.rank} numbers, (x, y, z)", origin)
    first = (0,) * cells.rank if cells.corner is None else cells.corner[::-1]
    return Lattice(voxel_edges(voxel_size, cells.rank), corner, first, cells.spatial_shape)


def _rows(
    coordinates: Coordinates,
    batch: Tensor,
    cells: Tensor,
    there: Tensor,
    offsets: Sequence[Sequence[int]],
) -> Tensor:
    """Return the rows of the cells (points, modes), x first, at some offsets: int64 (taps, points);
    -1 for none.

    ``offsets`` are of z, y, x; points that are not ``there`` have none.
    """
    image = torch.where(there, batch, -1)[:, None]
    centres = torch.cat([image, torch.where(there[:, None], cells, 0).flip(1)], dim=1).int()
    found = coordinates.check_distinct().table.search(centres, (1,) * coordinates.rank, offsets)
    return found.T.long()


def around(
    coordinates: Coordinates, positions: Tensor, batch: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return the cells whose centres surround points, two per mode: int64 (2**modes, points), -1
    for none; and their weights in linear interpolation, 0 for none.

    ``positions`` (points, modes), x first, are in cells; weights have a gradient in them.
    """
    offsets = list(product((-1, 0), repeat=coordinates.rank))
    # The cell corner nearest to a point: the surrounding centres are half a cell from it, and it is
    # the lower corner of the cell of the last offset.
    corners = positions.detach().add(0.5).floor_()
    extents = corners.new_tensor(coordinates.spatial_shape[::-1])
    there = ((corners >= 0) & (corners <= extents)).all(1)
    upper = positions - corners + 0.5  # of the way from the lower centres to the upper ones
    cells = torch.minimum(corners.clamp_(min=0), extents).long()
    rows = _rows(coordinates, batch, cells, there, offsets)
    weights = []
    for offset, found in zip(offsets, rows, strict=True):
        weight = torch.ones_like(upper[:, 0])
        for axis, step in enumerate(reversed(offset)):
            weight = weight * (upper[:, axis] if step == 0 else 1 - upper[:, axis])
        weights.append(weight * (found >= 0))
    return rows, weights


def _linear(voxels: SparseTensor, positions: Tensor, batch: Tensor) -> Tensor:
    features = voxels.features
    if not (features.is_floating_point() or features.is_complex()):
        raise ArgumentTypeError("voxels", "features of a floating-point type", features.dtype)
    rows, weights = around(voxels.coordinates, positions, batch)
    total = sum(weights[1:], weights[0])
    scale = torch.where(total > 0, total, 1)
    kind = torch.promote_types(features.dtype, torch.float32)
    result = features.new_zeros(len(batch), features.shape[1], dtype=kind)
    for weight, found in zip(weights, rows, strict=True):
        result = result + (weight / scale).to(kind)[:, None] * take(features, found)
    return result.to(features.dtype)
