"""Batch norms of rows in training on a GPU, beside float64 on a CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.gpu.row_norm import Norm
from layoutconv.nn.row_norm import batch_norm

from .on_device import kernels_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}


def problem(seed: int) -> tuple[Tensor, Norm, Tensor, torch.dtype]:
    """Features, a norm and a gradient, on a CPU in float64, of numbers that the dtype has."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = draw.choice(list(EPS))
    rows, C = draw.choice([2, 40, 999, 20_000, 150_000]), draw.choice([1, 5, 16, 33, 64, 96, 256])
    rows = min(rows, 6_000_000 // C)

    def tensor(*shape: int, mean: float = 0.0) -> Tensor:
        return (torch.randn(*shape, generator=numbers) + mean).to(dtype).double()

    there = None
    if draw.random() < 0.6:
        there = torch.rand(rows, generator=numbers) < draw.choice([0.1, 0.9])
        there[:2] = True
    affine, follows = draw.random() < 0.7, draw.random() < 0.7
    norm = Norm(
        tensor(C) if affine else None, tensor(C) if affine else None,
        (torch.zeros(C).double(), torch.ones(C).double()) if follows else None,
        0.25, 1e-3, there, tensor(rows, C) if draw.random() < 0.4 else None,
        "relu" if draw.random() < 0.5 else None,
    )  # fmt: skip
    return tensor(rows, C, mean=draw.choice([0.0, 8.0])), norm, tensor(rows, C), dtype


def ran(x: Tensor, norm: Norm, grad: Tensor, to: Any) -> list[Tensor | None]:
    """The result, the gradients and the running statistics, from leaves that ``to`` makes."""
    leaves = [None if t is None else to(t) for t in (x, norm.weight, norm.bias, norm.past)]
    for leaf in leaves:
        if leaf is not None:
            leaf.requires_grad_()
    x, weight, bias, past = leaves
    running = None if norm.running is None else tuple(to(one, False) for one in norm.running)
    there = None if norm.there is None else norm.there.to(x.device)
    y = batch_norm(x, norm._replace(
        weight=weight, bias=bias, past=past, running=running, there=there
    ))  # fmt: skip
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(y, wanted, to(grad)))
    grads = [None if leaf is None else next(found) for leaf in leaves]
    return [y, *grads, *(running or (None, None))]


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_norm_in_float64(seed: int) -> None:
    x, norm, grad, dtype = problem(seed)
    expected = ran(x, norm, grad, lambda t, _=True: t.clone())
    poison = None if norm.there is None else ~norm.there

    def to(t: Tensor, features: bool = True) -> Tensor:
        t = t.to("cuda", dtype if t.dim() == 2 else torch.float32)
        if poison is not None and t.dim() == 2:
            t[poison.cuda()] = torch.nan
        return t

    found = ran(x, norm, grad, to)
    rows = 1 if norm.there is None else max(1, len(x))
    for name, got, want in zip(
        ("y", "x", "weight", "bias", "past", "mean", "variance"), found, expected, strict=True
    ):
        assert (got is None) == (want is None), name
        if got is None or want is None:
            continue
        limit = EPS[dtype if got.dim() == 2 else torch.float32] * max(want.abs().max().item(), 1)
        if name in ("weight", "bias"):  # sums of many terms
            limit = 1e-6 * grad.abs().sum(0).max().item() * 4
        if norm.activation and name in ("x", "past"):  # at a kink, one ulp of the result decides
            off = (got.cpu().double() - want).abs() > 8 * limit
            assert off.double().mean() < 2e-3, name
            continue
        torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=8 * limit, msg=name)
    assert rows


def test_launches_are_two_and_two() -> None:
    x = torch.randn(5000, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    weight, bias = (torch.randn(64, device="cuda", requires_grad=True) for _ in range(2))
    norm = Norm(weight, bias, (torch.zeros_like(weight), torch.ones_like(bias)), 0.1, 1e-5)

    def step() -> None:
        y = batch_norm(x, norm)
        torch.autograd.grad(y, (x, weight, bias), y)

    assert len(kernels_of(step)) == 4


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, device="cuda", requires_grad=True)
    weight, bias = (torch.randn(3, device="cuda", requires_grad=True) for _ in range(2))
    there = torch.rand(40, device="cuda") < 0.7
    results = []
    for move in (lambda t: t, lambda t: t.detach().cpu().double().requires_grad_()):
        leaves = [move(t) for t in (x, weight, bias)]
        y = batch_norm(
            leaves[0], Norm(*leaves[1:], None, 0.1, 1e-3, there.to(leaves[0].device), None, "relu")
        )
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
        results.append([*grads, *second])
    for got, want in zip(*results, strict=True):
        scale = want.abs().max().item()
        torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=2e-5 * scale)


def test_padded_layers_take_it() -> None:
    x = lc.SparseTensor.from_dense(torch.rand(2, 6, 6, 6, 8, device="cuda")).padded(1000)
    norm = torch.nn.BatchNorm1d(8).cuda()
    other = torch.nn.BatchNorm1d(8).cuda()
    y = lc.nn.Sequential(norm)(x)
    cells = int((x.coords[:, 0] >= 0).sum())
    want = other(x.features[:cells])
    torch.testing.assert_close(y.features[:cells], want, rtol=1e-5, atol=1e-5)
    assert not y.features[cells:].any()
    torch.testing.assert_close(norm.running_var, other.running_var, rtol=1e-5, atol=1e-6)
    assert norm.num_batches_tracked == 1
