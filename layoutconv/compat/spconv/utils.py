"""``spconv.utils``: voxels of NumPy clouds, for the data loaders of detectors.

``Point2VoxelCPU3d`` and its variants are spconv 2's, ``VoxelGenerator`` and ``VoxelGeneratorV2``
those of 1.x, which OpenPCDet prefers if they exist, and which need no package ``cumm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import ArgumentError
from ...tensors.of_array import tensor_of_array
from .absent import explain
from .point_to_voxel import VoxelGrid, VoxelTable

__all__ = [
    "Point2VoxelCPU1d",
    "Point2VoxelCPU2d",
    "Point2VoxelCPU3d",
    "Point2VoxelCPU4d",
    "Point2VoxelGPU1d",
    "Point2VoxelGPU2d",
    "Point2VoxelGPU3d",
    "Point2VoxelGPU4d",
    "VoxelGenerator",
    "VoxelGeneratorV2",
    "nullcontext",
]


def _tensor(points: Any) -> Tensor:
    """A cloud: a tensor, an array, or a tensor of cumm's."""
    if isinstance(points, Tensor):
        return points
    if hasattr(points, "numpy_view"):
        points = points.numpy_view()
    return tensor_of_array(points)


class _Point2Voxel:
    """The points of each voxel, for a number of spatial modes.

    Arguments as for :class:`layoutconv.compat.spconv.pytorch.utils.PointToVoxel`.
    """

    _rank: int

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
    ) -> None:
        self._grid = VoxelGrid(vsize_xyz, coors_range_xyz)
        if self._grid.rank != self._rank:
            raise ArgumentError("vsize_xyz", f"{self._rank} edges", vsize_xyz)
        self._columns = num_point_features
        self._most = max_num_voxels, max_num_points_per_voxel

    @property
    def grid_size(self) -> list[int]:
        """Extents ``[D, H, W]``."""
        return self._grid.shape

    def _table(self, points: Any, empty_mean: bool) -> VoxelTable:
        cloud = _tensor(points)
        if cloud.dim() != 2 or cloud.shape[1] != self._columns:
            raise ArgumentError("points", f"(points, {self._columns})", tuple(cloud.shape))
        return self._grid.table(cloud, *self._most, empty_mean)


