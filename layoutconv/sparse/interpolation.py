"""From voxels back to points: the features of the cell around a point, or of the nearest eight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

from ..errors import ArgumentError, ArgumentTypeError
from .coordinates import Coordinates
from .lattice import Lattice, voxel_edges
from .rows import take
from .sparse_tensor import SparseTensor
from .voxels import Voxels, joined

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

# Centres of cells around the corner that is nearest to a point: it is the lower corner of the last
# of them.
_AROUND = list(product((-1, 0), repeat=3))


def devoxelize(
    voxels: SparseTensor,
    points: Tensor | ndarray | Sequence[Tensor | ndarray] | None = None,
    mode: Literal["nearest", "trilinear"] = "nearest",
    *,
    voxel_size: float | Sequence[float] | None = None,
    origin: Sequence[float] | None = None,
) -> Tensor:
    """The features of voxels at points, (points, C): the way back from :func:`voxelize`.

    Args:
        voxels: what :func:`voxelize` returned, or its ``replace`` with other features; or any
            tensor of three spatial modes, with ``voxel_size`` and ``origin``.
        points: floating (points, 3 or more), ``x, y, z`` first, on the device of ``voxels``; a
            list of clouds for a batch, one to an image, whose rows follow each other in the result.
            None: the points that were voxelized, for ``nearest``, with nothing to look up.
        mode: ``nearest``: the voxel that a point lies in, zeros where there is none.
            ``trilinear``: the mean of the voxels whose centres are the eight around a point, with
            the weights of linear interpolation. Of those that there are: their weights are divided
            by their sum, and where it is zero, so is the result.
        voxel_size, origin: the edge of a cell, or the edges ``(x, y, z)``, and the corner of cell 0
            as ``(x, y, z)``, of a tensor that does not know them. After a convolution of stride 2
            the cells are twice as large, and begin where its padding says.

    Returns features in the dtype of ``voxels``; sums are taken in float32 at least. It has a
    gradient in the features, added up in the order of the points, so that it has the same bits
    every time; and in ``x, y, z`` for ``trilinear``.

    Raises ``ArgumentError``: points that are not finite or on another device, a number of clouds
    that is not ``batch_size``, no ``voxel_size`` and ``origin`` where they are needed, or some
    where they are not.

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
    if mode not in ("nearest", "trilinear"):
        raise ArgumentError("mode", "nearest or trilinear", mode)
    lattice = _lattice(voxels, voxel_size, origin)
    if points is None:
        if mode != "nearest" or not isinstance(voxels, Voxels):
            raise ArgumentError("points", "the points, but for the nearest of Voxels", None)
        return take(voxels.features, voxels.point_to_voxel)
    cloud, batch, count = joined(points)
    if count != voxels.batch_size:
        raise ArgumentError("points", f"{voxels.batch_size} clouds, one to an image", count)
    if cloud.device != voxels.device:
        raise ArgumentError(
            "points", f"points on the device of voxels, {voxels.device}", cloud.device
        )
    xyz = cloud[:, :3]
    if mode == "nearest":
        cells, inside = lattice.cells(xyz)
        return take(
            voxels.features, _rows(voxels.coordinates, batch, cells, inside, [(0, 0, 0)])[0]
        )
    return _trilinear(voxels, lattice.positions(xyz), batch)


def _lattice(
    voxels: SparseTensor,
    voxel_size: float | Sequence[float] | None,
    origin: Sequence[float] | None,
) -> Lattice:
    given = ("voxel_size", voxel_size), ("origin", origin)
    if isinstance(voxels, Voxels):
        for name, value in given:
            if value is not None:
                raise ArgumentError(name, "None: `voxels` are Voxels, which know it", value)
        return voxels.lattice
    if not isinstance(voxels, SparseTensor):
        raise ArgumentTypeError("voxels", "Voxels or a SparseTensor", type(voxels).__name__)
    if len(voxels.spatial_shape) != 3:
        raise ArgumentError("voxels", "three spatial modes", voxels.spatial_shape)
    if voxel_size is None or origin is None:
        name = "voxel_size" if voxel_size is None else "origin"
        raise ArgumentError(name, "a value: `voxels` are no Voxels, which would know it", None)
    corner = tuple(float(x) for x in origin)
    if len(corner) != 3:
        raise ArgumentError("origin", "the corner (x, y, z)", origin)
    depth, height, width = voxels.spatial_shape
    return Lattice(voxel_edges(voxel_size), corner, (0, 0, 0), (depth, height, width))


def _rows(
    coordinates: Coordinates,
    batch: Tensor,
    cells: Tensor,
    there: Tensor,
    offsets: Sequence[Sequence[int]],
) -> Tensor:
    """int64 (taps, points): rows of the cells (points, 3), x, y, z, at some offsets; -1 for none.

    ``offsets`` are of z, y, x; points that are not ``there`` have none.
    """
    import torch

    image = torch.where(there, batch, -1)[:, None]
    centres = torch.cat([image, torch.where(there[:, None], cells, 0).flip(1)], dim=1).int()
    found = coordinates.check_distinct().table.search(centres, (1, 1, 1), offsets)
    return found.T.long()


def _trilinear(voxels: SparseTensor, positions: Tensor, batch: Tensor) -> Tensor:
    import torch

    features = voxels.features
    if not (features.is_floating_point() or features.is_complex()):
        raise ArgumentTypeError("voxels", "features of a floating-point type", features.dtype)
    # The corner of cells that is nearest to a point: a cell's centre is half a cell from it.
    corners = positions.detach().add(0.5).floor_()
    extents = corners.new_tensor(voxels.spatial_shape[::-1])
    there = ((corners >= 0) & (corners <= extents)).all(1)
    upper = positions - corners + 0.5  # of the way from the lower centres to the upper ones
    cells = torch.minimum(corners.clamp_(min=0), extents).long()
    rows = _rows(voxels.coordinates, batch, cells, there, _AROUND)

    kind = torch.promote_types(features.dtype, torch.float32)
    total = upper.new_zeros(len(upper))
    weights = []
    for offset, found in zip(_AROUND, rows, strict=True):
        weight = torch.ones_like(total)
        for axis, step in enumerate(reversed(offset)):
            weight = weight * (upper[:, axis] if step == 0 else 1 - upper[:, axis])
        weights.append(weight * (found >= 0))
        total = total + weights[-1]
    scale = torch.where(total > 0, total, 1)
    result = features.new_zeros(len(upper), features.shape[1], dtype=kind)
    for weight, found in zip(weights, rows, strict=True):
        result = result + (weight / scale).to(kind)[:, None] * take(features, found)
    return result.to(features.dtype)
