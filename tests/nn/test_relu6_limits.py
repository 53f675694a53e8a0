"""A ``torch.nn.ReLU6`` whose limits are set clamps at those, wherever it would be part of a kernel.

Its class alone does not say what it computes: ``max_val`` is an attribute.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn.fused_norm import fused

C = 4


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm2d(C), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x))  # type: ignore[no-any-return]


class Acting(nn.BatchNorm2d):
    def __init__(self) -> None:
        super().__init__(C)
        self.drop, self.act = nn.Identity(), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]


def in_sequence() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(C), nn.ReLU6())


def set_limits(net: nn.Module) -> None:
    (last,) = (m for m in net.modules() if isinstance(m, nn.ReLU6))
    last.min_val, last.max_val = -0.5, 1.0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("made", [Called, Acting, in_sequence])
def test_after_batch_norms_in_training(made: Any, before: bool, fused_norms: list[Any]) -> None:
    net, x = made(), 3 * torch.randn(2, C, 3, 3)
    plain = lc.nn.fuse_batch_norms(net, inplace=False)
    assert torch.equal(plain(x), deepcopy(net)(x))
    assert len(fused_norms) == 1
    if before:
        set_limits(net)
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert bool(report.fused) is not before
    if not before:
        set_limits(net), set_limits(ours)
    assert torch.equal(ours(x), net(x))
    assert len(fused_norms) == 1


def test_after_sparse_convolutions() -> None:
    x = lc.SparseTensor.from_dense(torch.eye(4).view(1, 4, 4, 1))
    net = lc.nn.Sequential(lc.nn.SubmConv2d(1, 8, 3), nn.BatchNorm1d(8), nn.ReLU6()).eval()
    with torch.inference_mode():
        set_limits(net)
        expected = net(x).features
        with fused():
            torch.testing.assert_close(net(x).features, expected)
    assert expected.min() < 0


def test_folded_for_inference() -> None:
    net = nn.Sequential(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU6()).eval()
    ours = lc.nn.convert(net, inplace=False)
    set_limits(net), set_limits(ours)
    folded, x = lc.nn.fold_batch_norms(ours), torch.randn(2, C, 3, 3)
    torch.testing.assert_close(folded(x), net(x))
    assert net(x).min() < 0
