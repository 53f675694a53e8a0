"""``SparseConvTensor``: what it refuses, what it shares, and what is copied."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.compat.spconv.pytorch.functional import sparse_add, sparse_add_hash_based
from layoutconv.errors import ArgumentError

from .dense import cloud


def test_features_are_read_only() -> None:
    x = cloud([9, 8], 4)
    with pytest.raises(ValueError, match="replace_feature"):
        x.features = x.features
    y = x.replace_feature(x.features[:, :2])
    assert y.indices is x.indices
    assert y.indice_dict is x.indice_dict
    assert (y.features.shape, x.features.shape) == ((40, 2), (40, 4))
    assert "replace_feature" in x.__dir__()


def test_attributes() -> None:
    x = cloud([9, 8], 4)
    grid, voxel_num = torch.zeros(1), torch.zeros(2)
    of = (x.features, x.indices, np.array([9, 8]), torch.tensor(2), grid, voxel_num)
    y = spconv.SparseConvTensor(*of, {"a": 1}, True, force_algo=spconv.ConvAlgo.Native)
    assert (y.spatial_shape, y.batch_size, y.spatial_size) == ([9, 8], 2, 72)
    assert (type(y.spatial_shape), type(y.batch_size)) == (list, int)
    assert y.grid is grid
    assert y.voxel_num is voxel_num
    for other in (y.shadow_copy(), y.replace_feature(x.features)):
        assert other is not y
        assert (other.indice_dict, other.benchmark) == ({"a": 1}, True)
        assert other.force_algo is spconv.ConvAlgo.Native
        assert (other.benchmark_record, other.thrust_allocator) == ({}, None)
        assert not other._timer.enable
    assert (x.int8_scale, x.is_quantized, x.grid.numel()) == (None, False, 0)
    assert repr(x) == "SparseConvTensor[shape=torch.Size([40, 4])]"
    with pytest.raises(ValueError, match="not quantized"):
        x.q_scale()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"indices": torch.zeros(3, 3)}, "indices"),
        ({"indices": torch.zeros(3, 3, dtype=torch.int64)}, "indices"),
        ({"indices": torch.zeros(3, 4, dtype=torch.int32)}, "indices"),
        ({"indices": torch.zeros(3, 3, dtype=torch.int32).numpy()}, "indices.*got ndarray"),
        ({"features": torch.zeros(3)}, "features"),
        ({"features": torch.zeros(4, 2)}, "features.*a row per row of indices"),
        ({"features": torch.zeros(3, 2).numpy()}, "features.*got ndarray"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], name: str) -> None:
    right = {"features": torch.zeros(3, 2), "indices": torch.zeros(3, 3, dtype=torch.int32)}
    with pytest.raises(ArgumentError, match=name):
        spconv.SparseConvTensor(**{**right, **change}, spatial_shape=[4, 4], batch_size=1)


def test_arithmetic() -> None:
    x = cloud([9, 8], 4)
    y = x.replace_feature(x.features * 2)
    for total, times in ((x + y, 3), (x + y.features, 3), (y - x, 1), (x.minus(), -1)):
        torch.testing.assert_close(total.features, x.features * times)
        assert total.indices is x.indices
    z, before = x, x.features.clone()
    z += y
    torch.testing.assert_close(z.features, before * 3)
    torch.testing.assert_close(x.features, before)


def test_dense() -> None:
    x = cloud([9, 8], 4)
    grid = x.dense()
    assert grid.shape == (2, 4, 9, 8)
    assert grid.is_contiguous()
    for row, cell in enumerate(x.indices.tolist()):
        assert torch.equal(grid[cell[0], :, cell[1], cell[2]], x.features[row])
    assert grid.count_nonzero() == x.features.numel()
    last = x.dense(channels_first=False)
    assert torch.equal(last.movedim(-1, 1), grid)
    back = spconv.SparseConvTensor.from_dense(last)
    assert (back.spatial_shape, back.batch_size) == ([9, 8], 2)
    assert torch.equal(back.dense(), grid)


def test_rows_by_index() -> None:
    x = cloud([9, 8], 4)
    y = spconv.SubMConv2d(4, 4, 3, indice_key="a").double()(x)
    mask = torch.rand(40) > 0.5
    kept = y.select_by_index(mask)
    assert torch.equal(kept.indices, x.indices[mask])
    assert torch.equal(kept.features, y.features[mask])
    assert (kept.indice_dict, list(y.indice_dict)) == ({}, ["a"])


@pytest.mark.parametrize("add", [sparse_add, sparse_add_hash_based])
def test_sparse_add(add: Any) -> None:
    """The dense sum, with a gradient, at the union of the cells."""
    tensors = [cloud([9, 8], 4, rows=rows, seed=rows) for rows in (30, 50, 1)]
    for x in tensors:
        x.features.requires_grad_()
    y = add(*tensors)
    wanted = sum(x.dense() for x in tensors)
    torch.testing.assert_close(y.dense(), wanted)
    cells = {tuple(cell) for x in tensors for cell in x.indices.tolist()}
    assert sorted(cells) == list(map(tuple, y.indices.tolist()))
    assert y.indice_dict == {}
    grad = torch.randn_like(wanted)
    inputs = [x.features for x in tensors]
    ours = torch.autograd.grad((y.dense() * grad).sum(), inputs)
    for a, b in zip(ours, torch.autograd.grad((wanted * grad).sum(), inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_sparse_add_to_a_tensor_that_has_all_cells() -> None:
    """Its rows stay, and what is known of them."""
    x = spconv.SubMConv2d(4, 4, 3, indice_key="a").double()(cloud([9, 8], 4))
    few = x.select_by_index(torch.tensor([7, 3]))
    for y in (sparse_add(x, few), sparse_add(few, x)):
        assert y.indices is x.indices
        assert y.indice_dict is x.indice_dict
        wanted = x.features.index_add(0, torch.tensor([7, 3]), few.features)
        torch.testing.assert_close(y.features, wanted)
    with pytest.raises(ArgumentError, match="agree"):
        sparse_add(x, cloud([9, 9], 4))
    with pytest.raises(ArgumentError, match="one or more"):
        sparse_add()


def copies(value: Any) -> Any:
    yield copy.deepcopy(value)
    yield pickle.loads(pickle.dumps(value))
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    yield torch.load(file, weights_only=False)


def test_copies_know_their_maps() -> None:
    x = cloud([9, 8], 4)
    down = spconv.SparseConv2d(4, 4, 3, 2, indice_key="down").double()
    subm = spconv.SubMConv2d(4, 4, 3, indice_key="subm").double()
    up = spconv.SparseInverseConv2d(4, 4, 3, indice_key="down").double()
    y = subm(down(x)).replace_feature(torch.randn(len(down(x).indices), 4).double())
    wanted = up(y), subm(y)
    for again in copies(y):
        found = up(again), subm(again)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours.features, theirs.features)
            assert torch.equal(ours.indices, theirs.indices)


def test_copies_of_cells_that_were_written_to() -> None:
    """A copy's knowledge of its cells is as outdated as the original's."""
    subm = spconv.SubMConv2d(4, 4, 3, indice_key="subm").double().requires_grad_(False)
    y = subm(cloud([9, 8], 4))
    y.indices[:, 1:] = 8 - y.indices[:, 1:]
    for again in copies(y):
        with pytest.raises(ArgumentError, match=r"written to since|outside"):
            subm(again)


def test_copies_of_networks() -> None:
    x = cloud([9, 8], 4)
    net = spconv.SparseSequential(
        spconv.SubMConv2d(4, 6, 3, indice_key="a"),
        torch.nn.BatchNorm1d(6),
        spconv.SparseMaxPool2d(2, indice_key="b", record_voxel_count=True),
        spconv.SparseInverseConv2d(6, 4, 2, indice_key="b"),
    ).double()
    wanted = net(x).features
    for again in copies(net.eval()):
        assert torch.equal(again(x).features, net(x).features)
        assert {*again.state_dict()} == {*net.state_dict()}
    assert wanted.requires_grad


def test_to_layoutconv_and_back() -> None:
    """A network may mix both; maps are shared."""
    x = cloud([9, 8], 4)
    layer = spconv.SubMConv2d(4, 6, 3).double()
    y = lc.nn.sparse.subm_conv(x.to_layoutconv(), layer.weight, layer.bias)
    back = spconv.SparseConvTensor.from_layoutconv(y)
    assert torch.equal(back.features, layer(x).features)
    assert back.coordinates is x.coordinates
    assert len(x.coordinates._known.made) == 1


def test_inference_mode() -> None:
    net = spconv.SparseSequential(
        spconv.SubMConv2d(4, 4, 3, indice_key="a"), spconv.SubMConv2d(4, 4, 3, indice_key="a")
    ).double()
    x = cloud([9, 8], 4)
    with torch.inference_mode():
        again = spconv.SparseConvTensor(x.features + 0, x.indices + 0, [9, 8], 2)
        assert torch.equal(net(again).features, net(x).features)


def test_names_of_attributes_are_those_of_any_object() -> None:
    class Own(spconv.SparseConvTensor):
        more = 1

    for kind in (spconv.SparseConvTensor, Own):
        x = kind(torch.ones(1, 2), torch.zeros(1, 3).int(), [4, 4], 1)
        x.mine = 1
        assert set(dir(x)) == set(object.__dir__(x))
        assert {"mine", "replace_feature", "indice_dict"} <= set(x.__dir__())


@pytest.mark.parametrize("looked_at", [lambda x: x.dense(), spconv.SubMConv3d(4, 4, 3)])
def test_a_cell_outside_is_an_error_about_indices(looked_at: Any) -> None:
    indices = torch.tensor([[0, 0, 1, 2], [0, 0, 1, 9]], dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.ones(2, 4), indices, [4, 4, 4], 1)
    with pytest.raises(ArgumentError, match=r"`indices`: expected column 3 in \[0, 4\), got"):
        looked_at(x)
    negative = spconv.SparseConvTensor(torch.ones(2, 4), indices - 3, [4, 4, 4], 1)
    with pytest.raises(ArgumentError, match=r"`indices`: expected column 0 in \[0, 1\)"):
        looked_at(negative)
