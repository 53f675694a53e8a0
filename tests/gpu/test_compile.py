"""What torch.compile makes of calls on a GPU: whole graphs, the same numbers."""

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
