"""Norms, activations and sums as epilogues, in containers of ours; a CPU stands in for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.nn import Residual, Sequential, containers, residual, unfused
from layoutconv.nn.fused_norm import fused
from layoutconv.ops import sparse_calls

from ..watched import Watch

C = 8


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    sparse_calls.forget()
    with fused():
        yield
    sparse_calls.forget()


def cloud(seed: int = 0, dtype: torch.dtype = torch.float32) -> lc.SparseTensor:
    random = torch.Generator().manual_seed(seed)
    grid = torch.randn(2, 6, 6, 6, C, generator=random)
    grid[torch.rand(2, 6, 6, 6, generator=random) < 0.6] = 0
    return lc.SparseTensor.from_dense(grid.to(dtype))


def network() -> nn.Module:
    def norm(K: int) -> nn.Module:
        made = nn.BatchNorm1d(K)
        for tensor in (made.running_mean, made.weight, made.bias):
            nn.init.normal_(tensor)
        nn.init.uniform_(made.running_var, 0.1, 2)
        return made

    torch.manual_seed(0)
    body = lc.nn.SubmConv3d(C, C, 3), norm(C), nn.ReLU(), lc.nn.SubmConv3d(C, C, 3), norm(C)
    short = lc.nn.SubmConv3d(C, C, 3, bias=False), norm(C)
    past = Sequential(nn.Linear(C, C, bias=False), norm(C))
    return Sequential(
        lc.nn.SubmConv3d(C, C, 3, offsets=None), norm(C), nn.LeakyReLU(0.3),
        Residual(Sequential(*body)), Residual(Sequential(*short), past, nn.Identity()),
        lc.nn.SparseConv3d(C, 12, 2, 2), norm(12), nn.Sigmoid(),
        lc.nn.SparseInverseConv3d(12, C, 2), norm(C), nn.Tanh(),
        lc.nn.SparseConvTranspose3d(C, C, 2, 2), nn.SiLU(),
    ).eval()  # fmt: skip


@pytest.fixture
def taken_up(watched: Watch) -> list[bool]:
    """Grows by whether a convolution took up what follows it, with every one that is asked."""
    owners = containers, residual
    return watched("with_following", *owners, note=lambda call: call.result is not None)


def fused_calls(net: nn.Module, x: Any, taken_up: list[bool]) -> int:
    """Compare both ways; return how many convolutions took up what follows them."""
    taken_up.clear()
    with unfused():
        want = net(x)
    assert not taken_up
    got = net(x)
    assert got.coordinates is want.coordinates
    assert got.features.dtype is want.features.dtype
    a, b = got.features.detach(), want.features.detach()
    limit = {torch.float32: 1e-4, torch.float16: 2e-2}[x.dtype]
    assert float((a - b).abs().max()) < limit * float(b.abs().max())
    return sum(taken_up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_network_is_what_it_is_module_after_module(dtype, taken_up):
    net = network().to(dtype)
    with torch.no_grad():
        for seed in range(2):
            assert fused_calls(net, cloud(seed, dtype), taken_up) == 7


def test_what_wants_a_gradient_is_torchs(taken_up):
    """Also in evaluation mode; without parameters that want one, all is fused."""
    net, x = network(), cloud()
    assert fused_calls(net, x, taken_up) == 0
    assert fused_calls(net.requires_grad_(False), x, taken_up) == 7
    features = x.features.clone().requires_grad_()
    y = net(x.replace(features)).features.square().sum()
    with unfused():
        z = net(x.replace(features)).features.square().sum()
    assert torch.equal(*(torch.autograd.grad(v, features)[0] for v in (y, z)))


def test_voxels_stay_voxels_and_padded_clouds_padded(taken_up):
    net = network()[:4]
    points = torch.rand(300, 3 + C)
    voxels = lc.voxelize(points, 0.2)
    x = voxels.replace(torch.randn(len(voxels), C))
    with torch.no_grad():
        assert type(net(x)) is type(x)
        assert fused_calls(net, x, taken_up) == 3
        padded = cloud().padded(400)
        assert fused_calls(net, padded, taken_up) == 3


def test_a_residual_at_other_cells_is_an_error_or_a_sum_by_cells(taken_up):
    down = lc.nn.SparseConv3d(C, C, 3, padding=1)
    net = Residual(Sequential(down, nn.BatchNorm1d(C))).eval()
    with torch.no_grad():
        assert fused_calls_equal(net, cloud())


def fused_calls_equal(net: nn.Module, x: Any) -> bool:
    with unfused():
        want = net(x)
    return torch.allclose(net(x).dense(), want.dense(), atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_statistics_are_updated_where_a_norm_trains(training):
    torch.manual_seed(0)
    net = network().train(training)
    with torch.no_grad():
        with unfused():
            other = network().train(training)
            other.load_state_dict(net.state_dict())
            want = other(cloud())
        got = net(cloud())
    torch.testing.assert_close(got.features, want.features)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name])
