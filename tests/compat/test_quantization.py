"""Networks of spconv's names in 8 bits, and what spconv.pytorch.quantization has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch.quantization import quantize_per_tensor, utils
from layoutconv.errors import ArgumentError, ArgumentTypeError


def test_a_network_of_these_names_is_folded_and_quantised() -> None:
    torch.manual_seed(0)

    def cloud(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        cells = (torch.rand(1, 8, 8, 8, generator=generator) < 0.2).nonzero().int()
        features = torch.randn(len(cells), 4, generator=generator)
        return spconv.SparseConvTensor(features, cells, [8] * 3, 1)

    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="a"),
        nn.BatchNorm1d(16), nn.ReLU(),
        spconv.SubMConv3d(16, 16, 3, indice_key="a"), nn.LeakyReLU(0.2),
        spconv.SparseConv3d(16, 24, 3, 2, 1, bias=False, indice_key="b"), nn.BatchNorm1d(24),
        spconv.SparseInverseConv3d(24, 8, 3, indice_key="b"), nn.GELU(),
        spconv.SubMConv3d(8, 8, 1), spconv.SubMConv3d(8, 3, 3),
    )  # fmt: skip
    for i in range(3):
        net(cloud(i))
    net.eval()
    x = cloud(9)
    with torch.no_grad():
        want = net(x).features
        folded = lc.nn.fold_batch_norms(copy.deepcopy(net))
        torch.testing.assert_close(folded(cloud(9)).features, want, rtol=1e-4, atol=1e-5)
        assert [str(folded[at].act_type) for at in (0, 3, 7)] == [
            "Activation.ReLU", "Activation.LeakyReLU", "gelu"
        ]  # fmt: skip
        for dtype in (torch.int8, torch.float8_e4m3fn):
            batches = [cloud(i) for i in range(3)]
            small, report = lc.nn.quantize(net, batches, dtype=dtype, return_report=True)
            assert [layer.name for layer in report.layers] == ["3", "5", "7"]
            assert report.left["9"] == "a product of matrices"
            got = small(cloud(9)).features
            assert 0 < float((got - want).norm() / want.norm()) < 0.05
            again = lc.nn.quantize(net, state=small.state_dict())
            assert torch.equal(again(cloud(9)).features, got)
    aware = lc.nn.quantize(net, batches, training=True)
    aware(cloud(1)).features.square().sum().backward()
    assert aware[3].conv.weight.grad.abs().sum() > 0
    layer = lc.nn.quantize(spconv.SubMConv3d(4, 4, 3).eval(), [x], keep=())
    torch.testing.assert_close(
        layer(x, add_input=x).features, layer(x).features + x.features, rtol=1e-5, atol=1e-5
    )


def test_features_as_integers_of_torchs() -> None:
    cells = torch.tensor([[0, 1], [0, 2]], dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.tensor([[1.0], [-0.4]]), cells, [4], 1)
    one, other = quantize_per_tensor([x, x.features], [0.5, 0.1], [0, 0], torch.qint8)
    assert (one.is_quantized, one.q_scale(), other.q_scale()) == (True, 0.5, 0.1)
    assert one.dequantize().features.tolist() == [[1.0], [-0.5]]


def test_convolutions_with_what_follows_them() -> None:
    torch.manual_seed(0)
    cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 3, 0]], dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.randn(3, 4), cells, [4, 4], 1)
    conv, norm = spconv.SubMConv2d(4, 6, 3), nn.BatchNorm1d(6)
    norm(torch.randn(50, 6) * 3 + 1)
    with pytest.raises(ArgumentError, match=r"`conv`.*eval"):
        utils.fuse_spconv_bn_eval(conv, norm)
    conv.eval(), norm.eval()
    fused = utils.fuse_spconv_act_eval(utils.fuse_spconv_bn_eval(conv, norm), nn.LeakyReLU(0.2))
    want = nn.functional.leaky_relu(norm(conv(x).features), 0.2)
    torch.testing.assert_close(fused(x).features, want, rtol=1e-5, atol=1e-5)
    assert conv.activation is None
    with pytest.raises(ArgumentTypeError, match=r"`act`.*GELU"):
        utils.fuse_spconv_act_eval(conv, nn.GELU())
