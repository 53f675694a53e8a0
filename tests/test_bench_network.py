"""The benchmark of a network: all sides compute the same, and what it counts is there."""

from __future__ import annotations

import json
from copy import copy
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import layoutconv.compat.spconv.pytorch as compat
from layoutconv.sparse import strided_map, submanifold_map

WIDTH = 0.07  # 2 channels in the stem


@pytest.fixture(scope="module")
def bench(load_benchmark):
    net = load_benchmark("minkunet")
    net.BLOCKS, net.BLOCKS_UP = (1, 2, 1, 1), (1, 1, 1, 1)
    return load_benchmark("bench_network")


@pytest.fixture(scope="module")
def calls(bench):
    return import_module("network_calls")


@pytest.fixture(scope="module")
def cloud(bench):
    """Odd extents, so that the last cells of a mode reach no window of the coarser grid."""
    generator = torch.Generator().manual_seed(0)
    cells = torch.randint(0, 33, (400, 3), generator=generator)
    cells[:, 0] //= 2
    cells = cells.unique(dim=0)
    cells = torch.cat([torch.zeros_like(cells[:, :1]), cells], dim=1).int()
    return bench.Cloud("cube", cells, (17, 33, 33), 1)


@pytest.fixture(scope="module")
def case(calls, cloud):
    return calls.Case(cloud, WIDTH)


@pytest.mark.parametrize("kind", ["eager", "given", "graph", "graphed", "training"])
def test_our_rows_are_the_network_in_float64(calls, case, kind):
    """Without a graph, what would be captured."""
    call = calls.ours(kind, case, captures=False)
    for _ in range(2):
        result = call()
        assert case.error(kind, result) < calls.TOLERANCE[kind]
    if kind == "training":
        result[case.filters[5]] = 0  # of one layer
    else:
        result[::8] *= 2
    assert case.error(kind, result) > calls.TOLERANCE[kind]
    assert case.scores.shape == (len(case.cloud.cells), 20)
    assert 1e-2 < case.scores.std(0).mean() < 1e2
    assert case.gradient.abs().max() > 1e-3


class Late:
    """A mixin of layers that do what ``act_type`` says when they are called."""

    _activation = property(
        lambda self: "relu" if self.act_type.name == "ReLU" else None, lambda self, name: None
    )


@pytest.fixture
def spconv():
    """A stand-in for spconv, whose layers look at their ``act_type`` late."""
    kinds = compat.SubMConv3d, compat.SparseConv3d, compat.SparseInverseConv3d
    late = {kind.__name__: type(kind.__name__, (Late, kind), {}) for kind in kinds}
    return SimpleNamespace(**vars(compat) | late)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("kind", ["eager", "training"])
def test_peers_are_the_same_network(calls, case, spconv, kind, folded):
    if folded and kind == "training":
        return
    call = calls.theirs(kind, case, spconv, folded)
    assert case.error(kind, call()) < calls.TOLERANCE[kind]


def test_our_folded_network_is_convolutions_and_products(calls, case, watched):
    """No batch norm, activation or sum is left to torch."""
    call = calls.ours("eager", case)
    names = "batch_norm", "relu", "linear"
    used = [watched(name, torch.nn.functional) for name in names]
    call()
    assert [len(found) for found in used] == [0, 0, 3 + 4 + 1]  # where channels change; the head


def test_work_is_that_of_the_pairs(case, cloud):
    work = case.work
    assert len(work.flop) == 2 + 4 * 2 + 2 * (1 + 2 + 1 + 1 + 4)  # 56 convolutions in the large
    coordinates = cloud.coordinates()
    pairs = int((submanifold_map(coordinates, 3).index >= 0).sum())
    width = case.weights["stem.0.weight"].shape[0]
    assert work.flop[:2] == [2 * pairs * 4 * width, 2 * pairs * width * width]
    rows = len(cloud.cells)
    numbers = rows * (4 + width) + width * 27 * 4
    assert work.moved(4)[0] == 4 * numbers + 4 * pairs
    assert work.rows[0] == len(strided_map(coordinates, 2, 2).outputs)
    every = rows, *work.rows
    assert all(few < most for few, most in zip(every, case.capacities, strict=True))


