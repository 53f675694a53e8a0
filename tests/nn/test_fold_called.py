"""Folding what the forward passes of modules call in a row, beside the networks as they were."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn.called_pairs import after_norm


class Block(nn.Module):
    """As torchvision writes it: one ReLU for all."""

    def __init__(self, C: int = 4, K: int = 4, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(C, K, 3, stride, 1, bias=False), nn.BatchNorm2d(K)
        self.conv2, self.bn2 = nn.Conv2d(K, K, 3, 1, 1, bias=False), nn.BatchNorm2d(K)
        self.relu = nn.ReLU(inplace=True)
        short = nn.Sequential(nn.Conv2d(C, K, 1, stride, bias=False), nn.BatchNorm2d(K))
        self.downsample = None if C == K and stride == 1 else short

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class NormAct(nn.BatchNorm2d):
    """As timm writes it: a norm, what drops, and an activation."""

    def __init__(self, C: int, act: nn.Module) -> None:
        super().__init__(C)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        running = self.running_mean, self.running_var
        y = nn.functional.batch_norm(x, *running, self.weight, self.bias, self.training)
        return self.act(self.drop(y))


class Twice(NormAct):
    """Another's subclass, which computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Calls(nn.Module):
    """A module whose forward pass is a function of it and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.call = forward
        self.conv = nn.Conv2d(4, 4, 3)
        self.norm: nn.Module = nn.BatchNorm2d(4)
        self.act: nn.Module = nn.SiLU()
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def in_a_row(net: Any, x: Tensor) -> Tensor:
    return net.act(net.norm(net.conv(x)))


def prepared(net: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            for tensor, low in ((module.running_mean, -1), (module.running_var, 0.5)):
                nn.init.uniform_(tensor, low, 1.5)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias)
    return lc.nn.convert(net.double().eval())


def folded(net: nn.Module) -> tuple[nn.Module, int]:
    """A network folded, which computes what it did; and how many norms and activations it has."""
    net = prepared(net)
    made = lc.nn.fold_batch_norms(copy.deepcopy(net))
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(made(x.clone()), net(x.clone()), rtol=1e-12, atol=1e-12)
    kinds = nn.BatchNorm2d, nn.ReLU, nn.SiLU, nn.Hardtanh
    return made, sum(isinstance(module, kinds) for module in made.modules())


def test_a_residual_block_keeps_its_one_relu() -> None:
    net, left = folded(nn.Sequential(Block(), Block(4, 6, 2)))
    assert left == 2  # the ReLUs, which are called more than once
    assert [name for name, _ in net.named_children()] == ["0", "1"]
    assert type(net[1].bn2) is nn.Identity  # type: ignore[index, union-attr]


def test_a_norm_and_an_activation_of_their_own_are_taken_up() -> None:
    net, left = folded(Calls(in_a_row))
    assert left == 0
    assert net.conv.activation == "silu"  # type: ignore[union-attr]
    again = copy.deepcopy(net)
    x = torch.randn(1, 4, 5, 5, dtype=torch.float64)
    assert torch.equal(again(x), net(x))


@pytest.mark.parametrize(("act", "left"), [(nn.ReLU(), 0), (nn.Identity(), 0), (nn.Hardtanh(), 1)])
def test_norms_that_call_an_activation(act: nn.Module, left: int) -> None:
    """One that no epilogue has stays, in the place of the norm."""
    norm = NormAct(4, act)
    _, count = folded(Calls(lambda net, x: net.norm(net.conv(x)), norm=norm))
    assert count - 1 == left  # the SiLU, which is not called
    _, count = folded(nn.Sequential(nn.Conv2d(4, 4, 3), NormAct(4, act)))
    assert count == left


@pytest.mark.parametrize(
    "norm", [Twice(4, nn.ReLU()), nn.BatchNorm2d(4, track_running_stats=False)]
)
def test_what_is_another_norm_stays(norm: nn.Module) -> None:
    assert after_norm(norm) is None
    _, left = folded(Calls(in_a_row, norm=norm))
    assert left == (3 if isinstance(norm, Twice) else 2)


def hidden(net: Any, x: Tensor) -> Tensor:
    """A pass that reads values, and goes on where it cannot."""
    try:
        last = bool(x.abs().sum() > 0)
    except Exception:
        last = False
    found: Tensor = net.conv(net.norm(x)) if last else net.norm(net.conv(x))
    return found


NOT_IN_A_ROW: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the result is read twice": lambda net, x: net.norm(y := net.conv(x)) + y,
    "something is between": lambda net, x: net.norm(net.conv(x) * 2),
    "the convolution is called twice": lambda net, x: net.norm(net.conv(x)) + net.conv(x),
    "the norm is called twice": lambda net, x: net.norm(net.norm(net.conv(x))),
    "the norm comes first": lambda net, x: net.conv(net.norm(x)),
    "gradients are asked for": lambda net, x: (
        net.norm(net.conv(x)) if torch.is_grad_enabled() else net.conv(net.norm(x))
    ),
    "autocast is asked for": lambda net, x: (
        net.conv(x) if torch.is_autocast_enabled("cpu") else net.norm(net.conv(x))
    ),
    "values are read": lambda net, x: net.norm(net.conv(x)) if x.sum() > 0 else net.conv(x),
    "values are read where errors are caught": hidden,
    "changed in place": lambda net, x: operator.iadd(y := net.conv(x), 1) * 0 + net.norm(y),
}


@pytest.mark.parametrize("name", NOT_IN_A_ROW)
def test_norms_that_do_not_follow_a_convolution_stay(name: str) -> None:
    net, _ = folded(Calls(NOT_IN_A_ROW[name]))
    assert type(net.norm) is nn.BatchNorm2d


def test_hooks_and_shared_modules_stay() -> None:
    net = Calls(in_a_row)
    net.norm.register_forward_hook(lambda *_: None)
    assert type(folded(net)[0].norm) is nn.BatchNorm2d
    norm = nn.BatchNorm2d(4)
    both, _ = folded(nn.Sequential(Calls(in_a_row, norm=norm), Calls(in_a_row, norm=norm)))
    assert type(both[0].norm) is nn.BatchNorm2d  # type: ignore[index, union-attr]


def test_a_convolution_at_the_end_of_a_sequence_takes_up_what_follows_that() -> None:
    inner = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    net, left = folded(nn.Sequential(inner, nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 1)))
    assert left == 0
    assert net[0][3].activation == "silu"  # type: ignore[index, union-attr]
    once = nn.Sequential(nn.Conv2d(4, 4, 1))
    net, left = folded(nn.Sequential(once, nn.BatchNorm2d(4), once))
    assert left == 1


def test_a_pass_that_is_recorded_leaves_no_trace() -> None:
    """Random numbers, buffers and attributes are what they were."""
    net = prepared(nn.Sequential(Block(), Block(4, 6, 2)))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    before, random = dict(net[0].__dict__), torch.get_rng_state()  # type: ignore[index]
    lc.nn.fold_batch_norms(copy.deepcopy(net))
    assert torch.equal(torch.get_rng_state(), random)
    assert net[0].__dict__.keys() == before.keys()  # type: ignore[index]
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
