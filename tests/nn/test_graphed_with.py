"""Graphs in a ``with`` statement: what lasts until its end, and what is put back."""

from __future__ import annotations

import copy
import gc
from weakref import ref

import pytest
import torch
from torch import nn

import layoutconv as lc

from .test_graphed import Replays, cloud
from .test_graphed_step import check_same, eagerly, normed, plain, squares, step_of


def hooks(net: nn.Module) -> list[list[int]]:
    return [
        list(vars(module)[name]) for module in net.modules()
        for name in sorted(vars(module)) if name.endswith("_hooks")
    ]  # fmt: skip


def test_graphs_of_steps_end_with_it_and_gradients_stay() -> None:
    net = plain()
    other, before = copy.deepcopy(net), hooks(net)
    step, x = step_of(net, squares), cloud(200, 0)
    with step as entered:
        assert entered is step
        for _ in range(3):
            step(x)
            eagerly(other, squares, x)
        assert step.report().hits == 2
        (bucket,) = step._buckets.values()
        graph = ref(bucket)
        del bucket
    gc.collect()
    assert graph() is None
    assert step.report() == ((), 0, 0, {})
    check_same(net, other, exact=True)
    assert hooks(net) == before
    with step:  # again
        step(x)
        step(x)
        assert step.report().hits == 1


def test_modes_and_wanted_gradients_are_put_back() -> None:
    net = normed().eval()
    net[1].train()
    net[0].weight.requires_grad_(False)
    modes = [module.training for module in net.modules()]
    wanted = [parameter.requires_grad for parameter in net.parameters()]

    def trains() -> None:
        with step_of(net, squares) as step:
            net.train().requires_grad_(True)
            step(cloud(200, 0))
            raise KeyError("what the caller does wrong")

    with pytest.raises(KeyError, match="wrong"):
        trains()
    assert [module.training for module in net.modules()] == modes
    assert [parameter.requires_grad for parameter in net.parameters()] == wanted


def test_the_outermost_end_counts() -> None:
    step, x = step_of(plain(), squares), cloud(200, 0)
    with step:
        step(x)
        with step:
            step.module.eval()
            step(x)
        assert step.module.training
        assert step.report().warm_ups == 2
        for _ in range(2):  # a graph is of a mode: it is captured anew
            step(x)
        assert step.report().hits == 1
    assert step.report().warm_ups == 0


def test_a_network_in_it() -> None:
    fast = lc.nn.graphed(normed().eval())
    fast._recorder = Replays()
    with torch.no_grad(), fast as net:
        first, again = net(cloud(200, 0)), net(cloud(200, 0))
        assert torch.equal(first.features, again.features)
        assert net.report().hits == 1
        net.train()
    assert (fast.training, fast.module.training) == (False, False)
    assert fast.report().buckets == ()
