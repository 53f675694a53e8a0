"""Networks in spconv's names on a GPU: norms, sums and activations in convolutions' launches.

Against the network in float64 on a CPU, module after module. Memory of results was filled with NaN
before: that of tensors that were let go of.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.nn import fused_norm, unfused

from .on_device import kernels_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPE = [41, 160, 160]
LIMITS = {torch.float32: 2e-2, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}


@pytest.fixture(scope="module")
def networks(load_benchmark: Any) -> Any:
    return load_benchmark("spconv_networks")


def cloud(
    rows: int, channels: int, seed: int = 0, shape: list[int] = SHAPE
) -> spconv.SparseConvTensor:
    random = torch.Generator().manual_seed(seed)
    flat = torch.rand(rows, 4, generator=random)
    flat[:, 1] = 0.1 + 0.2 * flat[:, 2] * flat[:, 3]
    cells = (flat * torch.tensor([2, *shape])).int().unique(dim=0)
    cells = cells[torch.randperm(len(cells), generator=random)]
    features = torch.randn(len(cells), channels, generator=random)
    return spconv.SparseConvTensor(features, cells, shape, 2)


def drawn(net: nn.Module) -> nn.Module:
    random = torch.Generator().manual_seed(1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            for column in (module.running_mean, module.weight, module.bias):
                column.data.copy_(torch.randn(column.shape, generator=random))
            module.running_var.copy_(torch.rand(module.num_features, generator=random) + 0.3)
    return net.eval().requires_grad_(False)


def on_gpu(x: Any, dtype: torch.dtype) -> Any:
    features = x.features.cuda().to(dtype)
    return spconv.SparseConvTensor(features, x.indices.cuda(), x.spatial_shape, 2)


def poisoned(rows: int) -> None:
    """Memory that results will be in has NaN in it."""
    held = [torch.full((rows, C), torch.nan, device="cuda") for C in (16, 32, 64, 128, 256)]
    del held


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    got = got.double().cpu()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", ["residual_backbone", "segmentation_unet"])
def test_a_network(networks: Any, name: str, dtype: torch.dtype) -> None:
    """Two clouds of a signature, so that the second finds what was kept of the first."""
    net = drawn(getattr(networks, name)(spconv, 16, width=0.5))
    exact = copy.deepcopy(net).double()
    net = net.cuda().to(dtype)
    for rows, seed in ((6000, 0), (5000, 1)):
        x = cloud(rows, 16, seed)
        want = exact(x.replace_feature(x.features.double()))
        with unfused():
            apart = net(on_gpu(x, dtype))
        poisoned(len(x.indices))
        got = net(on_gpu(x, dtype))
        assert torch.equal(got.indices.cpu(), want.indices)
        assert error(got.features, want.features) < LIMITS[dtype]
        # Rounded once where the others are rounded three times.
        assert error(got.features, want.features) < 1.2 * error(apart.features, want.features)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(("name", "channels"), [("residual_backbone", 5), ("segmentation_unet", 6)])
def test_a_network_as_wide_as_in_its_project(
    networks: Any, name: str, channels: int, dtype: torch.dtype
) -> None:
    """So many rows that tiles are those of a sweep; against float64, by kernels as well."""
    net = drawn(getattr(networks, name)(spconv, channels)).cuda()
    exact = copy.deepcopy(net).double()
    net = net.to(dtype)
    for rows, seed in ((250_000, 0), (60_000, 1)):
        x = cloud(rows, channels, seed, [41, 480, 480])
        with unfused():
            want = exact(on_gpu(x, torch.float64)).features.cpu()
        poisoned(len(x.indices))
        assert error(net(on_gpu(x, dtype)).features, want) < LIMITS[dtype]


@pytest.mark.parametrize("K", [8, 16, 24, 64, 128, 256])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_a_layer(K: int, dtype: torch.dtype) -> None:
    """Layers of each width that tiles differ in, with or without a sum, columns of either dtype."""
    x = cloud(4000, 32)
    y = spconv.SparseConvTensor(torch.randn(len(x.indices), K), x.indices, SHAPE, 2)
    layers = spconv.SubMConv3d(32, K, 3), nn.BatchNorm1d(K, eps=1e-2), nn.LeakyReLU(0.2)
    net = drawn(spconv.SparseSequential(*layers))
    norm, last = net[1], net[2]
    rounded = copy.deepcopy(net).to(dtype).double()
    for wide in {False, dtype is not torch.float32}:
        layer = copy.deepcopy(net).cuda().to(dtype)
        if wide:
            layer.add_module("1", copy.deepcopy(norm).cuda())
        for past in (None, y.features.to(dtype)):
            given = x.features.to(dtype).double()
            want = rounded[0](x.replace_feature(given)).features
            want = (norm.double() if wide else rounded[1])(want)
            norm.float()
            want = last(want if past is None else want + past.double())
            poisoned(len(x.indices))
            for _ in range(2):
                added = None if past is None else past.cuda()
                made = layer[0].with_following(on_gpu(x, dtype), layer[1], layer[2], added)
                assert made is not None
                assert error(made.features, want) < LIMITS[dtype]


def test_a_graph_that_is_replayed_reads_what_norms_have_by_then() -> None:
    net = drawn(
        spconv.SparseSequential(
            spconv.SubMConv3d(16, 16, 3, indice_key="a"), nn.BatchNorm1d(16), nn.ReLU()
        )
    )
    net = net.cuda().half()
    x = on_gpu(cloud(3000, 16), torch.float16)
    for _ in range(3):
        net(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
    net[1].weight.data.mul_(-2)
    net[1].running_mean.add_(1)
    graph.replay()
    assert torch.equal(y.features, net(x).features)


def test_launches_of_a_block_are_its_convolutions(networks: Any) -> None:
    """By torch's profiler, over maps that are known."""
    net = drawn(networks.residual_backbone(spconv, 16)).cuda().half()
    x = on_gpu(cloud(6000, 16), torch.float16)

    def call() -> None:
        net(x.shadow_copy())

    assert fused_norm.may_fuse(x.features)
    call()  # beside those of ``kernels_of``
    fused = len(kernels_of(call))
    with unfused():
        call()
        apart = len(kernels_of(call))
    assert apart - fused >= 40  # 21 norms, 21 activations, 8 sums; others may split their sums
