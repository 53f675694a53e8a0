"""Bad input under other libraries' names: an error that says which argument, never a result."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
import layoutconv.compat.spconv.pytorch as spconv
import layoutconv.compat.torchsparse as torchsparse
import layoutconv.compat.torchsparse.nn as spnn
from layoutconv.compat.flex_gemm.ops.spconv import sparse_conv3d, sparse_submanifold_conv3d
from layoutconv.compat.torchsparse.utils import to_dense
from layoutconv.errors import ArgumentError

CELLS = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 4, 4, 4], [1, 2, 2, 2]]).int()
FEATURES = torch.arange(16.0).view(4, 4)
SHAPE = (2, 4, 5, 5, 5)
WEIGHT = torch.ones(2, 3, 3, 3, 4)


def spconv_tensor(features: torch.Tensor = FEATURES) -> Any:
    cells = spconv.SparseConvTensor(FEATURES, CELLS, [5, 5, 5], 2)
    return cells.replace_feature(features)


def torchsparse_tensor(features: torch.Tensor = FEATURES, **options: Any) -> Any:
    return torchsparse.SparseTensor(features, CELLS, **options)


def minkowski_tensor(features: torch.Tensor = FEATURES) -> Any:
    return ME.SparseTensor(features, CELLS)


def refused(call: Callable[[], Any], name: str, rest: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"`{name}`: expected {rest}")):
        call()


@pytest.mark.parametrize("size", [1, 3])
def test_spconv_features_of_one_mode_and_of_another_dtype(size: int) -> None:
    layer = spconv.SubMConv3d(4, 4, size)
    refused(lambda: layer(spconv_tensor(FEATURES[:, 0])), "input", "4 channels, got features (4,)")
    refused(
        lambda: layer(spconv_tensor(FEATURES.double())),
        "weight",
        "torch.float64, the dtype of the feat",
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(spconv_tensor(FEATURES.bfloat16())).features.dtype == torch.bfloat16


def test_a_key_that_no_dict_takes() -> None:
    keys: Any = ["a"]
    refused(lambda: spconv.SubMConv3d(4, 4, 3, indice_key=keys), "indice_key", "a name, or anoth")


def test_torchsparse_extents_that_cells_are_outside_of() -> None:
    small = torchsparse_tensor(spatial_range=(2, 4, 5, 5))
    refused(small.dense, "spatial_range", "extents that have every cell, [0, 4, 4, 4] too, got (2")
    below = torchsparse.SparseTensor(FEATURES, CELLS - 1, spatial_range=(2, 5, 5, 5))
    refused(below.dense, "spatial_range", "extents that have every cell, [-1, -1, -1, -1] too")
    refused(lambda: to_dense(FEATURES[:3], CELLS, (2, 5, 5, 5)), "feats", "(4, C), got (3, 4)")
    refused(lambda: torchsparse_tensor(spatial_range=(5, 5, 5)), "spatial_range", "a number, or 4")
    refused(lambda: torchsparse_tensor(spatial_range=5), "spatial_range", "extents (batch, X, Y, Z")


def test_torchsparse_operands() -> None:
    x, rows = torchsparse_tensor(), torchsparse.SparseTensor(FEATURES[:1], CELLS[:1])
    refused(lambda: x + rows, "other", "4 rows, as this tensor has, got 1")
    refused(lambda: x + FEATURES, "other", "a SparseTensor, got Tensor")
    refused(lambda: spnn.GroupNorm(2, 4)(FEATURES), "input", "a SparseTensor, got Tensor")
    flat = torchsparse_tensor(FEATURES[:, 0])
    refused(lambda: spnn.Conv3d(4, 2, 3)(flat), "input", "4 channels, as the weight has")
    for size in 1, 3:
        layer = spnn.Conv3d(4, 2, size, config=5)
        refused(lambda layer=layer: layer(x), "config", "a ConvConfig, or a dict, got int")


def test_norms_of_integers_and_of_nothing() -> None:
    """Numbers that are normalised and cut off to integers are no norm of them."""
    numbers, said = FEATURES.int(), "features of floating-point numbers, got torch.int32"
    refused(lambda: spnn.GroupNorm(2, 4)(torchsparse_tensor(numbers)), "input", said)
    refused(lambda: ME.MinkowskiInstanceNorm(4)(minkowski_tensor(numbers)), "input", said)
    nothing = torchsparse.SparseTensor(FEATURES[:0], CELLS[:0])
    assert spnn.GroupNorm(2, 4)(nothing).F.shape == (0, 4)


def test_minkowski_grids_that_do_not_have_every_cell() -> None:
    x = minkowski_tensor()
    refused(lambda: x.dense(torch.Size([2, 4, 5, 5, 4])), "shape", "at least [2, 4, 5, 5, 5], got")
    refused(lambda: x.dense(torch.Size([1, 4, 5, 5, 5])), "shape", "at least [2, 4, 5, 5, 5], got")
    refused(lambda: x.dense(torch.Size([2, 5, 5, 5])), "shape", "(N, C, and 3 extents), got")
    above = torch.IntTensor([0, 1, 0])
    refused(lambda: x.dense(min_coordinate=above), "min_coordinate", "at most [0, 0, 0], got [0, 1")
    assert x.dense(torch.Size([3, 4, 6, 5, 5]))[0].sum() == FEATURES.sum()


def test_minkowski_operands() -> None:
    x, other = minkowski_tensor(), minkowski_tensor()
    pooled = ME.MinkowskiGlobalPooling()
    broadcast = ME.MinkowskiBroadcastAddition()
    refused(
        lambda: broadcast(x, pooled(other)), "other", "a tensor with the same coordinate_manager"
    )
    assert broadcast(x, pooled(x)).F.shape == (4, 4)
    mode = "quantization_mode"
    refused(lambda: ME.SparseTensor(FEATURES, CELLS, quantization_mode="mean"), mode, "a Sparse")
    points, quantize = torch.rand(3, 2), ME.utils.sparse_quantize
    refused(
        lambda: quantize(points, FEATURES[:2]),
        "features",
        "3 rows, as many as `coordinates`, got 2",
    )
    refused(
        lambda: quantize(points, None, [1, 2]), "labels", "3 rows, as many as `coordinates`, got 2"
    )


def test_a_neighbor_cache_of_other_cells_or_sizes() -> None:
    call: Any
    for call in sparse_submanifold_conv3d, sparse_conv3d:
        y, *_, cache = call(FEATURES, CELLS, SHAPE, WEIGHT)
        again = call(FEATURES, CELLS.clone(), SHAPE, WEIGHT, neighbor_cache=cache)
        assert torch.equal(again[0], y)
        of = {"neighbor_cache": cache}
        for cells in CELLS.flip(0), CELLS[:3]:
            rows = FEATURES[: len(cells)]
            with pytest.raises(ArgumentError, match="the cache of a call on the same coords"):
                call(rows, cells, SHAPE, WEIGHT, **of)
        with pytest.raises(ArgumentError, match=r"made with .*'dilation': \(2, 2, 2\)\}, got"):
            call(FEATURES, CELLS, SHAPE, WEIGHT, dilation=2, **of)
        with pytest.raises(ArgumentError, match=r"made with \{'kernel_size': \(1, 3, 3\)"):
            call(FEATURES, CELLS, SHAPE, WEIGHT[:, :1], **of)
    with pytest.raises(ArgumentError, match=r"made with .*'stride': \(2, 2, 2\)"):
        sparse_conv3d(FEATURES, CELLS, SHAPE, WEIGHT, stride=2, neighbor_cache=cache)
