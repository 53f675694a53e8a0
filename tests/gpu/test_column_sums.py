"""Sums of columns on the GPU: the gradients of biases, beside float64."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.gpu.column_sums import column_sums, takes
from layoutconv.ops.formulas import channel_sums

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPES = (1, 5), (63, 16), (1000, 24), (7_038, 128), (48_743, 16), (300_001, 40), (1 << 20, 32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sums_are_those_of_float64(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda").to(dtype)
    assert takes(x, torch.float32)
    for out in torch.float32, dtype:
        found, size = column_sums(x, out), x.double().abs().sum(0)
        eps = max(torch.finfo(out).eps, 2.0**-20)
        assert ((found.double() - x.double().sum(0)).abs() <= eps * size).all()
        assert torch.equal(found, column_sums(x, out))


def test_the_gradient_of_a_bias_in_a_graph() -> None:
    grad = torch.zeros(5000, 32, device="cuda", dtype=torch.float16)
    channel_sums(grad, torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = channel_sums(grad, torch.float16)
    for seed in range(3):
        grad.copy_(torch.randint(-4, 5, grad.shape, generator=torch.Generator().manual_seed(seed)))
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, grad.double().sum(0).half())


def test_a_second_derivative_goes_through_the_sum() -> None:
    cells = torch.cartesian_prod(torch.arange(1), *[torch.arange(4)] * 3).int().cuda()
    features = torch.randn(len(cells), 3, device="cuda", requires_grad=True)
    x = lc.SparseTensor(features, cells, (4, 4, 4), 1)
    layer = lc.nn.SubmConv3d(3, 4, 3).cuda()
    assert layer.bias is not None
    y = layer(x).features
    (first,) = torch.autograd.grad(y.square().sum(), layer.bias, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), layer.bias)
    assert torch.allclose(second, torch.full_like(second, 2.0 * len(cells)))
