"""Batch norms with an activation of their own: which are taken for such, and for how long."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn.act_norm import has_activation, is_alone

C = 4


class Acting(nn.BatchNorm2d):
    """A norm whose forward pass depends on an attribute."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__(C, affine=affine)
        self.drop, self.act, self.more = nn.Identity(), nn.ReLU(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x) + self.more))  # type: ignore[no-any-return]


class Alone(Acting):
    """One without an activation, as ends of bottlenecks have it."""

    def __init__(self, affine: bool = True, act: nn.Module | None = None) -> None:
        super().__init__(affine)
        self.act = act or nn.Identity()


class Bottleneck(nn.Module):
    """Layers as timm writes them, with and without a shortcut."""

    def __init__(self, *, skip: bool = True, drop: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(C, C, 3, padding=1), Acting()
        self.conv2, self.bn2 = nn.Conv2d(C, C, 1), Alone()
        self.skip, self.drop_path = skip, drop or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        return self.drop_path(y) + x if self.skip else y


class Clamped(Acting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=6.0)


class Widening(Acting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(torch.promote_types(x.dtype, self.running_mean.dtype)))  # type: ignore[union-attr]


@pytest.mark.parametrize("affine", [True, False])
def test_limits_and_other_dtypes_are_seen(affine: bool) -> None:
    assert has_activation(Acting(affine))
    assert not has_activation(Clamped(affine))
    assert not has_activation(Widening(affine))


def test_an_attribute_that_is_set_later_counts(fused_norms: list[Any]) -> None:
    norm, x = Acting(), torch.randn(2, C, 3, 3)
    ours = lc.nn.fuse_batch_norms(norm, inplace=False)
    assert torch.equal(ours(x), deepcopy(norm)(x))
    assert fused_norms == [(ours, False)]
    norm.more = ours.more = 0.5
    assert torch.equal(ours(x), norm(x))
    assert fused_norms == [(ours, False)]
    assert type(ours) is Acting


def test_so_do_those_that_are_read_at_every_call(fused_norms: list[Any]) -> None:
    ours, x = lc.nn.fuse_batch_norms(Acting()), torch.randn(2, C, 3, 3)
    ours.momentum, ours.eps, ours.act = 0.5, 1e-2, nn.SiLU()
    ours.weight = nn.Parameter(torch.randn(C))
    norm = Acting()
    norm.load_state_dict(ours.state_dict())
    norm.momentum, norm.eps, norm.act = 0.5, 1e-2, nn.SiLU()
    assert torch.equal(ours.eval().train().double()(x.double()), norm.double()(x.double()))
    assert torch.equal(ours.running_var, norm.running_var)
    assert fused_norms == [(ours, False)]


def step(net: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, the gradients, and the buffers after a step."""
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    y = net(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *net.parameters()])
    return [y.detach(), *gradients, *(buffer.clone() for buffer in net.buffers())]


def test_a_norm_without_an_activation_takes_a_shortcut(fused_norms: list[Any]) -> None:
    net, x = nn.Sequential(Bottleneck(), Bottleneck()).double(), torch.randn(2, C, 5, 4).double()
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == ("0.bn1", "0.bn2", "1.bn1", "1.bn2")
    expected = step(deepcopy(net), x)
    for copied in deepcopy(ours), pickle.loads(pickle.dumps(ours)):
        fused_norms.clear()
        assert all(map(torch.equal, step(copied, x), expected))
        assert [added for _, added in fused_norms] == [False, True] * 2
        assert fused_norms[1][0] is copied[0].bn2
        assert isinstance(copied[0].bn2, Alone)
    again = lc.nn.fuse_batch_norms(ours, return_report=True)[1]
    assert again == report
    folded = lc.nn.fold_batch_norms(lc.nn.convert(deepcopy(ours).eval()))
    torch.testing.assert_close(folded(x), net.eval()(x))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    types = [type(part) for part in net.modules()]
    assert [type(part) for part in lc.nn.revert(ours).modules()] == types


def test_one_that_no_sum_follows_is_as_it_was(fused_norms: list[Any]) -> None:
    net = nn.Sequential(Bottleneck(skip=False), Bottleneck(drop=nn.Dropout(0.5)))
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == ("0.bn1", "1.bn1")
    assert [type(block.bn2) for block in ours] == [Alone, Alone]  # type: ignore[union-attr]
    assert set(report.left.values()) == {"no activation that fuses follows it, nor a sum"}
    x = torch.randn(2, C, 5, 4)
    assert all(map(torch.equal, step(ours, x), step(net, x)))


@pytest.mark.parametrize("name", ["act", "drop", "more", "hook", "momentum"])
def test_changes_of_one_without_an_activation_count(fused_norms: list[Any], name: str) -> None:
    net, x = Bottleneck(), torch.randn(2, C, 5, 4)
    ours = lc.nn.fuse_batch_norms(net, inplace=False)
    for block in net, ours:
        if name == "hook":
            block.bn2.act.register_forward_hook(lambda *given: given[-1] * 2)
        elif name in ("act", "drop"):
            setattr(block.bn2, name, nn.Tanh())
        else:
            setattr(block.bn2, name, 0.25)
    assert all(map(torch.equal, step(ours, x), step(net, x)))
    assert (ours.bn2, True) in fused_norms or name != "momentum"
    assert (ours.bn2, True) not in fused_norms or name == "momentum"


def test_one_that_computes_something_else_is_none() -> None:
    assert all(map(is_alone, (Alone(), Alone(affine=False))))
    clamped, wide = Clamped(), Widening()
    clamped.act = wide.act = nn.Identity()
    assert not any(map(is_alone, (clamped, wide, Alone(act=nn.Tanh()), nn.BatchNorm2d(C))))
