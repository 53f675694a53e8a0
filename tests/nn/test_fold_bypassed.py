"""Folding of modules that a network calls, or reads, past the module that they belong to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

import layoutconv as lc
from layoutconv.nn.reached_modules import reached_modules

from .test_fold_called import prepared


class Block(nn.Module):
    """A block with a method that is no part of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))

    def raw(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Network(nn.Module):
    """A network whose forward pass is a function of it and its input."""

    def __init__(self, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.call, self.block = call, Block()
        parts = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)
        self.body, self.held = nn.Sequential(*parts), nn.ModuleList([Block()])
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.refs = [self.block.conv]

    def forward(self, x: Tensor, option: Any = None) -> Any:
        return self.call(self, x)


class Strict(Network):
    """One without an option, which may be folded itself."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return self.call(self, x)


def image() -> Tensor:
    return torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0)).double()


def collected(net: Any, x: Tensor) -> Tensor:
    found = []
    for module in net.body:
        x = module(x)
        found.append(x)
    return torch.cat(found)


def in_turn(net: Any, x: Tensor) -> Tensor:
    for module in net.body:
        x = module(x)
    return x


def one(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


PAST_A_MODULE: dict[str, Callable[[Any, Tensor], Any]] = {
    "a convolution": lambda net, x: net.block(x) + net.block.conv(x),
    "a norm": lambda net, x: net.block.norm(net.block(x)),
    "an activation": lambda net, x: net.block.act(net.block(x)),
    "a method": lambda net, x: net.block(x) + net.block.raw(x),
    "one in a list": lambda net, x: net.held[0](x) + net.held[0].conv(x),
    "a reference": lambda net, x: net.block(x) + net.refs[0](x),
    "each of a sequence": collected,
    "each of a sequence, and one again": lambda net, x: in_turn(net, x) + net.body[0](x),
    "a slice of a sequence": lambda net, x: net.body(x) + net.body[:1](x),
    "one of a sequence": lambda net, x: net.body(x) + net.body[0](x),
    "a weight": lambda net, x: net.block(x) + conv2d(x, net.block.conv.weight, padding=1),
    "a running mean": lambda net, x: net.block(x) * one(net.block.norm.running_mean),
    "its own weight": lambda net, x: net.norm(net.conv(x)) + conv2d(x, net.conv.weight),
    "the weight of its own norm": lambda net, x: net.norm(net.conv(x)) * one(net.norm.weight),
}


@pytest.mark.parametrize("kind", [Network, Strict])
@pytest.mark.parametrize("name", PAST_A_MODULE)
@torch.no_grad()
def test_what_is_reached_past_a_module_is_not_folded(name: str, kind: Any) -> None:
    net = prepared(kind(PAST_A_MODULE[name]))
    expected = net(image())
    folded = lc.nn.fold_batch_norms(copy.deepcopy(net))
    torch.testing.assert_close(folded(image()), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: net.held[0](net.block(x)),
        lambda net, x: in_turn(net, net.held[0](net.block(x))),
        lambda net, x: net.block(x.to(net.block.conv.weight.dtype)),
    ],
)
@torch.no_grad()
def test_other_passes_hinder_no_folding(call: Any) -> None:
    net: Any = prepared(Network(call))
    expected = net(image())
    assert not reached_modules(net)
    lc.nn.fold_batch_norms(net)
    assert type(net.block.norm) is type(net.block.act) is type(net.held[0].norm) is nn.Identity
    assert type(net.body[1]) is type(net.body[2]) is nn.Identity
    torch.testing.assert_close(net(image()), expected, rtol=1e-12, atol=1e-12)


def _other_order(self: Any, x: Tensor) -> Tensor:
    found: Tensor = self.conv(self.norm(x))
    return found


@pytest.mark.parametrize("place", ["norm", "block", "sequence"])
@torch.no_grad()
def test_a_forward_pass_of_one_module_alone_is_heeded(place: str) -> None:
    block = Block()
    net = prepared(nn.Sequential(block, nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    if place == "norm":
        block.norm.forward = lambda x: 2 * x  # type: ignore[method-assign, assignment]
    elif place == "block":
        block.forward = MethodType(_other_order, block)  # type: ignore[method-assign, assignment]
    else:
        net.forward = lambda x: net[1](net[2](net[0](x)))  # type: ignore[index, method-assign, assignment]
    expected = net(image())
    lc.nn.fold_batch_norms(net)
    torch.testing.assert_close(net(image()), expected, rtol=1e-12, atol=1e-12)


class Buffered(Block):
    """A block whose forward pass reads the value of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x) + x) * float(self.factor)  # type: ignore[arg-type]


@torch.no_grad()
def test_values_of_buffers_are_those_of_each_call() -> None:
    net: Any = prepared(nn.Sequential(Buffered()))
    lc.nn.fold_batch_norms(net)
    before = net(image())
    net[0].factor.fill_(4)
    torch.testing.assert_close(net(image()), 2 * before)


class Doubled(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


doubled = Doubled.apply

READERS: dict[str, Callable[[Tensor], Any]] = {
    "as_tensor": lambda x: torch.as_tensor(x),
    "asarray": lambda x: torch.asarray(x),
    "tensor": lambda x: torch.tensor(x),
    "new_tensor": lambda x: torch.ones(1).double().new_tensor(x),
    "sparse": lambda x: (
        x + torch.sparse_csr_tensor([0, 1], [0], x.detach().flatten()[:1]).to_dense()
    ),
    "data": lambda x: setattr(torch.zeros(1), "data", x) or x,
    "arange": lambda x: x + torch.arange(x.shape[-1]).to(x),
    "zeros": lambda x: x + torch.zeros(x.shape[-1], dtype=x.dtype),
    "full": lambda x: x + torch.full((1,), x.shape[-1], dtype=x.dtype),
    "a constructor": lambda x: torch.DoubleTensor(x),
    "nested": lambda x: x + torch.nested.nested_tensor([x.detach()]).unbind()[0],
    "a gradient": lambda x: torch.func.grad(lambda v: v.sum())(x),
    "a trace": lambda x: torch.jit.trace(lambda v: v, x)(x),
    "a function of autograd": lambda x: Doubled.apply(x),
    "a function of autograd by another name": lambda x: doubled(x),
}


@pytest.mark.parametrize("name", READERS)
def test_no_tracer_hands_a_proxy_to_code_that_reads_its_memory(name: str) -> None:
    """Such code took a proxy for a tensor, and ended the process."""

    class Ending(Block):
        def forward(self, x: Tensor) -> Tensor:
            return READERS[name](super().forward(x))

    net, x = prepared(nn.Sequential(Ending(), Ending())), image()
    before = net(x).detach()
    net, report = lc.nn.fuse_batch_norms(net, return_report=True)
    assert report.fused == ()
    torch.testing.assert_close(lc.nn.fold_batch_norms(net)(x).detach(), before)
