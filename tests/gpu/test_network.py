"""A network of clouds on a GPU, as the benchmark runs it: eager, captured, trained."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

import layoutconv as lc
from layoutconv.sparse.coords.street import street

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

KINDS = "eager", "given", "graph", "graphed", "training"


@pytest.fixture(scope="module")
def calls(load_benchmark):
    return load_benchmark("network_calls")


@pytest.fixture(scope="module")
def cases(calls):
    """Two clouds of other sizes: what the second shares with the first is what is tested."""
    found = []
    for seed in (0, 1):
        voxels = lc.voxelize(torch.from_numpy(street(seed=seed)).cuda(), 0.3 + 0.05 * seed)
        kind = import_module("bench_sparse").Cloud
        found.append(calls.Case(kind("street", voxels.coords, voxels.spatial_shape, 1), 0.25))
    assert len(found[0].features) != len(found[1].features)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_network_in_float64(calls, cases, kind):
    missing = lc.precompile(lambda: calls.ours(kind, cases[0], captures=False)(), processes=4)
    for case in cases:
        call = calls.ours(kind, case)
        for _ in range(3):
            result = call()
            assert case.error(kind, result) < calls.TOLERANCE[kind]
    assert missing >= 0


def test_with_capacities_nothing_waits_for_the_gpu(calls, cases):
    call = calls.ours("graph", cases[0], captures=False)
    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_without_capacities_the_host_waits_once_a_level(calls, cases, recwarn):
    call = calls.ours("eager", cases[0])
    call()
    torch.cuda.synchronize()
    recwarn.clear()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in recwarn if "synchronizing" in str(w.message)]
    assert len(waits) <= 4
