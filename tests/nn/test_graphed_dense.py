"""Dense networks as CUDA graphs, whose stand-ins run the network once more on the same memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc

from .test_graphed import captured


class Labelled(nn.Module):
    """A network that returns a dict, of an image and an option."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, 2),
            nn.GroupNorm(2, 4),
        )  # fmt: skip

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        y = self.body(x)
        return {"map": y * scale, "scores": [y.mean((2, 3)), "mean"]}


def image(size: int, seed: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    torch.manual_seed(0)
    return lc.nn.convert(Labelled().eval())


@torch.no_grad()
def test_a_dense_network_has_a_graph_for_each_shape() -> None:
    net = network()
    graph = captured(net)
    for number, size in enumerate((8, 8, 10, 8, 10)):
        found, expected = (one(image(size, number), scale=2.0) for one in (graph, net))
        assert list(found) == ["map", "scores"]
        assert torch.equal(found["map"], expected["map"])
        assert found["map"].stride() == expected["map"].stride()
        assert torch.equal(found["scores"][0], expected["scores"][0])
        assert found["scores"][1] == "mean"
    report = graph.report()
    assert (report.hits, report.warm_ups, report.eager) == (3, 2, {})


@torch.no_grad()
def test_results_are_copies_and_parameters_may_change_in_place() -> None:
    net = network()
    graph = captured(net)
    graph(image(8, 0))
    first = graph(image(8, 1))["map"]
    kept = first.clone()
    next(net.parameters()).mul_(2)
    second = graph(image(8, 2))["map"]
    assert torch.equal(first, kept)
    assert torch.equal(second, net(image(8, 2))["map"])
    assert graph.report().hits == 2


@torch.no_grad()
def test_options_and_autocast_are_part_of_a_graph() -> None:
    net = network()
    graph = captured(net)
    for scale in 1.0, 3.0, 1.0, 3.0:
        assert torch.equal(
            graph(image(8, 0), scale=scale)["map"], net(image(8, 0), scale=scale)["map"]
        )
    with torch.autocast("cpu", torch.bfloat16):
        for number in range(2):
            found = graph(image(8, number))["map"]
            assert torch.equal(found, net(image(8, number))["map"])
    assert (graph.report().hits, graph.report().warm_ups) == (3, 3)


def test_gradients_and_training_are_eager() -> None:
    net = network()
    graph = captured(net)
    assert graph(image(8, 0))["map"].requires_grad
    with torch.no_grad():
        graph.train()(image(8, 0))
    assert graph.report().hits == 0
    assert len(graph.report().eager) == 2


class Reads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x


@torch.no_grad()
@pytest.mark.parametrize("runs", [1, 3])
def test_python_that_reads_values_is_eager_and_says_so(runs: int) -> None:
    graph = captured(Reads().eval())
    for _ in range(runs):
        assert torch.equal(graph(image(8, 0)), Reads()(image(8, 0)))
    assert graph.report().hits == 0
    assert any("reads a value on the host" in why for why in graph.report().eager)


class Calls(nn.Module):
    """A network whose forward pass is a function."""

    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


@torch.no_grad()
def test_orders_of_memory_have_graphs_of_their_own() -> None:
    """Results, and answers that Python asks for, may depend on them."""
    net = Calls(lambda x: 2 * x if x.is_contiguous() else 3 * x).eval()
    graph = captured(net)
    for number in range(2):
        x = image(8, number)
        for given in x, x.contiguous(memory_format=torch.channels_last):
            found, expected = graph(given), net(given)
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    one = image(8, 0)[:1]
    graph(one), graph(one.as_strided(one.shape, (7, *one.stride()[1:])))
    report = graph.report()
    assert (report.hits, report.warm_ups, report.eager) == (3, 3, {})


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """A dict with fields, which refuses to be updated, as results of large libraries are."""

    scores: Any = None
    states: Any = None

    def __post_init__(self) -> None:
        for name in ("scores", "states"):
            if getattr(self, name) is not None:
                super().__setitem__(name, getattr(self, name))

    def update(self, *_: Any, **__: Any) -> None:  # type: ignore[override]
        raise RuntimeError("it is what it is")


@torch.no_grad()
def test_results_with_names() -> None:
    net = Calls(lambda x: Output(scores=(x + 1).topk(2)))
    graph = captured(net.eval())
    for number in range(3):
        found, expected = (one(image(8, number)) for one in (graph, net))
        assert type(found) is Output
        assert found.states is None
        assert found.scores is found["scores"]
        assert type(found.scores) is type(expected.scores)
        assert torch.equal(found.scores.indices, expected.scores.indices)
    assert (graph.report().hits, graph.report().eager) == (2, {})


class Refuses(dict):  # type: ignore[type-arg]
    """A dict that nobody can make anew."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__(scores=scores)


@torch.no_grad()
def test_results_that_cannot_be_made_anew_are_eager() -> None:
    graph = captured(Calls(lambda x: Refuses(x + 1)).eval())
    for number in range(3):
        assert torch.equal(graph(image(8, number))["scores"], image(8, number) + 1)
    assert graph.report().hits == 0
