"""Networks in 8 bits on a GPU: what a CPU makes of the same codes, at every layer."""

from __future__ import annotations

import copy

import pytest
import torch

import layoutconv as lc
from layoutconv import nn
from layoutconv.nn import quantize
from layoutconv.nn.quantized_conv import QuantizedConv
from layoutconv.nn.quantized_tensor import QuantizedTensor

from ..nn.test_quantize import BATCHES, batch, network
from ..nn.test_quantized_conv import DENSE, SPARSE, features

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

INT8, E4M3 = torch.int8, torch.float8_e4m3fn


def on_gpu(x):
    return x.cuda() if isinstance(x, torch.Tensor) else x.to("cuda")


def numbers(y):
    if isinstance(y, QuantizedTensor):
        return y.codes.float().cpu()
    return (y if isinstance(y, torch.Tensor) else y.features).float().cpu()


@pytest.mark.parametrize("dtype", [INT8, E4M3], ids=str)
@pytest.mark.parametrize("name", [*SPARSE, *DENSE])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_layers(name, dtype, activation):
    torch.manual_seed(0)
    conv = (SPARSE | DENSE)[name]()
    conv.activation = activation
    x = features(conv)
    for by in (0.0, 0.02):
        layer = QuantizedConv(conv, dtype, 0.02, by)
        want = numbers(layer(x))
        cuda = copy.deepcopy(layer).cuda()
        for _ in range(2):
            got = numbers(cuda(on_gpu(x)))
            step = (1.01 if dtype == INT8 else 0.13 * want.abs() + 0.01) if by else 1e-3
            assert ((got - want).abs() <= step).all()
            assert ((got - want).abs() > 1e-3).float().mean() < 0.01  # ties alone


@pytest.mark.parametrize("dtype", [INT8, E4M3], ids=str)
def test_a_network(dtype):
    net = network().half()
    small = quantize(net, [b.half() for b in BATCHES], dtype=dtype)
    x = batch(99).half()
    want, cuda = small(x).features.float(), copy.deepcopy(small).cuda()
    for _ in range(2):
        y = cuda(x.to("cuda"))
        assert y.features.dtype == torch.float16
        assert float((y.features.float().cpu() - want).norm() / want.norm()) < 0.02
    inside = cuda[:5](x.to("cuda"))
    assert inside.codes.dtype == dtype
    again, report = quantize(
        net.cuda(), [b.half().to("cuda") for b in BATCHES], dtype=dtype, return_report=True
    )
    assert report.sqnr > 25
    y = again(x.to("cuda")).features.float().cpu()
    assert float((y - want).norm() / want.norm()) < 0.05


def test_a_padded_network_in_a_graph():
    net = quantize(network().half().cuda(), [b.half().to("cuda") for b in BATCHES])
    x = batch(99).half().to("cuda")
    fast = lc.nn.graphed(net)
    torch.testing.assert_close(fast(x).features, net(x).features, rtol=1e-2, atol=1e-2)


def test_training():
    aware = quantize(network().cuda(), [b.to("cuda") for b in BATCHES], training=True)
    aware(batch(0).to("cuda")).features.square().sum().backward()
    layer = aware.get_submodule("5")
    assert isinstance(layer.conv, nn.SparseConv2d)
    assert layer.conv.weight.grad.isfinite().all()
    assert layer.conv.weight.grad.abs().sum() > 0
