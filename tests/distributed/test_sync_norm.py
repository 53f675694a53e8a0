"""Batch norms over ranks in the place of those of ``lc.nn``, in one process."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

import layoutconv as lc
from layoutconv.distributed import SyncBatchNorm
from layoutconv.sparse import SparseTensor


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", [None, "relu", "silu", "leaky_relu"])
def test_a_norm_of_ours_keeps_its_activation_and_its_sum(training, activation):
    ours = lc.nn.BatchNorm2d(3, activation=activation, slope=0.3, dtype=torch.float64)
    ours.train(training)
    ours.running_mean.normal_()
    over_ranks = SyncBatchNorm.convert(copy.deepcopy(ours))
    assert isinstance(over_ranks, SyncBatchNorm)
    assert list(over_ranks.state_dict()) == list(ours.state_dict())
    x, past = torch.randn(2, 4, 3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(over_ranks(x), ours(x))
    torch.testing.assert_close(over_ranks(x, past), ours(x, past))


@pytest.mark.parametrize("training", [True, False])
def test_rows_without_a_cell_stay_zero_behind_an_activation(training):
    ours = lc.nn.BatchNorm1d(3, activation="sigmoid").train(training)
    net = lc.nn.Sequential(SyncBatchNorm.convert(copy.deepcopy(ours)))
    cells = torch.tensor([[0, 1], [0, 3], [0, 4]], dtype=torch.int32)
    x = SparseTensor(torch.randn(3, 3), cells, (6,), 1)
    expected = ours(x.features)
    y = net(x.padded(5)).features
    torch.testing.assert_close(y[:3], expected)
    assert not y[3:].any()


@pytest.mark.parametrize("of", [torch.nn, lc.nn])
def test_a_norm_without_a_bias_gets_none(of):
    if "bias" not in inspect.signature(torch.nn.BatchNorm1d).parameters:
        pytest.skip("this torch has no norms without a bias")
    norm, x = of.BatchNorm1d(3, bias=False), torch.randn(5, 3)
    over_ranks = SyncBatchNorm.convert(copy.deepcopy(norm))
    assert over_ranks.bias is None
    y = over_ranks(x)
    torch.testing.assert_close(y, norm(x))
    y.square().sum().backward()
    norm(x).square().sum().backward()
    torch.testing.assert_close(over_ranks.weight.grad, norm.weight.grad)
