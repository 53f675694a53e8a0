"""Sums after convolutions in evaluation, and ReLUs, as one call, beside what modules did before."""

from __future__ import annotations

import copy
import operator
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn import dense_sum, sum_chains
from layoutconv.nn.forward_code import compiled

from ..watched import Watch
from .test_fold_called import Block, prepared


class Ends(nn.Module):
    """A module whose forward pass is a function of it and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.call = forward
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.act, self.other, self.pool = nn.ReLU(inplace=True), nn.ReLU(), nn.MaxPool2d(3, 1, 1)
        self.same, self.norm = nn.Identity(), nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.Identity())
        expanded = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU6(True)), nn.Conv2d(8, 8, 3, 1, 1, 1, 8)
        self.deep = nn.Sequential(*expanded, nn.Sequential(nn.Conv2d(8, 4, 1)), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def image(seed: int = 0) -> Tensor:
    return torch.randn(2, 4, 7, 6, generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture
def launches(watched: Watch) -> list[bool]:
    """Grows by True with each call of a chain that is one launch, by False with others."""
    return watched("_is_one_launch", dense_sum, note=lambda call: call.result)


CHAINS: dict[str, tuple[Callable[[Any, Tensor], Tensor], int]] = {
    "a sum": (lambda net, x: net.act(net.first(x) + x), 1),
    "the other way": (lambda net, x: torch.relu(x + net.first(x)), 1),
    "in place": (lambda net, x: net.act(operator.iadd(net.first(x), x)), 1),
    "by a method": (lambda net, x: net.first(x).add_(x).relu_(), 1),
    "a shortcut that comes later": (lambda net, x: net.act(net.first(x) + net.second(x)), 1),
    "a pool in between": (lambda net, x: net.act(net.first(x) + net.pool(x)), 1),
    "identities": (lambda net, x: net.act(net.same(net.first(x)) + x), 1),
    "a sequence": (lambda net, x: net.act(net.body(x) + x), 1),
    "no ReLU": (lambda net, x: net.first(x) + x, 1),
    "no ReLU, in place": (lambda net, x: operator.iadd(net.first(x), x), 1),
    "another function after it": (lambda net, x: torch.sigmoid(x + net.first(x)), 1),
    "a sum that is read again": (lambda net, x: (s := net.first(x) + x) * net.other(s), 1),
    "a sum that changes": (lambda net, x: net.act((net.first(x) + x).mul_(2)), 1),
    "of two convolutions": (lambda net, x: net.first(x) + net.second(x), 1),
    "the end of a container": (lambda net, x: x + net.deep(x), 1),
    "the end of a container, and a ReLU": (lambda net, x: net.act(net.deep(x) + net.pool(x)), 1),
    "sums in a row": (lambda net, x: net.second(y := net.first(x) + x) + y, 2),
    "one after the other": (
        lambda net, x: net.other(net.second(y := net.act(net.first(x) + x)) + y), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
@torch.no_grad()
def test_a_chain_is_one_launch(name: str, launches: list[bool]) -> None:
    call, count = CHAINS[name]
    net = prepared(Ends(call))
    code = sum_chains.rewritten(net)
    assert code is not None
    x = image()
    found = compiled(code)(net, x.clone())
    assert launches == [True] * count
    torch.testing.assert_close(found, net(x.clone()), rtol=1e-12, atol=1e-12)


OTHERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "no sum": lambda net, x: net.act(net.first(x)),
    "a number": lambda net, x: net.act(net.first(x) + 1.0),
    "itself": lambda net, x: net.act((y := net.first(x)) + y),
    "a result that is read again": lambda net, x: net.act((y := net.first(x)) + x) + y,
    "a factor": lambda net, x: net.act(torch.add(net.first(x), x, alpha=2)),
    "added to the input": lambda net, x: net.act(operator.iadd(x.clone(), net.first(x))),
    "written in between": lambda net, x: net.act(net.first(x) + x.mul_(2)),
    "another function in between": lambda net, x: net.act(net.first(x) + x.square()),
    "the same convolution in between": lambda net, x: net.act(net.first(x) + net.first(x * 2)),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_what_is_no_chain_stays(name: str) -> None:
    net = prepared(Ends(OTHERS[name]))
    code = sum_chains.rewritten(net)
    if code is not None:  # of another convolution of the same pass
        assert name == "the same convolution in between"
        torch.testing.assert_close(
            compiled(code)(net, image()), net(image()), rtol=1e-12, atol=1e-12
        )


@torch.no_grad()
def test_what_changes_later_runs_as_it_is(launches: list[bool]) -> None:
    net: Any = prepared(Ends(CHAINS["identities"][0]))
    run = compiled(sum_chains.rewritten(net))  # type: ignore[arg-type]
    calls: list[Any] = []

    def check(expected: bool, x: Tensor | None = None) -> None:
        launches.clear()
        given = image() if x is None else x
        torch.testing.assert_close(run(net, given), net(given), rtol=1e-5, atol=1e-5)
        assert launches == [expected]

    check(True)
    handle = net.same.register_forward_hook(lambda *_: calls.append(1))
    check(False)
    assert len(calls) == 2
    handle.remove()
    check(True)
    net.same = nn.Dropout(0.0)
    check(False)
    net.same = nn.Identity()
    net.first.activation = "relu"
    check(False)
    net.first.activation = None
    net.act = nn.GELU()
    check(False)
    net.act = nn.ReLU()
    with torch.autocast("cpu", torch.bfloat16):
        launches.clear()
        x = image().float()
        net.float()
        assert run(net, x).dtype is net(x).dtype is torch.float32  # what is added is not lowered
        assert launches == [False]


@pytest.mark.parametrize(
    ("change", "count"), [("replaced", 0), ("before", 1), ("appended", 0), ("hooked", 0)]
)
@torch.no_grad()
def test_containers_that_change_later_run_as_they_are(
    change: str, count: int, launches: list[bool]
) -> None:
    """Names are in any order; nothing is set in the block, whose class stays."""
    net: Any = Ends(CHAINS["a sequence"][0])
    names = {"before": nn.Identity(), "conv": nn.Conv2d(4, 4, 3, 1, 1), "bn": nn.Identity()}
    net.body = nn.Sequential(OrderedDict(names))
    net = prepared(net)
    run = compiled(sum_chains.rewritten(net))  # type: ignore[arg-type]
    torch.testing.assert_close(run(net, image()), net(image()), rtol=1e-12, atol=1e-12)
    assert launches == [True]
    if change == "replaced":
        net.body.bn = nn.Tanh()
    elif change == "before":
        net.body.before = nn.Tanh()
    elif change == "appended":
        net.body.append(nn.Tanh())
    else:
        net.body.bn.register_forward_hook(lambda *_: torch.zeros(2, 4, 7, 6).double())
    launches.clear()
    torch.testing.assert_close(run(net, image()), net(image()), rtol=1e-12, atol=1e-12)
    assert launches == [bool(count)]


@torch.no_grad()
def test_a_container_stays_where_it_was() -> None:
    """Memory that it writes to is read later, and hooks on all modules see those within."""
    net: Any = Ends(lambda net, x: net.act(net.deep(x) + net.pool(x)))
    net.deep.insert(0, nn.ReLU(inplace=True))
    net = prepared(net)
    run = compiled(sum_chains.rewritten(net))  # type: ignore[arg-type]
    one, other = image(), image()
    torch.testing.assert_close(run(net, one), net(other), rtol=1e-12, atol=1e-12)
    assert torch.equal(one, other)
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, y: seen.append(m))
    try:
        run(net, image())
    finally:
        handle.remove()
    assert {net.act, net.pool, *net.deep.modules()} == set(seen)


@torch.no_grad()
def test_shapes_that_broadcast_are_torchs(launches: list[bool]) -> None:
    net: Any = prepared(Ends(lambda net, x: net.act(net.first(x) + x[:, :, :1])))
    x = torch.randn(2, 4, 7, 6).double()
    conv, past = net.first, x[:, :, :1]
    found = dense_sum.summed(conv, x, net.act, past)
    torch.testing.assert_close(found, torch.relu(conv(x) + past), rtol=1e-12, atol=1e-12)
    assert launches == [False]
    net.call = lambda net, x: net.act(x + net.first(x[:1]))  # of one image: x is contiguous
    found, expected = compiled(sum_chains.rewritten(net))(net, x), net(x)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.stride() == expected.stride()
    assert launches == [False, False]


def test_gradients_in_evaluation(launches: list[bool]) -> None:
    net = prepared(Ends(CHAINS["a sum"][0]))
    run = compiled(sum_chains.rewritten(net))  # type: ignore[arg-type]
    x, w = image().requires_grad_(), next(net.parameters())
    one, other = (torch.autograd.grad(f(x).sum(), (x, w)) for f in (lambda x: run(net, x), net))
    assert launches == [True]
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", ["same", "valid", (1, 0), ((1, 0), (2, 1))])
@torch.no_grad()
def test_shapes_of_results(padding: Any) -> None:
    conv = lc.nn.Conv2d(4, 4, 3, padding=padding).double()
    shape = dense_sum._shape_of(conv, image())
    assert shape == (None if isinstance(padding[0], tuple) else conv(image()).shape)
    assert dense_sum._shape_of(conv, image()[0]) is None


class Inverted(nn.Module):
    """An inverted residual with a linear end, as MobileNetV2 has it."""

    def __init__(self, C: int) -> None:
        super().__init__()
        wide = nn.Sequential(nn.Conv2d(C, 3 * C, 1, bias=False), nn.BatchNorm2d(3 * C), nn.ReLU6())
        deep = nn.Conv2d(3 * C, 3 * C, 3, 1, 1, 1, 3 * C, False), nn.BatchNorm2d(3 * C), nn.ReLU6()
        end = nn.Conv2d(3 * C, C, 1, bias=False), nn.BatchNorm2d(C)
        self.conv = nn.Sequential(wide, nn.Sequential(*deep), *end)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def check_sums(net: Any, kind: type, expected: Tensor, launches: list[bool]) -> None:
    """Both blocks of a network, of a copy and of what a pickle has, end in one launch."""
    for one in net, copy.deepcopy(net), pickle.loads(pickle.dumps(net)):
        launches.clear()
        torch.testing.assert_close(one(image()), expected, rtol=1e-12, atol=1e-12)
        assert launches == [True, True]
        assert isinstance(one[0], kind)
        assert one.state_dict().keys() == net.state_dict().keys()


@torch.no_grad()
def test_folding_lets_linear_bottlenecks_end_in_sums(launches: list[bool]) -> None:
    net = prepared(nn.Sequential(Inverted(4), Inverted(4)))
    expected = net(image())
    folded = lc.nn.fold_batch_norms(net)
    check_sums(folded, Inverted, expected, launches)


@torch.no_grad()
def test_folding_lets_blocks_end_in_sums(launches: list[bool]) -> None:
    """Copies and pickles do so, too; training and attributes that are set bring back the class."""
    net = prepared(nn.Sequential(Block(4, 6, 2), Block(6, 6)))
    expected = net(image())
    folded = lc.nn.fold_batch_norms(net)
    check_sums(folded, Block, expected, launches)
    launches.clear()
    folded.train()(image())
    assert launches == []
    folded.eval()[0].relu = nn.ReLU()  # type: ignore[union-attr]
    assert type(folded[0]) is Block
    torch.testing.assert_close(folded(image()), expected, rtol=1e-12, atol=1e-12)
    assert launches == [True]
    lc.nn.revert(folded)
    assert type(folded[1]) is Block
