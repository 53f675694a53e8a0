"""Coordinates without bounds, searches and other libraries' names on a GPU, against the CPU."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
import layoutconv.compat.torchsparse as torchsparse
from layoutconv.sparse import downsample, knn_search, lookup, radius_search, splat

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def cloud(rows=4000):
    random = torch.Generator().manual_seed(0)
    cells = torch.unique(torch.randint(-40, 40, (rows, 4), generator=random), dim=0).int()
    cells[:, 0] = cells[:, 0].abs() % 2
    cells = torch.unique(cells, dim=0)
    features = torch.randn(len(cells), 16, generator=random)
    return features, cells[torch.randperm(len(cells), generator=random)]


def both(function):
    """Results on the CPU and on the GPU."""
    return function("cpu"), [t.cpu() for t in function("cuda")]


def test_maps_and_sums_are_those_of_the_cpu():
    features, cells = cloud()
    weight, down = torch.randn(32, 3, 3, 3, 16), torch.randn(32, 3, 3, 3, 32)

    def run(device):
        x = lc.SparseTensor(features.double().to(device), cells.to(device))
        y = lc.subm_conv(x, weight.double().to(device))
        z = lc.sparse_conv(y, down.double().to(device), stride=2, padding=1)
        few = downsample(x.coordinates)
        back = lc.sparse_inverse_conv(z, down.double().to(device))
        rows = lookup(x.coordinates, cells.to(device) - 1)
        return [z.features, z.coords, few.coords, back.features, rows, (x * 2 + x[:1]).features]

    for one, other in zip(*both(run), strict=True):
        torch.testing.assert_close(one, other)


def test_points_are_found_as_on_the_cpu():
    points = torch.randn(3000, 4, generator=torch.Generator().manual_seed(1)) * 5

    def run(device):
        own = points.to(device)
        shared = splat(own, 0.7)
        near, nearest = radius_search(own, 1.0, limit=8), knn_search(own, 5)
        return [*near[:2], nearest[0], shared.coords, shared.features]

    for one, other in zip(*both(run), strict=True):
        torch.testing.assert_close(one, other)


def test_networks_of_other_names_are_those_of_the_cpu():
    features, cells = cloud()
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        ME.MinkowskiConvolution(16, 32, 3, stride=2, dimension=3),
        ME.MinkowskiInstanceNorm(32), ME.MinkowskiReLU(),
        ME.MinkowskiGenerativeConvolutionTranspose(32, 16, 2, stride=2, dimension=3),
    ).double()  # fmt: skip
    layers = torchsparse.nn
    other = torch.nn.Sequential(
        layers.Conv3d(16, 32, 2, stride=2), layers.ReLU(),
        layers.Conv3d(32, 16, 2, stride=2, transposed=True),
    ).double()  # fmt: skip

    def run(device):
        x = ME.SparseTensor(features.double().to(device), cells.to(device))
        y = net.to(device)(x)
        z = other.to(device)(torchsparse.SparseTensor(x.F, cells.to(device)))
        return [y.F.detach(), y.C, z.F.detach(), z.C]

    for one, found in zip(*both(run), strict=True):
        torch.testing.assert_close(one, found)
