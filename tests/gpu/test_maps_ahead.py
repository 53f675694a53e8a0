"""Kernel maps beside the layers of a captured network: bit for bit what eager calls give, of clouds
that change."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.kernels.maps import cooperative
from layoutconv.sparse import submanifold_map
from layoutconv.sparse.maps import ahead
from tests.compat.networks import unet
from tests.gpu.test_graphed import poison
from tests.nn.test_graphed import SHAPE, Levels, check_same, cloud, with_integers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SIZES = 1500, 1480, 1300, 1510, 1200, 1450


def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of maps that are made beside."""
    counts: list[int] = []
    make = ahead.Ahead._make

    def counted(self: ahead.Ahead, wanted: list[tuple[int, ahead.Asked]]) -> object:
        counts.append(len(wanted))
        return make(self, wanted)

    monkeypatch.setattr(ahead.Ahead, "_make", counted)
    return counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_networks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net = with_integers(Levels()).cuda().to(dtype)
    counts = forks(monkeypatch)
    graph = lc.nn.graphed(net)
    with torch.no_grad():
        for number, rows in enumerate((*SIZES, 17, 9)):
            x = cloud(rows, number).cuda().to(dtype)
            poison()
            check_same(graph(x), net(x))
    assert graph.report().hits >= 4
    assert min(counts) >= 5


def test_networks_of_spconvs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    net = with_integers(unet(spconv)).cuda().half()
    counts = forks(monkeypatch)
    graph = lc.nn.graphed(net)
    with torch.no_grad():
        for number, rows in enumerate(SIZES):
            x = cloud(rows, number).cuda().half()
            given = spconv.SparseConvTensor(x.features, x.coords, list(SHAPE), 2)
            check_same(graph(given), net(given))
    assert graph.report().hits >= 3
    assert min(counts) >= 3


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
