"""The benchmark of eager networks: both ways of ours agree on new clouds, and sides are there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from layoutconv.nn.fused_norm import fused


@pytest.fixture
def bench(load_benchmark):
    return load_benchmark("bench_frameworks")


def cloud() -> Any:
    random = torch.Generator().manual_seed(0)
    extents = torch.tensor([1, 12, 24, 24])
    cells = (torch.rand(120, 4, generator=random) * extents).int().unique(dim=0)
    return import_module("bench_sparse").Cloud("a cloud", cells, (41, 24, 24), 1)


def test_its_sides(bench):
    peers = ["math", "a_module_that_nobody_has"]
    with fused():
        found = dict(bench.measure("Res8x", cloud(), False, peers, 0.25, calls=(0, 1)))
    assert list(found) == ["ours", "ours, apart", "ours, graphed", "error", "math"]
    assert "FAILED" in found["math"]
    assert 0 < found["error"] < bench.TOLERANCE
    assert all(found[side].wall >= found[side].host > 0 for side in ("ours", "ours, apart"))
    first, second = bench.several(cloud(), 5, 2)
    assert len(first.cells) < len(cloud().cells)
    assert not torch.equal(first.features[:9], second.features[:9])


@pytest.mark.parametrize("graphed", [False, True])
def test_a_step_trains(bench, graphed):
    torch.manual_seed(0)  # of 24 draws of weights one has gradients that float16 does not hold
    make, ours = bench.residual_backbone, bench.ours
    net = make(ours, 5, width=0.25)
    (given,) = bench.several(cloud(), 5, 1)
    state = bench.initial(make(ours, 5, width=0.25))
    assert bench.caller(ours, net, cloud(), state, True, graphed)(given).isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


def test_memory_counts_what_graphs_keep_once(bench, gpu):
    """In a graph's pool, what results lie in is allocated already."""
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 40},
        {"segment_pool_id": (0, 7), "total_size": 50, "allocated_size": 10},
        {"segment_pool_id": (3, 0), "total_size": 20, "allocated_size": 20},
    ]
    gpu.says(is_available=True, empty_cache=None, memory_snapshot=segments)
    gpu.says(memory_allocated=70, max_memory_allocated=90)
    assert (bench.memory(), bench.memory(peak=True)) == (70 + 40, 90 + 40)


def test_without_a_gpu_it_says_so(bench, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert bench.main([]) == 2
    assert "GPU" in capsys.readouterr().err
