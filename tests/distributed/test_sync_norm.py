"""Batch norms over ranks in the place of those of ``lc.nn``, in one process."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

import layoutconv as lc
from layoutconv.compat import torchsparse
from layoutconv.compat.spconv import pytorch as spconv
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


CELLS = torch.tensor([[0, 1, 1, 2], [0, 3, 1, 0], [1, 2, 2, 2]], dtype=torch.int32)


@pytest.mark.parametrize(
    ("norm", "tensor"),
    [
        (torchsparse.nn.BatchNorm, lambda x: torchsparse.SparseTensor(x, CELLS)),
        (spconv.SparseBatchNorm, lambda x: spconv.SparseConvTensor(x, CELLS, [4, 4, 4], 2)),
        (spconv.SparseBatchNorm, lambda x: x),
    ],
)
def test_a_norm_of_compat_takes_what_it_took(norm, tensor):
    theirs, x = norm(3), torch.randn(3, 3)
    over_ranks = SyncBatchNorm.convert(copy.deepcopy(theirs))
    assert isinstance(over_ranks, SyncBatchNorm)
    assert SyncBatchNorm.convert(over_ranks) is over_ranks
    over_ranks = copy.deepcopy(over_ranks)
    y, expected = over_ranks(tensor(x)), theirs(tensor(x))
    assert type(y) is type(expected)
    if not isinstance(y, torch.Tensor):
        y, expected = (t.features if hasattr(t, "features") else t.feats for t in (y, expected))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(over_ranks.running_var, theirs.running_var)


def test_a_shared_norm_is_converted_under_each_name():
    norm = torch.nn.BatchNorm1d(3)
    net = SyncBatchNorm.convert(torch.nn.Sequential(norm, torch.nn.ReLU(), norm))
    assert all(isinstance(net[i], SyncBatchNorm) for i in (0, 2))
    assert net[0].weight is net[2].weight


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
