"""From points to voxels: one row per occupied cell, the same rows on the CPU and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ..errors import ArgumentError, ArgumentTypeError
from .coordinates import Coordinates
from .keys import key_strides, pack
from .sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor

Reduce = Literal["mean", "sum", "max", "min", "first"]

# A range is rarely a whole number of voxels in binary (70.4 / 0.1): a remainder below this is
# rounding, not a cell.
_PARTIAL_CELL = 1e-4


class Voxels(SparseTensor):
    """A :class:`SparseTensor` whose rows come from points, as :func:`voxelize` returns it.

    Attributes:
        point_to_voxel: int64 (points,), the row of each point, -1 for a point outside the range.
        voxel_size: edges ``(x, y, z)`` of a cell, in the unit of the points.
        origin: the corner ``(x, y, z)`` of cell ``(z, y, x) = (0, 0, 0)``, in the unit of the
            points.
        dropped: number of points outside the range.
    """

    point_to_voxel: Tensor
    voxel_size: tuple[float, float, float]
    origin: tuple[float, float, float]
    dropped: int

    def __init__(
        self,
        features: Tensor,
        coordinates: Coordinates,
        *,
        point_to_voxel: Tensor,
        voxel_size: tuple[float, float, float],
        origin: tuple[float, float, float],
        dropped: int,
    ) -> None:
        super().__init__(features, coordinates)
        self.__dict__.update(
            point_to_voxel=point_to_voxel, voxel_size=voxel_size, origin=origin, dropped=dropped
        )

    def centres(self) -> Tensor:
        """The centres of the cells, float64 (rows, 3) as x, y, z in the unit of the points."""
        xyz = self.coords[:, 1:].flip(1).double()
        return (xyz + 0.5) * xyz.new_tensor(self.voxel_size) + xyz.new_tensor(self.origin)


def voxelize(
    points: Tensor | ndarray | Sequence[Tensor | ndarray],
    voxel_size: float | Sequence[float],
    range: Sequence[float] | None = None,
    reduce: Reduce = "mean",
) -> Voxels:
    """The occupied cells of a regular grid, each with the reduction of its points.

    Args:
        points: floating (points, F), columns ``x, y, z`` and F - 3 others; or a list of such
            clouds, a batch. A NumPy array will do. All columns become features: the features of a
            row are the reduced columns of its points, the x, y, z of the points themselves
            included, in their unit and frame.
        voxel_size: the edge of a cell, or the edges ``(x, y, z)``, in the unit of the points.
        range: ``(x0, y0, z0, x1, y1, z1)``: cells are counted from its lower corner, and points
            outside the half-open box are dropped. Without it the cells are those of the grid
            through the zero of the frame, and the grid is as large as the cloud.
        reduce: ``mean``, ``sum``, ``max``, ``min``, or ``first`` (the point that comes first in
            ``points``).

    Returns:
        :class:`Voxels`: features (rows, F) in the dtype of the points; coords int32 (rows, 4) as
        ``(batch, z, y, x)``, rows in lexicographic order of them. No points, or none in the range:
        no rows.

    A point lies in cell ``floor((p - corner) / voxel_size)``, computed in float64, and sums are
    taken in float64 in the order of the points, so the rows do not depend on the device and a
    second run gives the same bits.

    Raises ``ArgumentError``: wrong rank or dtype, a voxel size that is not finite and positive,
    points that are not finite, an empty range, a grid past 2**31 cells on an axis or 2**63 in all.

    >>> import torch
    >>> cloud = torch.tensor([[0.1, 0.1, 0.0, 8.0], [0.3, 0.1, 0.0, 4.0], [0.9, 0.1, 0.6, 5.0]])
    >>> v = voxelize(cloud, voxel_size=0.5)
    >>> v.coords.tolist(), v.features[:, 3], v.point_to_voxel
    ([[0, 0, 0, 0], [0, 1, 0, 1]], tensor([6., 5.]), tensor([0, 0, 1]))
    """
    import torch

    size = _voxel_size(voxel_size)
    if reduce not in ("mean", "sum", "max", "min", "first"):
        raise ArgumentError("reduce", "mean, sum, max, min or first", reduce)
    clouds = list(points) if isinstance(points, (list, tuple)) else [points]
    tensors = [_cloud(torch.as_tensor(cloud)) for cloud in clouds]
    if len({(t.shape[1], t.dtype, t.device) for t in tensors}) != 1:
        raise ArgumentError(
            "points",
            "one or more clouds that agree in columns, dtype and device",
            [(tuple(t.shape), t.dtype, str(t.device)) for t in tensors],
        )
    cloud = torch.cat(tensors)
    batch = _batch_column(tensors)

    cells, inside, origin, shape = _cells(cloud[:, :3], size, range)
    coords = torch.cat([batch[:, None], cells.flip(1)], dim=1)[inside]
    strides = key_strides(shape, len(tensors))
    keys, order = torch.sort(pack(coords, strides), stable=True)
    _, row_of_sorted, counts = torch.unique_consecutive(
        keys, return_inverse=True, return_counts=True
    )
    first = counts.cumsum(0) - counts

    kept = inside.nonzero()[:, 0]
    point_to_voxel = torch.full_like(batch, -1)
    point_to_voxel[kept[order]] = row_of_sorted
    return Voxels(
        features=_reduce(cloud[kept[order]], counts, first, reduce),
        coordinates=Coordinates(coords[order[first]].int(), shape, len(tensors), valid=True),
        point_to_voxel=point_to_voxel,
        voxel_size=size,
        origin=origin,
        dropped=len(cloud) - len(kept),
    )


def _voxel_size(voxel_size: float | Sequence[float]) -> tuple[float, float, float]:
    edges = tuple(voxel_size) if isinstance(voxel_size, Sequence) else (voxel_size,) * 3
    if len(edges) != 3 or not all(math.isfinite(edge) and edge > 0 for edge in edges):
        raise ArgumentError("voxel_size", "a finite positive number, or three", voxel_size)
    x, y, z = (float(edge) for edge in edges)
    return x, y, z


def _cloud(points: Tensor) -> Tensor:
    if not points.is_floating_point():
        raise ArgumentTypeError("points", "a tensor of a floating-point type", points.dtype)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ArgumentError("points", "(points, F), F >= 3 columns", tuple(points.shape))
    finite = points.isfinite().all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ArgumentError(
            "points",
            "finite values",
            f"{points[row].tolist()} in point {row}, and {int((~finite).sum())} of {len(points)} "
            f"points that are not finite",
        )
    return points


def _batch_column(clouds: Sequence[Tensor]) -> Tensor:
    """int64 (points,): the number of the cloud that a point of their concatenation came from."""
    import torch

    device = clouds[0].device
    lengths = torch.tensor([len(cloud) for cloud in clouds], device=device)
    return torch.repeat_interleave(torch.arange(len(clouds), device=device), lengths)


def _cells(
    xyz: Tensor, size: tuple[float, float, float], range: Sequence[float] | None
) -> tuple[Tensor, Tensor, tuple[float, float, float], tuple[int, int, int]]:
    """Cells, int64 (points, 3) as x, y, z; which are in range; corner of cell 0; (D, H, W)."""
    import torch

    xyz = xyz.double()
    # A tensor, not three numbers: torch multiplies by the reciprocal of a number on a GPU, which
    # rounds elsewhere.
    edges = xyz.new_tensor(size)
    if range is not None:
        low, high = _range(range)
        shape = [
            max(1, math.ceil((b - a) / edge - _PARTIAL_CELL))
            for a, b, edge in zip(low, high, size, strict=True)
        ]
        _check_extents(shape, size)
        low_corner, high_corner = xyz.new_tensor(low), xyz.new_tensor(high)
        inside = ((xyz >= low_corner) & (xyz < high_corner)).all(1)
        last = torch.tensor(shape, device=xyz.device) - 1
        cells = torch.floor((xyz - low_corner) / edges).clamp(-1, 2**31).long()
        x, y, z = low
        return torch.minimum(cells, last), inside, (x, y, z), (shape[2], shape[1], shape[0])

    inside = torch.ones(len(xyz), dtype=torch.bool, device=xyz.device)
    if not len(xyz):
        return xyz.long(), inside, (0.0, 0.0, 0.0), (0, 0, 0)
    cells = torch.floor(xyz / edges)
    lowest, highest = cells.amin(0), cells.amax(0)
    shape = [int(extent) for extent in (highest - lowest + 1).tolist()]
    _check_extents(shape, size)
    x, y, z = (lowest * edges).tolist()
    return (cells - lowest).long(), inside, (x, y, z), (shape[2], shape[1], shape[0])


def _range(range: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    bounds = tuple(float(bound) for bound in range)
    low, high = bounds[:3], bounds[3:]
    if (
        len(bounds) != 6
        or not all(map(math.isfinite, bounds))
        or not all(a < b for a, b in zip(low, high, strict=True))
    ):
        raise ArgumentError(
            "range", "finite (x0, y0, z0, x1, y1, z1), each lower bound below its upper", bounds
        )
    return low, high


def _check_extents(shape: Sequence[int], size: tuple[float, float, float]) -> None:
    if max(shape) >= 2**31:
        raise ArgumentError(
            "voxel_size",
            "fewer than 2**31 cells on each axis, for int32 coordinates",
            f"{size}, which gives {tuple(shape)} cells along x, y, z",
        )


def _reduce(points: Tensor, counts: Tensor, first: Tensor, reduce: Reduce) -> Tensor:
    """Reduce runs of ``counts`` consecutive rows of ``points`` (points, F) to (rows, F)."""
    import torch

    if reduce == "first" or not len(points):
        return points[first]
    # One thread adds up one run, in order: unlike index_add_, the same bits every time, on a GPU
    # too.
    return torch.segment_reduce(points.double(), reduce, lengths=counts, axis=0).to(points.dtype)
