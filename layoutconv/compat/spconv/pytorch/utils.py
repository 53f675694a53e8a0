"""Voxelization of points in torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError, ArgumentTypeError
from ...tensor_arguments import check_tensors
from ..point_to_voxel import VoxelGrid, VoxelTable


class PointToVoxel:
    """The points of each voxel of a cloud, on a CPU or a GPU.

    Args:
        vsize_xyz: edges of a voxel, ``[x, y, z]``; one to four of them.
        coors_range_xyz: the box, ``[x0, y0, z0, x1, y1, z1]``.
        num_point_features: F, columns of a cloud, the coordinates included.
        max_num_voxels, max_num_points_per_voxel: maxima; the first voxels and points are kept, the
            others dropped.
        device: where clouds are.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> voxels_of = PointToVoxel([1.0, 1.0, 1.0], [0, 0, 0, 4, 4, 2], 4, 100, 3)
    >>> cloud = torch.tensor([[0.5, 3.5, 1.5, 7.0], [0.1, 3.9, 1.0, 9.0], [9.0, 0.0, 0.0, 1.0]])
    >>> voxels, indices, num_per_voxel = voxels_of(cloud)
    >>> voxels[0, :, 3], indices, num_per_voxel
    (tensor([7., 9., 0.]), tensor([[1, 3, 0]], dtype=torch.int32), tensor([2], dtype=torch.int32))
    """

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: Any = torch.device("cpu:0"),  # noqa: B008
    ) -> None:
        self._grid = VoxelGrid(vsize_xyz, coors_range_xyz)
        self.ndim = self._grid.rank
        self.device = torch.device(device)
        self.num_point_features = num_point_features
        self.max_num_voxels = max_num_voxels
        self.max_num_points_per_voxel = max_num_points_per_voxel
        self.grid_size = self._grid.shape
        self.vsize = self._grid.size[::-1]
        bounds = [float(bound) for bound in coors_range_xyz]
        self.coors_range = bounds[: self.ndim][::-1] + bounds[self.ndim :][::-1]

    def __call__(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return voxels, indices and numbers of points, as in :class:`VoxelTable`.

        ``clear_voxels`` has no effect: results are tensors of their own.
        """
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    def generate_voxel_with_id(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> VoxelTable:
        """Return the same, and ``pc_voxel_id``, the row of each point's voxel, -1 for none.

        It includes points past ``max_num_points_per_voxel``.
        """
        if not isinstance(pc, Tensor):
            raise ArgumentTypeError("pc", "a torch tensor", type(pc).__name__)
        if pc.device.type != self.device.type:
            raise ArgumentError("pc", f"a tensor on {self.device}", str(pc.device))
        if pc.dim() != 2 or pc.shape[1] != self.num_point_features:
            raise ArgumentError("pc", f"(points, {self.num_point_features})", tuple(pc.shape))
        with torch.no_grad():
            return self._grid.table(
                pc, self.max_num_voxels, self.max_num_points_per_voxel, empty_mean
            )


def gather_features_by_pc_voxel_id(
    seg_res_features: Tensor, pc_voxel_id: Tensor, invalid_value: float = 0
) -> Tensor:
    """Return the features of each point's voxel, ``invalid_value`` for points without one.

    >>> gather_features_by_pc_voxel_id(torch.tensor([5, 6]), torch.tensor([1, -1, 0, 1]), -9)
    tensor([ 6, -9,  5,  6])
    """
    check_tensors(seg_res_features=seg_res_features, pc_voxel_id=pc_voxel_id)
    rows = pc_voxel_id.to(seg_res_features.device)
    there = rows >= 0
    found = seg_res_features.new_full((len(rows), *seg_res_features.shape[1:]), invalid_value)
    return found.index_put((there.nonzero()[:, 0],), seg_res_features[rows[there]])
