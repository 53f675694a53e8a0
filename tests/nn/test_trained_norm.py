"""Norms, sums and activations in training as one pass; operations of torch stand in for kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.gpu.row_norm import Norm
from layoutconv.nn import Residual, Sequential, row_norm, trained_norm, unfused
from layoutconv.nn.counted_rows import CountedRows, WithoutDropout
from layoutconv.nn.fused_norm import fused
from layoutconv.sparse import SparseTensor

C = 8


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Norm]]:
    """The passes that there were."""
    found: list[Norm] = []

    def noted(x: Tensor, norm: Norm) -> Tensor | None:
        if not isinstance(norm.momentum, float):
            return None
        found.append(norm)
        return row_norm.batch_norm(x, norm)

    monkeypatch.setattr(trained_norm, "by_kernels", noted)
    with fused():
        yield found


@pytest.fixture
def networks(load_benchmark: Any) -> Any:
    return load_benchmark("spconv_networks")


def cloud(seed: int = 0) -> SparseTensor:
    random = torch.Generator().manual_seed(seed)
    grid = torch.randn(2, 6, 6, 6, C, generator=random)
    grid[torch.rand(2, 6, 6, 6, generator=random) < 0.6] = 0
    return SparseTensor.from_dense(grid)


def step(net: nn.Module, features: Tensor, of: Callable[[Tensor], Any]) -> list[Tensor]:
    """The result, gradients of features and parameters, and buffers after it."""
    features = features.clone().requires_grad_()
    y = net(of(features)).features
    wanted = [features, *net.parameters()]
    grads = torch.autograd.grad((y * torch.linspace(-1, 2, y.shape[1])).sum(), wanted)
    return [y.detach(), *grads, *(buffer.double() for buffer in net.buffers())]


def check(net: nn.Module, features: Tensor, of: Callable[[Tensor], Any]) -> None:
    """In float64, as gradients of a bias before a norm are zero."""
    net, features = net.train().double(), features.double()
    with unfused():
        want = step(copy.deepcopy(net), features, of)
    for got, expected in zip(step(copy.deepcopy(net), features, of), want, strict=True):
        limit = 1e-9 * float(expected.abs().max().clamp(min=1))
        torch.testing.assert_close(got, expected, rtol=0, atol=limit)


def test_sequences_and_residual_blocks(passes: list[Norm]) -> None:
    torch.manual_seed(0)
    conv = lc.nn.SubmConv3d
    body = Sequential(conv(C, C, 3), nn.BatchNorm1d(C), nn.ReLU(), conv(C, C, 3), nn.BatchNorm1d(C))
    net = Sequential(
        conv(C, C, 3), nn.BatchNorm1d(C, momentum=0.3), nn.ReLU(), Residual(body),
        lc.nn.SparseConv3d(C, 12, 2, 2), nn.BatchNorm1d(12, affine=False), nn.ReLU(),
    )  # fmt: skip
    x = cloud()
    check(net, x.features, x.replace)
    assert [(norm.activation, norm.past is not None) for norm in passes] == [
        ("relu", False), ("relu", False), ("relu", True), ("relu", False)
    ]  # fmt: skip


@pytest.mark.parametrize("recorded", [True, False])
def test_features_that_are_added_may_want_a_gradient_alone(recorded: bool) -> None:
    """As a shortcut past a frozen network; second derivatives and batches of gradients ask so."""
    x, weight, grad = torch.randn(5, C), torch.ones(C), torch.randn(5, C)
    out = torch.randn(5, C)
    with torch.set_grad_enabled(recorded):
        *of_leaves, own = row_norm.gradients_of_rows((x, weight, None), None, 1e-5, out, grad)
    assert of_leaves == [None, None, None]
    assert own is not None
    assert torch.equal(own, grad * (out > 0))


def test_a_network_in_spconvs_names(passes: list[Norm], networks: Any) -> None:
    torch.manual_seed(0)
    net = networks.residual_backbone(spconv, 4, width=0.25)
    random = torch.Generator().manual_seed(0)
    cells = (torch.rand(3000, 4, generator=random) * torch.tensor([2, 41, 40, 40])).int()
    cells = cells.unique(dim=0)
    features = torch.randn(len(cells), 4, generator=random)
    check(net, features, lambda f: spconv.SparseConvTensor(f, cells, [41, 40, 40], 2))
    norms = sum(isinstance(module, nn.BatchNorm1d) for module in net.modules())
    assert len(passes) == norms == 21
    assert sum(norm.past is not None for norm in passes) == 8
    assert all(norm.activation == "relu" for norm in passes)


def test_rows_without_a_cell_in_a_captured_step(passes: list[Norm]) -> None:
    """Norms are fused there, too, and results are those of the rows that there are."""
    torch.manual_seed(0)
    conv, norm = lc.nn.SubmConv3d, nn.BatchNorm1d
    body = Sequential(conv(C, C, 3), norm(C), nn.ReLU(), conv(C, C, 3), norm(C))
    net = Sequential(conv(C, C, 3), norm(C), nn.ReLU(), Residual(body)).train().double()
    x = cloud()
    features, rows = x.features.double(), len(x)
    with unfused():
        want = step(copy.deepcopy(net), features, x.replace)
    padded = x.padded(rows + 37)
    there, asked = padded.coords[:, 0] >= 0, []

    def of(count: int) -> Tensor | None:
        asked.append(count)
        return there if count == len(there) else None

    more = torch.full((37, C), 3.0, dtype=torch.float64)
    with CountedRows(of), WithoutDropout():
        got = step(net, torch.cat([features, more]), padded.replace)
    assert [norm.past is not None for norm in passes] == [False, False, True]
    assert all(norm.there is there and norm.counted is not None for norm in passes)
    assert asked == [len(there)]
    assert not got[0][rows:].any()
    for found, expected in zip(got, want, strict=True):
        found = found[:rows] if len(found.shape) == 2 and len(found) == len(there) else found
        limit = 1e-9 * float(expected.abs().max().clamp(min=1))
        torch.testing.assert_close(found, expected, rtol=0, atol=limit)


def test_another_mode_sees_every_function(passes: list[Norm]) -> None:
    net = Sequential(lc.nn.SubmConv3d(C, C, 3), nn.BatchNorm1d(C), nn.ReLU()).train()
    with CountedRows(lambda rows: None), torch.device("cpu"):
        net(cloud())
    assert not passes


@pytest.mark.parametrize("why", ["hooks", "evaluation", "momentum", "rows", "activation", "padded"])
def test_what_runs_as_torch_has_it(why: str, passes: list[Norm]) -> None:
    norm, last, x = nn.BatchNorm1d(C), nn.ReLU(), cloud()
    net = Sequential(lc.nn.SubmConv3d(C, C, 3), norm, last).train()
    if why == "hooks":
        norm.register_forward_hook(lambda *of: None)
    elif why == "evaluation":
        norm.eval()
    elif why == "activation":
        net[2] = nn.Softmax(1)
    elif why == "padded":
        x = x.padded(300)
    elif why == "rows":
        dense = torch.zeros(1, 3, 3, 3, C)
        dense[0, 1, 1, 1] = 1
        x = SparseTensor.from_dense(dense)
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            net(x)
        return
    elif why == "momentum":  # a mean over all batches, of which torch computes the share
        norm.momentum = None
    net(x)
    assert [one.activation for one in passes] == ([None] if why == "activation" else [])
