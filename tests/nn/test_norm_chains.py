"""Passes in which norms stay: not all of them is known, or more would change than they do; and sums
that end a chain.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layoutconv as lc
from layoutconv.nn.act_norm import is_norm_and

from .test_fuse_batch_norms import C, Functions, image, step


def block(forward: Callable[[Any, Tensor], Any], **more: Any) -> Any:
    """A module with a norm, a ReLU and a convolution."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(C, C, 1), nn.BatchNorm2d(C), nn.ReLU(True)
            self.number, self.kept = 0, [torch.ones(1).double()]
            for name, value in more.items():
                setattr(self, name, value)

    Made.forward = forward  # type: ignore[method-assign]
    torch.manual_seed(0)
    return Made().double()


def used_twice(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    return self.relu(y) + y


def summed_twice(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    return self.relu(y + y)


def seen_through_a_sum_in_place(self: Any, x: Tensor) -> Tensor:
    """The same tensor under two names: a sum that were not in place would leave one as it was."""
    y = self.norm(self.conv(x))
    other = y
    y += x
    return self.relu(y) * other


def added_in_place(self: Any, x: Tensor) -> Tensor:
    x = x.clone()
    y = x
    y += self.norm(self.conv(x))
    return torch.relu(y) + x


def input_changed(self: Any, x: Tensor) -> Tensor:
    h = x.clone()
    y = self.norm(h)
    h.mul_(2)
    with_input = y + x
    return torch.relu(with_input) + h


def input_changed_by_a_module(self: Any, x: Tensor) -> Tensor:
    h = x.clone()
    y = self.norm(h)
    z = self.relu(h)
    return torch.relu(y + z)


def state_between(self: Any, x: Tensor) -> Tensor:
    """Statistics that the norm has just moved."""
    y = self.norm(self.conv(x))
    mean = 2 * self.norm.running_mean.mean()
    return torch.relu(y) * mean


def called_between(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    z = self.norm(x).abs()
    return torch.relu(y + z)


def gelu(self: Any, x: Tensor) -> Tensor:
    return nn.functional.gelu(self.norm(self.conv(x)))


def scaled(self: Any, x: Tensor) -> Tensor:
    return torch.relu(torch.add(self.norm(self.conv(x)), x, alpha=2))


def a_number(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.conv(x)) + 1)


def dropped(self: Any, x: Tensor) -> Tensor:
    return nn.functional.dropout(self.norm(self.conv(x)), 0.0) + x


def a_number_without_a_relu(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.conv(x)) + 1


def added_in_place_without_a_relu(self: Any, x: Tensor) -> Tensor:
    x = x.clone()
    y = x
    y += self.norm(self.conv(x))
    return y * x


def input_changed_before_the_sum(self: Any, x: Tensor) -> Tensor:
    h = x.clone()
    y = self.norm(h)
    h.mul_(2)
    return y + h


def called_before_the_sum(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    z = self.norm(x).abs()
    return y + z


def of_numbers(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    return torch.relu(y) if y.sum() > 0 else y


def by_chance(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.conv(x))) if random.random() < 2 else x


def by_torchs_chance(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.conv(x))) if torch.rand(1) < 2 else x


def without_gradient(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = self.conv(x)
    return torch.relu(self.norm(x))


def without_autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.relu(self.norm(self.conv(x)))


def asks_for_autocast(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.norm(self.conv(x)))
    return y * 2 if torch.is_autocast_enabled("cpu") else y


def checkpointed(self: Any, x: Tensor) -> Any:
    return checkpoint(lambda x: torch.relu(self.norm(self.conv(x))), x, use_reentrant=False)


def saving(self: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return torch.relu(self.norm(self.conv(x)))


def counting(self: Any, x: Tensor) -> Tensor:
    self.number += 1
    return torch.relu(self.norm(self.conv(x)))


def keeping(self: Any, x: Tensor) -> Tensor:
    self.kept.append(x)
    return torch.relu(self.norm(self.conv(x)))


def setting_a_childs(self: Any, x: Tensor) -> Tensor:
    self.conv.seen = object()
    return torch.relu(self.norm(self.conv(x)))


def by_numpys_chance(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.conv(x))) if np.random.rand() < 2 else x


def of_a_tensor(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.conv(x))) * self.kept[0]


def optional(self: Any, x: Tensor, scale: float | None = None) -> Tensor:
    y = torch.relu(self.norm(self.conv(x)))
    return y if scale is None else y * scale


LEFT: list[tuple[Callable[..., Any], str]] = [
    (used_twice, "its result is used more than once"),
    (summed_twice, "no activation that fuses follows it"),
    (seen_through_a_sum_in_place, "its result is used more than once"),
    (added_in_place, "added to a tensor in place"),
    (input_changed, "may be changed before the activation"),
    (input_changed_by_a_module, "may be changed before the activation"),
    (dropped, "no activation that fuses follows it, nor a sum"),
    (a_number_without_a_relu, "what is added to it is not a tensor"),
    (added_in_place_without_a_relu, "added to a tensor in place"),
    (input_changed_before_the_sum, "may be changed before the sum"),
    (called_before_the_sum, "called again before the sum"),
    (state_between, "may be changed before the activation"),
    (called_between, "called again before the activation"),
    (gelu, "no activation that fuses follows it"),
    (scaled, "no activation that fuses follows it"),
    (a_number, "what is added to it is not a tensor"),
    (of_numbers, "torch.fx cannot record it: TraceError"),
    (by_chance, "draws random numbers"),
    (by_torchs_chance, "draws random numbers"),
    (without_gradient, "changes autograd or autocast"),
    (without_autocast, "changes autograd or autocast"),
    (asks_for_autocast, "depends on autocast"),
    (checkpointed, "torch.fx cannot record it"),
    (saving, "changes autograd or autocast"),
    (counting, "sets attributes"),
    (keeping, "sets attributes"),
    (setting_a_childs, "sets attributes"),
    (by_numpys_chance, "draws random numbers"),
    (of_a_tensor, "makes a tensor, or keeps one"),
    (optional, "takes optional arguments"),
]


@pytest.mark.parametrize(("forward", "reason"), LEFT, ids=[f.__name__ for f, _ in LEFT])
def test_what_is_not_known_is_left(
    forward: Callable[..., Any], reason: str, fused_norms: list[tuple[Any, bool]]
) -> None:
    module, x = block(forward), image()[:, :1].repeat(1, C, 1, 1)
    state = random.getstate(), torch.get_rng_state()
    before, kind, copied = dict(module.__dict__), type(module), deepcopy(module)
    _, report = lc.nn.fuse_batch_norms(module, return_report=True)
    assert report.fused == ()
    assert reason in report.left["norm"]
    assert type(module) is kind
    assert module.__dict__ == before
    assert len(module.kept) == 1
    assert module.conv.__dict__.keys() == copied.conv.__dict__.keys()
    assert (random.getstate(), torch.get_rng_state().tolist()) == (state[0], state[1].tolist())
    with torch.no_grad():
        assert torch.equal(module(x.clone()), copied(x.clone()))
    assert fused_norms == []


def queueing(self: Any, x: Tensor) -> Tensor:
    self.queue.append(x)
    self.calls["forward"] += 1
    return torch.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("change", [lc.nn.fuse_batch_norms, lc.nn.fold_batch_norms])
def test_the_look_at_a_pass_leaves_queues_and_counters_as_they_are(change: Any) -> None:
    module = block(queueing).eval()
    module.queue, module.calls = deque([None], maxlen=2), Counter[str]()
    change(torch.nn.Sequential(module).eval())
    assert (list(module.queue), module.calls.total()) == ([None], 0)
    x = image()[:, :1].repeat(1, C, 1, 1)
    module.train()(x)
    assert (module.queue[1] is x, module.calls.total()) == (True, 1)


def linear(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.conv(x)) + x


def shortcut_first(self: Any, x: Tensor) -> Tensor:
    return torch.add(x, self.norm(self.conv(x)))


def summed_in_place(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    y += x
    return y


def summed_by_a_method(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.conv(x)).add_(x)


def past_an_identity(self: Any, x: Tensor) -> Tensor:
    return self.same(self.norm(self.conv(x))) + x


def gelu_of_a_sum(self: Any, x: Tensor) -> Tensor:
    return nn.functional.gelu(self.norm(self.conv(x)) + x)


def sum_used_twice(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x)) + x
    return torch.relu(y) * y


def sum_changed(self: Any, x: Tensor) -> Tensor:
    y = x + self.norm(self.conv(x))
    y.mul_(2)
    return self.relu(y)


def shortcut_changed(self: Any, x: Tensor) -> Tensor:
    """After the sum: a chain that went on to the ReLU would add what it is then."""
    h = x.clone()
    y = self.norm(self.conv(x)) + h
    h.mul_(0)
    return torch.relu(y) + h


def shortcut_that_comes_later(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    return y + self.conv(x).square()


def shortcut_of_one_column(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.conv(x)) + x[..., :1]


def in_a_container(self: Any, x: Tensor) -> Tensor:
    return x + self.end(x)


SUMS: list[Callable[..., Any]] = [
    linear, shortcut_first, summed_in_place, summed_by_a_method, past_an_identity, gelu_of_a_sum,
    sum_used_twice, sum_changed, shortcut_changed, shortcut_that_comes_later,
    shortcut_of_one_column, in_a_container,
]  # fmt: skip


@pytest.mark.parametrize("forward", SUMS, ids=[f.__name__ for f in SUMS])
def test_a_sum_ends_a_chain(
    forward: Callable[..., Any], fused_norms: list[tuple[Any, bool]]
) -> None:
    """The input, which most add, gets a gradient from both."""
    module = block(forward, same=nn.Identity())
    if forward is in_a_container:
        module.end = nn.Sequential(module.conv, nn.ReLU6(inplace=True), nn.Conv2d(C, C, 1).double())
        module.end.append(module.norm)
    ours, report = lc.nn.fuse_batch_norms(module, inplace=False, return_report=True)
    assert report.left == {}
    assert len(report.fused) == 1
    x = image()[:, :1].repeat(1, C, 1, 1)
    assert all(map(torch.equal, step(ours, x), step(module, x)))
    assert fused_norms == [(ours.norm, True)]
    frozen = [net.norm.eval() for net in (module, ours)]
    fused_norms.clear()
    assert all(map(torch.equal, step(ours, x), step(module, x)))
    assert fused_norms == []
    assert not any(norm.training for norm in frozen)


@pytest.mark.parametrize("forward", [linear, shortcut_first, gelu_of_a_sum, sum_changed])
def test_the_first_of_a_sum_decides_on_the_order_of_memory(forward: Callable[..., Any]) -> None:
    """A view and a dropout after it depend on that: here one is contiguous, and one is not."""
    module = lc.nn.convert(block(forward))
    ours = lc.nn.fuse_batch_norms(module, inplace=False)
    x = image()[:, :1].repeat(1, C, 1, 1)
    found, expected = ours(x), module(x)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


class Added(Functions):
    """Sums of norms, and norms that are added one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.norms[i](self.convs[i](x)) for i in range(2))
        y = first + second
        y = y + self.norms[2](self.convs[2](y))
        return torch.relu(self.norms[3](self.convs[3](y)) + y)


def test_sums_of_norms(fused_norms: list[tuple[Any, bool]]) -> None:
    torch.manual_seed(0)
    net, x = Added().double(), image()[:, :1].repeat(1, C, 1, 1)
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.fused == ("norms.0", "norms.2", "norms.3")
    assert report.left == {"norms.1": "the sum is that of another norm, which is added"}
    assert all(map(torch.equal, step(ours, x), step(net, x)))
    assert fused_norms == [(ours.norms[i], True) for i in (0, 2, 3)]


class Inverted(nn.Module):
    """An inverted residual with a linear end, as MobileNetV2 and, with a step between the norm and
    the sum, EfficientNet have it.
    """

    def __init__(self, step: nn.Module | None = None) -> None:
        super().__init__()
        wide = nn.Conv2d(C, 3 * C, 1, bias=False), nn.BatchNorm2d(3 * C), nn.ReLU6(inplace=True)
        deep = nn.Conv2d(3 * C, 3 * C, 3, 1, 1, 1, 3 * C, False), nn.BatchNorm2d(3 * C), nn.ReLU6()
        end = nn.Conv2d(3 * C, C, 1, bias=False), nn.BatchNorm2d(C)
        self.conv = nn.Sequential(nn.Sequential(*wide), nn.Sequential(*deep), *end)
        self.step = step or nn.Identity()

    def forward(self, input: Tensor) -> Tensor:
        result = self.step(self.conv(input))
        result += input
        return result


class Dropped(nn.Module):
    """A stochastic depth, which drops whole images."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(len(x), 1, 1, 1) < 0.5)


def test_linear_bottlenecks(fused_norms: list[tuple[Any, bool]]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Inverted(), Inverted(Dropped()), Inverted()).double()
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    assert report.left == {"1.conv.3": "no activation that fuses follows it, nor a sum"}
    x = image()[:, :1].repeat(1, C, 1, 1)
    assert all(map(torch.equal, step(ours, x), step(net, x)))
    added = [norm for norm, is_added in fused_norms if is_added]
    assert added == [ours[0].conv[3], ours[2].conv[3]]  # type: ignore[index]
    assert len(fused_norms) == 8
    ours[0].step.register_forward_hook(lambda m, i, y: y * 2)  # type: ignore[union-attr]
    net[0].step.register_forward_hook(lambda m, i, y: y * 2)  # type: ignore[union-attr]
    fused_norms.clear()
    assert all(map(torch.equal, step(ours, x), step(net, x)))
    assert len(fused_norms) == 7


class Counting(nn.BatchNorm2d):
    """A norm and a ReLU, which count what they see in a buffer of their own."""

    def __init__(self) -> None:
        super().__init__(C)
        self.drop, self.act = nn.Identity(), nn.ReLU()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.numel()
        return self.act(self.drop(super().forward(x)))


class Absolute(Counting):
    """Another function of the weight, which is the same where no weight is negative."""

    def __init__(self) -> None:
        super().__init__()
        del self.seen

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight.abs(), self.bias, self.training
        )
        return self.act(y)


@pytest.mark.parametrize("kind", [Counting, Absolute])
@pytest.mark.parametrize("training", [False, True])
def test_norms_that_do_more_or_otherwise_are_no_norms(kind: Any, training: bool) -> None:
    assert not is_norm_and(kind(), nn.ReLU(), training=training)


def dropped_by_a_number(self: Any, x: Tensor) -> Tensor:
    y = self.relu(self.norm(self.conv(x)))
    return nn.functional.dropout(y, self.drop.p, self.training)


def only_while_a_part_trains(self: Any, x: Tensor) -> Tensor:
    y = self.norm(self.conv(x))
    return self.relu(y) if self.drop.training else y


@pytest.mark.parametrize(
    ("forward", "name", "change"),
    [
        (dropped_by_a_number, "p", lambda net: setattr(net.drop, "p", 1.0)),
        (only_while_a_part_trains, "training", lambda net: net.drop.eval()),
    ],
)
def test_attributes_of_parts_that_are_set_later_count(
    forward: Callable[[Any, Tensor], Any], name: str, change: Callable[[Any], object]
) -> None:
    net = block(forward, drop=nn.Dropout(0.0))
    ours, report = lc.nn.fuse_batch_norms(net, inplace=False, return_report=True)
    change(net), change(ours)
    x = image()[:, :1].repeat(1, C, 1, 1)
    assert torch.equal(ours(x), net(x))
    assert f"it reads `{name}` of one of its parts" in report.left["norm"]
