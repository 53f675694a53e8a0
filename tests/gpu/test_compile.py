"""Calls under torch.compile on a GPU: whole graphs, the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.sparse import KernelMap, SparseTensor, strided_map, submanifold_map

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def cloud(seed: int) -> SparseTensor:
    torch.manual_seed(seed)
    cells = torch.stack([torch.randint(0, extent, (600,)) for extent in (2, 9, 11, 8)], 1)
    cells = cells.unique(dim=0).int().cuda()
    return SparseTensor(torch.randn(len(cells), 16, device="cuda"), cells, (9, 11, 8), 2)


def network(features: Tensor, w: Tensor, down: Tensor, own: KernelMap, strided: KernelMap) -> Any:
    y = lc.subm_conv(SparseTensor(features, own.inputs), w, kernel_map=own, activation="relu")
    return lc.sparse_conv(y, down, kernel_map=strided).features


def maps(seed: int) -> tuple[SparseTensor, KernelMap, KernelMap]:
    x = cloud(seed)
    return x, submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_point_cloud_given_maps_that_have_run(dtype: torch.dtype, wanted: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for seed in (0, 1):  # another cloud has other maps
        x, own, strided = maps(seed)
        shapes = (16, 3, 3, 3, 16), (32, 2, 2, 2, 16)
        given = [x.features, *(0.1 * torch.randn(shape, device="cuda") for shape in shapes)]
        given = [t.to(dtype).requires_grad_(wanted) for t in given]
        results = []
        for run in (network, compiled):
            y = run(*given, own, strided)
            loss = y.float().square().sum()
            results.append([y, *(torch.autograd.grad(loss, given) if wanted else ())])
        for plain, traced in zip(*results, strict=True):
            torch.testing.assert_close(traced, plain, rtol=0, atol=0)


def test_a_map_that_has_not_run_is_refused_in_a_sentence() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    x, own, strided = maps(2)
    w, down = (
        torch.randn(k, *taps, 16, device="cuda") for k, taps in ((16, (3,) * 3), (8, (2,) * 3))
    )
    with pytest.raises(Exception, match="expected one that has run before, outside"):
        compiled(x.features, w, down, own, strided)
    torch._dynamo.reset()
    network(x.features, w, down, own, strided)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    compiled(x.features, w, down, own, strided)


def from_cells(features: Tensor, cells: Tensor, w: Tensor, down: Tensor, back: Tensor) -> Any:
    x = lc.subm_conv(SparseTensor(features, cells, (9, 11, 8), 2), w, activation="relu")
    y = lc.sparse_conv(x, down, stride=2, padding=1)
    return lc.sparse_inverse_conv(y, back).features, y.coords


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_point_cloud_whose_maps_are_made_in_the_graph(dtype: torch.dtype, wanted: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(from_cells, fullgraph=True, backend="aot_eager", dynamic=True)
    for seed in (0, 1):
        x = cloud(seed)
        shapes = (16, 3, 3, 3, 16), (32, 3, 3, 3, 16), (16, 3, 3, 3, 32)
        weights = [0.1 * torch.randn(shape, device="cuda") for shape in shapes]
        given = [t.to(dtype).requires_grad_(wanted) for t in (x.features, *weights)]
        results = []
        for run in (from_cells, compiled):
            y, cells = run(given[0], x.coords, *given[1:])
            loss = y.float().square().sum()
            results.append([cells, y, *(torch.autograd.grad(loss, given) if wanted else ())])
        plain, traced = results
        assert torch.equal(plain[0], traced[0])
        assert torch.equal(plain[1], traced[1])
        for one, other in zip(plain[2:], traced[2:], strict=True):  # other chunks of pairs
            torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-2 * float(one.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_dense_layer_forward_and_backward(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    layer = lc.nn.Conv2d(16, 32, 3, padding=1).cuda().to(dtype)
    x = torch.randn(2, 16, 12, 10, device="cuda", dtype=dtype, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for run in (layer, compiled):
        y = run(x)
        loss = y.float().square().sum()
        results.append([y, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for plain, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, plain, rtol=0, atol=0)
