"""Convolutions and norms in training as one function: the bits of both apart, and their gradients.

A CPU runs them; operations of torch stand in for the norms' kernels.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch import conv as compat_conv
from layoutconv.gpu import row_norm as launches
from layoutconv.gpu.row_norm import Norm, NormPlan
from layoutconv.nn import Residual, Sequential, fused_modules, row_norm, trained_layer
from layoutconv.nn.fused_norm import fused
from layoutconv.nn.trained_layer import TRAINED, TrainedLayer
from layoutconv.ops import sparse_calls

from ..watched import Watch

C = 8
SHAPE = [9, 8, 7]


def forward(x: Tensor, norm: Norm, plan: NormPlan | None = None) -> tuple[Tensor, Tensor]:
    """A norm's kernels forward, and what they keep."""
    assert norm.running is not None
    wide = x.float()
    mean, var = wide.mean(0), wide.var(0, unbiased=False)
    inverse = (var + norm.eps).rsqrt()
    y = (wide - mean) * inverse * norm.weight + norm.bias
    y = y if norm.past is None else y + norm.past
    y = (y if norm.activation is None else y.relu()).to(x.dtype)
    for memory, now in zip(norm.running, (mean, var), strict=True):
        memory.lerp_(now, norm.momentum)
    if norm.counted is not None:
        norm.counted.add_(1)
    return y, torch.cat([mean, inverse, torch.tensor([float(len(x))])])


