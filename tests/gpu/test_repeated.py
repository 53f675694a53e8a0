"""Cells that are there more than once, on a GPU: what the CPU computes, and the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.errors import ArgumentError
from layoutconv.nn.sparse_pool import sparse_avg_pool, sparse_max_pool, sparse_unpool
from layoutconv.sparse import Coordinates, SparseTensor, strided_map, submanifold_map

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPE = (17, 20, 18)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def cloud(C: int, rows: int = 5000) -> SparseTensor:
    """Rows about half of which share a cell; small integers: sums are exact in every order."""
    random = torch.Generator().manual_seed(C)
    limits = torch.tensor([2, *SHAPE])
    cells = (torch.rand(rows, 4, generator=random) * limits * torch.tensor([1, 1, 1, 0.5])).int()
    features = torch.randint(-2, 3, (rows, C), generator=random).double()
    return SparseTensor(features, Coordinates(cells, SHAPE, 2, repeated=True))


def on_gpu(x: SparseTensor, dtype: torch.dtype) -> SparseTensor:
    cells = Coordinates(x.coords.cuda(), x.spatial_shape, x.batch_size, repeated=True)
    return SparseTensor(x.features.to(dtype).cuda(), cells)


def integers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).double()


def results(x: SparseTensor, weight: Tensor) -> list[Tensor]:
    """Every kind of layer with its gradients."""
    features, weight = x.features.requires_grad_(), weight.requires_grad_()
    x = x.replace(features)
    down = strided_map(x.coordinates, 2, 2)
    few = weight[:, :2, :2, :2]
    y = lc.sparse_conv(x, few, kernel_map=down)
    up = y.replace(y.features.detach().requires_grad_()[:, :1].expand(-1, weight.shape[-1]))
    found = [
        lc.subm_conv(x, weight).features,
        lc.subm_conv(x, few).features,
        y.features,
        lc.sparse_conv(x, few, stride=2, outputs=x.coordinates).features,
        lc.sparse_conv_transpose(x, few, stride=2).features,
        lc.sparse_inverse_conv(up, few).features,
        sparse_max_pool(x, kernel_map=down).features,
        sparse_avg_pool(x, kernel_map=down, count_include_pad=True).features,
        sparse_max_pool(x, kernel_map=submanifold_map(x.coordinates, 3)).features,
        sparse_unpool(y).features,
        x.dense(),
    ]
    grads = []
    for number, one in enumerate(found):
        grad = integers(*one.shape, seed=number).to(one)
        given = torch.autograd.grad(one, (features, weight), grad, True, allow_unused=True)
        grads += [g for g in given if g is not None]
    return [*found, *grads]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("C", "K"), [(16, 32), (3, 5), (64, 64), (1, 1)])
def test_results_are_those_of_the_cpu(C: int, K: int, dtype: torch.dtype) -> None:
    x, weight = cloud(C), integers(K, 3, 3, 3, C)
    mine = results(on_gpu(x, dtype), weight.to(dtype).cuda())
    again = results(on_gpu(x, dtype), weight.to(dtype).cuda())
    assert len(mine) > 20
    for a, b, wanted in zip(mine, again, results(x, weight), strict=True):
        assert a.is_cuda
        assert torch.equal(a, b)
        # Integers of a few hundred at most, but for bf16 and gradients of filters.
        tolerance = {"rtol": 0.02, "atol": 2.0} if dtype.itemsize == 2 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(a.cpu().double(), wanted, **tolerance)


def test_maps_are_those_of_the_cpu() -> None:
    here, there = cloud(1).coordinates, on_gpu(cloud(1), torch.float32).coordinates
    for make in (
        lambda c: submanifold_map(c, 3),
        lambda c: submanifold_map(c, (2, 3, 1), 2),
        lambda c: strided_map(c, 3, 2, 1),
        lambda c: strided_map(c, 3, 2, 1).inverse,
    ):
        wanted, found = make(here), make(there)
        assert found.extended is not None
        assert torch.equal(found.index.cpu(), wanted.index)
        assert torch.equal(found.inverse.index.cpu(), wanted.inverse.index)
    mine, wanted = there.repeats, here.repeats
    for name in ("first", "extended", "rows", "group", "lengths", "last"):
        assert torch.equal(getattr(mine, name).cpu(), getattr(wanted, name))


def test_a_network_of_spconv() -> None:
    """A U-Net in fp32 without tf32, against float64 on the CPU."""
    x = cloud(4, 2000)
    torch.manual_seed(0)
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="a"),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        spconv.SparseConv3d(16, 32, 2, 2, bias=False, indice_key="b"),
        nn.ReLU(),
        spconv.SubMConv3d(32, 32, 3, indice_key="c"),
        spconv.SparseInverseConv3d(32, 16, 2, indice_key="b"),
        spconv.SubMConv3d(16, 5, 1),
    ).double()
    wanted = net(spconv.SparseConvTensor(x.features, x.coords, list(SHAPE), 2)).features
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        net = net.float().cuda()
        y = net(spconv.SparseConvTensor(x.features.float().cuda(), x.coords.cuda(), list(SHAPE), 2))
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    error = (y.features.cpu().double() - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-5


def test_a_graph_wants_cells_that_were_looked_at() -> None:
    x, weight = on_gpu(cloud(16), torch.float16), integers(16, 3, 3, 3, 16).half().cuda()
    wanted = lc.subm_conv(x, weight).features
    over = submanifold_map(x.coordinates, 3)
    torch.cuda.synchronize()
    graph, features = torch.cuda.CUDAGraph(), x.features.clone()
    with torch.cuda.graph(graph):
        y = lc.subm_conv(x.replace(features), weight, kernel_map=over).features
    graph.replay()
    assert torch.equal(y, wanted)
    fresh = on_gpu(cloud(16), torch.float16)
    with (
        pytest.raises(ArgumentError, match="before the graph is captured"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        lc.subm_conv(fresh, weight)
