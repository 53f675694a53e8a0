"""Networks as CUDA graphs, by ``lc.nn.graphed``: bit for bit the eager ones, on clouds of any size.

Features and weights are small integers, whose sums are exact in fp16, whatever the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv
from layoutconv.sparse import SparseTensor
from tests.compat.networks import unet
from tests.nn.test_graphed import SHAPE, Detector, Levels, Then, check_same, cloud, plain
from tests.nn.test_graphed import with_integers as _with_integers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

DTYPES = [torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def with_integers(net: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    return _with_integers(net).cuda().to(dtype)


def on_gpu(rows: int, seed: int, dtype: torch.dtype = torch.float32) -> SparseTensor:
    return cloud(rows, seed).cuda().to(dtype)


def poison() -> None:
    """Fill free memory with NaN."""
    torch.cuda.empty_cache()
    held = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(8)]
    del held


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_layer_on_clouds_of_any_size(dtype: torch.dtype) -> None:
    net = with_integers(Levels(), dtype)
    graph = lc.nn.graphed(net)
    for number, rows in enumerate((300, 310, 250, 1, 1900, 1700, 305, 17)):
        x = on_gpu(rows, number, dtype)
        poison()
        check_same(graph(x), net(x))
    report = graph.report()
    assert report.hits >= 3
    assert all(bucket.difference == 0 and bucket.nbytes > 0 for bucket in report.buckets)


@pytest.mark.parametrize("dtype", DTYPES)
def test_networks_of_spconvs_names(dtype: torch.dtype) -> None:
    net = with_integers(unet(spconv), dtype)
    graph = lc.nn.graphed(net)
    for rows in 900, 880, 905, 895:
        x = on_gpu(rows, rows, dtype)
        given = spconv.SparseConvTensor(x.features, x.coords, list(SHAPE), 2)
        found, expected = graph(given), net(given)
        check_same(found, expected)
        assert found.coordinates is given.coordinates
    assert graph.report().hits == 3


def test_a_detector_adds_to_the_dict_that_it_is_given() -> None:
    net = with_integers(Detector())
    graph = lc.nn.graphed(net)
    for rows in 900, 850, 920:
        x = on_gpu(rows, rows)
        batch = {"voxel_features": x.features, "voxel_coords": x.coords.float(), "batch_size": 2}
        other = dict(batch)
        assert graph(batch) is batch
        check_same(batch, net(other))
    assert graph.report().hits == 2


def test_overflow_makes_a_larger_bucket_and_wrong_cells_are_refused() -> None:
    net = with_integers(plain())
    graph = lc.nn.graphed(net)
    near = torch.cartesian_prod(torch.arange(2), *[torch.arange(5)] * 3).int().cuda()
    block = SparseTensor(torch.ones(len(near), 3, device="cuda"), near, SHAPE, 2)
    far = on_gpu(len(near), 1)
    for x in block, block, far, far, block:
        check_same(graph(x), net(x))
    assert (graph.report().hits, graph.report().warm_ups) == (3, 2)
    cells = far.coords.clone()
    cells[3] = cells[7]
    with pytest.raises(lc.ArgumentError, match=r"distinct cells, got .* in rows 3 and 7"):
        graph(SparseTensor(far.features, cells, SHAPE, 2))
    check_same(graph(far), net(far))


def of_an_item(x: SparseTensor) -> Any:
    return x * 2 if x.features.sum().item() > 1e9 else x


def of_a_synchronisation(x: SparseTensor) -> Any:
    torch.cuda.synchronize()
    return x


def of_a_hidden_wait(x: SparseTensor) -> Any:
    """The length of the result is read on the host, by an operator of C++: a capture fails."""
    counts = x.coords.new_ones(len(x), dtype=torch.int64)
    return x.replace(torch.repeat_interleave(x.features, counts, dim=0))


@pytest.mark.parametrize("function", [of_an_item, of_a_synchronisation, of_a_hidden_wait])
def test_what_cannot_be_captured_is_eager_and_leaves_nothing_behind(function: Any) -> None:
    net = with_integers(Then(function).eval())
    graph, other = lc.nn.graphed(net), lc.nn.graphed(with_integers(plain()))
    stream = torch.cuda.current_stream()
    for rows in 300, 290:
        x = on_gpu(rows, rows)
        check_same(graph(x), net(x))
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        check_same(other(x), other.module(x))
    assert graph.report().hits == 0
    assert len(graph.report().eager) == 1
    assert other.report().hits == 1
    # Torch's allocator and its generator know of no capture any more.
    torch.cuda.empty_cache()
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del held
    torch.cuda.empty_cache()
    assert reserved - torch.cuda.memory_reserved() >= 64 << 20
    assert torch.rand(4, device="cuda").isfinite().all()


def test_weights_autocast_and_streams() -> None:
    net = with_integers(plain())
    graph = lc.nn.graphed(net)
    for number in range(4):
        x = on_gpu(400 - number, number)
        check_same(graph(x), net(x))
        with torch.autocast("cuda", torch.float16):
            check_same(graph(x), net(x))
        net[0].weight.mul_(-1)  # type: ignore[index, operator, union-attr]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = graph(x)
    torch.cuda.current_stream().wait_stream(side)
    check_same(found, net(x))
    assert (graph.report().hits, graph.report().warm_ups) == (7, 2)


def test_weights_are_cast_by_the_graph() -> None:
    """Not by the eager call before it, whose casts autocast keeps."""
    linear = nn.Linear(16, 8)
    net = with_integers(lc.nn.Sequential(lc.nn.SubmConv3d(3, 16, 3), linear))
    graph, x = lc.nn.graphed(net), on_gpu(400, 0)
    with torch.autocast("cuda", torch.float16):
        net(x)
        for _ in range(2):
            check_same(graph(x), net(x))
    linear.weight.mul_(-1)
    with torch.autocast("cuda", torch.float16):
        check_same(graph(x), net(x))
    assert graph.report().hits == 2


def test_memory_of_buckets_is_given_back() -> None:
    net = with_integers(plain())
    graph = lc.nn.graphed(net)
    x = on_gpu(2000, 0)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph(x)
    assert graph.report().buckets[0].nbytes > 0
    graph.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 32 << 20


def test_dense_networks_of_convert() -> None:
    torch.manual_seed(0)
    net = lc.nn.convert(nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, 2),
        nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 2, stride=2),
    ).cuda().half().eval())  # fmt: skip
    graph = lc.nn.graphed(net)
    last = None
    for number, size in enumerate((16, 16, 24, 16, 24)):
        random = torch.Generator("cuda").manual_seed(number)
        x = torch.randn(4, 3, size, size, device="cuda", dtype=torch.float16, generator=random)
        found = graph(x.to(memory_format=torch.channels_last))
        assert torch.equal(found, net(x))
        assert found.stride() == net(x).stride()
        assert last is None or torch.equal(*last)  # which no later call wrote to
        last = found, found.clone()
    assert (graph.report().hits, graph.report().warm_ups) == (3, 2), graph.report()
