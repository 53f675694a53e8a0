"""Voxels and index buffers on a GPU: the same rows as on the CPU, and the same bits every time."""

from __future__ import annotations

import pytest
import torch

from layoutconv.sparse import Coordinates, dense_index, submanifold_map
from layoutconv.sparse.street import street
from layoutconv.sparse.voxels import Voxels, voxelize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def points(device: str) -> list[torch.Tensor]:
    return [torch.from_numpy(street(seed)).to(device) for seed in (0, 1)]


def assert_same(a: Voxels, b: Voxels) -> None:
    assert a.spatial_shape == b.spatial_shape
    assert a.origin == b.origin
    assert torch.equal(a.coords.cpu(), b.coords.cpu())
    assert torch.equal(a.point_to_voxel.cpu(), b.point_to_voxel.cpu())
    assert torch.equal(a.features.cpu(), b.features.cpu())


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "min", "first"])
@pytest.mark.parametrize("box", [None, (-30.0, -20.0, -3.0, 30.0, 20.0, 2.0)])
def test_voxels_are_those_of_the_cpu(reduce, box):
    there = voxelize(points("cuda"), 0.1, range=box, reduce=reduce)
    assert there.features.is_cuda
    assert_same(there, voxelize(points("cuda"), 0.1, range=box, reduce=reduce))
    assert_same(there, voxelize(points("cpu"), 0.1, range=box, reduce=reduce))


@pytest.mark.parametrize(("kernel_size", "dilation"), [(3, 1), ((1, 2, 5), 2)])
def test_index_buffers_are_those_of_the_cpu(kernel_size, dilation):
    voxels = voxelize(points("cpu"), 0.2)
    # Rows in an order of their own, so that a search that forgets to undo its sort is seen.
    shuffled = torch.randperm(len(voxels), generator=torch.Generator().manual_seed(0))
    coords, shape = voxels.coords[shuffled], voxels.spatial_shape
    here, there = Coordinates(coords, shape, 2), Coordinates(coords.cuda(), shape, 2)
    index = submanifold_map(there, kernel_size, dilation).index
    assert torch.equal(index.cpu(), submanifold_map(here, kernel_size, dilation).index)
    assert index.stride() == (1, len(coords))
    assert torch.equal(dense_index(there).cpu(), dense_index(here))


def test_errors_reach_the_caller_before_the_gpu_does_anything_wrong():
    coords = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="in rows 0 and 1"):
        submanifold_map(Coordinates(coords, (4, 4, 4), 1))
    with pytest.raises(ValueError, match=r"column 3 in \[0, 3\)"):
        submanifold_map(Coordinates(coords[:1], (4, 4, 3), 1))
    with pytest.raises(ValueError, match="1 of 1 points that are not finite"):
        voxelize(torch.full((1, 3), torch.inf, device="cuda"), 0.1)
    torch.cuda.synchronize()
