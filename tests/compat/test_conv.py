"""Layers against torch's dense ones, forward and backward, and the laws of ``indice_key``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.core import Activation
from layoutconv.errors import ArgumentError

from .dense import TRANSPOSED, at, cloud, dense_conv, reached, torch_weight

SHAPES = {1: [40], 2: [9, 8], 3: [5, 6, 7]}


def compare(layer: Any, x: Any) -> None:
    """Values, cells and all gradients of ``layer`` are those of the dense layer."""
    x = x.replace_feature(x.features.requires_grad_())
    y = layer(x)
    grid = dense_conv(layer, x.dense())
    assert y.spatial_shape == list(grid.shape[2:])
    torch.testing.assert_close(y.features, at(grid, y.indices))
    grad = torch.randn_like(y.features)
    inputs = [x.features, *layer.parameters()]
    found = torch.autograd.grad(y.features, inputs, grad)
    wanted = torch.autograd.grad(at(grid, y.indices), inputs, grad)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "sizes",
    [{}, {"dilation": 2}, {"kernel_size": 2}, {"groups": 2}, {"bias": False}, {"padding": 7}],
    ids=str,
)
def test_submanifold(rank: int, sizes: dict[str, Any]) -> None:
    """Row for row; an even filter reaches further down; padding says nothing."""
    x = cloud(SHAPES[rank], 4, seed=rank)
    layer = getattr(spconv, f"SubMConv{rank}d")(4, 6, **{"kernel_size": 3, **sizes}).double()
    assert layer(x).indices is x.indices
    assert layer(x).spatial_shape == x.spatial_shape
    compare(layer, x)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["SparseConv", "SparseConvTranspose"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"stride": 2, "padding": 1},
        {"stride": 2, "kernel_size": 2},
        {"padding": 1, "groups": 2, "bias": False},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 1},
        {"stride": 3, "kernel_size": 2},
    ],
    ids=str,
)
def test_strided(rank: int, kind: str, sizes: dict[str, Any]) -> None:
    x = cloud(SHAPES[rank], 4, seed=rank, rows=20)
    layer = getattr(spconv, f"{kind}{rank}d")(4, 6, **{"kernel_size": 3, **sizes}).double()
    y = layer(x)
    assert {*map(tuple, y.indices.tolist())} == {
        (n, *cell) for n, _, *cell in reached(layer, x).nonzero().tolist()
    }
    compare(layer, x)


def test_dilated_convolution() -> None:
    compare(
        spconv.SparseConv2d(4, 6, 3, stride=2, padding=2, dilation=2).double(), cloud([9, 8], 4)
    )


def test_the_grid_of_a_dilated_transposed_convolution() -> None:
    """spconv leaves the dilation out of it: the grid ends earlier than torch's."""
    x = cloud([5], 4, rows=4)
    layer = spconv.SparseConvTranspose1d(4, 6, 3, stride=2, dilation=2).double()
    y, grid = layer(x), dense_conv(layer, x.dense())
    assert (y.spatial_shape, grid.shape[2]) == ([11], 13)
    torch.testing.assert_close(y.features, at(grid, y.indices))


def test_output_padding() -> None:
    layer = spconv.conv.SparseConvolution(
        2, 4, 6, 3, stride=2, padding=1, output_padding=1, transposed=True
    )
    compare(layer.double(), cloud([5, 6], 4))


