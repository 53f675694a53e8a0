"""Batch norms of channels-last images in training on a GPU, beside float64 on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.gpu import row_norm

from ..watched import Watch
from .on_device import captured, kernels_of
from .second_derivatives import check_second_derivatives

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KINKS: dict[Any, tuple[float, ...]] = {
    "relu": (0.0,), "relu6": (0.0, 6.0), "hardswish": (-3.0, 3.0),
}  # fmt: skip
NAMES = "y", "x", "past", "weight", "bias"


def problem(seed: int) -> tuple[Any, list[Tensor], Tensor, torch.dtype]:
    """A norm, images, perhaps some that are added, and a gradient, in float64 on a CPU."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype, rank = draw.choice(list(EPS)), draw.choice([2, 3])
    C = draw.choice([1, 5, 33, 64, 96, 256, 512, 1024, 2048])
    extent = draw.choice({2: [1, 7, 28, 112], 3: [1, 4, 16, 40]}[rank])
    N = max(1, min(draw.choice([2, 3, 16]), 8_000_000 // (C * extent**rank)))
    N = max(N, 2) if extent == 1 else N
    affine = draw.random() < 0.8
    activation = draw.choice([None, "relu", "relu", "silu", "silu", "hardswish", "relu6"])
    kind = getattr(lc.nn, f"BatchNorm{rank}d")
    module = kind(C, 1e-3, 0.25, affine, draw.random() < 0.8, activation=activation).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=numbers)
        parameter.data = parameter.data.to(dtype).double()  # numbers that the dtype has
    shape, mean = (N, C, *[extent] * rank), draw.choice([0.0, 8.0])

    def images(mean: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=numbers) + mean).to(dtype).double()

    leaves = [images(mean), images()] if draw.random() < 0.5 else [images(mean)]
    return module, leaves, images(), dtype


