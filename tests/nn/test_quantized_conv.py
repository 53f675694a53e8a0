"""A layer of 8 bits is the layer of what its codes stand for, rounded once."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv import nn
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn.eight_bits import LARGEST, fake_quantized, of_codes, scale_of, to_codes
from layoutconv.nn.layer_kinds import kind_of_layer
from layoutconv.nn.quantized_conv import QuantizedConv
from layoutconv.nn.quantized_tensor import QuantizedTensor
from layoutconv.sparse import SparseTensor
from layoutconv.view.epilogue import ACTIVATIONS

from .clouds import cloud

INT8, E4M3 = torch.int8, torch.float8_e4m3fn
SPARSE = {
    "subm": lambda: nn.SubmConv2d(8, 12, 3),
    "groups": lambda: nn.SubmConv2d(8, 12, 3, groups=2, bias=False, dilation=2),
    "offsets": lambda: nn.SubmConv2d(8, 12, offsets=[(0, 0), (1, -1)]),
    "strided": lambda: nn.SparseConv2d(8, 12, 3, 2, 1),
    "transposed": lambda: nn.SparseConvTranspose2d(8, 12, 2, 2, groups=2),
}
DENSE = {
    "1-D": lambda: nn.Conv1d(8, 12, 3, 2, 1, groups=2),
    "2-D": lambda: nn.Conv2d(8, 12, 3, padding=1, bias=False),
    "3-D": lambda: nn.Conv3d(8, 12, (1, 3, 2)),
    "transposed 1-D": lambda: nn.ConvTranspose1d(8, 12, 3, 2),
    "transposed 2-D": lambda: nn.ConvTranspose2d(8, 12, 3, 2, 1, 1, groups=2),
}  # fmt: skip


def features(conv: Any, seed: int = 0) -> Any:
    if isinstance(conv, torch.nn.modules.conv._ConvNd):
        rank = len(conv.kernel_size)
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, 8, *(5, 6, 7)[:rank], generator=generator)
    return cloud(2, 8, dtype=torch.float32, seed=seed)


def values(y: Any) -> torch.Tensor:
    return y.features if isinstance(y, SparseTensor) else y


def standing_for(conv: Any, dtype: torch.dtype) -> Any:
    """The same layer with the weights that the codes stand for; scales by another way."""
    made, weight = copy.deepcopy(conv), conv.weight.detach()
    transposed = isinstance(conv, torch.nn.modules.conv._ConvTransposeNd)
    for g in range(conv.groups):
        for k in range(conv.out_channels // conv.groups):
            if transposed:
                inputs = conv.in_channels // conv.groups
                place: Any = slice(g * inputs, (g + 1) * inputs), k
            else:
                place = g * (conv.out_channels // conv.groups) + k
            part = weight[place]
            scale = part.abs().max() / LARGEST[dtype]
            made.weight.data[place] = of_codes(to_codes(part, scale, dtype), scale, torch.float32)
    return made


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("name", [*SPARSE, *DENSE])
def test_a_layer_is_that_of_what_its_codes_stand_for(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    conv = (SPARSE | DENSE)[name]()
    conv.activation = "relu"
    x, layer = features(conv), QuantizedConv(conv, dtype, 0.02)
    same = standing_for(conv, dtype)
    home: Any = kind_of_layer(conv)
    read = home.with_features(x, of_codes(to_codes(values(x), 0.02, dtype), 0.02, torch.float32))
    for _ in range(2):
        with torch.no_grad():
            want, got = same(read), layer(x)
        assert values(got).dtype == torch.float32
        torch.testing.assert_close(values(got), values(want), rtol=1e-5, atol=1e-5)
    if isinstance(want, SparseTensor):
        assert torch.equal(got.coords, want.coords)


@pytest.mark.parametrize("kind", [None, *ACTIVATIONS])
@pytest.mark.parametrize("past", [None, "codes", "floats"])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_everything_is_before_one_rounding(
    dtype: torch.dtype, past: str | None, kind: str | None
) -> None:
    torch.manual_seed(0)
    conv = nn.SubmConv2d(8, 12, 3, activation=kind, slope=0.2)
    x, wide = features(conv), QuantizedConv(conv, dtype, 0.02)
    residual: Any = None
    if past == "floats":
        residual = x.replace(torch.randn(len(x), 12))
    elif past == "codes":
        codes = to_codes(torch.randn(len(x), 12), 0.03, dtype)
        residual = QuantizedTensor(x.replace(codes), codes, 0.03, torch.float32)
    with torch.no_grad():
        sums = conv_without(conv, kind=None)(x, wide)
        sums = sums if residual is None else sums + residual.features
        want = lc.nn.SubmConv2d(1, 1, 1, activation=kind, slope=0.2)
        value = activated(want, sums)
        scale = float(scale_of(value.abs().max() * 0.9, dtype))  # some saturate
        y = QuantizedConv(conv, dtype, 0.02, scale)(x, residual=residual)
        assert isinstance(y, QuantizedTensor)
        assert y.codes.dtype == dtype
        assert y.coordinates is x.coordinates
        ideal = to_codes(value, scale, dtype).float()
        off = (y.codes.float() - ideal).abs()
        step = 1.0 if dtype == INT8 else 0.126 * ideal.abs() + 2**-9  # to the next code
        assert (off <= step).all()
        assert (off > 0).float().mean() < 0.01  # of ties, which a last bit of fp32 decides
        torch.testing.assert_close(wide(x, residual=residual).features, value, rtol=1e-4, atol=1e-5)


def conv_without(conv: Any, kind: None) -> Any:
    """Sums and bias of a quantised layer in float64, tap by tap, of what the codes stand for."""

    def call(x: SparseTensor, layer: QuantizedConv) -> torch.Tensor:
        read = to_codes(x.features, 0.02, layer.dtype).double() * 0.02
        weight = layer.weight.double() * layer.weight_scale.double().view(-1, 1, 1, 1)
        index = lc.sparse.submanifold_map(x.coordinates, 3).index
        y = conv.bias.detach().double().expand(len(x), -1).clone()
        for tap, sources in enumerate(index.T):
            rows = (sources >= 0).nonzero()[:, 0]
            y[rows] += read[sources[rows].long()] @ weight.flatten(1, 2)[:, tap].T
        return y.float()

    return call


def activated(layer: Any, value: torch.Tensor) -> torch.Tensor:
    from layoutconv.tensors.epilogue_in_torch import activate

    return value if layer.activation is None else activate(value, layer.activation, layer.slope)


def test_dense_results_of_8_bits_are_codes_that_the_next_layer_reads() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(8, 12, 3, activation="relu"), nn.Conv2d(12, 4, 1)
    x = features(first)
    a, b = QuantizedConv(first, INT8, 0.02, 0.01), QuantizedConv(second, INT8, 0.01)
    codes = a(x)
    assert codes.dtype == INT8
    assert codes.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(b(codes), b(of_codes(codes, 0.01, torch.float32)))


def test_a_way_back_and_maps_that_are_given() -> None:
    torch.manual_seed(0)
    x = features(nn.SubmConv2d(8, 8, 3))
    down, up = nn.SparseConv2d(8, 8, 2, 2), nn.SparseInverseConv2d(8, 12, 2)
    small = [QuantizedConv(layer, INT8, 0.02, scale) for layer, scale in ((down, 0.02), (up, 0.0))]
    y = small[1](small[0](x))
    assert y.coordinates is x.coordinates
    found = lc.sparse.strided_map(x.coordinates, 2, 2)
    again = small[1](small[0](x, kernel_map=found), kernel_map=found)
    assert torch.equal(again.features, y.features)
    outputs = small[0](x, outputs=found.outputs)
    assert outputs.coordinates is found.outputs
    assert len(small[0](x, capacity=99)) == 99
    with pytest.raises(
        ArgumentError, match=r"`input`.*a strided convolution made, to invert its kernel map"
    ):
        small[1](x)


def test_a_quantised_tensor_is_its_features_to_everybody_else() -> None:
    points = torch.rand(50, 4)
    x = lc.voxelize(points, 0.3)
    codes = to_codes(x.features, 0.01, INT8)
    y = QuantizedTensor(x, codes, 0.01, torch.float16)
    wide = of_codes(codes, 0.01, torch.float16)
    assert isinstance(y, lc.sparse.Voxels)
    assert torch.equal(lc.devoxelize(y), lc.devoxelize(x.replace(wide)))
    assert torch.equal((y + y).features, wide + wide)
    assert torch.equal(nn.Sequential(torch.nn.ReLU())(y).features, wide.relu())
    assert torch.equal(lc.sparse.cat([y, y]).features, torch.cat([wide, wide], 1))
    assert (y.dtype, y.device.type, len(y)) == (torch.float16, "cpu", len(x))
    for same in (copy.deepcopy(y), pickle.loads(pickle.dumps(y)), y.float().half()):
        assert torch.equal(same.features, wide)
        assert not isinstance(same, QuantizedTensor)
    assert (
        repr(y)
        == f"QuantizedTensor({len(x)} rows, 4 channels, torch.int8, "
        + repr(x).partition("float32, ")[2].partition(", batch")[0]
        + ")"
    )


def test_moves_and_copies_keep_codes_and_scales() -> None:
    torch.manual_seed(0)
    conv = nn.SubmConv2d(8, 12, 3)
    x = features(conv)
    for dtype in LARGEST:
        layer = QuantizedConv(conv, dtype, 0.02)
        y = layer(x).features
        half = copy.deepcopy(layer).half()
        for name, tensor in layer.state_dict().items():
            assert torch.equal(half.state_dict()[name].float(), tensor.float())
            assert half.state_dict()[name].dtype == tensor.dtype
        assert half(x).features.dtype == torch.float16
        torch.testing.assert_close(half(x).features.float(), y, rtol=1e-3, atol=1e-3)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x).features, y)
        blank = QuantizedConv(nn.SubmConv2d(8, 12, 3), dtype, 1.0)
        blank(x)
        blank.load_state_dict(layer.state_dict())
        assert torch.equal(blank(x).features, y)
        assert str(layer) == (
            f"QuantizedConv(8, 12, kernel_size=(3, 3), {str(dtype).removeprefix('torch.')})"
        )


def write(layer: QuantizedConv, name: str, how: str) -> None:
    held = getattr(layer, name)
    if how == "in place":
        held.mul_(2)
    elif how == "loaded":
        layer.load_state_dict({**layer.state_dict(), name: 2 * held}, assign=True)
    else:
        setattr(layer, name, 2 * held)


@pytest.mark.parametrize("how", ["in place", "loaded", "replaced"])
@pytest.mark.parametrize("name", ["weight_scale", "bias", "input_scale", "output_scale"])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_what_is_written_to_a_scale_counts_from_the_next_call_on(
    kind: str, name: str, how: str
) -> None:
    torch.manual_seed(0)
    conv: Any = nn.SubmConv2d(8, 12, 3) if kind == "sparse" else nn.Conv2d(8, 12, 3)
    conv.activation = "gelu"
    x, layer = features(conv), QuantizedConv(conv, INT8, 0.02, 0.05)
    before = values(layer(x)).float()
    for _ in range(2):  # the second writes to what was remembered after the first
        write(layer, name, how)
        blank = QuantizedConv(conv, INT8)
        blank.load_state_dict(layer.state_dict())
        after = values(layer(x)).float()
        assert torch.equal(after, values(blank(x)).float())
        assert not torch.equal(after, before)
        before = after


def test_a_compiled_layer_reads_scales_of_channels_and_bias_as_they_are() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 12, 3, activation="relu")
    x, layer = features(conv), QuantizedConv(conv, INT8, 0.02)
    with torch.no_grad():
        before = layer(x)
        compiled: Any = torch.compile(layer, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), before)
        layer.weight_scale.mul_(2)
        layer.bias.mul_(2)
        torch.testing.assert_close(compiled(x), 2 * before)


def test_inputs_that_a_layer_cannot_read() -> None:
    conv = nn.SubmConv2d(8, 12, 3)
    x, layer = features(conv), QuantizedConv(conv, INT8, 0.02)
    with pytest.raises(ArgumentError, match=r"`input`.*training=True"):
        layer(x.replace(x.features.clone().requires_grad_()))
    with pytest.raises(ArgumentTypeError, match=r"`input`.*a SparseTensor"):
        layer(x.features)
    with pytest.raises(ArgumentTypeError, match=r"`input`.*float64"):
        layer(x.double())
    with pytest.raises(ArgumentError, match=r"`residual`.*coordinates of the result"):
        layer(x, residual=features(conv, 1))
    dense = QuantizedConv(nn.Conv2d(8, 4, 1), INT8, 0.02)
    with pytest.raises(ArgumentTypeError, match=r"`input`.*a torch tensor"):
        dense(x)


@pytest.mark.parametrize("name", ["input_scale", "output_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, torch.nan, torch.inf])
def test_scales_that_nothing_is_divided_by(name: str, value: float) -> None:
    if (name, value) == ("output_scale", 0.0):
        return  # a result that is not of 8 bits
    conv = nn.SubmConv2d(8, 12, 3)
    layer = QuantizedConv(conv, INT8, 0.02, 0.1)
    layer.load_state_dict({**layer.state_dict(), name: torch.tensor(value)})
    for _ in range(2):  # of the second call as of the first
        with pytest.raises(ArgumentError, match=f"`{name}`: expected a finite scale > 0"):
            layer(features(conv))


def test_fake_quantisation_is_the_codes_forward_and_straight_through_backward() -> None:
    x = torch.tensor([-100.0, -0.26, 0.0, 0.3, 60.0, 70.0], requires_grad=True)
    y = fake_quantized(x, 0.5, INT8)
    assert y.tolist() == [-63.5, -0.5, 0.0, 0.5, 60.0, 63.5]
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.tolist() == [0, 1, 1, 1, 1, 0]
    z = fake_quantized(x, torch.tensor(0.5), E4M3)
    assert torch.equal(z.detach(), to_codes(x.detach(), 0.5, E4M3).float() * 0.5)
    assert fake_quantized(x.half(), 0.5, INT8).dtype == torch.float16
