"""Convolutions with a user's function behind the sums, on a GPU, against float64 on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.sparse import SparseTensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LIMIT = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 3e-3}
DENSE: dict[str, Any] = {
    "conv2d": (lc.conv2d, functional.conv2d, (2, 64, 17, 19), (48, 64, 3, 3), {"padding": 1}),
    "groups": (lc.conv2d, functional.conv2d, (2, 64, 9, 9), (96, 16, 3, 3), {"groups": 4}),
    "depthwise": (lc.conv2d, functional.conv2d, (2, 32, 9, 9), (32, 1, 3, 3), {"groups": 32}),
    "conv3d": (lc.conv3d, functional.conv3d, (1, 32, 9, 9, 9), (64, 32, 3, 3, 3), {"padding": 1}),
    "transposed": (
        lc.conv_transpose2d, functional.conv_transpose2d, (2, 32, 7, 9), (32, 24, 2, 2),
        {"stride": 3},
    ),
}  # fmt: skip


def soft(x: Any, low: Any, gate: Any, by: Any) -> Any:
    return pw.where(x > low, low + by * (x - low), x) + pw.tanh(x) * gate


def soft_in_torch(x: Tensor, low: Tensor, gate: Tensor, by: float) -> Tensor:
    return torch.where(x > low, low + by * (x - low), x) + x.tanh() * gate


def multiplied(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Round ``t`` to values that tensor cores multiply: fp32 to tf32, of 10 bits of fraction.

    The derivative of ``soft`` has a step, which makes much of what is rounded on the way.
    """
    if dtype is torch.float32:
        t = (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return t.to(dtype).double().requires_grad_()


def near(ours: Tensor, theirs: Tensor, limit: float) -> None:
    """Rounding moves a value past a threshold now and then: few may be far off."""
    off = (ours.detach().cpu().double() - theirs.detach()).abs()
    scale = theirs.detach().abs().max()
    assert torch.isfinite(ours).all()
    assert (off > limit * scale).double().mean() < 1e-3, (off.max() / scale).item()


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("name", DENSE)
def test_dense(name: str, dtype: torch.dtype) -> None:
    ours, theirs, shape, filter_shape, options = DENSE[name]
    torch.manual_seed(0)
    x, w = torch.randn(shape), torch.randn(filter_shape) * 0.1
    K = theirs(x, w, **options).shape[1]
    gate = torch.randn(theirs(x, w, **options).shape)
    bias, low = torch.randn(K), torch.randn(K)
    wide = [multiplied(t, dtype) for t in (x, w, bias, low, gate)]
    given = [t.detach().to("cuda", dtype).requires_grad_() for t in wide]
    z = theirs(wide[0], wide[1], wide[2], **options)
    want = soft_in_torch(z, wide[3].view(-1, *[1] * (z.dim() - 2)), wide[4], 0.25)
    grad = torch.randn(want.shape).to(dtype)
    expected = torch.autograd.grad(want, wide, grad.double())
    step = lc.Pointwise(soft, {"low": given[3]}, {}, {"gate": given[4]}, {"by": 0.25})
    for _ in range(2):
        y = ours(*given[:3], **options, activation=step)
        near(y, want, LIMIT[dtype])
        found = torch.autograd.grad(y, given, grad.cuda())
        for one, other in zip(found, expected, strict=True):
            near(one, other, 4 * LIMIT[dtype])
        with torch.no_grad():
            near(ours(*given[:3], **options, activation=step), want, LIMIT[dtype])


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("kind", ["submanifold", "strided"])
def test_clouds(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    cells = torch.stack([torch.randint(0, extent, (900,)) for extent in (2, 13, 11, 12)], 1)
    cells = cells.unique(dim=0).int()
    x, w = torch.randn(len(cells), 32), torch.randn(64, 3, 3, 3, 32) * 0.1
    bias, low = torch.randn(64), torch.randn(64)

    def call(x: Tensor, w: Tensor, bias: Tensor, step: Any = None) -> Tensor:
        cloud = SparseTensor(x, cells.to(x.device), (13, 11, 12), 2)
        if kind == "submanifold":
            return lc.subm_conv(cloud, w, bias, activation=step).features
        return lc.sparse_conv(cloud, w, bias, 2, 1, activation=step).features

    gate = torch.randn(call(x, w, bias).shape)
    wide = [multiplied(t, dtype) for t in (x, w, bias, low, gate)]
    given = [t.detach().to("cuda", dtype).requires_grad_() for t in wide]
    want = soft_in_torch(call(*wide[:3]), wide[3], wide[4], 0.25)
    grad = torch.randn(want.shape).to(dtype)
    expected = torch.autograd.grad(want, wide, grad.double())
    step = lc.Pointwise(soft, {"low": given[3]}, {}, {"gate": given[4]}, {"by": 0.25})
    for _ in range(2):
        y = call(*given[:3], step)
        near(y, want, LIMIT[dtype])
        for one, other in zip(torch.autograd.grad(y, given, grad.cuda()), expected, strict=True):
            near(one, other, 4 * LIMIT[dtype])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    low = torch.zeros(32, device="cuda", requires_grad=True)
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
    x, w = torch.randn(2, 32, 9, 9, device="cuda"), torch.randn(32, 32, 3, 3, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: lc.conv2d(x, w, activation=step), dynamic=dynamic)
    torch.testing.assert_close(compiled(x), lc.conv2d(x, w, activation=step), rtol=2e-3, atol=2e-3)


def test_a_capture_in_a_graph() -> None:
    low = torch.zeros(64, device="cuda")
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
    x = torch.randn(2, 64, 9, 9, device="cuda").half().to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device="cuda").half().to(memory_format=torch.channels_last)
    want = lc.conv2d(x, w, activation=step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lc.conv2d(x, w, activation=step)
    y.fill_(torch.nan)
    graph.replay()
    assert torch.equal(y, want)
