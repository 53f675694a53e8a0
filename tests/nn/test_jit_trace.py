"""TorchScript of layers: a trace serves other sizes and has gradients, scripts are refused."""

from __future__ import annotations

import io

import pytest
import torch

import layoutconv as lc
from layoutconv.compat import MinkowskiEngine, torchsparse
from layoutconv.compat.spconv import pytorch as spconv

LAYERS = [
    (lc.nn.Conv2d, (4, 6, 3), {"stride": 2, "padding": 1}, (1, 4, 9, 8), (2, 4, 7, 11)),
    (lc.nn.ConvTranspose1d, (4, 6, 2), {"stride": 2, "groups": 2}, (1, 4, 6), (3, 4, 9)),
    (
        lc.nn.ConvTranspose2d, (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1},
        (1, 4, 5, 6), (2, 4, 7, 3),
    ),
    (lc.nn.ConvTranspose3d, (4, 6, 2), {"stride": (1, 2, 3)}, (1, 4, 3, 5, 6), (3, 4, 2, 2, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sizes", "numbers", "traced", "other"), LAYERS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_serves_other_sizes(kind, sizes, numbers, traced, other):
    layer = kind(*sizes, **numbers)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, torch.randn(traced)), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    x = torch.randn(other)
    assert torch.equal(loaded(x), layer(x))
    [want] = torch.autograd.grad(layer(x).sin().sum(), layer.weight)
    loaded(x).sin().sum().backward()
    assert torch.equal(loaded.weight.grad, want)


@pytest.mark.parametrize(
    "layer",
    [
        lc.nn.Conv1d(4, 6, 3), lc.nn.Conv3d(4, 6, 3, padding_mode="reflect"),
        lc.nn.ConvTranspose2d(4, 6, 3), lc.nn.CausalConv3d(4, 6, 3), lc.nn.SubmConv3d(4, 6, 3),
        lc.nn.SparseConv2d(4, 6, 3), lc.nn.SparseInverseConv3d(4, 6, 3), lc.nn.SparseMaxPool3d(2),
        lc.nn.convert(torch.nn.Conv2d(4, 6, 3)), lc.nn.SparseGlobalAvgPool(), lc.nn.SparseUnpool(),
        lc.nn.Sequential(torch.nn.ReLU()), lc.nn.Features(torch.nn.ReLU()), lc.nn.Prune(),
        lc.nn.Residual(lc.nn.Sequential(torch.nn.ReLU())), spconv.SubMConv3d(4, 6, 3),
        spconv.SparseSequential(torch.nn.ReLU()), spconv.SparseMaxPool2d(2),
        torchsparse.nn.Conv3d(4, 6), torchsparse.nn.GlobalMaxPool(),
        MinkowskiEngine.MinkowskiConvolution(4, 6, kernel_size=3, dimension=3),
        MinkowskiEngine.MinkowskiLinear(4, 6), MinkowskiEngine.MinkowskiBatchNorm(4),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_are_refused_with_what_to_take_instead(layer):
    said = f"lc.pack take them, .*, got {type(layer).__name__}"
    for net in layer, torch.nn.Sequential(torch.nn.ReLU(), layer):
        with pytest.raises(lc.ArgumentError, match=said):
            torch.jit.script(net)


@pytest.mark.parametrize(
    "layer",
    [lc.nn.SubmConv3d(4, 6, 3), lc.nn.SparseConv3d(4, 6, 2, stride=2), lc.nn.SparseMaxPool3d(2)],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_of_sparse_layers_is_refused_as_it_would_keep_one_clouds_maps(layer):
    coords = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]).int()

    def network(features, coords):
        return layer(lc.SparseTensor(features, coords, (5, 5, 5), 1)).features

    def on_one_cloud(features):
        return layer(cloud.replace(features)).features

    said = "argument `{}`: expected no call in torch.jit.trace, .*: torch.export.export and lc.pack"
    with pytest.raises(lc.ArgumentError, match=said.format("coords")):
        torch.jit.trace(network, (torch.randn(2, 4), coords))
    cloud = lc.SparseTensor(torch.randn(2, 4), coords, (5, 5, 5), 1)
    if hasattr(layer, "weight"):
        with pytest.raises(lc.ArgumentError, match=said.format("weight")):
            torch.jit.trace(on_one_cloud, torch.randn(2, 4))
