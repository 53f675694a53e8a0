"""Training steps with fixed rows leave what eager steps leave: losses, gradients, statistics.

Features, weights and targets are small integers, whose sums are exact in any order; where torch
divides, in means and norms, results are compared to rounding. A graph's stand-in runs the step once
more on the same memory, as a replay does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.nn.graph_bucket import OVERFLOW
from layoutconv.nn.graphed_training import GraphedStep
from layoutconv.sparse import SparseTensor

from .test_graphed import SHAPE, Replays, cloud, dense_block
from .test_graphed import Levels as AllLayers

SIZES = 200, 180, 230, 700, 190, 640


def step_of(net: nn.Module, loss: Callable[..., Any], **options: Any) -> GraphedStep:
    made = lc.nn.graphed_step(net, loss, **options)
    made._recorder = Replays()
    return made


def integers(net: nn.Sequential, seed: int = 0) -> nn.Sequential:
    random = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=random).float()
    return net


def plain(seed: int = 0) -> nn.Sequential:
    layers = (
        lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SparseConv3d(4, 4, 3, 2, 1),
        nn.Linear(4, 4), nn.LeakyReLU(0.5), lc.nn.SubmConv3d(4, 2, 3),
    )  # fmt: skip
    return integers(lc.nn.Sequential(*layers), seed)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.Linear(3, 4), lc.nn.SubmConv3d(4, 6, 3), nn.BatchNorm1d(6), nn.ReLU(),
        lc.nn.SparseConv3d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(),
        lc.nn.SubmConv3d(8, 5, 1),
    )  # fmt: skip
    return lc.nn.Sequential(*layers)


def squares(y: SparseTensor) -> Tensor:
    """A loss of integers: exact."""
    return lc.nn.reduce_cells(y.features.square(), y, "sum")


def eagerly(net: nn.Module, loss: Callable[..., Any], x: Any, *targets: Any) -> Any:
    result = loss(net(x), *targets)
    (result[0] if isinstance(result, tuple) else result).backward()
    return result


def gradients(net: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in net.parameters()]


def check_same(net: nn.Module, other: nn.Module, exact: bool = False) -> None:
    """Gradients and buffers of two networks."""
    found = *gradients(net), *net.buffers()
    expected = *gradients(other), *other.buffers()
    scale = max(float(g.abs().max()) for g in expected if g is not None)
    for one, two in zip(found, expected, strict=True):
        if one is None or two is None:
            assert one is two
        elif exact:
            assert torch.equal(one, two)
        else:
            torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-6 * max(scale, 1))


def labels_of(x: SparseTensor, classes: int = 5) -> Tensor:
    return (x.coords[:, 1:].sum(1) % classes).long()


def check_steps(net: nn.Module, *, exact: bool) -> Any:
    """Compare a step for each of ``SIZES`` with an eager one of a copy; the report, of hits."""
    other = copy.deepcopy(net)
    step = step_of(net, squares)
    for number, rows in enumerate(SIZES):
        for module in net, other:
            module.zero_grad(set_to_none=number % 2 == 0)
        x = cloud(rows, number)
        found, expected = step(x), eagerly(other, squares, x).detach()
        assert torch.equal(found, expected) or not exact
        check_same(net, other, exact=exact)
    report = step.report()
    assert report.hits >= 3
    return report


def test_gradients_are_bit_for_bit_the_eager_ones() -> None:
    report = check_steps(plain(), exact=True)
    assert set(report.eager) <= {OVERFLOW}
    assert {bucket.difference for bucket in report.buckets} == {0.0}
    assert len(report.buckets) == 2


def test_gradients_accumulate_in_the_same_memory() -> None:
    net = plain()
    other = copy.deepcopy(net)
    step = step_of(net, squares)
    for number, rows in enumerate(SIZES):
        x = cloud(rows, number)
        step(x)
        eagerly(other, squares, x)
    check_same(net, other, exact=True)
    assert step.report().hits >= 3
    places = [g.data_ptr() for g in gradients(net) if g is not None]
    net.zero_grad()
    step(cloud(200, 0))
    assert [g.data_ptr() for g in gradients(net) if g is not None] == places
    # Memory that somebody else put there is added to.
    net.zero_grad()
    own = [torch.ones_like(p) for p in net.parameters()]
    for parameter, mine in zip(net.parameters(), own, strict=True):
        parameter.grad = mine
    step(cloud(200, 0))
    other.zero_grad()
    eagerly(other, squares, cloud(200, 0))
    for parameter, mine, theirs in zip(net.parameters(), own, gradients(other), strict=True):
        assert parameter.grad is mine
        assert theirs is not None
        assert torch.equal(mine, theirs + 1)


def classes(y: SparseTensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(y.features, labels)


def test_batch_norms_count_only_rows_that_there_are() -> None:
    """Losses, gradients and running statistics while an optimizer trains both."""
    net = lc.nn.Sequential(*list(normed())[:4], lc.nn.SubmConv3d(6, 5, 3))
    other = copy.deepcopy(net)
    step = step_of(net, classes)
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (net, other)]
    for number, rows in enumerate(SIZES):
        x = cloud(rows, number)
        labels = labels_of(x)
        for optimizer in optimizers:
            optimizer.zero_grad()
        found, expected = step(x, labels), eagerly(other, classes, x, labels)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
        check_same(net, other)
        for optimizer in optimizers:
            optimizer.step()
    assert step.report().hits >= 3
    assert not step.report().eager
    assert net.state_dict()["2.num_batches_tracked"] == len(SIZES)


def test_a_strided_network_with_batch_norms_at_every_level() -> None:
    check_steps(normed(), exact=False)


def test_in_float64_norms_and_statistics_differ_by_rounding_alone() -> None:
    step = step_of(normed().double(), squares)
    for number in range(3):
        step(cloud(400, number).to(torch.float64))
    (bucket,) = step.report().buckets
    assert bucket.hits == 2
    assert bucket.difference < 1e-13


def test_overflow_leaves_nothing_behind() -> None:
    """A replay that lacks rows adds no gradient and no statistics: the step is made again."""
    net = normed()
    other = copy.deepcopy(net)
    step = step_of(net, squares)
    features, cells = dense_block(5)
    near = SparseTensor(features + cells[:, 1:], cells, SHAPE, 2)
    far = cloud(len(near), 1)
    for x in near, near, far, far, near:
        step(x)
        eagerly(other, squares, x)
        check_same(net, other)
    assert step.report().eager == {OVERFLOW: 1}
    assert step.report().hits == 3


class Block(spconv.SparseModule):
    """A residual block as detectors write it: norms on features."""

    def __init__(self, channels: int, key: str) -> None:
        super().__init__()
        self.conv = spconv.SubMConv3d(channels, channels, 3, padding=1, bias=False, indice_key=key)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return y.replace_feature(torch.relu(self.norm(y.features) + x.features))


class Detector(nn.Module):
    """A dict comes in, with features and cells as plain tensors, and goes out with a map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = spconv.SparseSequential(
            spconv.SubMConv3d(3, 4, 3, indice_key="a"), nn.BatchNorm1d(4), nn.ReLU()
        )
        self.block = Block(4, "a")
        self.down = spconv.SparseSequential(
            spconv.SparseConv3d(4, 8, 3, stride=2, padding=1), nn.BatchNorm1d(8), nn.ReLU()
        )
        self.head = nn.Conv2d(40, 3, 1)

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        x = spconv.SparseConvTensor(batch["features"], batch["cells"].int(), list(SHAPE), 2)
        x = self.block(self.stem(x))
        y = self.down(x)
        batch["seen"] = self.head(y.dense().flatten(1, 2))
        batch["points"] = x
        return batch


