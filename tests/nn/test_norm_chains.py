"""Passes in which norms stay: not all of them is known, or more would change than they do."""

from __future__ import annotations

import random
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

from . import test_fuse_batch_norms
from .test_fuse_batch_norms import C, image

calls = test_fuse_batch_norms.calls  # a fixture


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


def shortcut_changed(self: Any, x: Tensor) -> Tensor:
    h = x.clone()
    y = self.norm(self.conv(x)) + h
    h.mul_(0)
    return torch.relu(y) + h


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
    (shortcut_changed, "may be changed before the activation"),
    (state_between, "may be changed before the activation"),
    (called_between, "called again before the activation"),
    (gelu, "no activation that fuses follows it"),
    (scaled, "no activation that fuses follows it"),
    (a_number, "what is added to it is no tensor"),
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
    forward: Callable[..., Any], reason: str, calls: list[tuple[Any, bool]]
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
    assert calls == []


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
