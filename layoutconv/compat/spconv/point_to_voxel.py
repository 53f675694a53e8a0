"""The first points of each voxel, in a table with a row per voxel: the input of detectors.

Voxels are in the order of their first points. Points and voxels beyond the given maxima are
dropped. Results are the same on every device, and in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import ArgumentError


class VoxelTable(NamedTuple):
    """The table that :meth:`VoxelGrid.table` returns.

    ``voxels`` float32 (rows, points, F), zeros or the mean where there are fewer points;
    ``indices`` int32 (rows, rank), columns ``(z, y, x)``; ``num_per_voxel`` int32 (rows,);
    ``pc_voxel_id`` int64 (points of the cloud,), the row of each, -1 for none.
    """

    voxels: Tensor
    indices: Tensor
    num_per_voxel: Tensor
    pc_voxel_id: Tensor


class VoxelGrid:
    """A box cut into voxels.

    Args:
        vsize_xyz: edges of a voxel, ``(x, y, z)``; one to four of them.
        coors_range_xyz: ``(x0, y0, z0, x1, y1, z1)``. The box has ``round((x1 - x0) / edge)``
            voxels along x; points outside them belong to none.

    >>> VoxelGrid([0.1, 0.1, 0.2], [0, -1, -3, 1, 1, 1]).shape
    [20, 20, 10]
    """

    def __init__(self, vsize_xyz: Sequence[float], coors_range_xyz: Sequence[float]) -> None:
        self.size = [float(edge) for edge in vsize_xyz]
        bounds = [float(bound) for bound in coors_range_xyz]
        self.rank = len(self.size)
        if not 1 <= self.rank <= 4 or not all(0 < edge < float("inf") for edge in self.size):
            raise ArgumentError("vsize_xyz", "one to four positive numbers", vsize_xyz)
        if len(bounds) != 2 * self.rank:
            expected = f"{2 * self.rank} bounds, the lower ones first"
            raise ArgumentError("coors_range_xyz", expected, coors_range_xyz)
        self.low = bounds[: self.rank]
        # As in spconv: 32-bit numbers.
        size, low, high = (torch.tensor(v, dtype=torch.float32) for v in self._sides(bounds))
        extents = torch.round((high - low) / size)
        if not bool((extents >= 1).all()) or prod(extents.tolist()) >= 2**62:
            expected = "a box of one voxel or more along each axis, fewer than 2**62 in all"
            raise ArgumentError("coors_range_xyz", expected, coors_range_xyz)
        self.shape = [int(extent) for extent in reversed(extents.tolist())]

    def _sides(self, bounds: list[float]) -> tuple[list[float], list[float], list[float]]:
        return self.size, bounds[: self.rank], bounds[self.rank :]

    def table(
        self, points: Tensor, max_voxels: int, max_points: int, empty_mean: bool = False
    ) -> VoxelTable:
        """Return the first ``max_points`` points of the first ``max_voxels`` voxels of a cloud.

        Args:
            points: floating (points, F), columns ``x, y, z`` first. A point that is not finite
                belongs to no voxel.
            max_voxels, max_points: maximum numbers of voxels, and of points per voxel.
            empty_mean: fill the unused places of a voxel with the mean of its points.

        >>> cloud = torch.tensor([[0.9], [0.1], [0.8], [0.2], [7.0]])
        >>> found = VoxelGrid([0.5], [0, 1]).table(cloud, max_voxels=5, max_points=1)
        >>> found.voxels.flatten(), found.indices.T
        (tensor([0.9000, 0.1000]), tensor([[1, 0]], dtype=torch.int32))
        >>> found.pc_voxel_id
        tensor([ 0,  1,  0,  1, -1])
        """
        if points.dim() != 2 or points.shape[1] < self.rank or not points.is_floating_point():
            expected = f"floating (points, F), {self.rank} columns or more"
            raise ArgumentError("points", expected, f"{points.dtype} {tuple(points.shape)}")
        device, kind = points.device, torch.promote_types(points.dtype, torch.float32)
        low, size = (torch.tensor(v, dtype=torch.float32, device=device) for v in self._near)
        cells = torch.floor((points[:, : self.rank].to(kind) - low) / size)
        extents = torch.tensor(self.shape[::-1], device=device)
        kept = ((cells >= 0) & (cells < extents)).all(1).nonzero()[:, 0]
        zyx = cells[kept].long().flip(1)

        keys = zyx.new_zeros(len(zyx))
        for axis, extent in enumerate(self.shape):
            keys = keys * extent + zyx[:, axis]
        # Points by voxel, in their own order within each: the first of a run is the voxel's first.
        sorted_keys, order = torch.sort(keys, stable=True)
        _, run, counts = torch.unique_consecutive(
            sorted_keys, return_inverse=True, return_counts=True
        )
        starts = counts.cumsum(0) - counts
        first = order[starts]
        by_first = torch.argsort(first)
        row_of_run = torch.empty_like(by_first)
        row_of_run[by_first] = torch.arange(len(by_first), device=device)

        rows = row_of_run[run]  # of each point; voxels are in the order of their first points
        place = torch.arange(len(order), device=device) - starts[run]
        count = min(max_voxels, len(counts))
        pc_voxel_id = torch.full((len(points),), -1, dtype=torch.int64, device=device)
        pc_voxel_id[kept[order]] = torch.where(rows < max_voxels, rows, -1)

        there = (rows < max_voxels) & (place < max_points)
        values = points.detach().float()
        voxels = values.new_zeros((count, max_points, points.shape[1]))
        voxels[rows[there], place[there]] = values[kept[order[there]]]
        by_first = by_first[:count]
        num = counts[by_first].clamp(max=max_points)
        if empty_mean:
            mean = voxels.sum(1, keepdim=True) / num[:, None, None]
            empty = torch.arange(max_points, device=device) >= num[:, None]
            voxels = torch.where(empty[..., None], mean, voxels)
        return VoxelTable(voxels, zyx[first[by_first]].int(), num.int(), pc_voxel_id)

    @property
    def _near(self) -> tuple[list[float], list[float]]:
        return self.low, self.size