def backward(
    x: Tensor, norm: Norm, out: Tensor | None, kept: Tensor, grad: Tensor, plan: NormPlan
) -> tuple[Tensor, Tensor | None, Tensor]:
    """And backward."""
    own = grad.float() if out is None else grad.float() * (out > 0)
    mean, inverse = kept[:-1].view(2, -1)
    unit = (x.float() - mean) * inverse
    of_parameters = torch.stack([(own * unit).sum(0), own.sum(0)])
    dx = own - own.mean(0) - unit * (own * unit).mean(0)
    dx = (dx * inverse * norm.weight).to(x.dtype)
    return dx, own.to(x.dtype) if plan.kernels.shape.added else None, of_parameters


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch, watched: Watch) -> Iterator[list[bool]]:
    """The calls of known layers there were, and whether each ran as one function."""
    sparse_calls.forget()
    monkeypatch.setattr(launches, "normalised", forward)
    monkeypatch.setattr(launches, "gradients", backward)
    for module in (row_norm, trained_layer):
        monkeypatch.setattr(module, "on_kernels", launches.takes)
    with fused():
        yield watched("run", TrainedLayer, note=lambda call: call.result is not None)
    sparse_calls.forget()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which there are no such layers, nor known calls."""

    def end() -> None:
        sparse_calls.forget()
        for module in (compat_conv, fused_modules):
            monkeypatch.setattr(module, "trained_layer", lambda *_: None)

    return end


class Block(spconv.SparseModule):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = spconv.SubMConv3d(C, C, 3, indice_key="a"), nn.BatchNorm1d(C)
        self.conv2, self.bn2 = spconv.SubMConv3d(C, C, 3, indice_key="a"), nn.BatchNorm1d(C)
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.conv1(x)
        y = y.replace_feature(self.relu(self.bn1(y.features)))
        y = self.conv2(y)
        y = y.replace_feature(self.bn2(y.features))
        return y.replace_feature(self.relu(y.features + x.features))


def in_spconvs_names() -> nn.Module:
    down = spconv.SparseConv3d(C, 2 * C, 3, 2, 1, bias=False, indice_key="b")
    up = spconv.SparseInverseConv3d(2 * C, C, 3, indice_key="b")
    return spconv.SparseSequential(
        spconv.SubMConv3d(C, C, 3, indice_key="a"), nn.BatchNorm1d(C), nn.ReLU(), Block(),
        down, nn.BatchNorm1d(2 * C), nn.ReLU(), up, nn.BatchNorm1d(C),
    )  # fmt: skip


def in_ours() -> nn.Module:
    conv, norm = lc.nn.SubmConv3d, nn.BatchNorm1d
    body = Sequential(conv(C, C, 3), norm(C), nn.ReLU(), conv(C, C, 3, bias=False), norm(C))
    return Sequential(
        conv(C, C, 3), norm(C), nn.ReLU(), Residual(body), lc.nn.SparseConv3d(C, 12, 2, 2), norm(12)
    )


def cells_of(seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    cells = torch.rand(150 + 10 * seed, 4, generator=random) * torch.tensor([2, *SHAPE])
    return cells.int().unique(dim=0)


def features_on(net: nn.Module, features: Tensor, cells: Tensor) -> Tensor:
    if isinstance(net, Sequential):
        found: Tensor = net(lc.SparseTensor(features, cells, SHAPE, 2)).features
    else:
        found = net(spconv.SparseConvTensor(features, cells, SHAPE, 2)).features
    return found


def steps(net: nn.Module, autocast: bool = False, graph: bool = False) -> list[Tensor]:
    """Results, gradients and buffers of steps on several clouds, gradients of two being summed."""
    found = []
    for seed in range(4):
        cells = cells_of(seed)
        random = torch.Generator().manual_seed(seed)
        features = torch.randn(len(cells), C, generator=random)
        features = features.bfloat16() if autocast else features
        features.requires_grad_()
        on = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
        with on:
            y = features_on(net, features, cells)
        y.float().square().mean().backward(create_graph=graph)
        found.append(y.detach())
        found += [t.grad.detach().clone() for t in (features, *net.parameters())]
        if graph:
            second = sum(t.grad.square().sum() for t in (features, *net.parameters()))
            found += torch.autograd.grad(second, [features, *net.parameters()])
        found += [buffer.clone() for buffer in net.buffers()]
        if seed % 2 or graph:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.data.sub_(parameter.grad, alpha=0.1)  # what no version counts
                    parameter.grad = None
    return found


def check(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", [in_spconvs_names, in_ours])
def test_the_bits_of_both_apart(
    make: Any, autocast: bool, graph: bool, ran: list[bool], apart: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    net = make().train()
    other = copy.deepcopy(net)
    got = steps(net, autocast, graph)
    assert all(ran)
    assert len(ran) >= 3 * sum(isinstance(module, nn.BatchNorm1d) for module in net.modules())
    count = len(ran)
    apart()
    check(got, steps(other, autocast, graph))
    assert len(ran) == count


def warm(net: nn.Module, count: int = 2) -> nn.Module:
    for seed in range(count):
        cells = cells_of(seed)
        x = torch.ones(len(cells), C, requires_grad=True)
        features_on(net, x, cells).sum().backward()
    net.zero_grad()
    return net


def kept(net: nn.Module) -> list[nn.Module]:
    return [module for module in net.modules() if module.__dict__.get(TRAINED)]


@pytest.mark.parametrize("wanted", ["features", "filters", "norms", "biases", "everything"])
def test_gradients_that_are_asked_for(wanted: str, apart: Callable[[], None]) -> None:
    torch.manual_seed(0)
    net, cells = in_spconvs_names(), cells_of(3)
    other = copy.deepcopy(net)
    names = {"filters": "weight", "biases": "bias"}
    found = []
    for one in (net, other):
        if one is other:
            apart()
        warm(one)
        features = torch.linspace(-1, 1, len(cells) * C).view(-1, C).requires_grad_()
        of_norms = [
            p for m in one.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()
        ]
        own = [p for p in one.parameters() if all(p is not of for of in of_norms)]
        leaves = {
            "features": [features],
            "norms": of_norms,
            "everything": [features, *own, *of_norms],
        }.get(wanted)
        if leaves is None:
            leaves = [p for p in own if (p.dim() > 1) is (names[wanted] == "weight")]
        y = features_on(one, features, cells)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    check(*found)


@pytest.mark.parametrize("asked", ["of autograd", "of torch.func"])
@pytest.mark.parametrize("joined", [True, False])
def test_gradients_in_many_directions_at_once(
    joined: bool, asked: str, ran: list[bool], apart: Callable[[], None]
) -> None:
    """Kernels read no batch of gradients: each is what it is alone."""
    torch.manual_seed(0)
    net, cells = warm(in_ours()), cells_of(3)
    if not joined:
        apart()
    count, features = len(ran), torch.randn(len(cells), C, requires_grad=True)
    leaves = [features, *net.parameters()]
    y = features_on(net, features, cells)
    assert (len(ran) > count) is joined
    many = torch.randn(3, *y.shape)

    def along(one: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, leaves, one, retain_graph=True)

    if asked == "of autograd":
        found = torch.autograd.grad(y, leaves, many, is_grads_batched=True, retain_graph=True)
    else:
        found = torch.vmap(along)(many)
    expected = [torch.stack(each) for each in zip(*map(along, many), strict=True)]
    torch.testing.assert_close(list(found), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool, ran: list[bool], apart: Callable[[], None]) -> None:
    """The first one's forward pass knows of no layer yet, where the one it runs again does."""
    torch.manual_seed(0)
    net = in_spconvs_names()
    other, found = copy.deepcopy(net), []
    for one in (net, other):
        if one is other:
            assert any(ran)
            apart()
        for seed in range(3):
            cells = cells_of(seed)
            x = torch.linspace(-1, 1, len(cells) * C).view(-1, C).requires_grad_()
            y = checkpoint(features_on, one, x, cells, use_reentrant=reentrant)
            y.square().sum().backward()
            found.append([y, x.grad, *(p.grad for p in one.parameters())])
            one.zero_grad()
    for got, want in zip(found[:3], found[3:], strict=True):
        check(got, want)


def of_a_hook(net: Any) -> None:
    net[0].register_forward_hook(lambda module, given, made: None)


