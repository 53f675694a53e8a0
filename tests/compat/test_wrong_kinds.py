"""Functions of other libraries' names, given what is none of their tensors: errors by argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import layoutconv as lc
import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
import layoutconv.compat.spconv.pytorch as spconv
import layoutconv.compat.torchsparse as torchsparse
from layoutconv.compat.flex_gemm.ops.spconv import sparse_submanifold_conv3d
from layoutconv.compat.MinkowskiEngine.MinkowskiKernelGenerator import get_kernel_volume
from layoutconv.compat.MinkowskiEngine.sparse_matrix_functions import spmm, spmm_average
from layoutconv.compat.spconv.pytorch import tables
from layoutconv.compat.spconv.pytorch.functional import sparse_add
from layoutconv.compat.spconv.pytorch.utils import gather_features_by_pc_voxel_id
from layoutconv.compat.torchsparse.nn import functional as spf
from layoutconv.compat.torchsparse.utils.collate import sparse_collate
from layoutconv.compat.torchsparse.utils.quantize import sparse_quantize
from layoutconv.errors import ArgumentError, ArgumentTypeError

from ..odd_arguments import refusals
from .dense import cloud

ROWS, PLACES = torch.ones(2, 3), torch.zeros(2, 8, dtype=torch.int64)
COORDS = torch.tensor([[0, 1, 1, 2], [0, 1, 1, 1]]).int()
X = torchsparse.SparseTensor(ROWS, COORDS)

# A function, its arguments, and the name of each that has to be a tensor of its kind.
CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[str | None, ...]]] = {
    "sphash": (spf.sphash, (COORDS, COORDS[:, 1:]), ("coords", "offsets")),
    "sphashquery": (spf.sphashquery, (PLACES, PLACES), ("queries", "references")),
    "spcount": (spf.spcount, (PLACES, 2), ("coords", None)),
    "spvoxelize": (spf.spvoxelize, (ROWS, PLACES[:, 0], PLACES[0]), ("feats", "coords", "counts")),
    "spdevoxelize": (spf.spdevoxelize, (ROWS, PLACES, PLACES), ("feats", "coords", "weights")),
    "calc_ti_weights": (spf.calc_ti_weights, (ROWS, PLACES), ("coords", "idx_query")),
    "generative_add": (torchsparse.generative_add, (X, X), ("a", "b")),
    "cat": (torchsparse.cat, ([X, X],), ("inputs",)),
    "gather": (
        gather_features_by_pc_voxel_id,
        (ROWS, PLACES[:, 0]),
        ("seg_res_features", "pc_voxel_id"),
    ),
    "sparse_add": (sparse_add, (cloud([4], 2), cloud([4], 2)), ("tens", "tens")),
    "unique": (ME.utils.unique_coordinate_map, (COORDS,), ("coordinates",)),
    "kaiming": (ME.utils.kaiming_normal_, (ROWS,), ("tensor",)),
    "batched_coordinates": (ME.utils.batched_coordinates, ([COORDS],), ("coords",)),
    "sparse_collate": (ME.utils.sparse_collate, ([COORDS], [ROWS]), ("coords", "feats")),
    "batch_sparse_collate": (ME.utils.batch_sparse_collate, ([(COORDS, ROWS)],), ("data",)),
    "summary": (ME.utils.summary, (torch.nn.Identity(), ROWS), ("model", None)),
}


@pytest.mark.parametrize("wrong", [3, "text", np.ones((2, 4)), {"a": 1}, [3]], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_another_kind_is_named(call, wrong, capsys):
    function, given, names = CALLS[call]
    function(*given)
    for place, name in enumerate(names):
        if name is not None:
            with pytest.raises(ArgumentTypeError, match=rf"`{name}`: expected (a|Sparse)"):
                function(*given[:place], wrong, *given[place + 1 :])


def test_points_to_quantize_have_three_columns():
    with pytest.raises(ArgumentError, match=r"`coords`: expected \(points, 3\), got \(2, 4\)"):
        sparse_quantize(np.ones((2, 4)))


def test_a_batch_is_of_sparse_tensors():
    with pytest.raises(ArgumentTypeError, match="`inputs`: expected a SparseTensor, got dict"):
        sparse_collate([{"x": ROWS}])


PLACE, MATRIX = torch.tensor([0, 0, 1]), torch.tensor([[10.0], [1.0]])
POINTS = np.array([[0.1, 1.0, 2.0], [3.0, 4.0, 5.5]])
CELLS = torch.tensor([[0, 1, 1], [0, 2, 2]]).int()
GRID = torch.ones(1, 2, 3, 3)
MINKOWSKI: dict[str, tuple[Any, dict[str, Any]]] = {
    "spmm": (
        spmm,
        {"rows": PLACE, "cols": PLACE, "vals": torch.ones(3), "size": (3, 2), "mat": MATRIX},
    ),
    "spmm_average": (spmm_average, {"rows": PLACE, "cols": PLACE, "size": (3, 2), "mat": MATRIX}),
    "get_kernel_volume": (
        get_kernel_volume,
        {"region_type": ME.RegionType.HYPER_CUBE, "kernel_size": [3, 3]},
    ),
    "KernelGenerator": (ME.KernelGenerator, {"kernel_size": 3, "region_type": 0, "dimension": 3}),
    "pooling": (ME.MinkowskiMaxPooling, {"kernel_size": 3, "stride": 1, "dimension": 2}),
    "dense_coordinates": (ME.dense_coordinates, {"shape": (1, 8, 2, 2)}),
    "to_sparse": (ME.to_sparse, {"x": GRID, "format": "BCXX"}),
    "to_sparse_all": (
        ME.to_sparse_all,
        {"dense_tensor": GRID, "coordinates": ME.dense_coordinates(GRID.shape)},
    ),
    "sparse_quantize": (
        ME.utils.sparse_quantize,
        {
            "coordinates": POINTS,
            "features": POINTS,
            "labels": np.array([1, 2], np.uint8),
            "ignore_label": 255,
            "quantization_size": 0.5,
            "return_index": True,
            "device": "cpu",
        },
    ),
    "unique": (ME.utils.unique_coordinate_map, {"coordinates": CELLS}),
    "batched_coordinates": (
        ME.utils.batched_coordinates,
        {"coords": [POINTS], "dtype": torch.int32, "device": None},
    ),
    "sparse_collate": (
        ME.utils.sparse_collate,
        {"coords": [POINTS], "feats": [POINTS], "labels": [POINTS], "device": None},
    ),
    "batch_sparse_collate": (ME.utils.batch_sparse_collate, {"data": [(POINTS, POINTS)]}),
    "SparseCollation": (
        lambda limit_numpoints, list_data: ME.utils.SparseCollation(limit_numpoints)(list_data),
        {"limit_numpoints": 5, "list_data": [(POINTS, POINTS)]},
    ),
    "SparseTensor": (ME.SparseTensor, {"features": torch.ones(2, 3), "coordinates": CELLS}),
    "TensorField": (ME.TensorField, {"features": torch.ones(2, 3), "coordinates": CELLS.float()}),
}


@pytest.mark.parametrize("call", MINKOWSKI)
def test_odd_arguments_are_answered_or_named(call):
    """No other exception of any kind: not Python's, not NumPy's, not torch's."""
    function, given = MINKOWSKI[call]
    errors = refusals(function, given)
    assert {error.name for error in errors} <= {*given, "data"}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: ME.dense_coordinates((4, 8)), r"`shape`: expected the shape \(N, C, X, Y"),
        (lambda: ME.dense_coordinates((1, 8, 2**20, 2**20)), r"`shape`: .* fewer than 2\^31 cells"),
        (lambda: get_kernel_volume(0, 3), "`kernel_size`: expected a number >= 1 for each mode"),
        (lambda: get_kernel_volume(7, [3]), "`region_type`: expected a RegionType, got 7"),
        (lambda: spmm(PLACE, PLACE + 1, PLACE, (3, 2), MATRIX), "`cols`: .*from 0 to 1, got 2"),
        (lambda: spmm(PLACE / 2, PLACE, PLACE, (3, 2), MATRIX), "`rows`: expected a tensor of int"),
        (lambda: spmm(PLACE, PLACE, PLACE, (3, 2, 1), MATRIX), "`size`: expected .rows, columns"),
        (
            lambda: ME.utils.sparse_quantize(POINTS, labels=np.array([1, 2], np.uint8)),
            "`ignore_label`: expected a number of torch.uint8, the dtype of `labels`, got -100",
        ),
        (
            lambda: ME.utils.sparse_quantize(POINTS, quantization_size=[1, 2]),
            "`quantization_size`: expected a number, or 3 of them",
        ),
        (
            lambda: ME.utils.sparse_quantize(POINTS, device="x"),
            "`device`: expected a device",
        ),
        (lambda: ME.TensorField(torch.ones(2), CELLS), r"`features`: expected \(2, C\)"),
        (
            lambda: ME.utils.SparseCollation()([(POINTS, POINTS), (POINTS, POINTS, 1)]),
            "`list_data`: expected tuples of the same length",
        ),
    ],
)
def test_what_is_wrong_of_an_argument_is_said(call, why):
    with pytest.raises(ArgumentError, match=why):
        call()


