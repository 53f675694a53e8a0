"""MinkowskiEngine's blocks with weighted channels, by hand in float64, and its summary."""

from __future__ import annotations

import importlib

import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
from layoutconv.compat.MinkowskiEngine.modules.resnet_block import BasicBlock, Bottleneck
from layoutconv.compat.MinkowskiEngine.modules.senet_block import (
    SEBasicBlock,
    SEBottleneck,
    SELayer,
)


def cloud(channels=16):
    random = torch.Generator().manual_seed(0)
    coords = torch.unique(torch.randint(0, 6, (90, 3), generator=random), dim=0).int()
    coords[:, 0] %= 3
    coords = torch.unique(coords, dim=0)
    features = torch.randn(len(coords), channels, dtype=torch.float64, generator=random)
    return ME.SparseTensor(features.requires_grad_(), coords)


def weighted(layer, rows, images):
    """Channels times the weights that two matrices make of each image's mean, row by row."""
    first, second = layer.fc[0].linear, layer.fc[2].linear
    found = []
    for row, image in zip(rows, images, strict=True):
        mean = rows[images == image].mean(0)
        hidden = (first.weight @ mean + first.bias).clamp(min=0)
        found.append(row / (1 + torch.exp(-(second.weight @ hidden + second.bias))))
    return torch.stack(found)


def test_a_layer_weights_the_channels_of_each_image():
    x = cloud()
    layer = SELayer(16, reduction=4).double()
    y, expected = layer(x), weighted(layer, x.F, x.C[:, 0])
    torch.testing.assert_close(y.F, expected)
    up = torch.randn_like(expected)
    asked = [x.F, *layer.parameters()]
    for one, two in zip(
        torch.autograd.grad(y.F, asked, up), torch.autograd.grad(expected, asked, up), strict=True
    ):
        torch.testing.assert_close(one, two)
    assert set(layer.state_dict()) == {
        f"fc.{number}.linear.{name}" for number in (0, 2) for name in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("made", "plain"),
    [
        (lambda: SEBasicBlock(16, 16, reduction=4, D=2), lambda: BasicBlock(16, 16, dimension=2)),
        (lambda: SEBottleneck(16, 4, D=2, reduction=4), lambda: Bottleneck(16, 4, dimension=2)),
    ],
)
def test_a_block_weights_the_channels_before_the_shortcut(made, plain):
    """The rest is the plain block's, of which other tests have the numbers."""
    x, block, other = cloud(), made().double().eval(), plain().double().eval()
    state = block.state_dict()
    missing = other.load_state_dict({k: v for k, v in state.items() if not k.startswith("se.")})
    assert not missing.missing_keys
    body = other._body(x).F
    expected = (weighted(block.se, body, x.C[:, 0]) + x.F).clamp(min=0)
    torch.testing.assert_close(block(x).F, expected)
    with ME.install():
        there = importlib.import_module("MinkowskiEngine.modules.senet_block")
        assert there.SEBottleneck is SEBottleneck


def test_a_summary_has_a_row_for_each_layer_and_counts_parameters_once(capsys):
    class Net(ME.MinkowskiNetwork):
        def __init__(self):
            super().__init__(2)
            self.conv = ME.MinkowskiConvolution(16, 8, 3, bias=True, dimension=2)
            self.twice = ME.MinkowskiLinear(8, 8)
            self.pool = ME.MinkowskiGlobalAvgPooling()

        def forward(self, x):
            y = self.twice(self.twice(self.conv(x)))
            return y, [self.pool(y)]

    net, x = Net().double(), cloud()
    net.twice.requires_grad_(False)
    assert ME.utils.summary(net, x) == (9 * 16 * 8 + 8 + 72, 9 * 16 * 8 + 8)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "Layer", "MinkowskiConvolution-1", "Linear-2", "MinkowskiLinear-3", "Linear-4",
        "MinkowskiLinear-5", "MinkowskiGlobalAvgPooling-6", "Net-7", "1,232",
    ]  # fmt: skip
    assert lines[1].split()[1:] == [f"[{len(x)},", "8]", "1,160"]
    assert f"[{len(x)}, 8], [3, 8]" in lines[7]
    assert not any(layer._forward_hooks for layer in net.modules())
    with pytest.raises(ValueError, match="channels"):
        ME.utils.summary(net, cloud(3))
    assert not any(layer._forward_hooks for layer in net.modules())