def test_detectors_of_spconvs_names() -> None:
    torch.manual_seed(0)
    net = Detector()
    other = copy.deepcopy(net)

    def loss(batch: dict[str, Any], wanted: Tensor, offsets: Tensor) -> Any:
        seen = functional.mse_loss(batch["seen"], wanted)
        points = functional.smooth_l1_loss(batch["points"].features[:, :3], offsets, beta=0.5)
        return seen + points, {"seen": seen, "points": points, "stride": 2}

    step = step_of(net, loss)
    for number, rows in enumerate((200, 180, 190)):
        for module in net, other:
            module.zero_grad()
        x = cloud(rows, number)
        batch = {"features": x.features, "cells": x.coords.float()}
        targets = torch.ones(2, 3, 5, 6), x.features.roll(1, 0)
        found, expected = step(batch, *targets), eagerly(other, loss, dict(batch), *targets)
        assert sorted(batch) == ["cells", "features"]
        torch.testing.assert_close(found[0], expected[0].detach())
        torch.testing.assert_close(found[1]["points"], expected[1]["points"].detach())
        assert found[1]["stride"] == 2
        assert not found[0].requires_grad
        check_same(net, other)
    assert step.report().hits == 2
    assert not step.report().eager


def test_every_kind_of_layer() -> None:
    torch.manual_seed(0)
    net = AllLayers()
    other = copy.deepcopy(net)

    def loss(found: Any) -> Tensor:
        zeros = torch.zeros_like(found["back"][1])
        levels = [lc.nn.reduce_cells(y.features.square(), y) for y in found["levels"]]
        rest = found["dense"].sum() + found["mean"].square().sum()
        up = lc.nn.reduce_cells(found["up"].features, found["up"], "none")
        return sum(levels) + rest + up.sum() + functional.mse_loss(found["back"][1], zeros)

    step = step_of(net, loss)
    for number, rows in enumerate((300, 310, 290)):
        for module in net, other:
            module.zero_grad()
        x = cloud(rows, number)
        torch.testing.assert_close(step(x), eagerly(other, loss, x).detach())
        check_same(net, other)
    assert step.report().hits == 2