def ran(module: Any, leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    y = module(*leaves)
    return [y.detach(), *torch.autograd.grad(y, (*leaves, *module.parameters()), grad)]


def poisoned(*shapes: Any) -> None:
    """Have memory that is handed out next be of NaN."""
    for shape in shapes:
        for dtype in EPS:
            torch.full(shape, torch.nan, device="cuda", dtype=dtype)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_norm_in_float64(seed: int) -> None:
    module, leaves, grad, dtype = problem(seed)
    ours = deepcopy(module).to("cuda", torch.float32)
    expected = ran(module, leaves, grad)
    given = [
        t.to("cuda", dtype).contiguous(memory_format=CHANNELS_LAST[t.dim()])
        for t in (*leaves, grad)
    ]
    poisoned(*[given[0].shape] * 4)
    found = ran(ours, given[:-1], given[-1])
    names = [name for name in NAMES if name != "past" or len(leaves) == 2]
    kinks = KINKS.get(ours.activation, ())
    kinked = bool(kinks)
    without = deepcopy(module)
    without.activation = None
    before = without(*leaves).detach()
    near = torch.zeros_like(before, dtype=torch.bool)
    for kink in kinks:  # rounding decides the side
        near |= (before - kink).abs() < 16 * EPS[dtype] * before.abs().max()
    others = [mode for mode in range(grad.dim()) if mode != 1]
    for name, got, want in zip(names, found, expected, strict=False):
        limit: Any
        if name in ("weight", "bias"):  # sums over images
            limit = 8e-6 * grad.abs().sum(others) + 1e-5
            if kinked:
                limit = limit + 6 * (grad.abs() * near).sum(others)
            elif ours.activation:  # whose gradient is rounded
                limit = limit + 8 * EPS[dtype] * grad.square().sum(others).sqrt()
        else:
            assert got.movedim(1, -1).is_contiguous(), name
            assert got.dtype is dtype
            limit = 16 * EPS[dtype] * max(want.abs().max().item(), 1.0)
        off = (got.cpu().double() - want).abs() > limit
        assert off.double().mean() <= (2e-3 if kinked and name in ("x", "past") else 0), name
    for one, other in zip(ours.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(one.cpu().double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", ["silu", "hardswish", "relu6"])
def test_an_activation_takes_no_launch_of_its_own(last: str) -> None:
    x, grad = (
        torch.randn(4, 64, 30, 30, device="cuda").half().to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    norm = lc.nn.BatchNorm2d(64, activation=last).cuda()
    with torch.no_grad():
        assert len(kernels_of(lambda: norm(x))) == 2
    wanted = (x.requires_grad_(), *norm.parameters())
    assert len(kernels_of(lambda: torch.autograd.grad(norm(x), wanted, grad))) == 4


@pytest.mark.parametrize("last", [None, "relu"])
def test_launches_are_two_and_two(last: str | None) -> None:
    x, past, grad = (
        torch.randn(4, 64, 30, 30, device="cuda").half().to(memory_format=torch.channels_last)
        for _ in range(3)
    )
    norm = lc.nn.BatchNorm2d(64, activation=last).cuda()
    with torch.no_grad():
        assert len(kernels_of(lambda: norm(x, past))) == 2
    leaves = [t.requires_grad_() for t in (x, past)]
    wanted = (*leaves, *norm.parameters())
    assert len(kernels_of(lambda: torch.autograd.grad(norm(*leaves), wanted, grad))) == 4


@pytest.mark.parametrize("order", ["norm first", "shortcut first", "in place"])
def test_a_fused_sum_takes_no_launch_and_no_memory(order: str) -> None:
    """Forward it is part of the norm; backward the gradient of the shortcut is that of the sum."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(64)

        def forward(self, x: Tensor, past: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            if order == "in place":
                y += past
                return y
            return y + past if order == "norm first" else past + y

    block = lc.nn.fuse_batch_norms(Block().cuda())
    x, past, grad = (
        torch.randn(4, 64, 30, 30, device="cuda").half().to(memory_format=torch.channels_last)
        for _ in range(3)
    )
    leaves = [t.requires_grad_() for t in (x, past)]
    wanted = (*leaves, *block.parameters())
    assert len(kernels_of(lambda: torch.autograd.grad(block(*leaves), wanted, grad))) == 4
    before = grad.clone()
    _, dpast, *_ = torch.autograd.grad(block(*leaves), wanted, grad)
    assert dpast.data_ptr() == grad.data_ptr()
    (block(*leaves) + past).backward(grad)
    assert torch.equal(past.grad, 2 * before)  # type: ignore[arg-type]
    assert torch.equal(grad, before)


class Bottleneck(nn.Module):
    def __init__(self, C: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(C, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 2 * C, 1, bias=False), nn.BatchNorm2d(2 * C)
        self.relu = nn.ReLU(inplace=True)
        down = nn.Conv2d(C, 2 * C, 1, stride, bias=False), nn.BatchNorm2d(2 * C)
        self.downsample = nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        out += self.downsample(x)
        return self.relu(out)


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    blocks = Bottleneck(64, 64), Bottleneck(128, 64, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


class Excited(nn.Module):
    """Channels times what a small network makes of their means (Hu et al., 2018)."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.pool, self.act = nn.AdaptiveAvgPool2d(1), nn.SiLU(inplace=True)
        self.reduce, self.expand = nn.Conv2d(C, C // 4, 1), nn.Conv2d(C // 4, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.expand(self.act(self.reduce(self.pool(x)))))


class Inverted(nn.Module):
    """A block of EfficientNet (Tan and Le, 2019), with an activation of one's choice."""

    def __init__(self, C: int, last: Any, stride: int = 1) -> None:
        super().__init__()
        wide = 4 * C
        wider = nn.Conv2d(C, wide, 1, bias=False), nn.BatchNorm2d(wide), last(inplace=True)
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        between = depthwise, nn.BatchNorm2d(wide), last(inplace=True), Excited(wide)
        self.block = nn.Sequential(*wider, *between, nn.Conv2d(wide, C, 1), nn.BatchNorm2d(C))
        self.adds = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return x + y if self.adds else y


def inverted(last: Any) -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), last(inplace=True)
    blocks = Inverted(32, last), Inverted(32, last, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "residual": (network, 7),
    "silu": (lambda: inverted(nn.SiLU), 6),
    "hardswish": (lambda: inverted(nn.Hardswish), 6),
    "relu6": (lambda: inverted(nn.ReLU6), 6),
}


def step(net: nn.Module, x: Tensor, dtype: torch.dtype | None) -> list[Tensor]:
    net.zero_grad()
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        y = net(x)
    (y.float() * torch.linspace(-1, 1, 10, device=x.device)).sum().backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return [t.detach().cpu().double() for t in (y, *grads, *net.buffers())]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", list(NETWORKS))
def test_a_step_of_a_network_under_autocast(kind: str, dtype: torch.dtype) -> None:
    """Fused, a network is no further from float64 than torch's own: twice as far, at most."""
    make, count = NETWORKS[kind]
    net = make()
    x = torch.randn(8, 3, 64, 64)
    exact = step(deepcopy(net).double(), x.double(), None)
    last = x.cuda().to(memory_format=torch.channels_last)
    theirs = deepcopy(net).cuda().to(memory_format=torch.channels_last)
    ours, report = lc.nn.fuse_batch_norms(lc.nn.convert(deepcopy(net).cuda()), return_report=True)
    assert len(report.fused) == count
    found = step(ours, last, dtype), step(theirs, last, dtype)
    for one, other, want in zip(*found, exact, strict=True):
        scale = want.norm().item() + 1e-3
        off, allowed = ((t - want).norm().item() / scale for t in (one, other))
        assert off <= 2 * allowed + 4 * EPS[dtype]


def test_a_step_in_a_graph_by_kernels(watched: Watch) -> None:
    net = lc.nn.fuse_batch_norms(lc.nn.convert(network().cuda()))
    x = torch.randn(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    # Of calls nothing is kept: nodes of parameters that a stream made before end a capture.
    passes = [watched(n, row_norm, note=lambda call: None) for n in ("normalised", "gradients")]

    def call() -> list[Tensor]:
        return step_on_device(net, x)

    call()
    assert [len(calls) for calls in passes] == [7, 7]
    before = [t.clone() for t in net.buffers()]
    graph, grads = captured(call)
    for buffer, was in zip(net.buffers(), before, strict=True):
        buffer.copy_(was)
    x.copy_(torch.randn_like(x))
    graph.replay()
    replayed = [t.clone() for t in (*grads, *net.buffers())]
    for buffer, was in zip(net.buffers(), before, strict=True):
        buffer.copy_(was)
    for one, other in zip(replayed, (*call(), *net.buffers()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def step_on_device(net: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.autocast("cuda", torch.float16):
        y = net(x)
    return list(torch.autograd.grad(y.float().square().sum(), list(net.parameters())))


@pytest.mark.parametrize("last", ["relu", "silu"])
def test_second_derivatives(last: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 5, 5, device="cuda").to(memory_format=torch.channels_last)
    check_second_derivatives(lc.nn.BatchNorm2d(6, activation=last).cuda(), x)


def test_channels_first_images_are_torchs() -> None:
    x, past = torch.randn(2, 2, 8, 6, 6, device="cuda")
    ours, theirs = lc.nn.BatchNorm2d(8).cuda(), nn.BatchNorm2d(8).cuda()
    assert torch.equal(ours(x, past), theirs(x) + past)
