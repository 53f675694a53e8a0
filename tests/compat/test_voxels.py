"""Voxels of points against a dictionary, with spconv's rules: first come, first kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from layoutconv.compat.spconv import utils
from layoutconv.compat.spconv.pytorch.utils import PointToVoxel, gather_features_by_pc_voxel_id
from layoutconv.errors import ArgumentError

SIZE, RANGE = [0.5, 0.25, 1.0], [-2.0, -1.0, -3.0, 2.0, 1.0, 1.0]


def points(number: int, seed: int = 0) -> torch.Tensor:
    """Some of them outside, some at edges of voxels, some that are no numbers."""
    random = torch.Generator().manual_seed(seed)
    cloud = torch.randn(number, 5, generator=random)
    cloud[::3, :3] = (cloud[::3, :3] * 4).round() / 4
    cloud[::50, 1] = float("nan")
    cloud[1::50, 1] = float("inf")
    return cloud


def dictionary(cloud: torch.Tensor, max_voxels: int, max_points: int) -> tuple[Any, ...]:
    """Voxels, cells and the voxel of each point, one point after the other."""
    cells: dict[tuple[int, ...], int] = {}
    kept: list[list[list[float]]] = []
    ids = []
    for point in cloud.tolist():
        ids.append(-1)
        if not all(map(math.isfinite, point[:3])):
            continue
        sides = zip(point, SIZE, RANGE[:3], RANGE[3:], strict=False)
        cell = [(math.floor((p - low) / s), round((high - low) / s)) for p, s, low, high in sides]
        if not all(0 <= c < extent for c, extent in cell):
            continue
        zyx = tuple(c for c, _ in reversed(cell))
        if zyx not in cells:
            if len(cells) == max_voxels:
                continue
            cells[zyx] = len(cells)
            kept.append([])
        ids[-1] = cells[zyx]
        if len(kept[cells[zyx]]) < max_points:
            kept[cells[zyx]].append(point)
    return kept, list(cells), ids


@pytest.mark.parametrize(("max_voxels", "max_points"), [(1000, 5), (20, 2), (7, 1), (1000, 100)])
def test_point_to_voxel(max_voxels: int, max_points: int) -> None:
    cloud = points(400)
    generator = PointToVoxel(SIZE, RANGE, 5, max_voxels, max_points, torch.device("cpu:0"))
    assert generator.grid_size == [4, 8, 8]
    assert generator.vsize == [1.0, 0.25, 0.5]
    voxels, indices, numbers, ids = generator.generate_voxel_with_id(cloud)
    kept, cells, wanted_ids = dictionary(cloud, max_voxels, max_points)
    assert list(map(tuple, indices.tolist())) == cells
    assert numbers.tolist() == list(map(len, kept))
    assert ids.tolist() == wanted_ids
    assert (voxels.dtype, indices.dtype, numbers.dtype) == (torch.float32, torch.int32, torch.int32)
    assert voxels.shape == (len(cells), max_points, 5)
    for row, inside in zip(voxels, kept, strict=True):
        assert torch.equal(row[: len(inside)], torch.tensor(inside))
        assert not row[len(inside) :].any()
    first = generator(cloud)
    assert all(torch.equal(a, b) for a, b in zip(first, (voxels, indices, numbers), strict=True))
    for row, inside in zip(generator(cloud, empty_mean=True)[0], kept, strict=True):
        mean = torch.tensor(inside).mean(0)
        torch.testing.assert_close(row[len(inside) :], mean.expand(max_points - len(inside), -1))


def test_what_voxels_have_comes_back_to_points() -> None:
    cloud = points(100)
    generator = PointToVoxel(SIZE, RANGE, 5, 1000, 3)
    _, indices, _, ids = generator.generate_voxel_with_id(cloud)
    found = gather_features_by_pc_voxel_id(indices, ids, invalid_value=-7)
    for row, voxel in enumerate(ids.tolist()):
        assert torch.equal(found[row], indices[voxel] if voxel >= 0 else indices[0] * 0 - 7)
    features = torch.randn(len(indices), 2, requires_grad=True)
    gather_features_by_pc_voxel_id(features, ids).sum().backward()
    assert features.grad is not None
    assert torch.equal(features.grad[:, 0], ids[ids >= 0].bincount().float())


def test_no_points() -> None:
    voxels, indices, numbers = PointToVoxel(SIZE, RANGE, 5, 10, 3)(torch.zeros(0, 5))
    assert (voxels.shape, indices.shape, numbers.shape) == ((0, 3, 5), (0, 3), (0,))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_numpy_clouds(rank: int, device: str) -> None:
    """Clouds of one to four modes, and the classes of 1.x, use one algorithm."""
    cloud = np.random.default_rng(rank).uniform(-0.2, 1.2, (200, 5)).astype(np.float32)
    size, box = [0.25] * rank, [0.0] * rank + [1.0] * rank
    generator = getattr(utils, f"Point2Voxel{device}{rank}d")(size, box, 5, 100, 3)
    assert generator.grid_size == [4] * rank
    wanted = PointToVoxel(size, box, 5, 100, 3)(torch.from_numpy(cloud))
    if device == "GPU":
        found = generator.point_to_voxel_hash(torch.from_numpy(cloud))
    else:
        found = generator.point_to_voxel(cloud)
        mean = generator.point_to_voxel_empty_mean(cloud)[0]
        assert torch.equal(
            mean, PointToVoxel(size, box, 5, 100, 3)(torch.from_numpy(cloud), True, True)[0]
        )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_detectors_loader() -> None:
    """OpenPCDet's: it asks for the classes of 1.x first, and takes dicts and tuples."""
    cloud = points(300).numpy()
    arguments: dict[str, Any] = {
        "voxel_size": SIZE,
        "point_cloud_range": RANGE,
        "max_num_points": 4,
        "max_voxels": 50,
    }
    wanted = [t.numpy() for t in PointToVoxel(SIZE, RANGE, 5, 50, 4)(torch.from_numpy(cloud))]
    new = utils.VoxelGeneratorV2(**arguments)
    found = new.generate(cloud)
    for key, array in zip(("voxels", "coordinates", "num_points_per_voxel"), wanted, strict=True):
        assert np.array_equal(found[key], array)
    assert np.array_equal(found["voxel_point_mask"].sum((1, 2)), wanted[2])
    older = utils.VoxelGenerator(**arguments)
    assert all(map(np.array_equal, older.generate(cloud), wanted))
    assert len(older.generate(cloud, max_voxels=3)[0]) == 3
    assert older.grid_size.tolist() == [8, 8, 4]


