"""Norms over the voxels of each image on a GPU: what the CPU computes, the same bits, no waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.sparse import SparseTensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

NORMS = {
    "instance": lambda: nn.InstanceNorm3d(32, affine=True),
    "running": lambda: nn.InstanceNorm3d(32, track_running_stats=True),
    "groups": lambda: nn.GroupNorm(8, 32),
}


def cloud(dtype: torch.dtype = torch.float64) -> SparseTensor:
    random = torch.Generator().manual_seed(0)
    cells = (torch.rand(3, 20, 24, 22, generator=random) < 0.1).nonzero().int()
    cells = cells[torch.randperm(len(cells), generator=random)]
    features = torch.randn(len(cells), 32, generator=random, dtype=torch.float64)
    return SparseTensor(features.to(dtype), cells, (20, 24, 22), 3)


def step(norm: Any, x: SparseTensor) -> list[torch.Tensor]:
    features = x.features.requires_grad_()
    y = lc.nn.Sequential(norm)(x.replace(features)).features
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    grads = torch.autograd.grad(y, [features, *norm.parameters()], grad)
    return [y, *grads, *norm.buffers()]


@pytest.mark.parametrize("name", sorted(NORMS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_results_are_those_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    wanted = step(NORMS[name]().double(), cloud())
    runs = [step(NORMS[name]().to(dtype).cuda(), cloud(dtype).cuda()) for _ in range(2)]
    tolerance = {torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    for a, b, want in zip(*runs, wanted, strict=True):
        assert torch.equal(a, b)
        error = (a.cpu().double() - want.double()).abs().max()
        assert error <= tolerance * want.abs().max().clamp(min=1)


def test_a_graph_of_it() -> None:
    """Nothing waits once the rows of the images are known."""
    x, norm = cloud(torch.float16).cuda(), nn.GroupNorm(8, 32).half().cuda()
    net = lc.nn.Sequential(norm, nn.ReLU())
    with torch.no_grad():
        wanted = net(x).features.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x).features
        y.zero_()
        graph.replay()
    assert torch.equal(y, wanted)
