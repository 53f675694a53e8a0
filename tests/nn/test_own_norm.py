"""Modules that normalise over channels: which are recognised, converted and reverted."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import layoutconv as lc
from layoutconv.nn.own_norm import OwnNorm, own_norm


class Root(nn.Module):
    """With an optional bias, as decoders of video have it."""

    def __init__(self, C: int, rank: int = 3, biased: bool = False) -> None:
        super().__init__()
        self.root = C**0.5
        self.g = nn.Parameter(torch.ones(C, *[1] * rank))
        self.b = nn.Parameter(torch.zeros(C, *[1] * rank)) if biased else 0.0

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return normalize(wide, dim=1).to(x.dtype) * self.root * self.g + self.b


class Swapped(Root):
    """The bias is the first parameter."""

    def __init__(self) -> None:
        super().__init__(6)
        self.g, self.b = nn.Parameter(torch.zeros(6, 1, 1)), nn.Parameter(torch.ones(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * normalize(x, dim=1) * self.b + self.g


class Last(Root):
    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=-1) * self.root * self.g


class Cut(Root):
    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1, eps=1e-6) * self.root * self.g


class Squared(Root):
    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1) * self.g * self.g


class Drawn(Root):
    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1) * self.g * torch.rand(1)


class Wide(Root):
    """Its result is a float32, of whatever input."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return normalize(wide, dim=1) * self.root * self.g


class Held(Root):
    """With a tensor that is no parameter."""

    def __init__(self) -> None:
        super().__init__(6)
        self.gain = torch.tensor(2.0)

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1) * self.gain * self.g


class Lazy(torch.nn.modules.lazy.LazyModuleMixin, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.UninitializedParameter()

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=1) * self.g


class Noisy(Root):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("never without a GPU")
        return normalize(x, dim=1)


class Counting(Root):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return normalize(x, dim=1) * self.root * self.g


class Noting(Root):
    """It notes what it was called with."""

    def __init__(self) -> None:
        super().__init__(6)
        self.noted: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        self.noted.append(x.dtype)
        return normalize(x, dim=1) * self.root * self.g


class Within(Root):
    def __init__(self) -> None:
        super().__init__(6)
        self.inner = nn.ReLU()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_such_a_norm_is_recognised(rank: int, biased: bool) -> None:
    module = Root(9, rank, biased)
    before = deepcopy(module.state_dict())
    found = own_norm(module)
    assert found is not None
    assert found[:2] == ("g", "b" if biased else "")
    assert found.scale == pytest.approx(3.0, rel=1e-12)
    assert own_norm(Root(9, rank, biased).bfloat16()) == found
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert own_norm(Swapped()) == OwnNorm("b", "g", pytest.approx(0.5))


@pytest.mark.parametrize(
    "module",
    [Last(6), Cut(6), Squared(6), Drawn(6), Noisy(6), Within(), nn.GroupNorm(1, 6), nn.ReLU(),
     Counting(6), Noting(), nn.Linear(3, 3), Root(6).to("meta"), Wide(6), Held(), Lazy(),
     torch.fx.symbolic_trace(Swapped())],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_what_is_none_is_left_as_it_is(module: nn.Module) -> None:
    state = torch.random.get_rng_state()
    assert own_norm(module) is None
    assert torch.equal(torch.random.get_rng_state(), state)
    kind = type(module)
    if not isinstance(module, nn.GroupNorm):
        lc.nn.convert(module)
        assert type(module) is kind


def test_a_converted_one_is_what_it_was() -> None:
    """On a CPU, and where a gradient is wanted, it runs as it is written."""
    module = Root(6)
    x = torch.randn(2, 6, 2, 3, 4).to(memory_format=torch.channels_last_3d)
    y = module(x)
    net, report = lc.nn.convert(nn.Sequential(module), return_report=True)
    assert report.norms == ("0",)
    assert isinstance(module, Root)
    assert module.state_dict().keys() == Root(6).state_dict().keys()
    for copied in net, deepcopy(net), pickle.loads(pickle.dumps(net)):
        assert torch.equal(copied(x), y)
        assert copied(x).requires_grad
        with torch.no_grad():
            assert torch.equal(copied(x), y)
        _, again = lc.nn.convert(copied, return_report=True)
        assert again.norms == ()
    module.slope = 3.0  # of its own, as it were
    lc.nn.revert(net)
    assert type(module) is Root
    assert module.__dict__.keys() == Root(6).__dict__.keys() | {"slope"}


def test_parameters_that_change_are_read_when_they_are_used(normalised_by: Any) -> None:
    from layoutconv.gpu import channel_norm

    module: Any = lc.nn.convert(Root(6, biased=True))
    launched = normalised_by(channel_norm, lambda x, norm: x)
    x = torch.randn(1, 6, 2, 3, 4).to(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        module(x)
        module.g = nn.Parameter(torch.full((6, 1, 1, 1), 2.0))
        module(x)
        module(x.contiguous())
        with torch.autocast("cpu"):
            module(x)
        module.root = 5.0
        module(x)
        module.root = 6**0.5
        for copied in module, deepcopy(module), pickle.loads(pickle.dumps(module)):
            copied(x)
    given = [norm for _, norm in launched]
    assert [norm.scale for norm in given] == [module.root] * 5
    assert [norm.weight[0].item() for norm in given[2:]] == [2.0] * 3
    del given[2:]
    assert [norm.weight[0].item() for norm in given] == [1.0, 2.0]
    assert given[0].bias is module.b


def test_a_scripted_part_of_a_network_is_left(recwarn: Any) -> None:
    """Its class has no forward pass to look at."""
    net = nn.Sequential(torch.jit.script(nn.ReLU()), nn.Conv2d(3, 4, 1))
    _, report = lc.nn.convert(net, return_report=True)
    assert (report.swapped, report.norms) == (("1",), ())


def test_hooks_are_called_of_results_alone() -> None:
    module, seen = Root(6), []
    module.register_forward_hook(lambda _, args, y: seen.append(y))
    lc.nn.convert(module)
    assert seen == []
    y = module(torch.randn(1, 6, 2, 3, 4))
    assert len(seen) == 1
    assert seen[0] is y


def test_a_class_that_counts_its_subclasses_gets_none() -> None:
    class Counted(Root):
        def __init_subclass__(cls, *, name: str) -> None:
            raise AssertionError("not by convert")

    module = Counted(6)
    lc.nn.convert(module)
    assert type(module) is Counted


def test_a_default_device_is_not_where_it_is_found_out() -> None:
    module = Root(6)
    with torch.device("meta"):
        assert own_norm(module) is not None


def test_tracers_see_the_forward_pass_as_it_is_written() -> None:
    module, x = Swapped(), torch.randn(1, 6, 3, 4)
    y = lc.nn.convert(module)(x)
    assert torch.equal(torch.fx.symbolic_trace(module)(x), y)
    exported = torch.export.export(module, (x,))
    assert exported.graph_signature.user_inputs == ("x",)
    assert torch.equal(exported.module()(x), y)
