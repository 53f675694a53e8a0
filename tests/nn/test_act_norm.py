"""Batch norms with an activation of their own: which are taken for such, and for how long."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn import act_norm
from layoutconv.nn.act_norm import has_activation
from layoutconv.tensors.epilogue_in_torch import activate

C = 4


class Acting(nn.BatchNorm2d):
    """A norm whose forward pass depends on an attribute."""

    def __init__(self, affine: bool = True) -> None:
        super().__init__(C, affine=affine)
        self.drop, self.act, self.more = nn.Identity(), nn.ReLU(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x) + self.more))  # type: ignore[no-any-return]


class Clamped(Acting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=6.0)


class Widening(Acting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(torch.promote_types(x.dtype, self.running_mean.dtype)))  # type: ignore[union-attr]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The norms that kernels are asked for, for which operations of torch stand in."""
    found: list[Any] = []

    def computed(input: Tensor, module: Any, past: Any, activation: str) -> Tensor:
        found.append(module)
        return activate(nn.BatchNorm2d.forward(module, input), activation)

    monkeypatch.setattr(act_norm, "by_kernels", computed)
    return found


@pytest.mark.parametrize("affine", [True, False])
def test_limits_and_other_dtypes_are_seen(affine: bool) -> None:
    assert has_activation(Acting(affine))
    assert not has_activation(Clamped(affine))
    assert not has_activation(Widening(affine))


def test_an_attribute_that_is_set_later_counts(calls: list[Any]) -> None:
    norm, x = Acting(), torch.randn(2, C, 3, 3)
    ours = lc.nn.fuse_batch_norms(norm, inplace=False)
    assert torch.equal(ours(x), deepcopy(norm)(x))
    assert calls == [ours]
    norm.more = ours.more = 0.5
    assert torch.equal(ours(x), norm(x))
    assert calls == [ours]
    assert type(ours) is Acting


def test_so_do_those_that_are_read_at_every_call(calls: list[Any]) -> None:
    ours, x = lc.nn.fuse_batch_norms(Acting()), torch.randn(2, C, 3, 3)
    ours.momentum, ours.eps, ours.act = 0.5, 1e-2, nn.SiLU()
    ours.weight = nn.Parameter(torch.randn(C))
    norm = Acting()
    norm.load_state_dict(ours.state_dict())
    norm.momentum, norm.eps, norm.act = 0.5, 1e-2, nn.SiLU()
    assert torch.equal(ours.eval().train().double()(x.double()), norm.double()(x.double()))
    assert torch.equal(ours.running_var, norm.running_var)
    assert calls == [ours]