def of_gradients(net: Any) -> None:
    net[1].register_full_backward_hook(lambda module, dx, dy: None)


def of_a_number(net: Any) -> None:
    net[1].eps = 0.25


def of_a_momentum(net: Any) -> None:
    net[1].momentum = 0.5


def of_a_filter(net: Any) -> None:
    net[0].weight = nn.Parameter(net[0].weight.double().float(), requires_grad=False)


def of_memory(net: Any) -> None:
    net[1].weight = nn.Parameter(torch.ones(2 * C)[::2])


def of_a_call_cache(net: Any) -> None:
    sparse_calls.forget()


@pytest.mark.parametrize(("change", "left"), [
    (of_a_hook, 4), (of_gradients, 4), (of_a_number, 5), (of_a_momentum, 5), (of_a_filter, 4),
    (of_memory, 4), (of_a_call_cache, 2),
])  # fmt: skip
def test_what_came_to_something_else(
    change: Any, left: int, ran: list[bool], apart: Callable[[], None]
) -> None:
    torch.manual_seed(0)
    net = in_spconvs_names()
    other = copy.deepcopy(net)
    found = []
    for one in (net, other):
        if one is other:
            apart()
        warm(one)
        change(one)
        cells = cells_of(2)
        ran.clear()
        x = torch.linspace(-1, 1, len(cells) * C).view(-1, C).requires_grad_()
        y = features_on(one, x, cells)
        if one is net:
            assert ran.count(True) == left
        y.square().sum().backward()
        grads = [p.grad for p in one.parameters() if p.requires_grad]
        found.append([y, x.grad, *grads, *one.buffers()])
    check(*found)


def test_hooks_of_gradients_are_called() -> None:
    net, seen = warm(in_spconvs_names()), []
    for module in (net[1], net[2]):
        module.register_full_backward_hook(lambda module, dx, dy: seen.append(type(module)))
    warm(net, 1)
    assert seen == [nn.ReLU, nn.BatchNorm1d]


def test_a_filter_that_was_written_to() -> None:
    net, cells = in_spconvs_names(), cells_of(2)
    x = torch.ones(len(cells), C, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            y = features_on(net, x, cells).sum()
    assert len(kept(net)) == 5
    with torch.no_grad():
        net[-2].weight.add_(1)
    (dx,) = torch.autograd.grad(y, x, retain_graph=True)  # of the lowered one, as it was
    assert dx.shape == x.shape
    with pytest.raises(RuntimeError, match="written to"):
        torch.autograd.grad(y, x, create_graph=True)


def test_copies_know_no_layer() -> None:
    net = warm(in_spconvs_names())
    assert len(kept(net)) == 5
    assert not kept(copy.deepcopy(net))
    assert not kept(pickle.loads(pickle.dumps(net[0])))
    assert "trained" not in str(net.state_dict().keys())


def test_norms_over_ranks_are_on_their_own(ran: list[bool]) -> None:
    """Also of a process that is alone, which may have others beside it from the next call on."""
    net = spconv.SparseSequential(spconv.SubMConv3d(C, C, 3), nn.SyncBatchNorm(C), nn.ReLU())
    warm(net, 3)
    assert not kept(net)
    assert not ran


def test_a_loss_that_is_held_holds_no_map() -> None:
    net, cells = warm(in_spconvs_names()), cells_of(2)
    x = spconv.SparseConvTensor(torch.ones(len(cells), C, requires_grad=True), cells, SHAPE, 2)
    y = net(x)
    maps = [weakref.ref(data.map) for data in y.indice_dict.values()]
    loss = y.features.square().sum()
    del x, y
    gc.collect()
    assert all(found() is not None for found in maps)
    loss.backward()
    gc.collect()
    assert len(maps) == 2
    assert not any(found() for found in maps)


def test_another_grad_mode_and_evaluation(ran: list[bool]) -> None:
    net, cells = warm(in_spconvs_names()), cells_of(2)
    ran.clear()
    with torch.no_grad():
        y = features_on(net, torch.ones(len(cells), C), cells)
    assert not y.requires_grad
    assert not any(ran)
    ran.clear()
    net.eval()
    assert features_on(net, torch.ones(len(cells), C), cells).requires_grad
    assert not ran


def test_results_that_are_written_to(apart: Callable[[], None]) -> None:
    """As by an in-place activation of a project: without a ReLU nothing backward reads them."""
    torch.manual_seed(0)
    net, cells = spconv.SparseSequential(spconv.SubMConv3d(C, C, 3), nn.BatchNorm1d(C)), cells_of(2)
    other, found = copy.deepcopy(net), []
    for one in (net, other):
        if one is other:
            assert len(kept(net)) == 1
            apart()
        warm(one)
        y = features_on(one, torch.linspace(-1, 1, len(cells) * C).view(-1, C), cells)
        y.mul_(2).relu_()
        y.square().sum().backward()
        found.append([y, *(p.grad for p in one.parameters())])
    check(*found)