def test_the_floor_is_a_sum_over_convolutions(bench):
    roof = bench.roof_of("NVIDIA H200")
    work = import_module("minkunet").Work([990e6, 0.0], [0.0, 2.4e6], [0.0, 0.0])
    assert work.floor(roof, "fp16", 2) == pytest.approx(2.0)
    assert work.floor(None, "fp16", 2) is None


@pytest.fixture
def options(bench, tmp_path):
    return bench._options(["--repeats", "1", "--json", str(tmp_path / "rows.json")])


@pytest.fixture
def five_microseconds(bench, monkeypatch):
    """The time of a call, however long it takes."""
    monkeypatch.setattr(import_module("timing"), "_batch", lambda call, iterations: 5.0)


@pytest.mark.usefixtures("five_microseconds")
def test_rows_and_failures(bench, calls, cloud, options, capsys, tmp_path):
    """Peers that fail are left out, rows that fail are reported, others run."""
    dry: list[str] = []

    def ours(kind: str, case: Any, captures: bool = True) -> Any:
        dry.append(kind)
        if dry.count("given") == 2:  # the first is compiled for
            dry.append(kind)
            raise RuntimeError("operation not permitted when stream is capturing")
        return calls.ours(kind, case, captures)

    def in_time(request: Any, seconds: float, say: Any) -> Any:
        if request.module == "slow":
            return [("eager", "slow", "exceeded 300 s"), ("given", "slow", "exceeded 300 s")]
        return [("eager", "quick", 1e9), ("eager", "quick folded", 5e8)]

    options.rows = "eager|given|graph "
    options.compile = 2
    roof, say = bench.roof_of("NVIDIA H200"), bench.Phases(bench.Progress())
    peers = ["quick", "slow"]
    found = list(bench.measure(cloud, peers, roof, options, say, WIDTH, ours, in_time))
    eager, given, graph = found
    assert given == "given cube fp16"
    assert eager.right
    assert eager.peer == graph.peer == "quick folded"
    assert eager.ratio == pytest.approx(5e8 / eager.microseconds)
    assert eager.floor > 0
    told = capsys.readouterr().out
    assert "when stream is capturing" in told
    assert "slow, eager FAILED: exceeded 300 s" in told
    assert "0 kernels were missing" in told
    assert bench.report([eager, graph], [given], "a machine", roof, options) == 1
    table = capsys.readouterr().out
    assert "2 rows, 1 failed, 0 wrong" in table
    assert table.count("quick folded") == 2
    content = json.loads((tmp_path / "rows.json").read_text())
    assert [row["peer"] for row in content["rows"]] == ["quick folded"] * 2


@pytest.mark.usefixtures("five_microseconds")
def test_a_peer_that_is_wrong_has_no_time(bench, case, spconv):
    peers = import_module("network_peers")
    request = peers.Request("compat", case.cloud, ("eager", "graph"), 1, "cpu", WIDTH)
    said: list[str] = []
    found = peers.measure_peer(spconv, "compat", request, case, said.append)
    assert found == [("eager", "compat", 5.0), ("eager", "compat folded", 5.0)]
    unsure = copy(case)
    unsure.error = lambda kind, result: float("nan")
    found = peers.measure_peer(spconv, "compat", request, unsure, said.append)
    assert [text for *_, text in found] == ["its error is nan"] * 2

    class Other:  # a library that cannot build the network
        SubMConv3d = SparseConv3d = SparseInverseConv3d = torch.nn.Identity

    found = peers.measure_peer(Other, "other", request, case, said.append)
    assert all(isinstance(text, str) for *_, text in found)


def test_a_peer_has_a_limit_of_time(bench, cloud):
    """A process that has no time to start; and one whose module is not there."""
    peers = import_module("network_peers")
    request = peers.Request("nothing.of.this.name", cloud, ("eager",), 1, "cpu", WIDTH)
    assert peers.in_time(request, 0.01, print) == [("eager", "nothing", "exceeded 0 s")]
    [(kind, name, why)] = peers.in_time(request, 120.0, print)
    assert (kind, name) == ("eager", "nothing")
    assert "does not import" in why
    assert peers.names_of(["torch", "nothing.of.this.name"]) == ["torch"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench, capsys):
    assert bench.main([]) == 2
    assert "it measures a GPU" in capsys.readouterr().err
