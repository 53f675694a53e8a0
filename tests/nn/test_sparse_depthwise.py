"""Depthwise convolution of sparse tensors: torch's of the dense grid, at cells that are there."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as theirs

from layoutconv.nn.sparse_depthwise import sparse_depthwise
from layoutconv.sparse import Coordinates, SparseTensor, strided_map, submanifold_map

from .grids import at_cells, cloud, grid

DOUBLE = torch.float64


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolution(stride, m):
    x = cloud((5, 6, 4))
    features = x.features.requires_grad_()
    weight = torch.randn(3 * m, 3, 3, 3, 1, dtype=DOUBLE, requires_grad=True)
    cells = x.coordinates
    map = submanifold_map(cells, 3) if stride == 1 else strided_map(cells, 3, 2, 1)
    y = sparse_depthwise(features, weight, map)
    dense = grid(x, features, 0.0)
    want = theirs.conv3d(dense, weight.movedim(-1, 1), stride=stride, padding=1, groups=3)
    want = at_cells(want, SparseTensor(y, map.outputs))
    torch.testing.assert_close(y, want)
    grad = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad(y, (features, weight), grad),
        torch.autograd.grad(want, (features, weight), grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("m", [1, 2])
def test_depthwise_convolution_of_no_rows(m):
    """One cell that no window of the map reads; and no cell at all."""
    for cells in (torch.tensor([[0, 1]]), torch.empty(0, 2)):
        map = strided_map(Coordinates(cells.int(), (4,), 1), 1, 2)
        assert len(map.outputs) == 0
        fine = torch.randn(len(cells), 3, dtype=DOUBLE, requires_grad=True)
        coarse = torch.randn(0, 3, dtype=DOUBLE, requires_grad=True)
        weight = torch.randn(3 * m, 1, 1, dtype=DOUBLE, requires_grad=True)
        for features, own in ((fine, map), (coarse, map.inverse)):
            y = sparse_depthwise(features, weight, own)
            assert y.shape == (len(own.outputs), 3 * m)
            dx, dw = torch.autograd.grad(y.sum(), (features, weight))
            assert not y.any()
            assert not dx.any()
            assert not dw.any()


@pytest.mark.parametrize("m", [1, 2])
def test_gradients_of_gradients_of_depthwise_convolution(m):
    x = cloud((3, 4), C=2, N=1, density=0.8)
    map = strided_map(x.coordinates, (2, 3), 2, 1)
    assert len(map.inputs) > len(map.outputs)
    weight = torch.randn(2 * m, 2, 3, 1, dtype=DOUBLE, requires_grad=True)
    inputs = x.features.requires_grad_(), weight
    assert torch.autograd.gradcheck(lambda f, w: sparse_depthwise(f, w, map), inputs)
    assert torch.autograd.gradgradcheck(lambda f, w: sparse_depthwise(f, w, map), inputs)


def test_only_what_is_wanted_is_derived():
    x = cloud((4, 4))
    weight = torch.randn(3, 3, 3, 1, dtype=DOUBLE)
    map = submanifold_map(x.coordinates, 3)
    sparse_depthwise(x.features, weight, map)
    assert map.ways.ways[1] is None
    assert not map.own._pairs
    sparse_depthwise(x.features, weight.requires_grad_(), map).sum().backward()
    assert map.ways.ways[1] is None
    assert map.own._pairs
