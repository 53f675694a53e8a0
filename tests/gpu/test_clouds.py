"""Voxels and index buffers on a GPU: the same rows as on the CPU, and the same bits every time."""

from __future__ import annotations

import pytest
import torch

from layoutconv.sparse import (
    Coordinates,
    SparseTensor,
    collate,
    dense_index,
    devoxelize,
    merge_repeated,
    submanifold_map,
)
from layoutconv.sparse.coords.street import street
from layoutconv.sparse.coords.voxels import Voxels, voxelize

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


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "min", "first"])
def test_gradients_in_points_are_those_of_the_cpu(reduce):
    weight = None
    grads = []
    for device in ("cpu", "cuda", "cuda"):
        clouds = [cloud.requires_grad_() for cloud in points(device)]
        features = voxelize(clouds, 0.2, reduce=reduce).features
        weight = torch.randn(features.shape) if weight is None else weight
        features.backward(weight.to(device))
        grads.append(torch.cat([cloud.grad for cloud in clouds]).cpu())
    assert torch.equal(grads[1], grads[2])
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_features_at_points_are_those_of_the_cpu(mode):
    torch.manual_seed(0)
    found, grads, weight = [], [], torch.randn(sum(map(len, points("cpu"))), 4)
    for device in ("cpu", "cuda", "cuda"):
        voxels = voxelize(points(device), 0.2)
        at = [cloud + 0.03 for cloud in points(device)]
        features = voxels.features.clone().requires_grad_()
        there = devoxelize(voxels.replace(features), at, mode)
        there.backward(weight.to(device))
        found.append(there.detach().cpu())
        grads.append(features.grad.cpu())
        assert torch.equal(devoxelize(voxels), devoxelize(voxels, points(device)))
    for here, there, again in (found, grads):
        assert torch.equal(there, again)
        torch.testing.assert_close(there, here)


def test_sparse_tensors_are_those_of_the_cpu():
    def made(device):
        x = voxelize(points(device), 0.2)
        y = voxelize([cloud * 0.9 for cloud in points(device)], 0.2)
        shape = [max(e) for e in zip(x.spatial_shape, y.spatial_shape, strict=True)]
        x, y = (SparseTensor(t.features, t.coords, shape, 2) for t in (x, y))
        coarse = torch.cat([x.coords[:, :1], x.coords[:, 1:] // 4], dim=1)
        merged = merge_repeated(x.features, coarse, [e // 4 + 1 for e in shape], 2)
        return [x + y, x - y, collate([x, y]), (x + y)[1], x.padded(len(x) + 5), merged]

    for here, there, again in zip(made("cpu"), made("cuda"), made("cuda"), strict=True):
        assert there.features.is_cuda
        for same in (there.cpu(), again.cpu(), here.cuda().cpu()):
            assert torch.equal(same.coords, here.coords)
            assert torch.equal(same.features, here.features)
            assert repr(same) == repr(here)
        assert torch.equal(there.unpadded().features.cpu(), here.unpadded().features)
    small = merged_bits()
    assert torch.equal(small.dense().cpu(), small.cpu().dense())


def merged_bits() -> SparseTensor:
    """A hundred thousand rows of a few cells, on the GPU: the same bits twice."""
    random = torch.Generator().manual_seed(0)
    cells = torch.randint(0, 3, (100_000, 4), generator=random).int().cuda()
    rows = torch.randn(100_000, 3, generator=random).cuda()
    first, second = (merge_repeated(rows, cells, (3, 3, 3), 3) for _ in range(2))
    assert torch.equal(first.features, second.features)
    return first


def test_padding_and_sums_of_shared_cells_never_wait_for_the_gpu():
    x = voxelize(points("cuda"), 0.2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = SparseTensor(x.features, x.coords, x.spatial_shape, x.batch_size)
        (y + y.replace(y.features * 2)).padded(len(y) + 100)
        collate([y, y, -y])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_errors_reach_the_caller_before_the_gpu_does_anything_wrong():
    coords = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="in rows 0 and 1"):
        submanifold_map(Coordinates(coords, (4, 4, 4), 1))
    with pytest.raises(ValueError, match=r"column 3 in \[0, 3\)"):
        submanifold_map(Coordinates(coords[:1], (4, 4, 3), 1))
    with pytest.raises(ValueError, match="1 of 1 points that are not finite"):
        voxelize(torch.full((1, 3), torch.inf, device="cuda"), 0.1)
    torch.cuda.synchronize()
