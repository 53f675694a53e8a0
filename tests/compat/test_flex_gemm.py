"""FlexGEMM's names, against torch's dense convolutions and sums that are written out."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch

import layoutconv.compat.flex_gemm as flex_gemm
from layoutconv.compat.flex_gemm.ops.grid_sample import grid_sample_3d
from layoutconv.compat.flex_gemm.ops.spconv import sparse_conv3d, sparse_submanifold_conv3d
from layoutconv.errors import ArgumentError


def cloud(seed=0, rows=60, channels=3):
    random = torch.Generator().manual_seed(seed)
    keys = torch.randperm(2 * 5 * 6 * 7, generator=random)[:rows]
    coords = torch.stack([keys // 210, keys // 42 % 5, keys // 7 % 6, keys % 7], 1).int()
    feats = torch.randn(rows, channels, dtype=torch.float64, generator=random)
    return feats, coords, torch.Size([2, channels, 5, 6, 7])


def dense(feats, coords, shape):
    grid = feats.new_zeros(shape[0], *shape[2:], feats.shape[1])
    return grid.index_put(tuple(coords.long().T), feats).movedim(-1, 1)


@pytest.mark.parametrize("dilation", [(1, 1, 1), (1, 2, 1)])
def test_submanifold_convolutions_are_dense_ones(dilation):
    feats, coords, shape = cloud()
    weight = torch.randn(4, 3, 1, 5, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    feats.requires_grad_()
    y, cache = sparse_submanifold_conv3d(feats, coords, shape, weight, bias, None, dilation)
    near = [k // 2 * d for k, d in zip((3, 1, 5), dilation, strict=True)]
    grid = torch.nn.functional.conv3d(
        dense(feats, coords, shape), weight.movedim(-1, 1), bias, 1, near, dilation
    )
    b, x, z, w = coords.long().T
    expected = grid[b, :, x, z, w]
    torch.testing.assert_close(y, expected)
    up = torch.randn_like(y)
    inputs = feats, weight, bias
    for one, other in zip(
        torch.autograd.grad(y, inputs, up), torch.autograd.grad(expected, inputs, up), strict=True
    ):
        torch.testing.assert_close(one, other)
    again, same = sparse_submanifold_conv3d(feats, coords, shape, weight, bias, cache, dilation)
    assert same is cache
    assert torch.equal(again, y)
    neighbors = cache["neighbor_map"].long()
    present = neighbors != 0xFFFFFFFF
    columns = feats[neighbors.where(present, 0)] * present[..., None]
    torch.testing.assert_close(columns.flatten(1) @ weight.view(4, -1).T + bias, y)


@pytest.mark.parametrize(
    ("sizes", "stride", "padding"),
    [((2, 2, 2), (2, 2, 2), (0, 0, 0)), ((3, 3, 3), (2, 1, 2), (1, 1, 1))],
)
def test_convolutions_are_dense_ones(sizes, stride, padding):
    feats, coords, shape = cloud(1)
    weight = torch.randn(4, *sizes, 3, dtype=torch.float64)
    options = {"stride": stride, "padding": padding}
    y, outputs, cache = sparse_conv3d(feats, coords, shape, weight, **options)
    given = dense(feats, coords, shape), weight.movedim(-1, 1)
    grid = torch.nn.functional.conv3d(*given, None, stride, padding)
    image, *place = outputs.long().T
    torch.testing.assert_close(y, grid[(image, slice(None), *place)])
    ones = torch.ones(1, 1, *sizes, dtype=torch.float64)
    reach = torch.nn.functional.conv3d(
        dense(torch.ones_like(feats[:, :1]), coords, shape), ones, None, stride, padding
    )
    assert torch.equal((reach[:, 0] > 0.5).nonzero().int(), outputs)
    few, kept, _ = sparse_conv3d(
        feats, coords, shape, weight, out_coords=outputs[::3].contiguous(), **options
    )
    assert torch.equal(kept, outputs[::3])
    torch.testing.assert_close(few, y[::3])
    assert torch.equal(
        sparse_conv3d(feats, coords, shape, weight, neighbor_cache=cache, **options)[0], y
    )


def test_sampling_is_its_definition():
    feats, coords, shape = cloud(2, rows=150)
    points = torch.rand(2, 40, 3, dtype=torch.float64) * torch.tensor([5.5, 6.5, 7.5]) - 0.25
    rows = {tuple(cell): row for row, cell in enumerate(coords.tolist())}
    linear = grid_sample_3d(feats, coords, shape, points)
    nearest = grid_sample_3d(feats, coords, shape, points, "nearest")
    for b, n in itertools.product(range(2), range(40)):
        p = points[b, n].tolist()
        own = rows.get((b, *(int(c) for c in p)))
        assert torch.equal(
            nearest[b, n], feats[own] if own is not None else torch.zeros(3).double()
        )
        total, whole = torch.zeros(3, dtype=torch.float64), 0.0
        for corner in itertools.product((-0.5, 0.5), repeat=3):
            cell = tuple(int((c + o) // 1) for c, o in zip(p, corner, strict=True))
            weight = 1.0
            for c, v in zip(p, cell, strict=True):
                weight *= 1 - abs(v + 0.5 - c)
            if (b, *cell) in rows:
                total, whole = total + weight * feats[rows[(b, *cell)]], whole + weight
        torch.testing.assert_close(linear[b, n], total / whole if whole else total)


def test_what_is_refused_and_installed():
    feats, coords, shape = cloud()
    weight = torch.zeros(4, 2, 3, 3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"`weight`: expected \(K, kw, kh, kd, C\) of odd sizes"):
        sparse_submanifold_conv3d(feats, coords, shape, weight)
    with pytest.raises(ValueError, match=r"`weight`: expected \(K, kw, kh, kd, 3\)"):
        sparse_conv3d(feats, coords, shape, weight[..., :2])
    with pytest.raises(ValueError, match=r"`shape`: expected \(N, C, W, H, D\)"):
        sparse_conv3d(feats, coords, shape[2:], weight)
    with pytest.raises(ValueError, match="`neighbor_cache`: expected a cache that a call of lay"):
        sparse_conv3d(feats, coords, shape, weight, neighbor_cache={})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`grid`: expected \(B, L, 3\)"):
        grid_sample_3d(feats, coords, shape, torch.zeros(2, 3))
    with flex_gemm.install():
        installed = importlib.import_module("flex_gemm.ops.spconv")
        assert installed.sparse_conv3d is sparse_conv3d
        with pytest.raises(
            ModuleNotFoundError, match=r"has no 'flex_gemm.kernels': layoutconv com"
        ):
            importlib.import_module("flex_gemm.kernels")


class _OnGpu(torch.Tensor):
    """Coordinates that say they are on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def test_a_neighbor_cache_does_not_wait_while_a_graph_is_captured(watched, gpu):
    feats, coords, shape = cloud()
    weight = torch.randn(4, 3, 3, 3, 3, dtype=torch.float64)
    y, cache = sparse_submanifold_conv3d(feats, coords, shape, weight)
    gpu.says(is_current_stream_capturing=True)
    waits = watched("equal", torch)
    copied = coords.clone().as_subclass(_OnGpu)
    with torch._C.DisableTorchFunctionSubclass():
        again, _ = sparse_submanifold_conv3d(feats, copied, shape, weight, neighbor_cache=cache)
        with pytest.raises(ArgumentError, match="`neighbor_cache`: expected the cache of a call"):
            sparse_submanifold_conv3d(feats, copied[1:], shape, weight, neighbor_cache=cache)
    assert not waits
    assert torch.equal(y, again)
    copied[0, 1] += 1  # not looked at then, and so not taken as known afterwards
    with pytest.raises(ArgumentError, match="`neighbor_cache`: expected the cache of a call"):
        sparse_submanifold_conv3d(
            feats, copied.as_subclass(torch.Tensor), shape, weight, neighbor_cache=cache
        )


def test_no_points_are_sampled_to_no_rows():
    feats, coords = torch.ones(2, 3), torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]]).int()
    grid = torch.zeros(2, 0, 3)
    for mode in ("nearest", "trilinear"):
        found = grid_sample_3d(feats, coords, (2, 3, 2, 2, 2), grid, mode)
        assert found.shape == (2, 0, 3)