def straight_through(y: SparseTensor) -> Tensor:
    """A loss whose gradient, but not its value, is one of every row."""
    x = y.features
    return lc.nn.reduce_cells(x.square(), y, "sum") + ((x - x.detach()) / (x == x)).sum()


def not_a_number(y: SparseTensor) -> Tensor:
    """A loss whose gradient in padding is NaN, where features are the bias."""
    there = y.coords[:, :1] >= 0
    return (y.features / there).where(there, 0).sum()


@pytest.mark.parametrize("loss", [straight_through, not_a_number])
def test_padding_gives_no_gradient_whatever_a_loss_does(loss: Callable[..., Any]) -> None:
    net = plain()
    other = copy.deepcopy(net)
    step = step_of(net, loss)
    for number, rows in enumerate((200, 150, 190)):
        x = cloud(rows, number)
        step(x)
        eagerly(other, loss, x)
        check_same(net, other, exact=True)
    assert step.report().hits == 2, step.report()


def ignoring(y: SparseTensor, labels: Tensor) -> Tensor:
    return nn.CrossEntropyLoss(ignore_index=0)(y.features, labels)


def likelihood(y: SparseTensor, labels: Tensor) -> Tensor:
    return functional.nll_loss(y.features.log_softmax(1), labels, reduction="sum")


def smoothed(y: SparseTensor, labels: Tensor) -> Tensor:
    weight = torch.arange(1.0, 6)
    return functional.cross_entropy(y.features, labels, weight, label_smoothing=0.1)


