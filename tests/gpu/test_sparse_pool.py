"""Pooling and depthwise convolution of sparse tensors on a GPU, against the CPU in float64."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.gpu.gathered import gather
from layoutconv.nn.sparse_depthwise import CHUNK
from layoutconv.sparse import SparseTensor, strided_map, submanifold_map

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPE = (24, 30, 28)


def cloud(C: int, dtype: torch.dtype) -> SparseTensor:
    """About 6,000 cells in any order; small integers, so that sums are exact in every order."""
    generator = torch.Generator().manual_seed(0)
    cells = (torch.rand(3, *SHAPE, generator=generator) < 0.1).nonzero().int()
    cells = cells[torch.randperm(len(cells), generator=generator)]
    features = torch.randint(-4, 5, (len(cells), C), generator=generator).to(dtype)
    return SparseTensor(features, cells, SHAPE, 3)


def results(x: SparseTensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Everything with its gradients; of sums, whose terms are integers."""
    features, weight = x.features.requires_grad_(), weight.requires_grad_()
    x = x.replace(features)
    submanifold = submanifold_map(x.coordinates, 3)
    maxima = lc.nn.sparse_max_pool(x, 3, 2, 1)
    found = [
        maxima.features,
        lc.nn.sparse_max_pool(x, kernel_map=submanifold).features,
        lc.nn.sparse_sum_pool(x, 2).features,
        lc.nn.sparse_avg_pool(x, 2, count_include_pad=True).features,  # by 8: exact
        lc.nn.sparse_unpool(lc.nn.sparse_sum_pool(x, 2)).features,
        lc.nn.sparse_global_pool(x, "max"),
        lc.nn.sparse_global_pool(x, "sum"),
        lc.nn.sparse_depthwise(features, weight, submanifold),
        lc.nn.sparse_depthwise(features, weight, strided_map(x.coordinates, 3, 2, 1)),
    ]
    grads = []
    for number, y in enumerate(found):
        generator = torch.Generator().manual_seed(number)
        grad = torch.randint(-2, 3, y.shape, generator=generator).to(y.dtype).to(y.device)
        inputs = (features, weight) if number >= len(found) - 2 else (features,)
        grads += torch.autograd.grad(y, inputs, grad)
    return [*found, *grads]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("C", "m"), [(64, 1), (3, 1), (20, 1), (1, 1), (8, 2), (3, 3)])
def test_results_are_those_of_the_cpu(C, m, dtype):
    x = cloud(C, torch.float64)
    weight = torch.randint(-2, 3, (C * m, 3, 3, 3, 1), generator=torch.Generator().manual_seed(1))
    weight = weight.double()
    there = SparseTensor(x.features.to(dtype).cuda(), x.coords.cuda(), SHAPE, 3)
    mine = results(there, weight.to(dtype).cuda())
    again = results(there, weight.to(dtype).cuda())
    for a, b, want in zip(mine, again, results(x, weight), strict=True):
        assert a.is_cuda
        assert torch.equal(a, b)
        torch.testing.assert_close(a.cpu(), want.to(dtype), rtol=0, atol=0)


def test_means_over_what_is_there():
    x = cloud(16, torch.float64)
    there = SparseTensor(x.features.cuda(), x.coords.cuda(), SHAPE, 3)
    for mode in ("avg", "max", "sum"):
        a, b = (lc.nn.sparse_global_pool(t, mode) for t in (there, x))
        torch.testing.assert_close(a.cpu(), b)
    for t in (x, there):
        t.features.requires_grad_()
    a, b = (lc.nn.sparse_avg_pool(t, 3, 2, 1).features for t in (there, x))
    torch.testing.assert_close(a.cpu(), b)
    grads = (
        torch.autograd.grad(y.square().sum(), t.features)[0].cpu() for y, t in ((a, there), (b, x))
    )
    torch.testing.assert_close(*grads)


def test_captured_in_a_graph():
    x = cloud(32, torch.float16)
    x = SparseTensor(x.features.cuda(), x.coords.cuda(), SHAPE, 3)
    map = submanifold_map(x.coordinates, 3)
    assert map.inverse
    map.pairs(CHUNK)
    weight = torch.randn(32, 3, 3, 3, 1, device="cuda").half().requires_grad_()
    features = x.features.requires_grad_()

    def step():
        y = lc.nn.sparse_max_pool(
            x.replace(lc.nn.sparse_depthwise(features, weight, map)), kernel_map=map
        )
        return torch.autograd.grad(lc.nn.sparse_global_pool(y, "avg").sum(), (features, weight))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        want = step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = step()
    for t in found:
        t.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(found, want, strict=True):
        assert torch.equal(a, b)


def test_rows_past_two_to_the_31_elements():
    rows, C = 2**22 + 5, 520
    a = torch.zeros(rows, C, dtype=torch.float16, device="cuda")
    a[-3:] = torch.arange(3, device="cuda")[:, None]
    index = torch.tensor([[rows - 1, rows - 2], [-1, rows - 2], [0, -1]], device="cuda").int()
    assert gather(a, index)[0][:, -1].tolist() == [3, 1, 0]
    index = torch.arange(rows, device="cuda", dtype=torch.int32)[:, None]
    assert torch.equal(gather(a, index)[0], a)