KERNEL, SHAPE = torch.ones(8, 3, 3), (1, 3, 4, 4, 4)
REGION = {"kernel_generator": 3, "dimension": 2}
SPARSE = ME.SparseTensor(ROWS, CELLS)
CLOUD = cloud([4], 3)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            lambda: tables.JoinTable()([]),
            r"`input`: expected a list of SparseConvTensors",
        ),
        (
            lambda: tables.AddTable()([CLOUD, ROWS]),
            "`input`: expected a SparseConvTensor",
        ),
        (lambda: tables.AddTableMisaligned()(None), "`input`: expected a list of SparseConvTens"),
        (lambda: spconv.ToDense()(ROWS), "`x`: expected a SparseConvTensor, got Tensor"),
        (lambda: spconv.RemoveGrid()(ROWS), "`x`: expected a SparseConvTensor, got Tensor"),
        (lambda: spconv.spatial.RemoveDuplicate()(3), "`x`: expected a SparseConvTensor, got int"),
        (lambda: lc.nn.SubmConv2d(3, 3, 3)(SPARSE), "`input`: expected a SparseTensor, got Sparse"),
        (
            lambda: torchsparse.cat([X, torchsparse.SparseTensor(ROWS[:1], COORDS[:1])]),
            "`inputs`: expected tensors at the same coordinates, 2 rows, got 1 rows",
        ),
        (
            lambda: torchsparse.nn.Conv3d(3, 4, 3)(torchsparse.SparseTensor(ROWS, None)),
            "`coords`: expected a torch tensor, got NoneType",
        ),
        (
            lambda: torchsparse.nn.Conv3d(3, 4, 3)(torchsparse.SparseTensor(None, COORDS)),
            "`feats`: expected a torch tensor, got NoneType",
        ),
        (lambda: spf.conv3d(X, None, 2), "`weight`: expected a torch tensor, got NoneType"),
        (
            lambda: spf.conv3d(X, KERNEL, 3),
            r"`weight`: expected \(27, C, K\), a matrix per tap of \(3, 3, 3\), got \(8, 3, 3\)",
        ),
        (
            lambda: torchsparse.nn.Conv3d(3, 4, 1).double()(X),
            "`weight`: expected torch.float32, the dtype of the features, got torch.float64",
        ),
        (
            lambda: torchsparse.utils.to_dense(ROWS, COORDS, (2, 3)),
            r"`coords`: expected \(rows, 2\), got \(2, 4\)",
        ),
        (
            lambda: torchsparse.utils.to_dense(ROWS, COORDS, None),
            "`spatial_range`: expected extents, one per column of coords, got None",
        ),
        (
            lambda: ME.MinkowskiConvolution(3, 4, 1, dimension=2).half()(SPARSE),
            "`weight`: expected torch.float32, the dtype of the features, got torch.float16",
        ),
        (lambda: ME.MinkowskiConvolution(3, 4, **REGION), "`kernel_generator`: expected a KernelG"),
        (lambda: ME.MinkowskiMaxPooling(2, **REGION), "`kernel_generator`: expected a KernelGener"),
        (
            lambda: ME.MinkowskiChannelwiseConvolution(-1, 3, dimension=2),
            "`in_channels`: expected an integer >= 1, got -1",
        ),
        (
            lambda: SPARSE.features_at_coordinates(CELLS[:, 1:].float()),
            r"`query_coordinates`: expected \(points, 3\), got \(2, 2\)",
        ),
        (
            lambda: sparse_submanifold_conv3d(None, COORDS, SHAPE, KERNEL),
            "`feats`: expected a torch tensor, got NoneType",
        ),
        (
            lambda: sparse_submanifold_conv3d(ROWS, COORDS, None, torch.ones(4, 3, 3, 3, 3)),
            r"`shape`: expected \(N, C, W, H, D\), got None",
        ),
    ],
)
def test_layers_and_tensors_name_what_does_not_fit(call, why):
    with pytest.raises(ArgumentError, match=why):
        call()


def test_dense_coordinates_are_those_of_nonzero():
    for shape in (1, 2, 3), (2, 5, 2, 4), (3, 1, 1, 2, 5), (0, 1, 3):
        cells = ME.dense_coordinates(shape)
        modes = (shape[0], *shape[2:])
        assert cells.dtype == torch.int32
        assert torch.equal(cells.long(), torch.ones(modes).nonzero())


def test_a_gpu_that_is_not_there_is_named() -> None:
    """Also where torch would fail within the call: a build for CUDA on a machine without one."""
    with pytest.raises(ArgumentError, match="`device`: expected a device of this machine, where"):
        ME.utils.batched_coordinates([COORDS], device="cuda:63")
