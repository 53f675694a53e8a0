"""From points to voxels, the active sites: a row per occupied cell, the same on CPU and GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ...errors import ArgumentError, ArgumentTypeError
from ...tensors.of_array import tensor_of_array
from .coordinates import Coordinates
from .keys import key_strides, pack
from .lattice import Edges, Lattice, check_rank, voxel_edges
from .no_tensor import NoTensor
from .rows import Reduce, check_reduce, reduce_runs, runs_of
from .sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor
    from typing_extensions import Self


class Voxels(SparseTensor):
    """A :class:`SparseTensor` whose rows come from points, as :func:`voxelize` returns it.

    Attributes:
        point_to_voxel: int64 (points,), the row of each point, -1 for a point outside the range.
        lattice: the position of the cells, from which come
        voxel_size: edges ``(x, y, z)`` of a cell, in the unit of the points, and
        origin: the corner ``(x, y, z)`` of cell ``(z, y, x) = (0, 0, 0)``.
        dropped: number of points outside the range.

    ``replace(features)`` keeps all of them, so :func:`devoxelize` takes the results of a network
    back to the points. Tensors on other cells, such as slices, are :class:`SparseTensor`.
    """

    point_to_voxel: Tensor
    lattice: Lattice
    dropped: int

    _beside: ClassVar[tuple[str, ...]] = "point_to_voxel", "lattice", "dropped"

    def __init__(
        self,
        features: Tensor,
        coordinates: Coordinates,
        *,
        point_to_voxel: Tensor,
        lattice: Lattice,
        dropped: int,
    ) -> None:
        super().__init__(features, coordinates)
        for name, value in zip(self._beside, (point_to_voxel, lattice, dropped), strict=True):
            object.__setattr__(self, name, value)

    @property
    def voxel_size(self) -> Edges:
        """Edges ``(x, y, z)`` of a cell, in the unit of the points."""
        return self.lattice.voxel_size

    @property
    def origin(self) -> Edges:
        """The corner ``(x, y, z)`` of cell ``(0, 0, 0)``, in the unit of the points."""
        return self.lattice.origin

    def centres(self) -> Tensor:
        """Return the centres of the cells, float64 (rows, 3), x, y, z in the unit of the points."""
        return self.lattice.centres(self.coordinates.cells[:, 1:].flip(1))

    def to(self, *args: Any, **options: Any) -> Self:
        """As :meth:`SparseTensor.to`; ``point_to_voxel`` moves to the device, too."""
        made = super().to(*args, **options)
        if made is not self:
            object.__setattr__(made, "point_to_voxel", self.point_to_voxel.to(made.device))
        return made


def voxelize(
    points: Tensor | ndarray | Sequence[Tensor | ndarray],
    voxel_size: float | Sequence[float],
    range: Sequence[float] | None = None,
    reduce: Reduce = "mean",
    *,
    rank: int = 3,
) -> Voxels:
    """Reduce the points of each occupied cell of a regular grid.

    Args:
        points: floating (points, F), columns ``x, y, z`` and F - 3 others; or a list of such
            clouds, a batch; tensors or NumPy arrays. All columns become features: a row's features
            are the reduced columns of its points, including their x, y, z, in their unit and
            frame.
        voxel_size: the edge of a cell, or the edges ``(x, y, z)``, in the unit of the points.
        range: ``(x0, y0, z0, x1, y1, z1)``: cells are counted from its lower corner, and points
            outside the half-open box are dropped. Without it the grid is aligned to the zero of
            the frame, and as large as the cloud.
        reduce: ``mean``, ``sum``, ``max``, ``min``, or ``first`` (the point that comes first in
            ``points``).
        rank: how many columns are coordinates, 1 to 4: with 2 the cells are pillars ``(y, x)``,
            with 4 the columns are ``x, y, z, t`` and the cells ``(t, z, y, x)``. ``voxel_size`` and
            ``range`` have as many edges and twice as many bounds.

    Returns:
        :class:`Voxels`: features (rows, F) in the dtype of the points; coords int32 (rows, 4) as
        ``(batch, z, y, x)``, rows in lexicographic order. No rows if no points are in the range.

    A point lies in cell ``floor((p - corner) / voxel_size)``, computed in float64, and sums are in
    float64 in the order of the points, so rows do not depend on the device and a second run gives
    the same bits. Differentiable in the columns of the points, with the cells held constant.

    Raises ``ArgumentError`` for a wrong rank or dtype, a voxel size that is not finite and
    positive, points that are not finite, an empty range, and a grid of 2**31 cells or more on an
    axis or 2**63 in all.

    >>> import torch
    >>> cloud = torch.tensor([[0.1, 0.1, 0.0, 8.0], [0.3, 0.1, 0.0, 4.0], [0.9, 0.1, 0.6, 5.0]])
    >>> v = voxelize(cloud, voxel_size=0.5)
    >>> v.coords.tolist(), v.features[:, 3], v.point_to_voxel
    ([[0, 0, 0, 0], [0, 1, 0, 1]], tensor([6., 5.]), tensor([0, 0, 1]))
    """
    size = voxel_edges(voxel_size, check_rank(rank))
    reduce = check_reduce(reduce)
    cloud, batch, count = joined(points, rank)
    xyz = cloud[:, :rank]
    lattice = Lattice.of_points(xyz, size) if range is None else Lattice.of_range(range, size)
    cells, inside = lattice.cells(xyz)
    kept = inside.nonzero()[:, 0]
    coords = torch.cat([batch[:, None], cells.flip(1)], dim=1)
    runs = runs_of(pack(coords[kept], key_strides(lattice.shape, count)))
    runs = runs._replace(order=kept[runs.order])  # rows of all points, not of the kept ones

    point_to_voxel = torch.full_like(batch, -1)
    point_to_voxel[runs.order] = runs.place
    cells = coords[runs.order[runs.first]].int()
    return Voxels(
        features=reduce_runs(cloud, runs, reduce),
        coordinates=Coordinates(cells, lattice.shape, count, valid=True),
        point_to_voxel=point_to_voxel,
        lattice=lattice,
        dropped=len(cloud) - len(kept),
    )


def joined(
    points: Tensor | ndarray | Sequence[Tensor | ndarray], rank: int = 3
) -> tuple[Tensor, Tensor, int]:
    """Join clouds: return points (points, F), their clouds int64 (points,), and how many clouds."""
    clouds = list(points) if isinstance(points, (list, tuple)) else [points]
    for cloud in clouds:
        array = hasattr(cloud, "__array__") and not isinstance(cloud, NoTensor)
        if not isinstance(cloud, torch.Tensor) and not array:
            kinds = "a tensor, a NumPy array, or a list of them"
            several = " in a sequence" if cloud is not points else ""
            raise ArgumentTypeError("points", kinds, type(cloud).__name__ + several)
    tensors = [_cloud(_tensor(cloud), rank) for cloud in clouds]
    if len({(t.shape[1], t.dtype, t.device) for t in tensors}) != 1:
        raise ArgumentError(
            "points",
            "one or more clouds that agree in columns, dtype and device",
            [(tuple(t.shape), t.dtype, str(t.device)) for t in tensors],
        )
    return torch.cat(tensors), _batch_column(tensors), len(tensors)


def _tensor(cloud: Any) -> Tensor:
    if isinstance(cloud, torch.Tensor):  # which as_tensor would move to torch's default device
        return cloud
    try:
        return tensor_of_array(cloud)
    except (TypeError, ValueError):  # an array of strings, or of a type that torch lacks
        kind = getattr(cloud, "dtype", type(cloud).__name__)
        raise ArgumentTypeError("points", "an array of a floating-point type", kind) from None


def _cloud(points: Tensor, rank: int) -> Tensor:
    if not points.is_floating_point():
        raise ArgumentTypeError("points", "a tensor of a floating-point type", points.dtype)
    if points.ndim != 2 or points.shape[1] < rank:
        raise ArgumentError("points", f"(points, F), F >= {rank} columns", tuple(points.shape))
    if points.is_meta:
        raise ArgumentError("points", "points on a device that holds them", "meta")
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
    """Return the cloud number of each point of a concatenation: int64 (points,)."""
    device = clouds[0].device
    lengths = torch.tensor([len(cloud) for cloud in clouds], device=device)
    return torch.repeat_interleave(torch.arange(len(clouds), device=device), lengths)
