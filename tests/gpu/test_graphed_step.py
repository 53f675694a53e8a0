"""Training steps as CUDA graphs, by ``lc.nn.graphed_step``, beside the same steps without.

Where features, weights and targets are small integers, whose sums are exact, gradients are equal
bit for bit, whatever the tile; elsewhere they are compared with the largest number.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import layoutconv as lc
from layoutconv.sparse import SparseTensor
from tests.gpu.test_graphed import of_a_hidden_wait, of_a_synchronisation, poison
from tests.nn.test_graphed import SHAPE, cloud
from tests.nn.test_graphed_step import Detector, eagerly, gradients, integers, labels_of, normed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SIZES = 300, 310, 250, 1900, 305, 1700, 290, 1800


def on_gpu(rows: int, seed: int) -> SparseTensor:
    return cloud(rows, seed).cuda()


def small() -> nn.Sequential:
    layers = (
        lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SparseConv3d(4, 8, 3, 2, 1),
        lc.nn.SubmConv3d(8, 2, 1),
    )  # fmt: skip
    return integers(lc.nn.Sequential(*layers)).cuda()


def signed(y: SparseTensor) -> Tensor:
    """A loss whose gradients are ones: sums of few integers."""
    return lc.nn.reduce_cells(y.features * y.coords[:, 1:2].sub(2).sign(), y, "sum")


def classes(y: SparseTensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(y.features, labels)


def check_near(net: nn.Module, other: nn.Module, limit: float = 1e-2) -> None:
    """Gradients, relative to the largest of all, and buffers."""
    found, expected = gradients(net), gradients(other)
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    for one, two in zip(found, expected, strict=True):
        assert (one is None) is (two is None)
        if one is not None and two is not None:
            assert float((one - two).abs().max()) <= limit * largest
    for one, two in zip(net.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=limit, atol=limit)


def test_gradients_are_bit_for_bit_the_eager_ones_in_several_buckets() -> None:
    net = small()
    other = copy.deepcopy(net)
    step = lc.nn.graphed_step(net, signed)
    for number, rows in enumerate(SIZES):
        if number % 3 != 2:  # each third adds to the one before
            for module in net, other:
                module.zero_grad(set_to_none=number % 2 == 0)
        x = on_gpu(rows, number)
        poison()
        assert torch.equal(step(x), eagerly(other, signed, x).detach())
        for one, two in zip(gradients(net), gradients(other), strict=True):
            assert one is not None
            assert two is not None
            assert torch.equal(one, two)
    report = step.report()
    assert report.hits >= 4, report
    assert len(report.buckets) >= 2
    assert all(bucket.difference == 0 and bucket.nbytes > 0 for bucket in report.buckets)


def test_batch_norms_and_an_optimizer() -> None:
    net = normed().cuda()
    other = copy.deepcopy(net)
    step = lc.nn.graphed_step(net, lambda y: lc.nn.reduce_cells(y.features.square(), y))
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (net, other)]
    for number, rows in enumerate(SIZES):
        x = on_gpu(rows, number)
        for optimizer in optimizers:
            optimizer.zero_grad()
        found = step(x)
        y = other(x).features.square().mean()
        y.backward()
        torch.testing.assert_close(found, y.detach(), rtol=1e-2, atol=1e-3)
        check_near(net, other)
        for optimizer in optimizers:
            optimizer.step()
        other.load_state_dict(net.state_dict())
    assert step.report().hits >= 4, step.report()


def test_running_statistics_are_those_of_rows_that_there_are() -> None:
    """Integers with known means: nothing of padding is in them."""
    norm = nn.BatchNorm1d(3, momentum=1.0)
    net = lc.nn.Sequential(norm, lc.nn.SubmConv3d(3, 4, 1)).cuda()
    step = lc.nn.graphed_step(net, lambda y: lc.nn.reduce_cells(y.features, y))
    for number, rows in enumerate((300, 250, 310, 280)):
        x = on_gpu(rows, number)
        step(x)
        exact = x.features.double()
        torch.testing.assert_close(norm.running_mean, exact.mean(0).float())
        torch.testing.assert_close(norm.running_var, exact.var(0).float())
        assert int(norm.num_batches_tracked) == number + 1  # type: ignore[arg-type]
    assert step.report().hits == 3, step.report()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_detector_under_autocast_with_a_scaler(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Detector().cuda()
    other = copy.deepcopy(net)

    def loss(batch: dict[str, Any], wanted: Tensor, offsets: Tensor) -> Any:
        seen = functional.mse_loss(batch["seen"].float(), wanted)
        points = functional.smooth_l1_loss(batch["points"].features[:, :3].float(), offsets)
        return seen + points, {"seen": seen, "points": points}

    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=4)
    step = lc.nn.graphed_step(net, loss, scaler=scaler)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for number, rows in enumerate((900, 880, 905, 895)):
        x = on_gpu(rows, number)
        batch = {"features": x.features, "cells": x.coords.float()}
        targets = torch.ones(2, 3, 5, 6, device="cuda"), x.features.roll(1, 0)
        optimizer.zero_grad()
        other.zero_grad()
        with torch.autocast("cuda", dtype):
            found = step(batch, *targets)
            expected = loss(other(dict(batch)), *targets)
        (256 * expected[0]).backward()
        torch.testing.assert_close(found[0], expected[0].detach(), rtol=2e-2, atol=1e-2)
        check_near(net, other, 0.1)
        scaler.step(optimizer)
        scaler.update()
        other.load_state_dict(net.state_dict())
    assert scaler.get_scale() == 512
    assert step.report().hits == 3, step.report()


def test_dropout_draws_other_numbers_and_obeys_a_seed() -> None:
    net = lc.nn.Sequential(*list(small())[:2], nn.Dropout(0.5), lc.nn.SubmConv3d(4, 2, 3).cuda())
    step, x = lc.nn.graphed_step(net, signed), on_gpu(300, 0)
    step(x)

    def values() -> list[float]:
        torch.manual_seed(7)
        return [float(step(x)) for _ in range(4)]

    found = values()
    assert len(set(found)) > 2
    assert values() == found
    assert step.report().hits == 8, step.report()


def of_an_item(y: SparseTensor) -> Tensor:
    total = y.features.sum()
    return total * 2 if total.item() > 1e9 else total


@pytest.mark.parametrize(
    "loss",
    [
        of_an_item,
        lambda y: of_a_synchronisation(y).features.sum(),
        lambda y: lc.nn.reduce_cells(of_a_hidden_wait(y).features, y),
        lambda y: y.features.mean(),
    ],
)
def test_what_cannot_be_captured_is_eager_and_leaves_nothing_behind(
    loss: Callable[[Any], Tensor],
) -> None:
    net, good = small(), small()
    other, same = copy.deepcopy(net), copy.deepcopy(good)
    step, working = lc.nn.graphed_step(net, loss), lc.nn.graphed_step(good, signed)
    for number in range(2):
        x = on_gpu(400, number)
        assert torch.equal(step(x), eagerly(other, loss, x).detach())
        working(x)
        eagerly(same, signed, x)
        for one, two in ((net, other), (good, same)):
            for mine, theirs in zip(gradients(one), gradients(two), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert not torch.cuda.is_current_stream_capturing()
    assert (step.report().hits, len(step.report().eager)) == (0, 1)
    assert working.report().hits == 1
    assert torch.rand(4, device="cuda").isfinite().all()


def test_class_losses_with_labels() -> None:
    net = lc.nn.Sequential(lc.nn.SubmConv3d(3, 8, 3), nn.ReLU(), lc.nn.SubmConv3d(8, 5, 1)).cuda()
    other = copy.deepcopy(net)
    ignoring = nn.CrossEntropyLoss(ignore_index=255)

    def loss(y: SparseTensor, labels: Tensor) -> Tensor:
        return ignoring(y.features, labels)

    step = lc.nn.graphed_step(net, loss)
    for number, rows in enumerate((300, 280, 310)):
        for module in net, other:
            module.zero_grad()
        x = on_gpu(rows, number)
        labels = labels_of(x)
        labels[::7] = 255
        found, expected = step(x, labels), eagerly(other, loss, x, labels)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
        check_near(net, other)
    assert step.report().hits == 2, step.report()


def test_dense_networks_of_convert() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).cuda()  # fmt: skip
    lc.nn.convert(net)
    other = copy.deepcopy(net)
    step = lc.nn.graphed_step(net, functional.cross_entropy)
    for number, size in enumerate((16, 16, 24, 16, 24)):
        for module in net, other:
            module.zero_grad()
        x = torch.randn(4, 3, size, size, device="cuda")
        labels = torch.tensor([0, 1, 2, number % 4], device="cuda")
        found = step(x, labels)
        expected = eagerly(other, functional.cross_entropy, x, labels).detach()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        check_near(net, other)
    assert (step.report().hits, step.report().warm_ups) == (3, 2), step.report()


def test_on_another_stream() -> None:
    net = small()
    other = copy.deepcopy(net)
    step = lc.nn.graphed_step(net, signed)
    side = torch.cuda.Stream()
    for number in range(3):
        x = on_gpu(300, number)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(x)
        torch.cuda.current_stream().wait_stream(side)
        eagerly(other, signed, x)
        for one, two in zip(gradients(net), gradients(other), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert step.report().hits == 2


def test_memory_of_buckets_is_given_back() -> None:
    step, x = lc.nn.graphed_step(small(), signed), on_gpu(2000, 0)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    step(x)
    step(x)
    assert step.report().buckets[0].nbytes > 0
    step.reset()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 32 << 20


def test_tables_of_taps_stay_for_graphs() -> None:
    """A graph that a user captured reads the same taps after thousands of others were used."""
    from layoutconv.kernels.maps.device_tables import device_table

    x = on_gpu(400, 0).padded(512)
    weight = torch.ones(2, 5, 5, 5, 3, device="cuda")

    def run() -> Tensor:
        cells = lc.sparse.Coordinates(x.coords, SHAPE, 2, padded=True)
        y = lc.sparse_conv(SparseTensor(x.features, cells), weight, stride=2, capacity=2048)
        return y.features

    with torch.no_grad():
        expected = run().clone()
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        for number in range(1100):
            device_table((-number, number), torch.device("cuda", 0))
        gc.collect()
        poison()
        graph.replay()
    assert torch.equal(found, expected)
