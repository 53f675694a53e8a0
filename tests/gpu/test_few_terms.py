"""Pointwise layers of few channels, which threads sum, and odd channels, on a GPU, against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.gpu.few_terms_choice import few_terms_dgrad, few_terms_fprop
from layoutconv.gpu.packing_choice import multiplied_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CLOSE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 2e-3}
FEW = {
    "one channel": ConvProblem((1, 72, 70, 65, 1), (32, 1, 1, 1)),
    "three channels": ConvProblem((2, 500, 301, 3), (48, 1, 1)),
    "four channels, lines": ConvProblem((2, 70001, 4), (64, 1)),
}
ODD = {
    "819 filters": ConvProblem((2, 25, 38, 256), (819, 3, 3), padding=1),
    "54 filters": ConvProblem((4, 40, 41, 96), (54, 3, 3), padding=1),
    "42 filters, one tap": ConvProblem((2, 100, 88, 256), (42, 1, 1)),
}


def check(p: ConvProblem, dtype: torch.dtype) -> None:
    """The result and both gradients are close to those in fp64; memory was NaN before."""
    torch.manual_seed(0)
    x, w = (
        torch.randn(shape, device="cuda").to(dtype).movedim(-1, 1).requires_grad_()
        for shape in (p.activation, p.stored_filter)
    )
    bias = torch.randn(p.K, device="cuda", dtype=dtype)
    padding = [near for near, _ in p.padding]
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    want = getattr(torch.nn.functional, f"conv{p.rank}d")(*exact, bias.double(), padding=padding)
    grad = torch.randn_like(want).to(dtype)
    wanted = [want, *torch.autograd.grad(want, exact, grad.double())]
    poison = [torch.full_like(t, torch.nan, dtype=dtype) for t in (want, x, w)]
    del poison  # whose memory the results take
    y = getattr(lc, f"conv{p.rank}d")(x, w, bias, padding=padding)
    found: list[Tensor] = [y, *torch.autograd.grad(y, (x, w), grad)]
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() <= CLOSE[dtype] * other.norm()


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("name", FEW)
def test_layers_of_few_channels(name: str, dtype: torch.dtype) -> None:
    assert few_terms_fprop(FEW[name], multiplied_for(torch.zeros(1, device="cuda", dtype=dtype)))
    check(FEW[name], dtype)


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("name", FEW)
def test_layers_of_few_filters(name: str, dtype: torch.dtype) -> None:
    p = FEW[name]
    turned = ConvProblem((*p.activation[:-1], p.K), (p.C, *p.taps))
    assert few_terms_dgrad(turned, multiplied_for(torch.zeros(1, device="cuda", dtype=dtype)))
    check(turned, dtype)


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("name", ODD)
def test_odd_filters(name: str, dtype: torch.dtype) -> None:
    check(ODD[name], dtype)
