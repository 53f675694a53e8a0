"""Sizes of layers in the names of other libraries: whole numbers, or an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
import layoutconv.compat.spconv.pytorch as spconv
import layoutconv.compat.torchsparse as torchsparse
from layoutconv.compat.torchsparse import nn as torchsparse_nn
from layoutconv.compat.torchsparse.utils.quantize import sparse_quantize
from layoutconv.errors import ArgumentError, ArgumentTypeError


def _minkowski(**sizes: Any) -> Any:
    return ME.MinkowskiConvolution(2, 3, **{"kernel_size": 3, "dimension": 3, **sizes})


LAYERS: dict[str, Callable[..., Any]] = {
    "spconv": lambda **sizes: spconv.SparseConv3d(2, 3, **{"kernel_size": 3, **sizes}),
    "spconv pool": lambda **sizes: spconv.SparseMaxPool3d(**{"kernel_size": 3, **sizes}),
    "torchsparse": lambda **sizes: torchsparse_nn.Conv3d(2, 3, **sizes),
    "minkowski": _minkowski,
}


@pytest.mark.parametrize("name", ["kernel_size", "stride"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "size", [2.5, (2.5, 2, 2), "222", True, None, [2, [2], 2], float("nan"), float("inf")]
)
def test_what_is_no_whole_number_is_refused(kind: str, name: str, size: Any) -> None:
    if (kind, name, size) == ("spconv pool", "stride", None):
        return  # the kernel's size
    with pytest.raises(ArgumentTypeError, match=f"`{name}`: expected an integer, got"):
        LAYERS[kind](**{name: size})


@pytest.mark.parametrize("name", ["kernel_size", "stride"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("size", [0, -1, (2, 2), (2, 0, 2)])
def test_numbers_that_no_layer_has_are_refused(kind: str, name: str, size: Any) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}`"):
        LAYERS[kind](**{name: size})


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "size", [numpy.int64(2), torch.tensor(2), torch.tensor([2, 2, 2]), numpy.array([2, 2, 2]), 2.0]
)
def test_whole_numbers_of_any_kind_are_taken(kind: str, size: Any) -> None:
    plain, layer = (
        LAYERS[kind](kernel_size=2, stride=2),
        LAYERS[kind](kernel_size=size, stride=size),
    )
    assert repr(layer) == repr(plain)
    if kind.startswith("spconv"):
        assert all(type(extent) is int for extent in layer.kernel_size + layer.stride)


@pytest.mark.parametrize("groups", [0, -1, 2.5, None])
def test_groups_of_spconv(groups: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="`groups`: expected an integer"):
        spconv.SubMConv3d(4, 4, 3, groups=groups)


@pytest.mark.parametrize("kind", [spconv.SubMConv3d, torchsparse_nn.Conv3d])
@pytest.mark.parametrize(("name", "channels"), [("in", (0, 4)), ("in", ("4", 4)), ("out", (4, -2))])
def test_channels(kind: Any, name: str, channels: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{name}_channels`"):
        kind(*channels, 3)


@pytest.mark.parametrize(
    ("grid", "images", "name"),
    [
        ([4.5, 4, 4], 1, "spatial_shape"),
        ("444", 1, "spatial_shape"),
        (None, 1, "spatial_shape"),
        ([4] * 3, 1.5, "batch_size"),
    ],
)
def test_grids_of_spconv(grid: Any, images: Any, name: str) -> None:
    cells = torch.zeros(1, 4, dtype=torch.int32)
    with pytest.raises(ArgumentTypeError, match=f"`{name}`: expected"):
        spconv.SparseConvTensor(torch.ones(1, 2), cells, grid, images)


@pytest.mark.parametrize("far", [2**32 + 5, -(2**31) - 1, 0.7, float("nan")])
def test_coordinates_of_torchsparse_that_32_bits_do_not_hold(far: float) -> None:
    cells = torch.tensor([[0, far, 0, 0], [0, 5, 0, 1]])
    x = torchsparse.SparseTensor(torch.ones(2, 2), cells)
    with pytest.raises(ArgumentError, match=r"`coords`: expected whole numbers .* 32 bits, got"):
        torchsparse_nn.Conv3d(2, 3)(x)


def test_points_of_torchsparse_that_are_in_no_voxel() -> None:
    points = numpy.array([[numpy.nan, 0.0, 0.0], [1.5, 0.0, 0.0]])
    with pytest.raises(
        ArgumentError, match=r"`coords`: expected whole numbers .* 32 bits, got nan"
    ):
        sparse_quantize(points)
    for size in (0, -1.0, (1, 1), (1, 1, 0)):
        with pytest.raises(ArgumentError, match="`voxel_size`: expected a number > 0"):
            sparse_quantize(points[1:], size)


def test_a_transposed_layer_of_torchsparse_whose_stride_does_not_divide_the_tensors() -> None:
    """Cells 3 apart have none between that lie 1.5 apart."""
    x = torchsparse.SparseTensor(torch.ones(2, 2), torch.tensor([[0, 1, 2, 3], [0, 5, 0, 1]]).int())
    y = torchsparse_nn.Conv3d(2, 2, 3, 3)(x)
    with pytest.raises(ArgumentError, match=r"`stride`: expected a divisor of .*\(3, 3, 3\)"):
        torchsparse_nn.Conv3d(2, 2, 3, 2, transposed=True)(y)


def test_features_that_a_layer_of_one_tap_does_not_take() -> None:
    x = spconv.SparseConvTensor(
        torch.ones(2, 4), torch.tensor([[0, 1, 2, 3], [0, 3, 0, 1]]).int(), [4, 4, 4], 1
    )
    layer = spconv.SubMConv3d(4, 4, 1)
    with pytest.raises(ArgumentError, match="`input`: expected 2 rows of features"):
        layer(x.replace_feature(torch.ones(3, 4)))
    for shape in ((1, 4), (2, 1)):
        with pytest.raises(ArgumentError, match=r"`add_input`: expected features \(2, 4\)"):
            layer(x, x.replace_feature(torch.ones(shape)))
    with pytest.raises(ArgumentTypeError, match="`add_input`: expected a SparseConvTensor"):
        layer(x, torch.ones(2, 4))
