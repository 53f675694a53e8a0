"""Training steps that no graph is captured of are eager, and say why; what changes is noticed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layoutconv as lc
from layoutconv.base.torch_internals import functions_that_look
from layoutconv.nn.step_bucket import TrainingStep
from layoutconv.nn.training_state import Gradients
from layoutconv.sparse import SparseTensor

from .test_graphed import cloud
from .test_graphed_step import (
    check_same,
    eagerly,
    integers,
    normed,
    plain,
    squares,
    step_of,
)


def mean_of_rows(y: SparseTensor) -> Tensor:
    return y.features.square().mean()


def number_of_rows(y: SparseTensor) -> Tensor:
    return y.features.square().sum() / len(y)


def of_an_item(y: SparseTensor) -> Tensor:
    total = y.features.sum()
    return total * 2 if total.item() > 1e9 else total


def at_random(y: SparseTensor) -> Tensor:
    return (y.features * torch.rand(y.features.shape)).sum()


def of_a_mask(y: SparseTensor) -> Tensor:
    return y.features[y.features > 0].sum()


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (mean_of_rows, "reads rows without a cell"),
        (number_of_rows, "or counts them"),
        (of_an_item, "Tensor.item reads a value on the host"),
        (of_a_mask, "test_graphed_step_eager.py"),
        (at_random, "is random"),
    ],
)
def test_what_cannot_be_captured_is_eager_and_says_why(loss: Any, why: str) -> None:
    net = normed()
    other = copy.deepcopy(net)
    step = step_of(net, loss)
    for number in range(3):
        x = cloud(200, number)
        torch.manual_seed(number)
        found = step(x)
        torch.manual_seed(number)
        assert torch.equal(found, eagerly(other, loss, x).detach())
        check_same(net, other, exact=True)  # nothing is left of what was tried
        state = torch.get_rng_state()
        torch.manual_seed(number)
        eagerly(copy.deepcopy(other), loss, x)
        assert torch.equal(state, torch.get_rng_state())
    report = step.report()
    assert (report.hits, report.warm_ups) == (0, 1)
    (reason,) = report.eager
    assert why in reason


def test_hooks_are_called_at_every_step() -> None:
    called: list[int] = []
    for where in "forward", "backward", "parameter", "accumulated":
        net = plain()
        other = copy.deepcopy(net)
        step, x = step_of(net, squares), cloud(200, 0)
        step(x)
        step(x)
        first: Any = net[0]
        if where == "forward":
            first.register_forward_hook(lambda *_: called.append(1))
        elif where == "backward":
            net[1].register_full_backward_hook(lambda *_: called.append(1))
        elif where == "parameter":
            first.weight.register_hook(lambda _: called.append(1))
        else:
            first.weight.register_post_accumulate_grad_hook(lambda _: called.append(1))
        called.clear()
        step(x)
        step(x)
        assert len(called) == 2
        assert step.report().hits == 1
        assert "hooks" in str(step.report())
        for _ in range(4):
            eagerly(other, squares, x)
        check_same(net, other, exact=True)


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, lc.distributed.SyncBatchNorm])
def test_ranks_that_wait_for_each_other_do_so_eagerly(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = lc.nn.SubmConv3d(3, 4, 3), nn.BatchNorm1d(4), kind(4).eval()
    net = integers(lc.nn.Sequential(*layers))
    step, x = step_of(net, squares), cloud(200, 0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    step(x)
    step(x)
    assert step.report().hits == 1
    monkeypatch.setattr(
        TrainingStep, "backward", lambda *of: torch.ones(())
    )  # there is no other rank
    net.train()
    assert [float(step(x)) for _ in range(2)] == [1, 1]
    assert step.report().hits == 1
    assert "SyncBatchNorm" in str(step.report())


def test_what_changes_in_a_network_is_noticed() -> None:
    net = plain()
    step, x = step_of(net, squares), cloud(200, 0)

    def check() -> None:
        net.zero_grad()
        other = copy.deepcopy(net)
        assert torch.equal(step(x), eagerly(other, squares, x).detach())
        check_same(net, other, exact=True)

    check()
    with torch.no_grad():
        next(net.parameters()).mul_(2)
    check()
    assert step.report().hits == 1
    net[0].weight.requires_grad_(False)
    check()
    check()
    net[0].weight.requires_grad_()
    net[2].bias = nn.Parameter(torch.ones(4))
    check()
    check()
    net.eval()
    check()
    check()
    report = step.report()
    assert (report.hits, report.warm_ups) == (4, 4)


def test_parameters_without_a_gradient_have_none() -> None:
    net = nn.ModuleDict({"used": plain(), "idle": nn.Linear(2, 2)})

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = net

        def forward(self, x: SparseTensor) -> Any:
            return self.parts["used"](x)

    step = step_of(Some(), squares)
    for number in range(3):
        step(cloud(200, number))
    assert net["idle"].weight.grad is None
    assert step.report().hits == 2


class Scaled(nn.Module):
    """Layers times a number that the network does not register."""

    def __init__(self, layers: nn.Module, scale: nn.Parameter) -> None:
        super().__init__()
        self.layers, self.unregistered = layers, (scale,)

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = self.layers(x)
        return y.replace(y.features * self.unregistered[0])


@pytest.mark.parametrize("where", ["the loss", "the network", "a network without others"])
def test_tensors_that_are_no_parameters_of_the_network_get_gradients(where: str) -> None:
    scale, layers = nn.Parameter(torch.tensor(2.0)), plain()
    of_loss = where == "the loss"
    alone = where == "a network without others"
    net = layers if of_loss else Scaled(nn.Identity() if alone else layers, scale)
    loss = (lambda y: squares(y) * scale) if of_loss else squares
    step = step_of(net, loss)
    for number in range(3):
        x, gradients = cloud(200, number), []
        for call in step, lambda x: eagerly(net, loss, x).detach():
            wanted = scale, *net.parameters()
            for parameter in wanted:
                parameter.grad = None
            gradients.append([call(x), *(p.grad for p in wanted)])
        assert all(map(torch.equal, *gradients))
    assert step.report().hits == 0
    (reason,) = step.report().eager
    assert "no parameters of the network" in reason


@pytest.mark.parametrize("graphs", [False, True])
def test_a_step_without_parameters_is_torchs_error(graphs: bool) -> None:
    x, frozen = cloud(200, 0), plain().requires_grad_(False)
    for net in lc.nn.Sequential(lc.nn.SparseMaxPool3d(2)), frozen:
        step = step_of(net, squares) if graphs else lc.nn.graphed_step(net, squares)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="does not require grad"):
                step(x)


class Stored(torch.autograd.Function):
    """A filter's gradient: its sums, and rounded with fixed rows, as a sparse layer's on a GPU."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, of_cells: bool) -> Tensor:
        ctx.save_for_backward(features)
        ctx.rounds = of_cells and functions_that_look() > 0
        return features * weight

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[None, Tensor, None]:
        found = (ctx.saved_tensors[0] * given[0]).sum(0)
        return None, found.half().float() if ctx.rounds else found, None


