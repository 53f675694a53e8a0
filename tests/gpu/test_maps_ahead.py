"""Kernel maps beside the layers of a captured network: bit for bit what eager calls give, and what
a graph gives that makes its maps in line, of clouds that change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.kernels.maps import cooperative
from layoutconv.sparse import SparseTensor, submanifold_map
from layoutconv.sparse.maps import ahead
from tests.compat.networks import unet
from tests.gpu.test_graphed import poison
from tests.nn.test_graphed import SHAPE, Levels, check_same, cloud, with_integers
from tests.nn.test_graphed_step import eagerly, gradients, integers

from ..watched import Watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SIZES = 1500, 1480, 1300, 1510, 1200, 1450


@contextmanager
def in_line() -> Iterator[None]:
    """Have maps made where layers need them."""
    found = ahead.side_of
    ahead.side_of = lambda device: None
    try:
        yield
    finally:
        ahead.side_of = found


@pytest.fixture
def counts(watched: Watch) -> list[int]:
    """The numbers of maps that are made beside."""
    return watched("_make", ahead.Ahead, note=lambda call: len(call.args[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_networks(dtype: torch.dtype, counts: list[int]) -> None:
    net = with_integers(Levels()).cuda().to(dtype)
    graph = lc.nn.graphed(net)
    with torch.no_grad():
        for number, rows in enumerate((*SIZES, 17, 9)):
            x = cloud(rows, number).cuda().to(dtype)
            poison()
            check_same(graph(x), net(x))
    assert graph.report().hits >= 4
    assert min(counts) >= 5


def test_networks_of_spconvs_names(counts: list[int]) -> None:
    net = with_integers(unet(spconv)).cuda().half()
    graph = lc.nn.graphed(net)
    with torch.no_grad():
        for number, rows in enumerate(SIZES):
            x = cloud(rows, number).cuda().half()
            given = spconv.SparseConvTensor(x.features, x.coords, list(SHAPE), 2)
            check_same(graph(given), net(given))
    assert graph.report().hits >= 3
    assert min(counts) >= 3


def trained() -> nn.Module:
    layers = (
        lc.nn.SubmConv3d(3, 16, 3), nn.BatchNorm1d(16), nn.ReLU(),
        lc.nn.SparseConv3d(16, 32, 3, 2, 1), nn.BatchNorm1d(32), nn.ReLU(),
        lc.nn.SubmConv3d(32, 32, 3), lc.nn.SparseConv3d(32, 32, 3, 2, 1), nn.ReLU(),
        lc.nn.SparseInverseConv3d(32, 32, 3), lc.nn.SparseInverseConv3d(32, 8, 3),
    )  # fmt: skip
    torch.manual_seed(0)
    return lc.nn.Sequential(*layers).cuda()


def squares(y: SparseTensor) -> torch.Tensor:
    return lc.nn.reduce_cells(y.features.float().square(), y)


def test_steps_have_the_bits_of_maps_in_line(counts: list[int]) -> None:
    net = trained()
    other = copy.deepcopy(net)
    step, plain = (lc.nn.graphed_step(one, squares) for one in (net, other))
    for number, rows in enumerate(SIZES):
        for one in net, other:
            one.zero_grad()
        x = cloud(rows, number).cuda()
        poison()
        with torch.autocast("cuda", torch.float16):
            found = step(x)
            made = len(counts)
            with in_line():
                expected = plain(x)
        assert len(counts) == made
        assert torch.equal(found, expected)
        left = [*gradients(net), *net.buffers()], [*gradients(other), *other.buffers()]
        for tensor, like in zip(*left, strict=True):
            assert torch.equal(tensor, like)  # type: ignore[arg-type]
    assert step.report().hits >= 3
    assert counts


def test_exact_steps_are_eager_ones() -> None:
    layers = (
        lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SparseConv3d(4, 8, 3, 2, 1),
        lc.nn.SubmConv3d(8, 2, 1),
    )  # fmt: skip
    net = integers(lc.nn.Sequential(*layers)).cuda()
    other = copy.deepcopy(net)

    def signed(y: SparseTensor) -> torch.Tensor:
        return lc.nn.reduce_cells(y.features * y.coords[:, 1:2].sub(2).sign(), y, "sum")

    step = lc.nn.graphed_step(net, signed)
    for number, rows in enumerate(SIZES):
        for one in net, other:
            one.zero_grad()
        x = cloud(rows, number).cuda()
        step(x)
        eagerly(other, signed, x)
        for found, expected in zip(gradients(net), gradients(other), strict=True):
            assert torch.equal(found, expected)  # type: ignore[arg-type]
    assert step.report().hits >= 3


@pytest.mark.parametrize("rows", [1, 31, 500, 5000, 60_000])
def test_few_ctas_make_the_same_maps(rows: int) -> None:
    random = torch.Generator().manual_seed(rows)
    keys = torch.randperm(128 * 128 * 16, generator=random)[:rows]
    cells = lc.sparse.Coordinates.of_keys(keys, (16, 128, 128), 1).cells.cuda()

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        return submanifold_map(lc.sparse.Coordinates(cells, (16, 128, 128), 1), 3).sorted

    expected = made()
    with cooperative.beside_others():
        found = made()
    assert all(map(torch.equal, found, expected))