def test_tensors_of_cumm() -> None:
    class View:
        def numpy_view(self) -> Any:
            return points(50).numpy()

    generator = utils.Point2VoxelCPU3d(SIZE, RANGE, 5, 100, 3)
    found, wanted = generator.point_to_voxel(View()), generator.point_to_voxel(points(50))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("size", "box", "name"),
    [
        ([0.5, 0.0, 1.0], RANGE, "vsize_xyz"),
        ([1.0] * 5, [0.0] * 5 + [1.0] * 5, "vsize_xyz"),
        (SIZE, RANGE[:5], "coors_range_xyz"),
        (SIZE, RANGE[3:] + RANGE[:3], "coors_range_xyz"),
        ([1e-8] * 3, RANGE, "coors_range_xyz"),
    ],
)
def test_wrong_boxes(size: list[float], box: list[float], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        PointToVoxel(size, box, 5, 100, 3)


def test_wrong_points() -> None:
    generator = PointToVoxel(SIZE, RANGE, 5, 100, 3)
    with pytest.raises(ArgumentError, match=r"pc.*\(points, 5\)"):
        generator(torch.zeros(3, 4))
    with pytest.raises(ArgumentError, match="`pc`: expected a torch tensor, got ndarray"):
        generator(torch.zeros(3, 5).numpy())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="floating"):
        generator(torch.zeros(3, 5, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="pc"):
        generator(torch.zeros(3, 5, device="meta"))
    with pytest.raises(ArgumentError, match="3 edges"):
        utils.Point2VoxelCPU3d(SIZE[:2], [0, 0, 1, 1], 5, 100, 3)
