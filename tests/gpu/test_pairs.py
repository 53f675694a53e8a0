"""Pairs of kernel maps, and maps of the way back, on a GPU: those of the CPU, by few launches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

from layoutconv.sparse.maps.reversed_index import reversed_index
from layoutconv.sparse.maps.tap_pairs import Counts, counts_of, pairs_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPES = [
    (1, 1), (31, 1), (400_000, 1), (5, 8), (512, 8), (513, 27), (2_001, 27), (90_001, 27),
    (300_000, 27), (20_000, 343), (1, 343), (100, 1500),
]  # fmt: skip


def indices(rows, taps, share, seed=0, memory="taps"):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 1 << 30, (taps, rows), generator=generator).int()
    index[torch.rand(taps, rows, generator=generator) >= share] = -1
    if memory == "gaps":
        wide = torch.zeros(taps, 2 * rows, dtype=torch.int32)
        wide[:, ::2] = index
        return wide.cuda()[:, ::2].T
    return index.cuda().T if memory == "taps" else index.T.contiguous().cuda()


def check(found, want):
    chunks = len(want.outputs)
    assert found.chunk == want.chunk
    assert torch.equal(found.lengths.cpu(), want.lengths)
    for ours, expected in ((found.outputs, want.outputs), (found.inputs, want.inputs)):
        assert ours.data_ptr() % 16 == 0
        assert torch.equal(ours[:chunks].cpu(), expected)
        assert (ours[chunks:] == -1).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_pairs_are_those_of_the_cpu(shape, share):
    index = indices(*shape, share)
    counts = counts_of(index)
    assert counts.here == tuple((index.cpu() >= 0).sum(0).tolist())
    for chunk in (64, 100, 2048):
        want = pairs_of(index.cpu(), chunk)
        found = pairs_of(index, chunk, counts)
        assert found.outputs.shape == want.outputs.shape
        check(found, want)
        check(pairs_of(index, chunk, Counts(counts.there)), want)  # as while a graph is captured


@pytest.mark.parametrize("shape", [(0, 27), (9, 0), (0, 0)], ids=str)
def test_nothing_has_no_pairs(shape):
    index = indices(*shape, 1.0)
    check(pairs_of(index, 64), pairs_of(index.cpu(), 64))
    assert counts_of(index).here == (0,) * shape[1]


@pytest.mark.parametrize("memory", ["rows", "gaps"])
def test_an_index_of_any_strides(memory):
    index = indices(30_000, 27, 0.3, 1, memory)
    check(pairs_of(index, 256), pairs_of(index.cpu(), 256))


def test_a_captured_graph_counts_again():
    index = indices(50_000, 27, 0.3, 2)
    pairs_of(index, 512)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = pairs_of(index, 512)
    for seed, share in ((3, 0.1), (4, 0.9), (5, 0.0)):
        index.copy_(indices(50_000, 27, share, seed))
        graph.replay()
        check(found, pairs_of(index.cpu(), 512))


def test_streams_side_by_side():
    every = [indices(60_000 + 77 * seed, 27, 0.1 * seed, seed) for seed in range(1, 5)]
    want = [pairs_of(index.cpu(), 128) for index in every]
    counts = [counts_of(index) for index in every]
    assert all(one.here for one in counts)  # so that nobody waits below
    streams = [torch.cuda.Stream() for _ in every]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for stream, index, known in zip(streams, every, counts, strict=True):
            with torch.cuda.stream(stream):
                found.append(pairs_of(index, 128, known))
    torch.cuda.synchronize()
    for i, one in enumerate(found):
        check(one, want[i % len(want)])


def nodes_of(run):
    """Return how many kernels, copies and fills a call makes: the nodes of its graph."""
    runtime = pytest.importorskip("cuda.bindings.runtime")
    run()  # compiles
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = run()
    error, _, count = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph.raw_cuda_graph()))
    assert int(error) == 0
    del kept
    return count


def test_pairs_are_one_launch():
    index = indices(10_000, 27, 0.3)
    counts = counts_of(index)
    assert counts.here is not None
    assert nodes_of(lambda: counts_of(index)) == 1
    assert nodes_of(lambda: pairs_of(index, 256, counts)) == 1
    assert nodes_of(lambda: pairs_of(index, 256)) == 2


@pytest.mark.parametrize("shape", [*SHAPES, (0, 27), (9, 0)], ids=str)
@pytest.mark.parametrize(("more", "share"), [(0, 1.0), (1000, 0.3), (-1, 0.5)])
def test_the_way_back_is_that_of_the_cpu(shape, more, share):
    count, taps = shape
    rows = max(count + more, 0)
    generator = torch.Generator().manual_seed(count)
    index = torch.full((taps, count), -1, dtype=torch.int32)
    for column in index:
        there = torch.randperm(count, generator=generator)[: int(share * min(count, rows))]
        column[there] = torch.randperm(rows, generator=generator)[: len(there)].int()
    order = torch.randperm(count, generator=generator).int()
    for given in (None, order):
        want = reversed_index(index.T, rows, given)
        found = reversed_index(index.cuda().T, rows, None if given is None else given.cuda())
        assert torch.equal(found.cpu(), want)
        assert found.stride() == (1, max(rows, 1))


def test_the_way_back_is_two_launches():
    index = torch.randperm(5_000).int().cuda()[:, None].T.contiguous().T
    order = torch.randperm(5_000).int().cuda()
    assert nodes_of(lambda: reversed_index(index, 5_000)) == 2
    assert nodes_of(lambda: reversed_index(index, 5_000, order)) == 2


def test_cells_that_are_reached_are_four_launches():
    from layoutconv.kernels.maps.output_coords import reached

    cells = torch.randint(0, 50, (9_000, 4), dtype=torch.int32).cuda()
    taps = torch.cartesian_prod(*[torch.arange(3)] * 3).tolist()
    assert nodes_of(lambda: reached(cells, (2, 2, 2), taps, (26, 26, 26), 50, 20_000)) == 4
