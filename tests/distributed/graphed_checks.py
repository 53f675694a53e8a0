"""Graphed networks and steps of two ranks: gradients are those of ``DistributedDataParallel``.

Graphs have stand-ins on a CPU, and ranks have clouds of different sizes: where one replays, the
other may warm up, and nobody waits for who does not come.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import layoutconv as lc
from layoutconv.distributed import mean_over_ranks

from ..nn.test_graphed import Replays, cloud
from ..nn.test_graphed_step import check_same, plain, squares, step_of

ROWS = ((200, 190, 500, 195, 480, 210), (200, 450, 185, 460, 470, 190))  # of either rank


def mine():
    return [cloud(rows, seed) for seed, rows in enumerate(ROWS[dist.get_rank()])]


def average(net):
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def steps_whose_gradients_are_reduced_after_them():
    """Two steps accumulate before each reduction, as in ``no_sync`` of the wrapper."""
    net = plain()
    ddp = DistributedDataParallel(copy.deepcopy(net))
    step = step_of(net, squares)
    optimizers = [torch.optim.SGD(m.parameters(), 1e-10) for m in (net, ddp)]
    for number, x in enumerate(mine()):
        value = step(x)
        if number % 2 == 0:
            with ddp.no_sync():
                y = squares(ddp(x))
                y.backward()
        else:
            y = squares(ddp(x))
            y.backward()
            average(net)
            check_same(net, ddp.module)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(value, y.detach())
    report = step.report()
    assert report.hits >= 2, report


def a_wrapped_network_in_a_step_is_eager():
    ddp = DistributedDataParallel(plain())
    other = copy.deepcopy(ddp.module)
    step = step_of(ddp, squares)
    for x in mine()[:3]:
        step(x)
        squares(other(x)).backward()
    average(other)
    check_same(ddp.module, other)
    assert "give its module, and reduce gradients after" in str(step.report())
    assert step.report().hits == 0


def a_loss_in_which_ranks_wait_is_eager():
    """Each meets the other once a step, whether it would warm up or replay."""
    net = plain()
    ddp = DistributedDataParallel(copy.deepcopy(net))
    dropped = lc.nn.Sequential(copy.deepcopy(net), torch.nn.Dropout())

    def loss(y):
        return mean_over_ranks(y.features.square())

    step, random = step_of(net, loss), step_of(dropped, loss)
    for x in mine()[:4]:
        value = step(x)
        y = loss(ddp(x))
        y.backward()
        torch.testing.assert_close(value, y.detach())
        random(x)
    average(net)
    check_same(net, ddp.module)
    for report in step.report(), random.report():
        assert report.hits == 0
        assert "ranks wait for each other in c10d." in str(report)


def a_graphed_network_is_wrapped():
    """It trains eagerly and evaluates as graphs; the other way about it is eager."""
    net = plain()
    graph = lc.nn.graphed(net)
    graph._recorder = Replays()
    ddp, other = DistributedDataParallel(graph), DistributedDataParallel(copy.deepcopy(net))
    for x in mine()[:2]:
        for model in ddp, other:
            squares(model(x)).backward()
        check_same(net, other.module)
    ddp.eval()
    wrapped = lc.nn.graphed(other.eval())
    wrapped._recorder = Replays()
    with torch.no_grad():
        for x in mine():
            one, two = ddp(x), wrapped(x)
            assert torch.equal(one.features, two.features)
    assert graph.report().hits >= 2
    assert wrapped.report().hits == 0
    assert "give its module, and wrap the graphed network" in str(wrapped.report())


CHECKS = {
    check.__name__: check
    for check in (
        steps_whose_gradients_are_reduced_after_them,
        a_wrapped_network_in_a_step_is_eager,
        a_loss_in_which_ranks_wait_is_eager,
        a_graphed_network_is_wrapped,
    )
}
