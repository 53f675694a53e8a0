"""Residual blocks: what they compute, and that it stays so when they are folded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.nn import Residual, Sequential, SubmConv3d
from layoutconv.sparse import Coordinates, SparseTensor


def cloud(C: int, seed: int = 0) -> SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randperm(6**3, generator=generator)[:80]
    coordinates = Coordinates.of_keys(keys, (6,) * 3, 1)
    return SparseTensor(torch.randn(80, C, generator=generator), coordinates)


def block(C: int, K: int, activation: nn.Module | None = None) -> Residual:
    torch.manual_seed(0)
    body = Sequential(
        SubmConv3d(C, K, 3, bias=False), nn.BatchNorm1d(K), nn.ReLU(),
        SubmConv3d(K, K, 3, bias=False), nn.BatchNorm1d(K),
    )  # fmt: skip
    past = None if C == K else Sequential(nn.Linear(C, K, bias=False), nn.BatchNorm1d(K))
    found = Residual(body, past, activation)
    for part in found.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    return found.eval()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.3), nn.Identity(), nn.ELU()])
@pytest.mark.parametrize("C", [4, 8])
def test_a_folded_block_is_the_sum_of_both_ways(C: int, activation: nn.Module) -> None:
    net, x = block(C, 8, activation), cloud(C)
    past = net.past(x.features)
    want = activation(net.body(x).features + past)
    assert torch.equal(net(x).features, want)
    names = [name for name, _ in net.named_modules()]
    folded = lc.nn.fold_batch_norms(net)
    assert [name for name, _ in folded.named_modules()] == names
    assert folded.is_fused is not isinstance(activation, nn.ELU)  # which no epilogue has
    left = [m for m in folded.modules() if isinstance(m, nn.BatchNorm1d)]
    assert left == []
    torch.testing.assert_close(folded(x).features, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        lc.nn.fold_batch_norms(folded)(x).features, want, rtol=1e-4, atol=1e-4
    )


def test_a_folded_block_of_features_is_convolutions_and_a_product() -> None:
    folded = lc.nn.fold_batch_norms(block(4, 8))
    body = [m for m in folded.body.children() if not isinstance(m, nn.Identity)]
    assert [m.activation for m in body] == ["relu", "relu"]
    assert isinstance(folded.past[0], nn.Linear)  # type: ignore[index]
    assert folded.past[0].bias is not None  # type: ignore[index]
    assert isinstance(folded.past[1], nn.Identity)  # type: ignore[index]


def test_what_is_used_at_two_places_stays() -> None:
    first = block(8, 8)
    net = Sequential(first, Residual(Sequential(first.body[3])))  # type: ignore[index]
    x = cloud(8)
    want = net.eval()(x).features
    assert not any(b.is_fused for b in lc.nn.fold_batch_norms(net))
    torch.testing.assert_close(net(x).features, want, rtol=1e-4, atol=1e-4)


def test_hooks_see_what_they_saw() -> None:
    net, x = block(8, 8), cloud(8)
    seen = []
    net.activation.register_forward_hook(lambda module, given, y: seen.append(y))
    want = net(x).features
    folded = lc.nn.fold_batch_norms(net)
    assert not folded.is_fused
    torch.testing.assert_close(folded(x).features, want, rtol=1e-4, atol=1e-4)
    assert len(seen) == 2


def test_dense_blocks_add_too() -> None:
    body = lc.nn.Conv2d(3, 3, 3, padding=1)
    x = torch.randn(1, 3, 5, 6)
    torch.testing.assert_close(Residual(body)(x), (body(x) + x).relu())