class Filter(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.ones(3)), kind

    def forward(self, x: SparseTensor) -> SparseTensor:
        features = Stored.apply(x.features, self.weight, self.kind == "rounded")  # type: ignore[no-untyped-call]
        if self.kind == "infinite" and functions_that_look():
            features = features * torch.inf
        return x.replace(features)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["as it is", "rounded", "infinite"])
def test_gradients_beyond_float16_may_be_infinite_with_fixed_rows(
    kind: str, dtype: torch.dtype
) -> None:
    """In steps with loss scales that are too large yet, of filters that autocast rounds alone."""
    net = Filter(kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    step = step_of(net, squares, scaler=scaler)
    for _ in range(3):
        net.zero_grad()
        with torch.autocast("cpu", dtype):
            step(cloud(200, 0))
    fits = kind == "as it is" or (kind == "rounded" and dtype is torch.float16)
    assert (step.report().hits > 0) == fits
    assert bool(net.weight.grad.isinf().all()) == (kind == "rounded" and fits)  # type: ignore[union-attr]


def test_gradients_are_added_when_it_is_asked_for_and_not_before() -> None:
    """All that is looked up for it may be looked up while the GPU is at work."""
    empty, filled = (nn.Parameter(torch.ones(2)) for _ in range(2))
    filled.grad = torch.ones(2)
    add = Gradients().addition([empty, filled], [torch.full((2,), 3.0)] * 2)
    assert empty.grad is None
    assert filled.grad.tolist() == [1, 1]
    add()
    assert empty.grad is not None
    assert (empty.grad.tolist(), filled.grad.tolist()) == ([3, 3], [4, 4])


class Checkpointed(nn.Module):
    """A layer, and one that is computed again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second = lc.nn.SubmConv3d(3, 4, 3), lc.nn.SubmConv3d(4, 2, 3)

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = self.first(x)

        def rest(features: Tensor) -> Tensor:
            found: Tensor = self.second(y.replace(features)).features
            return found

        return y.replace(checkpoint(rest, y.features, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_steps_of_reentrant_checkpoints_are_eager(reentrant: bool) -> None:
    """Their ``backward`` adds to ``.grad`` from within, which nobody else may ask for."""
    net = Checkpointed(reentrant=reentrant)
    other = copy.deepcopy(net)
    step = step_of(net, squares)
    for number in range(3):
        x = cloud(200, number)
        torch.testing.assert_close(step(x), eagerly(other, squares, x).detach())
        check_same(net, other, exact=reentrant)
    report = step.report()
    assert report.hits == (0 if reentrant else 2), report
    assert any("use_reentrant=True" in why for why in report.eager) is reentrant
