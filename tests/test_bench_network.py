"""The benchmark of a network: both sides compute the same, and what it counts is there."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as compat
from layoutconv.sparse import strided_map, submanifold_map

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WIDTH = 0.07  # 2 channels in the stem


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    module = import_module("bench_network")
    module.BLOCKS, module.BLOCKS_UP = (1, 2, 1, 1), (1, 1, 1, 1)
    yield module
    sys.path.remove(str(BENCHMARKS))
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def cloud(bench):
    """Odd extents, so that the last cells of a mode reach no window of the coarser grid."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(0, 33, (200, 3), generator=generator)
    cells[:, 0] //= 2
    cells = cells.unique(dim=0)
    cells = torch.cat([torch.zeros_like(cells[:, :1]), cells], dim=1).int()
    return bench.Cloud("cube", cells, (17, 33, 33), 1)


@pytest.fixture(scope="module")
def features(cloud):
    return torch.randn(len(cloud.cells), 4, generator=torch.Generator().manual_seed(1))


def test_both_sides_are_the_same_network(bench, cloud, features):
    ours, theirs = bench.Ours(), bench.Theirs(compat)
    net = bench.network(ours, WIDTH)
    peer = bench.MinkUNet(theirs, WIDTH).eval()
    peer.load_state_dict(net.state_dict())
    with torch.no_grad():
        a, b = net(ours.tensor(cloud, features)), peer(theirs.tensor(cloud, features))
    assert a.shape == (len(cloud.cells), 20)
    assert 1e-2 < a.std() < 1e3
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(a, net(ours.tensor(cloud, features.flip(0))))


def test_folding_and_capacities_change_nothing(bench, cloud, features):
    ours = bench.Ours()
    net = bench.network(ours, WIDTH)
    plain = net(ours.tensor(cloud, features))
    rows = bench.work_of(net, cloud, features).rows
    assert len(rows) == 4
    capacities = [bench._capacity(count) for count in rows]
    assert all(count < capacity for count, capacity in zip(rows, capacities, strict=True))
    folded = lc.nn.fold_batch_norms(net)
    assert not any(isinstance(m, torch.nn.ReLU) for m in folded.stem)
    for given in (None, capacities):
        y = folded(ours.tensor(cloud, features), given)
        torch.testing.assert_close(y, plain, rtol=1e-4, atol=1e-5)


def test_work_is_that_of_the_pairs(bench, cloud, features):
    net = bench.network(bench.Ours(), WIDTH)
    work = bench.work_of(net, cloud, features)
    assert len(work.flop) == 2 + 4 * 2 + 2 * (1 + 2 + 1 + 1 + 4)  # 56 convolutions
    coordinates = cloud.coordinates()
    pairs = int((submanifold_map(coordinates, 3).index >= 0).sum())
    width = net.stem[0].weight.shape[0]
    assert work.flop[:2] == [2 * pairs * 4 * width, 2 * pairs * width * width]
    rows = len(cloud.cells)
    numbers = rows * (4 + width) + width * 27 * 4
    assert work.moved[0] == 4 * numbers + 4 * pairs
    assert work.rows[0] == len(strided_map(coordinates, 2, 2).outputs)


def test_the_floor_is_a_sum_over_convolutions(bench):
    roof = bench.roof_of("NVIDIA H200")
    work = bench.Work([990e6, 0.0], [0.0, 4.8e6], [])
    assert work.floor(roof, "fp16") == pytest.approx(2.0)
    assert work.floor(None, "fp16") is None


def test_rows_and_failures(bench, cloud, monkeypatch, capsys, tmp_path):
    """Peers that fail or are wrong are left out, rows that fail are reported, others run."""
    network = bench.network
    monkeypatch.setattr(bench, "network", lambda names: network(names, WIDTH))
    init = bench.MinkUNet.__init__
    monkeypatch.setattr(bench.MinkUNet, "__init__", lambda s, n, w=WIDTH: init(s, n, w))

    class Other:  # a library that cannot build the network
        SparseSequential = torch.nn.Sequential

    def captured(*of: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(bench, "captured", captured)
    monkeypatch.setattr(bench, "median_microseconds", lambda call, *n: call() is not None and 5.0)
    peers = {"compat": compat, "other": Other}
    roof, progress = bench.roof_of("NVIDIA H200"), bench.Progress()
    with torch.inference_mode():
        found = dict(bench.measure(cloud, peers, roof, "eager|graph", 1, progress))
    assert "when stream is capturing" in found["graph cube fp16"]
    row = found["eager cube fp16"]
    assert row.peers == {"compat": 5.0}
    assert row.ratio == 1.0
    assert row.right
    assert row.floor > 0
    assert "other FAILED" in capsys.readouterr().err
    assert set(found) == {"eager cube fp16", "graph cube fp16"}
    pytest.importorskip("matplotlib")
    picture = tmp_path / "network.png"
    bench.plot([row], "cube", picture, roof)
    assert picture.stat().st_size > 10_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench, capsys):
    assert bench.main([]) == 2
    assert "it measures a GPU" in capsys.readouterr().err
