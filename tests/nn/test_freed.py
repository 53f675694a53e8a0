"""A training step holds nothing past its backward pass, also where somebody holds the loss.

The last loss, or its output, is in a variable until the next step has another: what autograd holds
until then would be there beside what the next forward pass makes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layoutconv as lc
from layoutconv.base.torch_internals import keeps_graph, supposed
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.nn import sparse_avg_pool, sparse_max_pool
from layoutconv.sparse import SparseTensor, strided_map, submanifold_map

from .clouds import cloud, numbers

pytestmark = pytest.mark.skipif(
    keeps_graph is supposed, reason="a torch that does not say whether a graph is retained"
)
FILTER = numbers(4, 3, 3, 4).float().requires_grad_()
DOWN = numbers(4, 2, 2, 4).float().requires_grad_()
NET = lc.nn.Sequential(
    lc.nn.SubmConv2d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(),
    lc.nn.SparseConv2d(8, 8, 2, stride=2, activation="relu"), lc.nn.SparseInverseConv2d(8, 4, 2),
)  # fmt: skip
NAMED = spconv.SparseSequential(
    spconv.SubMConv2d(4, 8, 3, indice_key="same"), nn.BatchNorm1d(8), nn.ReLU(),
    spconv.SparseConv2d(8, 8, 2, stride=2, indice_key="down"), nn.ReLU(),
    spconv.SparseInverseConv2d(8, 4, 2, indice_key="down"),
)  # fmt: skip
HALVED = lc.Pointwise(lambda y: y * 0.5)


def named(x: SparseTensor) -> Any:
    grid = list(x.spatial_shape), x.batch_size
    return NAMED(spconv.SparseConvTensor(x.features, x.coords, *grid))


STEPS: dict[str, Callable[[SparseTensor], Any]] = {
    "submanifold": lambda x: lc.subm_conv(x, FILTER),
    "strided, with an ending": lambda x: lc.sparse_conv(x, DOWN, stride=2, activation="relu"),
    "a function": lambda x: lc.subm_conv(x, FILTER, activation=HALVED),
    "max pooling": lambda x: sparse_max_pool(x, 2, stride=2),
    "average pooling": lambda x: sparse_avg_pool(x, 2, stride=2),
    "a network": NET,
    "spconv's names": named,
    "recomputed": lambda x: checkpoint(NET, x, use_reentrant=False),
}


@pytest.fixture(scope="module")
def others() -> Iterator[None]:
    """Look once at all that other tests keep, kernels as parsed among it: that takes seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_collector(others: None) -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def begun(step: Callable[[SparseTensor], Any], seed: int) -> tuple[Tensor, Tensor, list[ref[Any]]]:
    """A loss, the features, and what it has to let go of: cells, maps and their index buffers."""
    x = cloud(2, 4, dtype=torch.float32, seed=seed)
    x = x.replace(x.features.clone().requires_grad_())  # which autograd holds, as a leaf
    y = step(x)
    maps = submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)
    held = [x.coords, y.features]
    held += [part for found in maps for part in (found, found.index, found.inverse.index)]
    return y.features.square().sum(), x.features, list(map(ref, held))


def alive(held: list[ref[Any]]) -> list[Any]:
    return [found for reference in held if (found := reference()) is not None]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", STEPS)
def test_a_loss_that_went_backward_holds_nothing(name: str) -> None:
    for seed in range(3):  # the first is checked, the others are found
        loss, _, held = begun(STEPS[name], seed)
        loss.backward()
        assert alive(held) == []
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", [name for name in STEPS if name != "recomputed"])
def test_a_graph_that_is_retained_goes_backward_again(name: str) -> None:
    for seed in range(2):
        loss, features, held = begun(STEPS[name], seed)
        (first,) = torch.autograd.grad(loss, features, retain_graph=True)
        (second,) = torch.autograd.grad(loss, features)
        assert torch.equal(first, second)
        assert alive(held) == []
