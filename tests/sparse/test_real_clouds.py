"""Two real clouds, through reader, voxels and index buffer, against counts made with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layoutconv.sparse.coords.points import read_points
from layoutconv.sparse.coords.voxels import voxelize
from layoutconv.sparse.maps.kernel_map import submanifold_map


@pytest.mark.parametrize(
    ("name", "columns", "count", "size", "neighbours"),
    [("lidar_sweep.bin", 4, 17_238, 0.1, 5.45), ("indoor_scan.bin", 6, 40_684, 0.05, 6.55)],
)
def test_real_cloud(shared_cloud, name, columns, count, size, neighbours):
    points = read_points(shared_cloud(name), columns)
    assert points.shape == (count, columns)
    voxels = voxelize(points, size)
    cells, inverse = np.unique(
        np.floor(points[:, 2::-1].astype(np.float64) / size), axis=0, return_inverse=True
    )
    np.testing.assert_array_equal(voxels.coords[:, 1:], cells - cells.min(axis=0))
    np.testing.assert_array_equal(voxels.point_to_voxel, inverse.ravel())

    kernel_map = submanifold_map(voxels.coordinates).index
    mean = int((kernel_map >= 0).sum()) / len(voxels)
    assert mean == pytest.approx(neighbours, abs=0.01)
    occupied = torch.zeros(voxels.spatial_shape, dtype=torch.float64)
    occupied[tuple(voxels.coords[:, 1:].long().T)] = 1
    around = torch.nn.functional.conv3d(
        occupied[None, None], torch.ones(1, 1, 3, 3, 3).double(), padding=1
    )
    z, y, x = voxels.coords[:, 1:].long().T
    assert torch.equal((kernel_map >= 0).sum(1), around[0, 0, z, y, x].round().long())