def of_probabilities(y: SparseTensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(y.features, functional.one_hot(labels, 5).float())


def binary(y: SparseTensor, labels: Tensor) -> Tensor:
    wanted = (labels[:, None] == torch.arange(5)).float()
    return functional.binary_cross_entropy_with_logits(y.features, wanted, pos_weight=wanted[0] + 1)


def by_hand(y: SparseTensor, labels: Tensor) -> Tensor:
    """Labels are looked up: those of padding are a class."""
    own = y.features.log_softmax(1).gather(1, labels[:, None])[:, 0]
    return -lc.nn.reduce_cells(own * torch.arange(5.0)[labels], y)


@pytest.mark.parametrize(
    "loss", [classes, ignoring, likelihood, smoothed, of_probabilities, binary, by_hand]
)
def test_losses_over_rows(loss: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    net = lc.nn.Sequential(lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SubmConv3d(4, 5, 1))
    other = copy.deepcopy(net)
    step = step_of(net, loss)
    for number, rows in enumerate((200, 160, 190)):
        for module in net, other:
            module.zero_grad()
        x = cloud(rows, number)
        labels = labels_of(x)
        found, expected = step(x, labels), eagerly(other, loss, x, labels)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
        check_same(net, other)
    assert step.report().hits == 2, step.report()


# -- dropout, autocast, scalers --------------------------------------------------------------------


def test_dropout_draws_other_numbers_each_step() -> None:
    net = lc.nn.Sequential(*list(plain())[:2], nn.Dropout(0.5), lc.nn.SubmConv3d(4, 2, 3))
    step, x = step_of(net, squares), cloud(200, 0)
    found = {float(step(x)) for _ in range(4)}
    assert len(found) > 2
    assert step.report().hits == 3
    net.eval()
    other = copy.deepcopy(net)
    other.zero_grad()
    net.zero_grad()
    for _ in range(2):
        assert torch.equal(step(x), eagerly(other, squares, x).detach())
    check_same(net, other, exact=True)


def test_autocast_ends_with_the_loss() -> None:
    net = plain()
    other = copy.deepcopy(net)
    step = step_of(net, squares)
    for number in range(3):
        x = cloud(200, number)
        for module in net, other:
            module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = step(x), squares(other(x))
        expected.backward()
        assert torch.equal(found, expected.detach())
        check_same(net, other, exact=True)
    step(x)
    assert (step.report().hits, step.report().warm_ups) == (2, 2)


def test_a_scaler_scales_before_backward() -> None:
    net = plain()
    other = copy.deepcopy(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    step = step_of(net, squares, scaler=scaler)
    optimizer = torch.optim.SGD(net.parameters(), 2.0**-20)
    expected = torch.optim.SGD(other.parameters(), 2.0**-20)
    for number in range(4):
        x = cloud(200, number)
        optimizer.zero_grad()
        expected.zero_grad()
        assert torch.equal(step(x), eagerly(other, squares, x).detach())
        scaler.unscale_(optimizer)
        torch.testing.assert_close(gradients(net), gradients(other), rtol=1e-6, atol=0)
        scaler.step(optimizer)
        scaler.update()
        expected.step()
        weights = (list(of.parameters()) for of in (net, other))
        torch.testing.assert_close(*weights, rtol=1e-6, atol=0)
        for of in net, other:  # integers again: their sums are exact in any order
            of.load_state_dict(plain(number + 1).state_dict())
    assert scaler.get_scale() == 32
    assert step.report().hits == 3


# -- dense networks --------------------------------------------------------------------------------


def test_dense_networks_of_convert() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(4, 4),
    )  # fmt: skip
    lc.nn.convert(net)
    other = copy.deepcopy(net)
    step = step_of(net, functional.cross_entropy)
    for number, size in enumerate((8, 8, 10, 8, 10)):
        for module in net, other:
            module.zero_grad()
        random = torch.Generator().manual_seed(number)
        x = torch.randn(4, 3, size, size, generator=random)
        labels = torch.randint(4, (4,), generator=random)
        found = step(x, labels)
        assert torch.equal(found, eagerly(other, functional.cross_entropy, x, labels).detach())
        check_same(net, other, exact=True)
    report = step.report()
    assert (report.hits, report.warm_ups, report.eager) == (3, 2, {})


def test_networks_of_several_arguments_take_a_tuple() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = plain()

        def forward(self, x: SparseTensor, factor: Tensor, *, more: int = 1) -> Any:
            return self.layer(x) * factor * more

    def loss(y: SparseTensor, shift: Tensor, *, share: float) -> Any:
        return squares(y) * share + shift.sum(), y

    net = Sum()
    other = copy.deepcopy(net)
    step = step_of(net, loss)
    for number in range(2):
        x, factor, shift = cloud(200, number), torch.tensor(3.0), torch.ones(2)
        found, y = step((x, factor), shift, share=0.5)
        expected, wanted = loss(other(x, factor), shift, share=0.5)
        expected.backward()
        assert torch.equal(found, expected.detach())
        assert torch.equal(y.features, wanted.features.detach())
        assert torch.equal(y.coords, wanted.coords)
        assert not y.features.requires_grad
        check_same(net, other, exact=True)
    assert step.report().hits == 1


def test_graphs_go_with_the_kernels() -> None:
    step, x = step_of(plain(), squares), cloud(200, 0)
    step(x)
    assert len(step.report().buckets) == 1
    lc.clear_caches(kernels=True)
    assert step.report().buckets == ()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(lc.ArgumentTypeError, match="net"):
        lc.nn.graphed_step(plain, squares)  # type: ignore[arg-type]
    with pytest.raises(lc.ArgumentTypeError, match="loss"):
        lc.nn.graphed_step(plain(), 3)  # type: ignore[arg-type]
    with pytest.raises(lc.ArgumentTypeError, match="scaler"):
        lc.nn.graphed_step(plain(), squares, scaler=1.0)
    with pytest.raises(lc.ArgumentError, match="factor"):
        lc.nn.graphed_step(plain(), squares, factor=0.5)
    with pytest.raises(lc.ArgumentError, match=r"loss.*tensor of one number.*SparseTensor"):
        lc.nn.graphed_step(plain(), lambda y: y)(cloud(20, 0))
    with pytest.raises(lc.ArgumentError, match="values"):
        lc.nn.reduce_cells(torch.ones(3), cloud(20, 0))
    with pytest.raises(lc.ArgumentTypeError, match="input"):
        lc.nn.reduce_cells(torch.ones(3), torch.ones(3))
    with pytest.raises(lc.ArgumentError, match="reduction"):
        lc.nn.reduce_cells(torch.ones(20), cloud(20, 0), "max")