def test_four_modes() -> None:
    """A filter of one extent in the last mode is a 3-D one, image by image of that mode."""
    x = cloud([4, 3, 5, 3], 4)
    layer = spconv.SubMConv4d(4, 6, (3, 3, 3, 1)).double()
    flat = x.dense().movedim(-1, 1).flatten(0, 1)
    w = torch_weight(layer.weight)[..., 0]
    grid = torch.conv3d(flat, w, layer.bias, padding=1).unflatten(0, (2, 3)).movedim(1, -1)
    torch.testing.assert_close(layer(x).features, at(grid, x.indices))
    y = spconv.SparseConv4d(4, 6, 2, stride=2, indice_key="k").double()(x)
    assert y.spatial_shape == [2, 1, 2, 1]
    assert spconv.SparseInverseConv4d(6, 4, 2, indice_key="k").double()(y).indices is x.indices


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_inverse(rank: int) -> None:
    """To the cells that the strided layer read, each from the outputs that it had fed."""
    x = cloud(SHAPES[rank], 4)
    down = getattr(spconv, f"SparseConv{rank}d")(4, 5, 3, 2, 1, indice_key="down").double()
    middle = getattr(spconv, f"SubMConv{rank}d")(5, 5, 3, indice_key="subm").double()
    up = getattr(spconv, f"SparseInverseConv{rank}d")(5, 4, 3, indice_key="down").double()
    y = middle(down(x))
    y = y.replace_feature(y.features.detach().requires_grad_())
    z = up(y)
    assert z.indices is x.indices
    assert (z.spatial_shape, z.batch_size) == (x.spatial_shape, x.batch_size)
    w = torch_weight(up.weight).transpose(0, 1)
    more = [(e - 1) % 2 for e in x.spatial_shape]
    grid = TRANSPOSED[rank](y.dense(), w, up.bias, 2, 1, more)
    wanted = at(grid, x.indices)
    torch.testing.assert_close(z.features, wanted)
    inputs = [y.features, up.weight, up.bias]
    grad = torch.randn_like(wanted)
    found = torch.autograd.grad(z.features, inputs, grad)
    for ours, theirs in zip(found, torch.autograd.grad(wanted, inputs, grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_inverse_filter_of_one_tap() -> None:
    """It multiplies where it is, as in spconv; one that is told of the stride goes back."""
    x = cloud([9, 8], 4)
    y = spconv.SparseConv2d(4, 5, 1, stride=2, indice_key="down").double()(x)
    assert len(y.indices) < len(x.indices)
    layer = spconv.SparseInverseConv2d(5, 4, 1, "down").double()
    z = layer(y)
    assert z.indices is y.indices
    torch.testing.assert_close(z.features, y.features @ layer.weight.view(5, 4) + layer.bias)
    of: dict[str, Any] = {"stride": 2, "inverse": True, "indice_key": "down"}
    assert spconv.SparseConvolution(2, 5, 4, 1, **of).double()(y).indices is x.indices


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("channels", [(16, 32), (3, 18), (1, 1), (5, 7)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(mode: str, channels: tuple[int, int], dtype: torch.dtype) -> None:
    """Whatever the number of channels, in training and evaluation, chained, with parameters of
    fp32."""
    C, K = channels
    x = cloud([5, 6, 7], C)
    net = spconv.SparseSequential(
        spconv.SubMConv3d(C, K, 3, indice_key="a"),
        torch.nn.BatchNorm1d(K),
        torch.nn.ReLU(),
        spconv.SparseConv3d(K, C, 3, 2, indice_key="b"),
        spconv.SubMConv3d(C, C, 1),
        spconv.SparseInverseConv3d(C, K, 3, indice_key="b"),
    ).train(mode == "train")
    exact = net(x.replace_feature(x.features.float())).features
    with torch.autocast("cpu", dtype=dtype):
        y = net(x.replace_feature(x.features.float())).features
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
    if mode == "train":
        y.float().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_the_ending_is_fused_and_differentiable() -> None:
    x = cloud([9, 8], 4)
    of: dict[str, Any] = {"ndim": 2, "in_channels": 4, "out_channels": 4, "subm": True}
    plain = spconv.SparseConvolution(**of).double()
    for kind, function in (
        (Activation.ReLU, torch.relu),
        (Activation.Sigmoid, torch.sigmoid),
        (Activation.LeakyReLU, lambda v: torch.nn.functional.leaky_relu(v, 0.25)),
    ):
        layer = spconv.SparseConvolution(**of, act_type=kind, act_alpha=0.25).double()
        layer.load_state_dict(plain.state_dict())
        wanted = function(plain(x).features + x.features)
        torch.testing.assert_close(layer(x, add_input=x).features, wanted)
    torch.testing.assert_close(plain(x, add_input=x).features, plain(x).features + x.features)
    with pytest.raises(ArgumentError, match="act_type"):
        spconv.SparseConvolution(**of, act_type="gelu")


def test_a_key_is_one_map() -> None:
    """Through features that were replaced, and in layers that have nothing else in common."""
    x = cloud([9, 8], 4)
    first = spconv.SubMConv2d(4, 6, 3, indice_key="subm").double()
    second = spconv.SubMConv2d(6, 4, 3, padding=1, indice_key="subm").double()
    y = first(x)
    assert "subm" not in x.indice_dict
    y = y.replace_feature(y.features.relu())
    assert "replace_feature" in y.__dir__()
    z = second(y)
    assert z.find_indice_pair("subm") is y.find_indice_pair("subm")
    assert z.find_indice_pair(None) is None
    assert z.find_indice_pair("other") is None


def test_what_a_key_holds() -> None:
    x = cloud([9, 8], 4)
    y = spconv.SparseConv2d(4, 6, 3, stride=2, indice_key="down").double()(x)
    data = y.find_indice_pair("down")
    assert data.indices is x.indices
    assert data.out_indices is y.indices
    assert (data.spatial_shape, data.out_spatial_shape) == ([9, 8], [4, 3])
    assert (data.ksize, data.stride, data.padding, data.dilation) == (
        [3] * 2,
        [2] * 2,
        [0] * 2,
        [1] * 2,
    )
    assert not data.is_subm
    assert data.pair_fwd.shape == (9, len(y.indices))
    for tap, row in (data.pair_fwd >= 0).nonzero().tolist():
        assert data.pair_bwd[tap, data.pair_fwd[tap, row]] == row


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda: spconv.SubMConv2d(4, 4, 5, indice_key="a"), r"kernel size \[3, 3\].*\[5, 5\]"),
        (lambda: spconv.SubMConv2d(4, 4, 3, dilation=2, indice_key="a"), "dilation"),
        (lambda: spconv.SparseConv2d(4, 4, 3, indice_key="a"), "submanifold.*strided"),
        (lambda: spconv.SparseMaxPool2d(3, indice_key="a"), "submanifold.*strided"),
        (lambda: spconv.SparseInverseConv2d(4, 4, 3, indice_key="a"), "of a submanifold layer"),
        (lambda: spconv.SparseInverseConv2d(4, 4, 3, indice_key="b"), r"'b'; known: \['a'\]"),
    ],
)
def test_a_key_of_another_layer(second: Any, message: str) -> None:
    y = spconv.SubMConv2d(4, 4, 3, indice_key="a").double()(cloud([9, 8], 4))
    with pytest.raises(ArgumentError, match=f"indice_key.*{message}"):
        second().double()(y)


def test_an_inverse_layer_of_another_size() -> None:
    y = spconv.SparseConv2d(4, 4, 3, 2, indice_key="down").double()(cloud([9, 8], 4))
    with pytest.raises(ArgumentError, match=r"kernel_size.*\[3, 3\].*'down'.*\[2, 2\]"):
        spconv.SparseInverseConv2d(4, 4, 2, indice_key="down").double()(y)
    layer, fewer = spconv.SparseInverseConv2d(4, 4, 3, indice_key="down").double(), y.shadow_copy()
    fewer = fewer.replace_feature(y.features[:2])
    fewer.indices = y.indices[:2]
    with pytest.raises(ArgumentError, match=r"computed: .* rows"):
        layer(fewer)


def test_a_key_at_other_cells() -> None:
    """The same maps handed to a tensor that has other cells, or the same ones anew."""
    x = cloud([9, 8], 4)
    layer = spconv.SubMConv2d(4, 4, 3, indice_key="a").double()
    y = layer(x)
    of = [9, 8], 2, None, None, y.indice_dict
    again = spconv.SparseConvTensor(y.features, x.indices.clone(), *of)
    torch.testing.assert_close(layer(again).features, layer(y).features)
    other = spconv.SparseConvTensor(y.features, x.indices.roll(1, 0), *of)
    with pytest.raises(ArgumentError, match=r"'a' read.*40 other cells"):
        layer(other)
    fewer = spconv.SparseConvTensor(y.features[1:], x.indices[1:], *of)
    with pytest.raises(ArgumentError, match=r"40 rows.*39 rows"):
        layer(fewer)
    larger = spconv.SparseConvTensor(y.features, x.indices, [9, 9], 2, None, None, y.indice_dict)
    with pytest.raises(ArgumentError, match=r"\[9, 8\].*\[9, 9\]"):
        layer(larger)


def test_cells_that_are_written_to() -> None:
    """Some networks move cells in place: what was known of them is forgotten."""
    x = cloud([9, 8], 4)
    layer = spconv.SubMConv2d(4, 4, 3).double()
    moved = layer(x).shadow_copy()
    moved.indices = x.indices.clone()
    before = layer(moved).features
    moved.indices[:, 1:] *= 2
    moved.spatial_shape = [18, 16]
    torch.testing.assert_close(
        layer(moved).features, at(dense_conv(layer, moved.dense()), moved.indices)
    )
    assert not torch.equal(layer(moved).features, before)
    keyed = spconv.SubMConv2d(4, 4, 3, indice_key="a").double()
    y = keyed(moved)
    moved.indices[:, 1:] -= 1
    with pytest.raises(ArgumentError, match="written to since"):
        keyed(y)


@pytest.mark.parametrize("key", [None, "down"])
def test_outputs_that_are_written_to(key: Any) -> None:
    """Neither their layer nor others of the same sizes give them out again."""
    x = cloud([9, 8], 4)
    layer = spconv.SparseConv2d(4, 4, 3, 2, indice_key=key).double()
    before = layer(x).indices.clone()
    for other in (layer, spconv.SparseMaxPool2d(3, 2, indice_key=key), layer):
        y = other(x)
        assert torch.equal(y.indices, before)
        y.indices[:, 1:] *= 2


def test_wrong_inputs_are_named() -> None:
    x, layer = cloud([9, 8], 4), spconv.SubMConv2d(4, 4, 3).double()
    with pytest.raises(ArgumentError, match="SparseConvTensor"):
        layer(x.features)
    with pytest.raises(ArgumentError, match="4 channels"):
        layer(x.replace_feature(x.features[:, :3]))
    with pytest.raises(ArgumentError, match="weight"):
        layer.float()(x)
    layer.double()
    outside = x.shadow_copy()
    outside.indices = x.indices + 9
    with pytest.raises(ArgumentError, match="`indices`"):
        layer(outside)
    with pytest.raises(ArgumentError, match="groups"):
        spconv.SubMConv2d(4, 6, 3, groups=4)
    with pytest.raises(ArgumentError, match="`input`: expected 3 spatial modes, as the layer has"):
        spconv.SubMConv3d(4, 4, 3).double()(x)
    with pytest.raises(ArgumentError, match="`input`: expected 3 spatial modes, as the layer has"):
        spconv.SparseMaxPool3d(2)(x)
    for name, size in (("kernel_size", 0), ("stride", 0), ("padding", -1), ("dilation", 0)):
        with pytest.raises(ArgumentError, match=f"`{name}`: expected every entry >= "):
            spconv.SparseConv2d(4, 6, **{"kernel_size": 3, name: size})
    with pytest.warns(UserWarning, match="ignores its `stride`"):
        spconv.SubMConv2d(4, 6, 3, stride=2)


def test_no_rows() -> None:
    x = cloud([9, 8], 4).select_by_index(torch.arange(0))
    net = spconv.SparseSequential(
        spconv.SubMConv2d(4, 6, 3, indice_key="a"),
        torch.nn.BatchNorm1d(6),
        spconv.SparseConv2d(6, 4, 3, 2, indice_key="b"),
        spconv.SparseInverseConv2d(4, 4, 3, indice_key="b"),
    ).double()
    y = net(x)
    assert y.features.shape == (0, 4)
    assert y.dense().shape == (2, 4, 9, 8)
    y.features.sum().backward()


def test_voxels_are_counted() -> None:
    layer = spconv.SparseConv2d(4, 6, 3, 2, record_voxel_count=True).double()
    rows = [len(layer(cloud([9, 8], 4, rows=r)).indices) for r in (5, 30, 10)]
    assert layer.get_max_num_voxels().tolist() == [max(rows)]
    assert "max_num_voxels_during_training" in layer.state_dict()
    fresh = spconv.SparseConv2d(4, 6, 3, 2, record_voxel_count=True).double()
    assert fresh.load_state_dict(spconv.SparseConv2d(4, 6, 3, 2).state_dict())
    assert spconv.SubMConv2d(4, 6, 3).get_max_num_voxels() is None


def test_first_weights() -> None:
    """Uniform in +-1 / sqrt(fan in), as torch's."""
    layer = spconv.SubMConv3d(16, 64, 3)
    bound = (16 * 27) ** -0.5
    assert layer.weight.shape == (64, 3, 3, 3, 16)
    for parameter in layer.parameters():
        assert parameter.abs().max() <= bound
    assert 0.99 * bound < layer.weight.max()
    torch.testing.assert_close(layer.weight.std().item(), bound * 3**-0.5, rtol=0.02, atol=0)


def test_the_usual_algorithm() -> None:
    of = spconv.ConvAlgo
    assert spconv.SubMConv3d(4, 4, 3).algo is of.MaskImplicitGemm
    assert spconv.SubMConv3d(4, 4, 5).algo is of.Native
    assert spconv.SubMConv3d(4, 4, 5, large_kernel_fast_algo=True).algo is of.MaskImplicitGemm
    assert (
        spconv.SubMConv3d(4, 4, 3, algo=of.MaskSplitImplicitGemm).algo is of.MaskSplitImplicitGemm
    )
