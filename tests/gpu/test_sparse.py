"""Sparse convolutions on a GPU: values, gradients, and what torch does with them."""

from __future__ import annotations

import copy

import pytest
import torch

import layoutconv as lc
from layoutconv.nn.sparse import sparse_conv, sparse_inverse_conv, subm_conv
from layoutconv.ops import sparse_operators as executor
from layoutconv.ops.chunk_sums import sum_chunks
from layoutconv.sparse import Coordinates, KernelMap, SparseTensor, strided_map, submanifold_map
from layoutconv.sparse.coords.street import street

from .on_device import captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

ERROR = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-3, torch.float64: 1e-14}


@pytest.fixture(autouse=True)
def poisoned():
    """Memory that nobody wrote is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def cloud(rank: int = 3, rows: int = 3000, extent: int = 24, images: int = 2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randperm(images * extent**rank, generator=generator)[:rows]
    return Coordinates.of_keys(keys.cuda(), (extent,) * rank, images)


MAPS = {
    "submanifold": lambda: submanifold_map(cloud()),
    "even": lambda: submanifold_map(cloud(), (2, 3, 4), dilation=2),
    "set": lambda: submanifold_map(cloud(), offsets=[(0, 0, 0), (1, 0, -1), (0, 2, 0)]),
    "343": lambda: submanifold_map(cloud(rows=2000), 7),
    "strided": lambda: strided_map(cloud(), 3, 2, padding=1),
    "transposed": lambda: lc.sparse.transposed_map(cloud(rows=500), 3, 2, padding=1),
    "inverse": lambda: strided_map(cloud(), 2, 2).inverse,
    "1-D": lambda: submanifold_map(cloud(1, 700, 1000), 5),
    "4-D": lambda: submanifold_map(cloud(4, 3000, 9), 3),
    "nothing": lambda: submanifold_map(cloud(rows=0)),
}
CASES = [
    *((name, torch.float16, 32, 48, 1) for name in MAPS),
    *(("submanifold", dtype, 64, 64, 1) for dtype in ERROR),
    *(("strided", torch.bfloat16, C, K, 1) for C, K in ((4, 16), (5, 7), (16, 32), (128, 256))),
    *(
        ("submanifold", torch.float16, C, K, 1)
        for C, K in ((3, 32), (18, 18), (96, 96), (128, 128), (160, 96), (256, 256), (256, 128))
    ),
    *(("strided", torch.float16, C, K, g) for C, K, g in ((32, 64, 4), (32, 32, 32), (6, 12, 6))),
]


def by_pairs(found, x, w, g, groups):
    """The three passes in float64, tap by tap."""
    x, w, g = x.double(), w.double(), g.double()
    y, dx, dw = torch.zeros_like(g), torch.zeros_like(x), torch.zeros_like(w)
    K, C = w.shape[0] // groups, w.shape[-1]
    flat, dflat = (t.view(groups, K, -1, C) for t in (w, dw))
    for tap in range(found.index.shape[1]):
        sources = found.index[:, tap]
        rows = (sources >= 0).nonzero()[:, 0]
        sources = sources[rows].long()
        for i in range(groups):
            k, c = slice(i * K, (i + 1) * K), slice(i * C, (i + 1) * C)
            y[rows, k] += x[sources, c] @ flat[i, :, tap].T
            dx[sources, c] += g[rows, k] @ flat[i, :, tap]
            dflat[i, :, tap] = g[rows, k].T @ x[sources, c]
    return y, dx, dw


def normal(*shape, dtype=torch.float16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def close(got, want, dtype):
    if want.numel():
        assert float((got.double() - want).norm() / want.norm().clamp(min=1e-30)) < ERROR[dtype]


@pytest.mark.parametrize(("name", "dtype", "C", "K", "groups"), CASES, ids=str)
def test_passes_are_sums_over_pairs(name, dtype, C, K, groups):
    torch.backends.cudnn.allow_tf32 = True
    found = MAPS[name]()
    x = normal(len(found.inputs), C, dtype=dtype).requires_grad_()
    w = (normal(K, *found.taps, C // groups, dtype=dtype, seed=1) / C**0.5).requires_grad_()
    g = normal(len(found.outputs), K, dtype=dtype, seed=2)
    wanted = by_pairs(found, x.detach(), w.detach(), g, groups)
    for _ in range(2):  # the second call is one that is remembered
        y = subm_conv(SparseTensor(x, found.inputs), w, groups=groups, kernel_map=found).features
        results = y.detach(), *torch.autograd.grad(y, (x, w), g)
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == dtype
            close(got, want, dtype)
    again = subm_conv(SparseTensor(x, found.inputs), w, groups=groups, kernel_map=found).features
    for one, two in zip(results, (again, *torch.autograd.grad(again, (x, w), g)), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        y = subm_conv(SparseTensor(x, found.inputs), w, groups=groups, kernel_map=found).features
    close(y, wanted[0], dtype)


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize(("K", "C"), [(16, 16), (64, 64), (256, 128), (5, 7), (6, 3), (1, 1)])
def test_chunks_of_taps_are_added_up(K, C, dtype):
    lengths, rest = [3, 0, 175, 1, 0, 33, 600, 16, 0], 5
    exact = torch.promote_types(dtype, torch.float32)
    parts = normal(sum(lengths) + rest, K, C, dtype=exact)
    want = torch.stack([t.double().sum(0) for t in parts.split([*lengths, rest])[:-1]], 1)
    parts[sum(lengths) :] = torch.nan
    on_gpu = torch.tensor(lengths, device="cuda")
    got, again = (sum_chunks(parts, on_gpu, (3, 3), dtype) for _ in range(2))
    assert (got.shape, got.dtype) == ((K, 3, 3, C), dtype)
    close(got.view(K, 9, C), want, dtype)
    assert torch.equal(got, again)
    assert not got.view(K, 9, C)[:, [1, 4, 8]].any()


@pytest.mark.parametrize("chunk", [32, 256, 2048])
@pytest.mark.parametrize("name", ["submanifold", "strided", "343"])
def test_filter_gradients_of_any_chunk(name, chunk, monkeypatch):
    monkeypatch.setattr(executor, "chunk_of", lambda *_: chunk)
    found = MAPS[name]()
    x, g = normal(len(found.inputs), 24), normal(len(found.outputs), 40, seed=2)
    w = torch.zeros(40, *found.taps, 24, device="cuda", dtype=torch.float16)
    maps = executor.tables(found, (24, 40), gradients=True)
    assert maps.pair_outputs.shape[1] == chunk
    got, again = (executor.wgrad(g, x, *maps, found.taps) for _ in range(2))
    close(got, by_pairs(found, x, w, g, 1)[2], torch.float16)
    assert torch.equal(got, again)


def test_a_graph_of_pairs_that_nobody_counted(monkeypatch):
    torch.use_deterministic_algorithms(False)
    known = MAPS["submanifold"]()
    x, g = normal(len(known.inputs), 32), normal(len(known.outputs), 48, seed=2)

    def gradient():
        found = KernelMap(known.inputs, known.outputs, known.taps, known.index, mirrored=True)
        maps = executor.tables(found, (32, 48), gradients=True)
        return found, executor.wgrad(g, x, *maps, found.taps)

    _, counted = gradient()
    with monkeypatch.context() as patch:  # as in a graph, whose kernels are then compiled
        for module in ("tap_pairs", "map_index"):
            patch.setattr(f"layoutconv.sparse.maps.{module}.is_captured", lambda _: True)
        _, want = gradient()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found, out = gradient()
    for _ in range(2):
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, want)
    close(out, counted.double(), torch.float16)
    assert found.counts.here == known.counts.here  # and now they are counted


@pytest.mark.parametrize("name", MAPS)
def test_maps_are_those_of_the_cpu(name):
    there = MAPS[name]()
    here = Coordinates(there.inputs.cells.cpu(), there.inputs.spatial_shape, 2)
    makers = {
        "strided": lambda: strided_map(here, 3, 2, padding=1),
        "submanifold": lambda: submanifold_map(here),
        "even": lambda: submanifold_map(here, (2, 3, 4), dilation=2),
        "343": lambda: submanifold_map(here, 7),
        "transposed": lambda: lc.sparse.transposed_map(here, 3, 2, padding=1),
    }
    if name not in makers:
        pytest.skip("covered by the others")
    found = makers[name]()
    assert torch.equal(there.index.cpu(), found.index)
    assert torch.equal(there.outputs.cells.cpu(), found.outputs.cells)
    assert torch.equal(there.inverse.index.cpu(), found.inverse.index)
    for ours, want in zip(there.sorted, found.sorted, strict=True):
        assert torch.equal(ours.cpu(), want)
    pairs, wanted = there.pairs(256), found.pairs(256)
    assert torch.equal(pairs.outputs.cpu(), wanted.outputs)
    assert torch.equal(pairs.inputs.cpu(), wanted.inputs)


def test_fused_endings():
    found, dtype = MAPS["submanifold"](), torch.float16
    x, w = normal(len(found.inputs), 32), normal(64, 3, 3, 3, 32, seed=1) / 30
    bias, scale = normal(64, seed=2), normal(64, seed=3)
    residual = normal(len(x), 64, seed=4)
    want, _, _ = by_pairs(found, x, w, residual, 1)
    want = (want * scale.double() + bias.double() + residual.double()).relu()
    tensor = SparseTensor(x, found.inputs)
    for _ in range(2):
        y = subm_conv(tensor, w, bias, scale=scale, residual=residual, activation="relu")
        close(y.features, want, dtype)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return lc.nn.Sequential(
        lc.nn.SubmConv3d(4, 32, 3, bias=False),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        lc.nn.SparseConv3d(32, 64, 3, 2, 1),
        torch.nn.ReLU(),
        lc.nn.SubmConv3d(64, 64, 3, activation="relu"),
        lc.nn.SparseInverseConv3d(64, 32, 3),
        lc.nn.SubmConv3d(32, 5, 1),
    ).cuda()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_under_autocast_is_that_of_the_cpu(dtype):
    net, voxels = network(), lc.voxelize(torch.from_numpy(street(seed=1)), 0.4)
    exact = copy.deepcopy(net).cpu().double()
    x = SparseTensor(voxels.features.cuda(), voxels.coordinates.to("cuda"))
    want = exact(voxels.replace(voxels.features.double())).features
    want.square().mean().mul(1000).backward()  # else fp16 cuts gradients off
    for mode in (True, False):
        net.train(mode)
        with torch.autocast("cuda", dtype):
            y = net(x).features
        if mode:
            assert float((y.cpu().double() - want).norm() / want.norm()) < 30 * ERROR[dtype]
            y.float().square().mean().mul(1000).backward()
            for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
                error = (ours.grad.cpu().double() - theirs.grad).norm() / theirs.grad.norm()
                assert float(error) < 60 * ERROR[dtype]


def test_nothing_waits_for_the_gpu():
    net = network().eval().half()
    points = torch.from_numpy(street(seed=1)).cuda()
    voxels = lc.voxelize(points, 0.4)
    features = voxels.features.half()
    w, halve = normal(32, 3, 3, 3, 4), normal(32, 2, 2, 2, 32)

    def there_and_back(coordinates):
        y = subm_conv(SparseTensor(features, coordinates), w)
        z = sparse_conv(y, halve, stride=2, capacity=len(coordinates))
        return z, sparse_inverse_conv(z, halve)

    warm, fresh = (
        Coordinates(voxels.coords, voxels.spatial_shape, 1, valid=True) for _ in range(2)
    )
    there_and_back(warm)  # compiles, and copies what taps are to the device
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        z, _ = there_and_back(fresh)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(z.coordinates.total) <= len(fresh)
    assert torch.isfinite(net(SparseTensor(features, fresh)).features).all()


def test_a_graph_of_a_fixed_capacity_serves_every_cloud():
    capacity, shape = 4096, (24, 24, 24)
    w1, w2, w3 = normal(32, 3, 3, 3, 8), normal(64, 3, 3, 3, 32) / 20, normal(16, 3, 3, 3, 64) / 20

    def run(cells, features):
        x = SparseTensor(features, Coordinates(cells, shape, 2, padded=True, valid=True))
        y = subm_conv(x, w1, activation="relu")
        z = sparse_conv(y, w2, stride=2, padding=1, capacity=capacity, activation="relu")
        return sparse_inverse_conv(z, w3).features

    def padded(seed, rows):
        cells = torch.full((capacity, 4), -1, dtype=torch.int32, device="cuda")
        cells[:, 1:] = 0
        cells[:rows] = cloud(rows=rows, seed=seed).cells
        features = normal(capacity, 8, seed=seed)
        features[rows:] = 0
        return cells, features

    cells, features = padded(0, 3000)
    with torch.no_grad():
        run(cells, features)
        graph, out = captured(lambda: run(cells, features))
    for seed, rows in ((1, 4096), (2, 1), (3, 2500), (4, 0)):
        new_cells, new_features = padded(seed, rows)
        cells.copy_(new_cells)
        features.copy_(new_features)
        graph.replay()
        with torch.no_grad():
            want = run(new_cells, new_features)
        assert torch.equal(out[:rows], want[:rows])
        assert torch.isfinite(out[:rows]).all()


def test_compiled_whole_given_the_map():
    found = MAPS["submanifold"]()
    x, w = normal(len(found.inputs), 32), normal(32, 3, 3, 3, 32, seed=1) / 30

    def step(x, w):
        y = subm_conv(SparseTensor(x, found.inputs), w, kernel_map=found, activation="relu")
        return (y.features * 2).sum(1)

    x.requires_grad_()
    w.requires_grad_()
    want = step(x, w)
    gradients = torch.autograd.grad(want.sum(), (x, w))
    compiled = torch.compile(step, fullgraph=True)
    got = compiled(x, w)
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)
    for one, two in zip(torch.autograd.grad(got.sum(), (x, w)), gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)


def test_features_past_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of device memory")
    torch.utils.deterministic.fill_uninitialized_memory = False
    rows, C = 2**31 // 256 + 5000, 256
    grid = (1024, 1024, 1024)
    keys = torch.arange(rows, device="cuda") * 97
    coordinates = Coordinates.of_keys(keys, grid, 1)
    x = torch.zeros(rows, C, dtype=torch.float16, device="cuda")
    x[-1000:] = normal(1000, C)
    w = normal(32, 3, 3, 3, C) / 80
    y = subm_conv(SparseTensor(x, coordinates), w).features
    found = submanifold_map(coordinates)
    tail = found.index[-500:]
    want = torch.zeros(500, 32, dtype=torch.float64, device="cuda")
    for tap in range(27):
        there = tail[:, tap] >= 0
        rows_of = tail[there, tap].long()
        want[there] += x[rows_of].double() @ w.view(32, 27, C)[:, tap].double().T
    close(y[-500:], want, torch.float16)


def test_tensors_of_two_devices_are_refused():
    found = MAPS["submanifold"]()
    x = SparseTensor(normal(len(found.inputs), 32), found.inputs)
    with pytest.raises(ValueError, match="`weight`: expected cuda"):
        subm_conv(x, torch.zeros(32, 3, 3, 3, 32, dtype=torch.float16))
    torch.cuda.synchronize()