class _Point2VoxelCPU(_Point2Voxel):
    def point_to_voxel(
        self, points: Any, clear_voxels: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tensors on the CPU: voxels, indices ``(z, y, x)``, numbers of points."""
        return self._table(points, False)[:3]

    def point_to_voxel_empty_mean(
        self, points: Any, clear_voxels: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same, with unused places filled by the mean of the voxel's points."""
        return self._table(points, True)[:3]


class _Point2VoxelGPU(_Point2Voxel):
    def point_to_voxel_hash(
        self, points: Any, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return voxels, indices ``(z, y, x)`` and numbers of points, on the points' device."""
        return self._table(points, empty_mean)[:3]


class Point2VoxelCPU1d(_Point2VoxelCPU):
    """:class:`Point2VoxelCPU3d` over one spatial mode."""

    _rank = 1


class Point2VoxelCPU2d(_Point2VoxelCPU):
    """:class:`Point2VoxelCPU3d` over two spatial modes."""

    _rank = 2


class Point2VoxelCPU3d(_Point2VoxelCPU):
    """The points of each voxel of a cloud, a NumPy array or a tensor.

    >>> voxels_of = Point2VoxelCPU3d([1, 1, 1], [0, 0, 0, 4, 4, 2], 3, 100, 2)
    >>> voxels, indices, numbers = voxels_of.point_to_voxel(np.array([[0.5, 3.5, 1.5]]))
    >>> indices.numpy(), voxels.shape
    (array([[1, 3, 0]], dtype=int32), torch.Size([1, 2, 3]))
    """

    _rank = 3


class Point2VoxelCPU4d(_Point2VoxelCPU):
    """:class:`Point2VoxelCPU3d` over four spatial modes."""

    _rank = 4


class Point2VoxelGPU1d(_Point2VoxelGPU):
    """:class:`Point2VoxelGPU3d` over one spatial mode."""

    _rank = 1


class Point2VoxelGPU2d(_Point2VoxelGPU):
    """:class:`Point2VoxelGPU3d` over two spatial modes."""

    _rank = 2


class Point2VoxelGPU3d(_Point2VoxelGPU):
    """The points of each voxel of a cloud, a tensor on any device."""

    _rank = 3


class Point2VoxelGPU4d(_Point2VoxelGPU):
    """:class:`Point2VoxelGPU3d` over four spatial modes."""

    _rank = 4


class VoxelGenerator:
    """The points of each voxel of a NumPy cloud, with the arguments of spconv 1.x.

    Args:
        voxel_size: edges ``(x, y, z)``.
        point_cloud_range: ``(x0, y0, z0, x1, y1, z1)``.
        max_num_points, max_voxels: maximum numbers of points per voxel, and of voxels.
        full_mean: fill the unused places of a voxel with the mean of its points.

    >>> points = np.array([[0.5, 3.5, 1.5], [0.6, 3.5, 1.5]], dtype=np.float32)
    >>> generator = VoxelGenerator([1, 1, 1], [0, 0, 0, 4, 4, 2], max_num_points=5)
    >>> voxels, coordinates, numbers = generator.generate(points)
    >>> coordinates, numbers
    (array([[1, 3, 0]], dtype=int32), array([2], dtype=int32))
    """

    def __init__(
        self,
        voxel_size: Sequence[float],
        point_cloud_range: Sequence[float],
        max_num_points: int,
        max_voxels: int = 20000,
        full_mean: bool = False,
    ) -> None:
        self._grid = VoxelGrid(voxel_size, point_cloud_range)
        self.voxel_size = np.array(voxel_size, dtype=np.float32)
        self.point_cloud_range = np.array(point_cloud_range, dtype=np.float32)
        self.grid_size = np.array(self._grid.shape[::-1], dtype=np.int64)  # x, y, z
        self.max_num_points_per_voxel = max_num_points
        self._max_voxels, self._full_mean = max_voxels, full_mean

    def _arrays(self, points: Any, max_voxels: int | None) -> tuple[Any, ...]:
        most = self._max_voxels if max_voxels is None else max_voxels
        sizes = most, self.max_num_points_per_voxel, self._full_mean
        return tuple(t.numpy() for t in self._grid.table(_tensor(points), *sizes)[:3])

    def generate(self, points: Any, max_voxels: int | None = None) -> Any:
        """Return voxels, coordinates ``(z, y, x)`` and numbers of points, as NumPy arrays."""
        return self._arrays(points, max_voxels)


class VoxelGeneratorV2(VoxelGenerator):
    """:class:`VoxelGenerator` whose ``generate`` returns a dict.

    >>> points = np.array([[0.5, 3.5, 1.5], [0.6, 3.5, 1.5]], dtype=np.float32)
    >>> found = VoxelGeneratorV2([1] * 3, [0, 0, 0, 4, 4, 2], max_num_points=3).generate(points)
    >>> found["voxel_point_mask"].ravel(), found["voxel_num"]
    (array([1., 1., 0.], dtype=float32), 1)
    """

    def generate(self, points: Any, max_voxels: int | None = None) -> dict[str, Any]:
        voxels, coordinates, numbers = self._arrays(points, max_voxels)
        mask = np.arange(voxels.shape[1]) < numbers[:, None]
        return {
            "voxels": voxels,
            "coordinates": coordinates,
            "num_points_per_voxel": numbers,
            "voxel_point_mask": mask[..., None].astype(np.float32),
            "voxel_num": len(voxels),
        }


__getattr__ = explain(__name__)
