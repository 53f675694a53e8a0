"""Reductions on a GPU, against the same call on the CPU."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.gpu.reduction_plan import sum_partials
from layoutconv.view.operands import row_major

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def same(view, x, op="sum", **options):
    """Integers, so that every order gives the same; the result was poisoned before."""
    want = lc.reduce(view, x, op, **options)
    out = torch.full_like(want, 77, device="cuda")
    lc.reduce(view, x.cuda(), op, out=out, initial=options.get("initial"))
    torch.testing.assert_close(
        out.cpu(), want, rtol=1e-6 if op == "mean" else 0, atol=0, equal_nan=True
    )


def integers(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randint(-9, 10, shape).to(dtype)


@pytest.mark.parametrize("out_dtype", FLOATS[:3])
@pytest.mark.parametrize("results", [1, 1000, 1001, 4096, 10**6, 10**7 + 4])
@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 300])
def test_sums_of_partials(pieces, results, out_dtype):
    if pieces * results > 10**8:
        pytest.skip("more memory than a test should take")
    workspace = torch.randint(-9, 10, (pieces, results), device="cuda").float()
    out = torch.full((results,), torch.nan, dtype=out_dtype, device="cuda")
    sum_partials(workspace, out)
    assert torch.equal(out, workspace.double().sum(0).to(out_dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("op", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("modes", [0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_modes_of_a_tensor(modes, op, dtype):
    if op == "mean" and dtype not in FLOATS:
        pytest.skip("integers have no mean")
    x = integers(33, 40, 56, dtype=dtype)
    same(lc.reduction_view(x.shape, modes), x, op)


@pytest.mark.parametrize("shape", [(10**7,), (10**7 + 1,), (10**6, 3), (3, 10**6), (70000, 64)])
def test_long_sums_of_few_results(shape):
    x = torch.randint(0, 2, shape).float()
    view = lc.reduction_view(shape, 1 if shape[0] == 3 else 0)
    for op in ("sum", "max"):
        same(view, x, op)


def test_the_same_bits_in_every_run():
    x = torch.randn(10**6, 5, device="cuda")
    view = lc.reduction_view(x.shape, 0)
    first = lc.reduce(view, x)
    for _ in range(20):
        assert torch.equal(lc.reduce(view, x), first)


def test_sums_are_as_close_as_those_of_torch():
    for shape, mode in (((10**7,), 0), ((1000, 10000), 1), ((10000, 1000), 0)):
        x = torch.rand(shape, device="cuda")
        want = x.double().sum(mode)
        error = (lc.reduce(lc.reduction_view(shape, mode), x) - want).abs().max() / want.max()
        assert error < 1e-6


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("modes", [0, 1])
def test_nan(modes, dtype):
    x = integers(300, 200, dtype=dtype)
    x[0, 3] = x[299, 0] = torch.nan
    for op in ("sum", "max", "min", "mean"):
        same(lc.reduction_view(x.shape, modes), x, op)


@pytest.mark.parametrize("op", ["sum", "max", "mean"])
@pytest.mark.parametrize("channels", [64, 3])
def test_pooling_with_padding(op, channels):
    n, h, w = 4, 33, 30
    domain = Layout(
        ((channels, 15, 17, n), (3, 3)), ((E(3), 2 * E(2), 2 * E(1), E(0)), (E(2), E(1)))
    )
    source = ComposedLayout(row_major((n, h, w, channels)), (0, -1, -1, 0), domain)
    target = Layout((channels, 15, 17, n), (E(3), E(2), E(1), E(0)))
    target = ComposedLayout(row_major((n, 17, 15, channels)), 0, target)
    same(lc.ReductionView(source, target), integers(n, h, w, channels, dtype=torch.float16), op)


def test_functions():
    view = lc.reduction_view((300, 200), 1)
    x = torch.where(integers(300, 200) > 8, 2.0, 1.0)
    same(view, x, lambda a, b: a * b, initial=1)
    for shift in (1.0, 2.0):  # two kernels: what the function encloses is in the key
        same(view, x, lambda a, b, shift=shift: a + b - shift, initial=shift)


def test_an_empty_sum():
    x = torch.empty(0, 4, device="cuda")
    assert lc.reduce(lc.reduction_view((0, 4), 0), x).tolist() == [0, 0, 0, 0]


def test_a_captured_graph():
    workspace, out = torch.ones(5, 1000, device="cuda"), torch.empty(1000, device="cuda")
    sum_partials(workspace, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sum_partials(workspace, out)
    workspace.fill_(3)
    graph.replay()
    assert out.tolist() == [15] * 1000
