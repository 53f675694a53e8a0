"""Group and instance norms of channels-last images on a GPU, beside float64 on a CPU."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.nn.dense_norm import NORMS

from .on_device import kernels_of
from .second_derivatives import check_second_derivatives

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}
CHANNELS_LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


def problem(seed: int) -> tuple[torch.nn.Module, Tensor, Tensor, torch.dtype]:
    """A norm and its activation, images and a gradient, on a CPU in float64."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = draw.choice(list(EPS))
    groups, width = draw.choice([(1, 6), (1, 64), (8, 1), (3, 5), (32, 10), (32, 16), (4, 96)])
    C, rank = groups * width, draw.choice([1, 2, 3])
    extent = draw.choice({1: [2, 999, 70_000], 2: [2, 9, 200], 3: [2, 5, 40]}[rank])
    N = draw.choice([1, 2, 7])
    N = max(1, min(N, 8_000_000 // (C * extent**rank)))
    more: dict[str, Any] = {
        "affine": draw.random() < 0.7,
        "activation": draw.choice([None, "relu", "leaky_relu", "silu", "gelu"]),
        "slope": 0.2,
    }
    if draw.random() < 0.5:
        module: Any = getattr(lc.nn, f"InstanceNorm{rank}d")(C, 1e-3, **more)
    else:
        module = lc.nn.GroupNorm(groups, C, 1e-3, **more)
    module = module.double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=numbers)
    mean = draw.choice([0.0, 8.0])
    shape = N, C, *[extent] * rank
    x, grad = (torch.randn(shape, generator=numbers) + m for m in (mean, 0.0))
    return module, x.to(dtype).double(), grad.to(dtype).double(), dtype


def ran(module: Any, x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y, (x, *module.parameters()), grad)]


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_norm_in_float64(seed: int) -> None:
    module, x, grad, dtype = problem(seed)
    expected = ran(module, x, grad)
    ours = deepcopy(module).to("cuda", dtype)
    for one, other in zip(ours.parameters(), module.parameters(), strict=True):
        other.data.copy_(one.data.double())  # numbers that the dtype has
    expected = ran(module, x, grad)
    rank = x.dim()
    given = [t.to("cuda", dtype) for t in (x, grad)]
    if rank == 3:
        given = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in given]
    else:
        given = [t.contiguous(memory_format=CHANNELS_LAST[rank]) for t in given]
    found = ran(ours, *given)
    assert found[0].movedim(1, -1).is_contiguous()
    kinked = ours.activation in ("relu", "leaky_relu")
    for place, (got, want) in enumerate(zip(found, expected, strict=True)):
        limit = 8 * EPS[dtype] * max(want.abs().max().item(), 1.0)
        if place > 1:  # sums over images
            limit = 8 * (1e-6 + EPS[dtype] * kinked) * grad.abs().sum().item() / x.shape[1]
            limit += EPS[dtype] * want.abs().max().item()
        off = (got.cpu().double() - want).abs() > limit
        assert off.double().mean() <= (2e-3 if kinked and place == 1 else 0), place


@pytest.mark.parametrize("kind", ["group", "instance"])
def test_dtypes_under_autocast_are_torchs(kind: str) -> None:
    module = (
        torch.nn.GroupNorm(4, 16) if kind == "group" else torch.nn.InstanceNorm2d(16, affine=True)
    )
    module = module.cuda()
    ours = lc.nn.convert(deepcopy(module))
    x = torch.randn(2, 16, 9, 9, device="cuda").half().to(memory_format=torch.channels_last)
    with torch.autocast("cuda"):
        expected, found = (
            ran(module, x, torch.ones(2, 16, 9, 9, device="cuda")),
            ran(ours, x, torch.ones(2, 16, 9, 9, device="cuda")),
        )
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-2)


def test_launches_are_three_and_four() -> None:
    x = torch.randn(2, 64, 30, 30, device="cuda").half().to(memory_format=torch.channels_last)
    norm = lc.nn.GroupNorm(8, 64, activation="silu").cuda().half()
    with torch.no_grad():
        assert len(kernels_of(lambda: norm(x))) == 3
    x.requires_grad_()
    cotangent = torch.ones_like(x)
    assert len(kernels_of(lambda: torch.autograd.grad(norm(x), x, cotangent))) <= 9


def test_channels_first_images_are_torchs() -> None:
    x = torch.randn(2, 8, 6, 6, device="cuda")
    for ours, theirs in (lc.nn.GroupNorm(2, 8), torch.nn.GroupNorm(2, 8)), (
        lc.nn.InstanceNorm2d(8), torch.nn.InstanceNorm2d(8)
    ):  # fmt: skip
        assert torch.equal(ours.cuda()(x), theirs.cuda()(x))


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    norm = lc.nn.GroupNorm(3, 6, activation="silu").cuda()
    check_second_derivatives(norm, x)


def test_a_graph_and_a_network() -> None:
    """A converted network has torch's results, in training and in a CUDA graph."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv3d(4, 32, 3, padding=1, bias=False), torch.nn.InstanceNorm3d(32, affine=True),
        torch.nn.LeakyReLU(inplace=True), torch.nn.Conv3d(32, 32, 3, padding=1),
        torch.nn.GroupNorm(4, 32),
    ).cuda()  # fmt: skip
    ours, report = lc.nn.convert(net, inplace=False, return_report=True)
    assert report.norms == ("1", "4")
    assert {type(m) for m in ours.modules()} & set(NORMS.values())
    x = torch.randn(2, 4, 12, 12, 12, device="cuda").to(memory_format=torch.channels_last_3d)
    grad = torch.randn_like(net(x))
    for one, other in zip(ran(ours, x, grad), ran(net, x, grad), strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()
    with torch.no_grad():
        ours(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ours(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, ours(x))
